//! How much is looked at where many groups wait for one rate, and rates over owners whose clocks differ.

use attune_core::{
    ActionId, Attempt, Demand, ExecutionId, Flow, GroupKey, OrderRule, PartitionId, Priority,
    QueueTotals, Seq,
};

use attune_core::explain::Reason;
use attune_core::policy::OnLimit;

use super::*;
use crate::policy::{Extra, QueueLimits, Rate, RateBound, Share};
use crate::queue::overflow::{Newcomer, Refused};

const RULE: i64 = 5;
const BEGIN: Millis = 1_000_000;

fn waiting(n: i64) -> Waiting {
    Waiting {
        execution_id: ExecutionId::new(PartitionId(0), Seq(n)),
        seq: Seq(n),
        enqueued_at: BEGIN,
        eligible_at: BEGIN,
        attempt: Attempt(0),
        unbegun: 0,
        delayed: false,
        front: false,
        share: Share::default(),
    }
}

/// However many groups wait for one rate, one of them comes back at a time.
#[test]
fn of_many_groups_that_wait_for_a_rate_one_is_next() {
    const GROUPS: i64 = 500;
    let mut queue = queue_of_many_groups(GROUPS, 2);
    let mut now = BEGIN;
    let mut started = Vec::new();
    for _ in 0..GROUPS / 2 {
        queue.pass(now);
        let seen = queue.groups_with_room();
        assert!(
            started.is_empty() || seen == 1,
            "{seen} groups stand among those with room"
        );
        let granted = std::iter::from_fn(|| queue.grant_next(now).granted());
        started.extend(granted.map(|it| it.execution_id.seq().0));
        assert_eq!(queue.groups_with_room(), 0);
        queue.settle_counted(now);
        now = queue.next_deadline().unwrap_or(now);
    }
    assert_eq!(started, (0..GROUPS).collect::<Vec<_>>());
}

/// Each of so many groups has one that waits, and all of them one rate, of which so many may start in a second.
fn queue_of_many_groups(groups: i64, max: u32) -> ActionQueue {
    let limits = QueueLimits {
        max_concurrent: None,
        max_length: 1_000_000,
        timeout_seconds: 86_400,
        order: OrderRule::Priority,
        extra: Extra {
            demands: Some(RULE),
            group_limit: Some(1),
            rate: Some(RateBound {
                rate: Rate { max, window: 1_000 },
                mark: 9,
                rejects: false,
            }),
            ..Extra::default()
        }
        .boxed(),
    };
    let mut queue = ActionQueue::new(ActionId(1), limits, QueueTotals::default());
    for n in 0..groups {
        let mut key = [1; 16];
        key[..8].copy_from_slice(&n.to_be_bytes());
        let demand = Demand {
            rule: RULE,
            group: GroupKey(key),
            cost: 1,
            user: None,
            rate: GroupKey([7; 16]),
            flow: Flow::default(),
        };
        let entered = queue.enter(Priority::Normal, waiting(n), Some(&demand));
        entered.unwrap();
    }
    queue
}

/// What a start costs beside how many groups wait for the same rate:
/// `cargo nextest run --release -p attune-executor --run-ignored only -E 'test(measured_starts)' --no-capture`.
#[test]
#[ignore = "a measurement"]
fn measured_starts_of_many_groups() {
    for groups in [1_000, 10_000, 100_000] {
        let mut queue = queue_of_many_groups(groups, 2);
        let mut now = BEGIN;
        let mut times = Vec::new();
        let mut started = 0;
        // The first time sets all of them aside.
        for round in 0..200 {
            let began = std::time::Instant::now();
            queue.pass(now);
            started += std::iter::from_fn(|| queue.grant_next(now).granted()).count();
            if round > 0 {
                times.push(began.elapsed());
            }
            queue.settle_counted(now);
            now = queue.next_deadline().unwrap();
        }
        times.sort_unstable();
        println!(
            "{groups} groups wait for one rate: {started} starts, each time it has room {:?} (p50), {:?} (max)",
            times[times.len() / 2],
            times[times.len() - 1],
        );
    }
}

