//! What a plain limit costs the decisions, as work that is the same in every run, to be counted and not timed:
//! 100,000 executions of ten actions with a limit of five and 50 waiting, each submitted, granted and ended.
//!
//! ```sh
//! cargo bench -p attune-executor --bench plain_limit --no-run   # says where the program is
//! valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null PROGRAM
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use attune_core::{
    Action, ActionId, ActionSpec, Epoch, Outcome, PartitionId, RequestId, Submission, WorkerId,
};
use attune_dispatch::Life;
use attune_executor::partition::{
    ClusterBounds, Completion, Effect, Event, OnReject, Partition, Submit,
};
use attune_executor::roster::SharedRoster;
use attune_executor::stored::Sets;
use attune_executor::{ExecutionQueueManager, QueueConfig};

const COUNT: usize = 100_000;
const ACTIONS: usize = 10;
const LIMIT: u32 = 5;
const WAITING: usize = 50;
const PARTITION: PartitionId = PartitionId(0);

fn action(place: usize) -> Action {
    let mut spec = ActionSpec::core_pack().remove(0);
    spec.action_ref = format!("test.a{place}").parse().expect("a ref");
    spec.policy.concurrency.limit = Some(LIMIT);
    Action {
        id: ActionId(place as i64),
        partition: PARTITION,
        version: 1,
        spec,
    }
}

fn partition() -> Partition {
    let config = QueueConfig {
        max_queue_length: u32::MAX,
        queue_timeout_seconds: 1_000_000,
    };
    let cluster = ClusterBounds {
        partitions: 1,
        max_message_bytes: 1 << 20,
        lane_length: 0,
    };
    let queues = ExecutionQueueManager::new(config);
    let mut partition = Partition::new(PARTITION, Epoch(1), cluster, queues, roster());
    partition.step(
        0,
        Event::Recover {
            actions: (0..ACTIONS).map(action).collect(),
            totals: Vec::new(),
            sets: Sets::default(),
        },
    );
    partition
}

/// The life of a worker that has room for everybody.
const WORKER: WorkerId = WorkerId(uuid::Uuid::from_u128(9));

fn roster() -> SharedRoster {
    let roster = SharedRoster::default();
    roster.lock().set([Life {
        worker: WORKER,
        pool: ActionSpec::core_pack().remove(0).pool,
        slots: u32::MAX,
        draining: false,
    }]);
    roster
}

fn main() {
    let mut partition = partition();
    let bodies: Vec<Submission> = (0..ACTIONS)
        .map(|place| serde_json::from_str(&format!(r#"{{"action_ref":"test.a{place}"}}"#)))
        .collect::<Result<_, _>>()
        .expect("submissions");
    let outcome = Arc::new(Outcome::succeeded(None));
    let (mut holders, mut submitted, mut ended) = (VecDeque::new(), 0, 0);
    while ended < COUNT {
        let now = ended as i64 / 10;
        let is_full =
            submitted == COUNT || submitted - ended == ACTIONS * (LIMIT as usize + WAITING);
        let event = if is_full {
            let Some((execution_id, attempt, action_id)) = holders.pop_front() else {
                panic!("{ended} of {submitted} have ended, and nobody holds a slot");
            };
            ended += 1;
            Event::Completed(Completion {
                execution_id,
                attempt,
                action_id,
                outcome: Arc::clone(&outcome),
                worker: WORKER,
                user: None,
                ran: None,
            })
        } else {
            let body = bodies[submitted % ACTIONS].clone();
            submitted += 1;
            Event::Submit {
                submit: Submit::new(
                    RequestId(uuid::Uuid::from_u128(submitted as u128)),
                    body,
                    OnReject::Answer,
                ),
                known: None,
                reply_to: None,
            }
        };
        for effect in partition.step(now, event) {
            if let Effect::Dispatch(of) = effect {
                holders.push_back((of.execution_id, of.attempt, of.action.id));
            }
        }
    }
    println!("{ended} executions were submitted, granted and ended");
}
