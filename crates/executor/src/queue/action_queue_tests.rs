//! Tests of the queue of one action: the examples, then random histories against a plain model.

use attune_core::OrderRule;
use proptest::prelude::*;

use super::*;
use crate::policy::Share;

fn limits(max_concurrent: u32) -> QueueLimits {
    QueueLimits {
        max_concurrent: Some(max_concurrent),
        max_length: 100,
        timeout_seconds: 60,
        order: OrderRule::Priority,
        extra: None,
    }
}

fn queue(max_concurrent: u32) -> ActionQueue {
    ActionQueue::new(ActionId(1), limits(max_concurrent), QueueTotals::default())
}

fn waiting(n: i64) -> Waiting {
    Waiting {
        front: false,
        execution_id: ExecutionId(n),
        seq: Seq(n),
        enqueued_at: n,
        eligible_at: n,
        attempt: Attempt(0),
        unbegun: 0,
        delayed: false,
        share: Share::default(),
    }
}

/// Ends this one and whoever is granted a slot after it; tells who that was, in order.
fn drain(queue: &mut ActionQueue, first: i64) -> Vec<i64> {
    let mut order = Vec::new();
    let mut holds = ExecutionId(first);
    while queue.finish(holds, Attempt(1), false) {
        let Some(granted) = queue.grant_next(0).granted() else {
            break;
        };
        holds = granted.execution_id;
        order.push(holds.0);
    }
    order
}

/// What the figures say when whoever has waited longest waits since then.
fn oldest(since: Millis) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_millis(since)
}

/// Lets these enter in order, and gives every free slot.
fn enter(queue: &mut ActionQueue, numbers: std::ops::RangeInclusive<i64>) {
    for n in numbers {
        queue.enter(Priority::Normal, waiting(n), None).unwrap();
        grant(queue);
    }
}

fn invariant(queue: &ActionQueue) {
    let totals = queue.totals();
    assert_eq!(
        totals.enqueued,
        totals.completed
            + totals.cancelled
            + totals.expired
            + queue.len() as u64
            + queue.active_count() as u64
    );
}

/// Gives a slot; which execution got it.
fn grant(queue: &mut ActionQueue) -> Option<i64> {
    queue
        .grant_next(0)
        .granted()
        .map(|granted| granted.execution_id.0)
}

/// Limit 2; A, B start; C, D, E wait at 0, 1, 2; each completion starts the next.
#[test]
fn five_executions_at_limit_two() {
    let mut queue = queue(2);
    let entered: Vec<(u64, Option<i64>)> = (1..=5)
        .map(|n| {
            let position = queue.enter(Priority::Normal, waiting(n), None).unwrap();
            (position, grant(&mut queue))
        })
        .collect();
    let expected = [(0, Some(1)), (0, Some(2)), (0, None), (1, None), (2, None)];
    assert_eq!(entered, expected);
    assert_eq!(
        queue.grant_next(0),
        Grant::Blocked(Blocked::Limit { limit: 2 })
    );
    for (done, next) in [(1, Some(3)), (2, Some(4)), (3, Some(5)), (4, None)] {
        assert!(queue.finish(ExecutionId(done), Attempt(1), false));
        assert_eq!(grant(&mut queue), next);
        invariant(&queue);
    }
}

#[test]
fn a_repeated_or_foreign_completion_releases_nothing() {
    let mut queue = queue(1);
    enter(&mut queue, 1..=2);
    assert!(
        !queue.finish(ExecutionId(1), Attempt(2), false),
        "another attempt"
    );
    assert!(
        !queue.finish(ExecutionId(2), Attempt(1), false),
        "one that waits"
    );
    assert!(queue.finish(ExecutionId(1), Attempt(1), false));
    assert!(
        !queue.finish(ExecutionId(1), Attempt(1), false),
        "the same again"
    );
    assert_eq!(grant(&mut queue), Some(2));
    assert_eq!(grant(&mut queue), None);
    invariant(&queue);
}

#[test]
fn a_full_queue_refuses_and_changes_nothing() {
    let mut queue = queue(1);
    queue.set_limits(QueueLimits {
        max_length: 2,
        ..limits(1)
    });
    enter(&mut queue, 1..=3);
    let before = queue.stats();
    let full = queue.enter(Priority::Normal, waiting(4), None).unwrap_err();
    assert_eq!(full.to_string(), "Queue full (max length: 2)");
    assert_eq!(queue.stats(), before);
}