/// Two may start in two seconds.
fn paced() -> QueueLimits {
    QueueLimits {
        max_concurrent: None,
        max_length: 100,
        timeout_seconds: 86_400,
        order: OrderRule::Priority,
        extra: Extra {
            rate: Some(RateBound {
                rate: Rate {
                    max: 2,
                    window: 2_000,
                },
                mark: 0,
                rejects: false,
            }),
            ..Extra::default()
        }
        .boxed(),
    }
}

/// An owner that stood still for seconds takes over with the time at which that began, and then sees what
/// time it is. What started meanwhile is not older than it is.
#[test]
fn an_owner_whose_clock_was_behind_counts_what_was_ahead_of_it() {
    let mut before = ActionQueue::new(ActionId(1), paced(), QueueTotals::default());
    for n in 1..=2 {
        before.enter(Priority::Normal, waiting(n), None).unwrap();
    }
    let began = BEGIN + 10_000;
    before.pass(began);
    while before.grant_next(began).granted().is_some() {}
    let counted = before.counted(began);
    let again = || {
        let mut queue = ActionQueue::new(ActionId(1), paced(), QueueTotals::default());
        queue.enter(Priority::Normal, waiting(3), None).unwrap();
        for it in &counted {
            queue.restore_counted(BEGIN, (it.limit, it.key), (&it.state, began + 5));
        }
        queue.pass(BEGIN);
        let until = BEGIN + 2_000;
        assert_eq!(queue.blocked(), Some(Blocked::Rate { until }));
        queue
    };
    let mut queue = again();
    queue.pass(began + 1_500);
    let until = began + 2_005;
    assert_eq!(queue.blocked(), Some(Blocked::Rate { until }));
    queue.pass(until);
    assert!(queue.grant_next(until).granted().is_some());
    // Where it was the clock of the store that was ahead, nobody waits for its time.
    let mut queue = again();
    queue.pass(BEGIN + 2_000);
    assert!(queue.grant_next(BEGIN + 2_000).granted().is_some());
}

/// Nobody lacks a slot who waits for the rate of all alone.
#[test]
fn a_limit_that_rejects_lets_those_wait_whom_their_rate_holds_up() {
    let mut limits = QueueLimits {
        max_concurrent: Some(3),
        ..paced()
    };
    limits.extra.as_mut().unwrap().on_limit = OnLimit::Reject;
    let mut queue = ActionQueue::new(ActionId(1), limits, QueueTotals::default());
    let arrive = |queue: &mut ActionQueue, n: i64| {
        queue.arrive(&Newcomer {
            priority: Priority::Normal,
            waiting: waiting(n),
            demand: None,
            not_before: None,
            most_replaced: 1,
        })
    };
    for n in 1..=6 {
        assert!(arrive(&mut queue, n).is_ok(), "{n}");
        queue.pass(BEGIN);
        while queue.grant_next(BEGIN).granted().is_some() {}
    }
    assert_eq!((queue.active_count(), queue.len()), (2, 4));
    queue.settle_counted(BEGIN);
    // One more holds the last slot, and then it is a limit that the next would wait for.
    queue.pass(BEGIN + 2_000);
    assert!(queue.grant_next(BEGIN + 2_000).granted().is_some());
    assert_eq!(queue.active_count(), 3);
    assert_eq!(
        arrive(&mut queue, 7).err(),
        Some(Refused::Limit { limit: 3 })
    );
}

/// Of one group those are before it who wait in other classes of it, too.
#[test]
fn who_waits_before_it_in_its_group_is_counted_whoever_its_rate_is_for() {
    let mut queue = queue_of_many_groups(0, 9);
    for n in 0..3 {
        let demand = Demand {
            rule: RULE,
            group: GroupKey([1; 16]),
            cost: 1,
            user: None,
            rate: GroupKey([u8::try_from(n + 1).unwrap(); 16]),
            flow: Flow::default(),
        };
        let entered = queue.enter(Priority::Normal, waiting(n), Some(&demand));
        entered.unwrap();
    }
    queue.pass(BEGIN);
    assert!(queue.grant_next(BEGIN).granted().is_some());
    for (n, before) in [(1, 0), (2, 1)] {
        let id = ExecutionId::new(PartitionId(0), Seq(n));
        let said = queue.explain(BEGIN, id, "default", None).unwrap();
        assert!(
            matches!(&said.waits_for[..], [Reason::GroupLimit(lack)] if lack.ahead == before),
            "{:?}",
            said.waits_for
        );
    }
}
