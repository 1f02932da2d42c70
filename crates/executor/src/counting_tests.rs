//! What the hot operations cost, counted in instructions: a clock on a busy machine tells nothing of some percent.
//!
//! Each operation is run by this very program under valgrind, some times and then some more times; the difference is
//! what one costs. The numbers are those of the tests' optimisation, to be compared with each other and nothing else.
//! Who makes an operation cheaper, or has a reason to make it dearer, writes down the number that the test tells.

use std::process::Command;
use std::sync::Arc;

use attune_core::{
    Action, ActionId, ActionSpec, Attempt, Epoch, ExecutionId, Outcome, PartitionId, RequestId,
    Submission, WorkerId,
};
use attune_dispatch::Life;

use crate::partition::{ClusterBounds, Completion, Effect, Event, OnReject, Partition, Submit};
use crate::queue::{ExecutionQueueManager, QueueConfig};
use crate::roster::SharedRoster;
use crate::stored::Sets;

/// What is counted, and the instructions that one of it took when that was last looked at.
const COUNTED: [(&str, Operation, u64); 5] = [
    ("enqueue with capacity", enqueue, 5_455),
    ("enqueue and release", enqueue_and_release, 3_477),
    ("release and grant the next", release_and_grant, 5_118),
    ("look up stats", look_up_stats, 1001),
    (
        "submit, grant and complete in a partition",
        pass_a_partition,
        72_379,
    ),
];
/// How far it may be from that: seeds of hashes and versions of the compiler differ.
const TOLERANCE_PERCENT: u64 = 5;
/// So many times, and so many times more.
const FEW: u32 = 2_000;
const MORE: u32 = 4_000;
/// Says to a run under valgrind what it is to do, and how often.
const ASKED: &str = "ATTUNE_COUNTED";

const ACTION: ActionId = ActionId(1);
const WORKER: WorkerId = WorkerId(uuid::Uuid::from_u128(9));

/// Does something so many times.
type Operation = fn(u32);

fn manager() -> ExecutionQueueManager {
    ExecutionQueueManager::new(QueueConfig {
        max_queue_length: u32::MAX,
        queue_timeout_seconds: 3600,
    })
}

fn enqueue(times: u32) {
    let manager = manager();
    for id in 0..i64::from(times) {
        let admission = manager.enqueue(ACTION, ExecutionId(id), u32::MAX);
        admission.expect("room");
    }
}

fn enqueue_and_release(times: u32) {
    let manager = manager();
    for id in 0..i64::from(times) {
        let admission = manager.enqueue(ACTION, ExecutionId(id), 10);
        admission.expect("room");
        manager.release(ACTION, ExecutionId(id));
    }
}

/// One holds the slot and another waits, all the time.
fn release_and_grant(times: u32) {
    let manager = manager();
    manager.enqueue(ACTION, ExecutionId(0), 1).expect("room");
    for id in 0..i64::from(times) {
        let admission = manager.enqueue(ACTION, ExecutionId(id + 1), 1);
        admission.expect("room");
        manager.release(ACTION, ExecutionId(id));
    }
}

fn look_up_stats(times: u32) {
    let manager = manager();
    manager.enqueue(ACTION, ExecutionId(0), 5).expect("room");
    for _ in 0..times {
        assert_eq!(
            manager.get_queue_stats(ACTION).map(|it| it.active_count),
            Some(1)
        );
    }
}

fn partition() -> Partition {
    let spec = ActionSpec::core_pack().remove(0);
    let roster = SharedRoster::default();
    roster.lock().set([Life {
        worker: WORKER,
        pool: spec.pool.clone(),
        slots: u32::MAX,
        draining: false,
    }]);
    let here = PartitionId(0);
    let cluster = ClusterBounds {
        partitions: 1,
        max_message_bytes: 1 << 20,
        lane_length: 0,
    };
    let mut partition = Partition::new(here, Epoch(1), cluster, manager(), roster);
    let action = Action {
        id: ACTION,
        partition: here,
        version: 1,
        spec,
    };
    let recover = Event::Recover {
        actions: vec![action],
        totals: Vec::new(),
        sets: Sets::default(),
    };
    partition.step(0, recover);
    partition.step(0, Event::RecoverRows(Vec::new()));
    partition
}

fn pass_a_partition(times: u32) {
    let mut partition = partition();
    let action_ref = ActionSpec::core_pack().remove(0).action_ref;
    for n in 0..times {
        let request_id = RequestId(uuid::Uuid::from_u128(n.into()));
        let submission = Submission::new(action_ref.as_str());
        let submit = Event::Submit {
            submit: Submit::new(request_id, submission, OnReject::Answer),
            known: None,
            reply_to: None,
        };
        let effects = partition.step(i64::from(n), submit);
        let granted = effects.iter().find_map(|effect| match effect {
            Effect::Dispatch(grantee) => Some(grantee.execution_id),
            _ => None,
        });
        let completed = Event::Completed(Completion {
            execution_id: granted.expect("there is room"),
            attempt: Attempt(1),
            action_id: ACTION,
            outcome: Arc::new(Outcome::succeeded(None)),
            worker: WORKER,
            user: None,
            ran: Some(5),
        });
        let effects = partition.step(i64::from(n), completed);
        assert!(
            effects
                .iter()
                .any(|effect| matches!(effect, Effect::End(_)))
        );
    }
}

/// How many instructions this program takes for an operation, so many times.
fn instructions(name: &str, times: u32) -> u64 {
    let test = "counting_tests::hot_operations_cost_as_many_instructions_as_they_did";
    let output = Command::new("valgrind")
        .args([
            "--tool=cachegrind",
            "--cache-sim=no",
            "--cachegrind-out-file=/dev/null",
        ])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--test-threads=1"])
        .env(ASKED, format!("{times} {name}"))
        .output();
    let output = output.expect("valgrind runs: `scripts/services install valgrind` installs it");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let line = said.lines().find_map(|line| line.split_once("I   refs:"));
    let digits = line.map(|(_, count)| count.replace([',', ' '], ""));
    let count = digits.and_then(|digits| digits.parse().ok());
    count.unwrap_or_else(|| panic!("no count of instructions in {said}"))
}

#[test]
fn hot_operations_cost_as_many_instructions_as_they_did() {
    if let Ok(asked) = std::env::var(ASKED) {
        let (times, name) = asked.split_once(' ').expect("how often, and what");
        let operation = COUNTED
            .iter()
            .find(|(it, ..)| *it == name)
            .expect("is counted");
        return operation.1(times.parse().expect("a number"));
    }
    let mut seen = String::new();
    let mut other = Vec::new();
    for (name, _, before) in COUNTED {
        let more = instructions(name, FEW + MORE) - instructions(name, FEW);
        let now = more / u64::from(MORE);
        seen += &format!("{name}: {now} instructions, {before} before\n");
        if now.abs_diff(before) * 100 > before * TOLERANCE_PERCENT {
            other.push(name);
        }
    }
    assert!(other.is_empty(), "other than before: {other:?}\n{seen}");
}