#[test]
fn a_higher_priority_goes_first_and_order_holds_inside_one() {
    let mut queue = queue(1);
    enter(&mut queue, 1..=1);
    for (n, priority) in [
        (2, Priority::Low),
        (3, Priority::Critical),
        (4, Priority::Low),
        (5, Priority::Critical),
    ] {
        queue.enter(priority, waiting(n), None).unwrap();
    }
    assert_eq!(queue.position(Seq(4)), Some(3));
    let mut order = Vec::new();
    let mut running = ExecutionId(1);
    while queue.finish(running, Attempt(1), false) {
        let Some(next) = grant(&mut queue) else {
            break;
        };
        running = ExecutionId(next);
        order.push(next);
    }
    assert_eq!(order, [3, 5, 2, 4]);
}

#[test]
fn a_revoked_execution_keeps_its_place() {
    let mut queue = queue(2);
    enter(&mut queue, 1..=4);
    assert!(queue.put_back(ExecutionId(1), Attempt(1), true, None));
    assert!(!queue.put_back(ExecutionId(1), Attempt(1), true, None));
    let granted = Granted {
        execution_id: ExecutionId(1),
        attempt: Attempt(2),
        delayed: false,
        priority: Priority::Normal,
        eligible_at: 1,
    };
    assert_eq!(queue.grant_next(0), Grant::Granted(granted));
    assert!(
        !queue.finish(ExecutionId(1), Attempt(1), false),
        "the lost attempt is void"
    );
    invariant(&queue);
}

#[test]
fn executions_expire_from_the_head_when_their_time_is_over() {
    let mut queue = queue(1);
    for n in 1..=4 {
        queue
            .enter(
                Priority::Normal,
                Waiting {
                    enqueued_at: n * 1000,
                    eligible_at: n * 1000,
                    ..waiting(n)
                },
                None,
            )
            .unwrap();
        grant(&mut queue);
    }
    assert_eq!(queue.next_deadline(), Some(62_000));
    assert_eq!(queue.expire(61_999, 10), []);
    let expired: Vec<i64> = queue
        .expire(63_000, 10)
        .iter()
        .map(|w| w.execution_id.0)
        .collect();
    assert_eq!(expired, [2, 3]);
    assert_eq!(queue.next_deadline(), Some(64_000));
    invariant(&queue);
}

#[test]
fn a_delayed_execution_takes_its_place_when_its_time_comes() {
    let mut queue = queue(1);
    enter(&mut queue, 1..=1);
    queue
        .enter_delayed(Priority::Normal, waiting(2), None, 500)
        .unwrap();
    queue.enter(Priority::Normal, waiting(3), None).unwrap();
    assert_eq!(queue.next_deadline(), Some(500));
    queue.wake_delayed(499, 10);
    assert_eq!(queue.position(Seq(2)), None);
    assert_eq!(queue.stats().oldest_enqueued_at, oldest(3));
    queue.wake_delayed(500, 10);
    assert_eq!(queue.position(Seq(2)), Some(0));
    assert_eq!(
        queue.cancel_waiting(Seq(2)).map(|w| w.execution_id),
        Some(ExecutionId(2))
    );
    invariant(&queue);
}

/// A low priority is not passed for ever: who came a step earlier for each rank goes first.
#[test]
fn a_wait_is_worth_a_priority_when_there_is_ageing() {
    let mut queue = queue(1);
    queue.set_limits(QueueLimits {
        order: OrderRule::Ageing { step: 100 },
        ..limits(1)
    });
    let came = [
        (1, Priority::Normal, 0),
        (2, Priority::Background, 10),
        (3, Priority::Low, 20),
        (4, Priority::High, 205),
        (5, Priority::Normal, 215),
        (6, Priority::High, 311),
        (7, Priority::Critical, 411),
    ];
    for (n, priority, time) in came {
        let entry = Waiting {
            enqueued_at: time,
            eligible_at: time,
            ..waiting(n)
        };
        queue.enter(priority, entry, None).unwrap();
        grant(&mut queue);
    }
    // 410, 320, 305, 415, 411 and 411: the last two by place.
    let order = [4, 3, 2, 6, 7, 5];
    for (position, n) in order.into_iter().enumerate() {
        assert_eq!(queue.position(Seq(n)), Some(position as u64), "{n}");
    }
    assert_eq!(drain(&mut queue, 1), order);
}

