//! A queue with a million groups, in each of which one waits; and one whose slots a thousand users share,
//! beside the same with groups alone. Printed, not sampled:
//! `cargo bench -p attune-executor --bench groups`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use attune_core::policy::Weights;
use attune_core::{
    ActionId, Attempt, Demand, ExecutionId, Flow, GroupKey, OrderRule, Priority, QueueTotals, Seq,
};
use attune_executor::policy::{Extra, QueueLimits, Share};
use attune_executor::queue::{ActionQueue, Waiting};

/// Resident bytes of this process.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = text
        .split(' ')
        .nth(1)
        .and_then(|word| word.parse().ok())
        .expect("a number");
    pages * 4096
}

fn main() {
    const COUNT: usize = 1_000_000;
    const RULE: i64 = 1;
    let limits = QueueLimits {
        max_concurrent: Some(1),
        max_length: u32::MAX,
        timeout_seconds: 3600,
        order: OrderRule::Ageing { step: 1_000 },
        extra: Extra {
            group_limit: Some(1),
            demands: Some(RULE),
            ..Extra::default()
        }
        .boxed(),
    };
    let count = i64::try_from(COUNT).expect("fits");
    let mut queue = ActionQueue::new(ActionId(1), limits, QueueTotals::default());
    let before = resident();
    let mut times = Vec::with_capacity(COUNT + 1);
    let room = resident() - before;
    for id in 0..=count {
        let waiting = Waiting {
            front: false,
            execution_id: ExecutionId(id),
            seq: Seq(id),
            enqueued_at: id,
            eligible_at: id,
            attempt: Attempt(0),
            unbegun: 0,
            delayed: false,
            share: Share::default(),
        };
        // A hash of the number, as keys are hashes.
        let hash = (id as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let demand = Demand {
            rule: RULE,
            group: GroupKey(hash.to_be_bytes()),
            cost: 1,
            user: None,
            rate: GroupKey::default(),
            flow: Flow::default(),
        };
        let priority = Priority::ALL[usize::try_from(id % 5).expect("below 5")];
        let began = Instant::now();
        queue.enter(priority, waiting, Some(&demand)).expect("room");
        times.push(began.elapsed());
    }
    let taken = resident() - before - room - COUNT * size_of::<Duration>();
    println!(
        "bytes per waiting execution, {COUNT} groups of one: {}",
        taken / COUNT
    );
    told("joining one of them", &mut times);
    for granted in 0..100_000 {
        let began = Instant::now();
        let slot = queue.grant_next(0).granted().expect("somebody waits");
        let ended = queue.finish(slot.execution_id, slot.attempt, false);
        times.push(began.elapsed());
        assert!(ended, "{granted}");
    }
    told("granting and ending", &mut times);
    shared(false);
    shared(true);
}

/// A hundred thousand executions of a thousand users, each with a group of its own.
fn shared(is_fair: bool) {
    const RULE: i64 = 1;
    const COUNT: i64 = 100_000;
    let limits = QueueLimits {
        max_concurrent: Some(50),
        max_length: u32::MAX,
        timeout_seconds: 3600,
        order: OrderRule::Priority,
        extra: Extra {
            group_limit: Some(5),
            demands: Some(RULE),
            fairness: is_fair.then(|| Arc::new(Weights::new(1, []))),
            ..Extra::default()
        }
        .boxed(),
    };
    let mut queue = ActionQueue::new(ActionId(1), limits, QueueTotals::default());
    let mut times = Vec::with_capacity(usize::try_from(COUNT).expect("fits"));
    for id in 0..COUNT {
        let waiting = Waiting {
            front: false,
            execution_id: ExecutionId(id),
            seq: Seq(id),
            enqueued_at: id,
            eligible_at: id,
            attempt: Attempt(0),
            unbegun: 0,
            delayed: false,
            share: Share::default(),
        };
        let hash = (id as u128 % 1_000 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let group = GroupKey(hash.to_be_bytes());
        let flow = if is_fair { vec![group] } else { Vec::new() };
        let demand = Demand {
            rule: RULE,
            group,
            cost: 1,
            user: None,
            rate: GroupKey::default(),
            flow: Flow::of(&flow).expect("one key at most"),
        };
        let began = Instant::now();
        queue
            .enter(Priority::Normal, waiting, Some(&demand))
            .expect("room");
        times.push(began.elapsed());
    }
    let whose = if is_fair {
        "shared by 1,000"
    } else {
        "1,000 groups"
    };
    told(&format!("{whose}: joining"), &mut times);
    let mut running = std::collections::VecDeque::new();
    loop {
        let began = Instant::now();
        while let Some(slot) = queue.grant_next(0).granted() {
            running.push_back(slot);
        }
        let Some(first) = running.pop_front() else {
            break;
        };
        let ended = queue.finish(first.execution_id, first.attempt, false);
        times.push(began.elapsed());
        assert!(ended, "{first:?}");
    }
    told(&format!("{whose}: granting and ending"), &mut times);
}

fn told(what: &str, times: &mut Vec<Duration>) {
    times.sort_unstable();
    let at = |share: usize| times[times.len() * share / 1000];
    println!(
        "{what}: p50 {:?}, p99 {:?}, p99.9 {:?}",
        at(500),
        at(990),
        at(999)
    );
    times.clear();
}