/// A change of the rule holds for who waits already.
#[test]
fn who_waits_goes_by_the_rule_as_it_is_now() {
    let mut queue = queue(1);
    enter(&mut queue, 1..=1);
    for (n, priority) in [
        (2, Priority::Low),
        (3, Priority::Critical),
        (4, Priority::Normal),
    ] {
        queue.enter(priority, waiting(n), None).unwrap();
    }
    let mut order = |order, first| {
        queue.set_limits(QueueLimits { order, ..limits(1) });
        assert_eq!(queue.position(Seq(first)), Some(0), "{order:?}");
    };
    order(OrderRule::Fifo, 2);
    order(OrderRule::Priority, 3);
    order(OrderRule::Ageing { step: 1 }, 3);
    assert_eq!(drain(&mut queue, 1), [3, 2, 4]);
}

/// Nobody who may not start yet has waited for a slot, so such a queue has no age.
#[test]
fn who_is_delayed_has_no_age() {
    let mut queue = queue(1);
    queue
        .enter_delayed(Priority::Normal, waiting(1), None, 500)
        .unwrap();
    let stats = queue.stats();
    assert_eq!((stats.queue_length, stats.oldest_enqueued_at), (1, None));
    queue.wake_delayed(500, 10);
    assert_eq!(queue.stats().oldest_enqueued_at, oldest(500));
}

#[test]
fn lowering_the_limit_drains_and_raising_it_makes_room() {
    let mut queue = queue(3);
    enter(&mut queue, 1..=6);
    queue.set_limits(limits(1));
    for n in 1..=2 {
        assert!(queue.finish(ExecutionId(n), Attempt(1), false));
        assert_eq!(grant(&mut queue), None);
    }
    queue.set_limits(QueueLimits {
        max_concurrent: None,
        ..limits(1)
    });
    let granted = std::iter::from_fn(|| grant(&mut queue)).count();
    assert_eq!((granted, queue.active_count()), (3, 4));
}

#[test]
fn who_is_not_granted_a_slot_is_told_why() {
    let mut queue = queue(1);
    assert_eq!(queue.blocked(), Some(Blocked::Empty));
    queue
        .enter_delayed(Priority::Normal, waiting(1), None, 700)
        .unwrap();
    queue
        .enter_delayed(Priority::High, waiting(2), None, 900)
        .unwrap();
    assert_eq!(
        queue.grant_next(0),
        Grant::Blocked(Blocked::Delayed { until: 700 })
    );
    queue.wake_delayed(700, 10);
    assert_eq!(queue.blocked(), None, "the next grant goes to somebody");
    assert_eq!(grant(&mut queue), Some(1));
    // Whoever has its time still waits for a slot, however many wait for their time.
    queue.enter(Priority::Low, waiting(3), None).unwrap();
    assert_eq!(
        queue.grant_next(0),
        Grant::Blocked(Blocked::Limit { limit: 1 })
    );
    queue.set_pool_closed(true);
    assert_eq!(
        queue.blocked(),
        Some(Blocked::Limit { limit: 1 }),
        "the nearer reason"
    );
    assert!(queue.finish(ExecutionId(1), Attempt(1), false));
    assert_eq!(queue.grant_next(0), Grant::Blocked(Blocked::PoolClosed));
    queue.set_pool_closed(false);
    assert_eq!(grant(&mut queue), Some(3));
    assert!(queue.finish(ExecutionId(3), Attempt(1), false));
    assert_eq!(queue.blocked(), Some(Blocked::Delayed { until: 900 }));
    invariant(&queue);
}

/// Who would start at once needs no room to wait in; who would wait does.
#[test]
fn a_queue_without_room_lets_in_only_who_need_not_wait() {
    let full =
        |queue: &mut ActionQueue, n| queue.enter(Priority::Normal, waiting(n), None).is_err();
    let mut queue = queue(1);
    queue.set_limits(QueueLimits {
        max_length: 0,
        ..limits(1)
    });
    queue.set_pool_closed(true);
    assert!(full(&mut queue, 1), "a closed pool makes it wait");
    queue.set_pool_closed(false);
    assert!(!full(&mut queue, 2));
    assert_eq!(grant(&mut queue), Some(2));
    assert!(full(&mut queue, 3), "the slot is taken");
    assert!(
        queue
            .enter_delayed(Priority::Normal, waiting(4), None, 500)
            .is_err()
    );
    assert!(queue.finish(ExecutionId(2), Attempt(1), false));
    queue.set_limits(QueueLimits {
        max_length: 0,
        ..limits(0)
    });
    assert!(full(&mut queue, 5), "a limit of 0 lets nobody start");
    assert_eq!(queue.totals().enqueued, 1);
    invariant(&queue);
}

#[test]
fn no_more_are_woken_or_expired_at_a_time_than_asked_for() {
    let mut queue = queue(1);
    for n in 1..=5 {
        queue
            .enter_delayed(Priority::Normal, waiting(n), None, 100)
            .unwrap();
    }
    queue.wake_delayed(100, 2);
    assert_eq!(queue.position(Seq(2)), Some(1));
    assert_eq!(queue.position(Seq(3)), None);
    assert_eq!(
        queue.next_deadline(),
        Some(100),
        "there is more to do at once"
    );
    queue.wake_delayed(100, 10);
    assert_eq!(queue.position(Seq(5)), Some(4));
    // It counts as waiting from its time on.
    assert_eq!(queue.next_deadline(), Some(60_100));
    assert_eq!(queue.expire(60_100, 3).len(), 3);
    assert_eq!(queue.next_deadline(), Some(60_100));
    assert_eq!(queue.expire(60_100, 3).len(), 2);
    assert_eq!(queue.next_deadline(), None);
    invariant(&queue);
}

#[derive(Debug, Clone)]
enum Op {
    Enter(u8),
    Finish(usize),
    Revoke(usize),
    Cancel(usize),
    Limit(u32),
    Expire(i64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (0..5_u8).prop_map(Op::Enter),
        4 => (0..20_usize).prop_map(Op::Finish),
        1 => (0..20_usize).prop_map(Op::Revoke),
        1 => (0..20_usize).prop_map(Op::Cancel),
        1 => (1..5_u32).prop_map(Op::Limit),
        1 => (0..3_i64).prop_map(Op::Expire),
    ];
    prop::collection::vec(op, 1..200)
}

proptest! {
    /// Whatever happens: the limit is not exceeded by a grant, every grant goes to the first in
    /// (priority, sequence), and the totals balance.
    #[test]
    fn random_histories_keep_the_promises(ops in ops()) {
        let mut queue = queue(2);
        let mut now = 0;
        let mut next = 1;
        // The model: a sorted list of who waits.
        let mut model: Vec<(Priority, i64)> = Vec::new();
        let mut attempts = std::collections::HashMap::<i64, (Priority, Attempt)>::new();
        for op in ops {
            match op {
                Op::Enter(rank) => {
                    let priority = Priority::from_rank(rank).unwrap();
                    let entry = Waiting { enqueued_at: now, eligible_at: now, ..waiting(next) };
                    match queue.enter(priority, entry, None) {
                        Ok(position) => {
                            model.push((priority, next));
                            model.sort_unstable();
                            prop_assert_eq!(model[usize::try_from(position).unwrap()], (priority, next));
                            let waits = queue.position(Seq(next));
                            prop_assert_eq!(waits, Some(position));
                        }
                        Err(_) => prop_assert_eq!(model.len(), 100),
                    }
                    next += 1;
                }
                Op::Finish(k) | Op::Revoke(k) => {
                    let mut held: Vec<i64> = attempts.keys().copied().collect();
                    held.sort_unstable();
                    if let Some(id) = held.get(k).copied() {
                        let (priority, attempt) = attempts.remove(&id).unwrap();
                        if matches!(op, Op::Finish(_)) {
                            prop_assert!(queue.finish(ExecutionId(id), attempt, false));
                        } else {
                            prop_assert!(queue.put_back(ExecutionId(id), attempt, true, None));
                            model.push((priority, id));
                            model.sort_unstable();
                        }
                    }
                }
                Op::Cancel(k) => {
                    if k < model.len() {
                        let (_, id) = model.remove(k);
                        prop_assert!(queue.cancel_waiting(Seq(id)).is_some());
                    }
                }
                Op::Limit(limit) => queue.set_limits(limits(limit)),
                Op::Expire(seconds) => {
                    now += seconds * 20_000;
                    for gone in queue.expire(now, usize::MAX) {
                        prop_assert!(gone.eligible_at + 60_000 <= now);
                        model.retain(|(_, id)| *id != gone.execution_id.0);
                    }
                }
            }
            while let Some(granted) = queue.grant_next(0).granted() {
                let (priority, id) = model.remove(0);
                prop_assert_eq!(granted.execution_id, ExecutionId(id));
                prop_assert!(queue.active_count() <= queue.limits().max_concurrent.unwrap() as usize);
                attempts.insert(id, (priority, granted.attempt));
            }
            // What is not granted has a reason.
            let limit = queue.limits().max_concurrent.unwrap();
            let reason = if model.is_empty() { Blocked::Empty } else { Blocked::Limit { limit } };
            prop_assert_eq!(queue.blocked(), Some(reason));
            prop_assert_eq!(queue.len(), model.len());
            invariant(&queue);
        }
    }
}
