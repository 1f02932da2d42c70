//! Tests of how many stand ahead of their slots.

use attune_core::explain::Reason;
use attune_core::{ActionId, Attempt, Epoch, OrderRule, PartitionId, QueueTotals};

use super::*;
use crate::policy::{Extra, Share};
use crate::queue::action_queue::group_tests::{RULE, demand};
use crate::queue::{Blocked, Grant};

/// One that waits in the order of its id.
fn waiting(execution_id: ExecutionId) -> Waiting {
    Waiting {
        execution_id,
        seq: execution_id.seq(),
        enqueued_at: execution_id.seq().0,
        eligible_at: 0,
        attempt: Attempt(0),
        unbegun: 0,
        delayed: false,
        front: false,
        share: Share::default(),
    }
}

fn noted(ran: Millis, ends: u32, at_once: u32) -> Ahead {
    let mut ahead = Ahead::default();
    for end in 0..ends {
        ahead.note(Millis::from(end / at_once), ran, 1);
    }
    ahead
}

#[test]
fn a_line_begins_when_enough_have_ended_and_grows_where_half_of_it_ends_in_a_round() {
    assert_eq!(noted(1, 3, 1).most(1, 256), 0);
    assert_eq!(noted(1, 4, 1).most(1, 256), 8);
    assert_eq!(noted(1, 800, 3).most(1, 256), 8);
    assert_eq!(noted(1, 12, 4).most(1, 256), 16);
    assert_eq!(noted(1, 64, 32).most(1, 256), 100, "as much work as may be");
    assert_eq!(noted(1, 1_000, 100).most(1, 60), 60, "as long as it may be");
    assert_eq!(noted(1, 1_000, 100).most(1, 0), 0);
}

#[test]
fn a_line_is_as_much_work_as_somebody_may_wait_who_belongs_before_it() {
    assert_eq!(noted(20, 1_000, 100).most(1, 256), 5);
    assert_eq!(noted(400, 1_000, 1).most(1, 256), 1);
    assert_eq!(noted(400, 1_000, 1).most(4, 256), 4, "each slot has a next");
    assert_eq!(
        noted(600, 1_000, 1).most(4, 256),
        0,
        "long runs hide the way"
    );
    assert_eq!(noted(0, 1_000, 1).most(1, 256), 8);
}

/// A later owner finds them by when they were accepted, and the action may have had another order since: their
/// worker begins them by their grants.
#[test]
fn a_line_is_restored_by_its_grants() {
    let policy = |order| QueueLimits {
        max_concurrent: Some(1),
        max_length: 100,
        timeout_seconds: 60,
        order,
        extra: None,
    };
    for order in [OrderRule::Fifo, OrderRule::Priority] {
        let mut queue = ActionQueue::new(ActionId(1), policy(order), QueueTotals::default());
        let places = [
            (1, Priority::Low, 7),
            (2, Priority::High, 9),
            (3, Priority::Normal, 8),
        ];
        let id = |n| ExecutionId::new(PartitionId(0), Seq::new(Epoch(1), n));
        for (n, priority, grant_no) in places {
            let holder = Holder {
                worker: Some(WorkerId::fresh()),
                ahead: Some(grant_no),
                ..holder_of(priority, &waiting(id(n)))
            };
            queue.restore_holder(id(n), holder, None);
        }
        for next in [1, 3, 2] {
            assert_eq!(
                queue.hand_on(0).map(|(id, _)| id),
                Some(id(next)),
                "{order:?}"
            );
            assert!(queue.forget_holder(id(next)));
        }
    }
}

#[test]
fn actions_gather_at_different_workers_where_these_have_as_many() {
    let workers = [1, 2].map(|n| WorkerId(uuid::Uuid::from_u128(n)));
    let limits = QueueLimits {
        max_concurrent: Some(2),
        max_length: 100,
        timeout_seconds: 60,
        order: OrderRule::Fifo,
        extra: None,
    };
    let host = |action| {
        let totals = QueueTotals::default();
        let mut queue = ActionQueue::new(ActionId(action), limits.clone(), totals);
        for (n, worker) in (1..).zip(workers) {
            let holder = Holder {
                worker: Some(worker),
                ..holder_of(Priority::Normal, &waiting(ExecutionId(n)))
            };
            queue.restore_holder(ExecutionId(n), holder, None);
        }
        queue
            .enter(Priority::Normal, waiting(ExecutionId(3)), None)
            .expect("room");
        assert_eq!(
            queue.gathers_at(256),
            None,
            "nobody knows how long runs take"
        );
        for _ in 0..ENOUGH_ENDS {
            queue.note_end(0, 1);
        }
        let (host, slots) = queue.gathers_at(256).expect("runs are short");
        assert_eq!(slots, 2);
        host
    };
    let at_first = (0..100).filter(|action| host(*action) == workers[0]);
    let count = at_first.count();
    assert!((30..=70).contains(&count), "{count} of 100");
}

/// Who stood ahead when its action came to limit what executions cost is told what the holders cost, and not how
/// many they are.
#[test]
fn who_stands_ahead_is_told_what_the_holders_cost() {
    let plain = QueueLimits {
        max_concurrent: Some(2),
        max_length: 100,
        timeout_seconds: 60,
        order: OrderRule::Fifo,
        extra: None,
    };
    let mut queue = ActionQueue::new(ActionId(1), plain.clone(), QueueTotals::default());
    let (holds, stands_ahead) = (ExecutionId(1), ExecutionId(2));
    for (id, ahead) in [(holds, None), (stands_ahead, Some(1))] {
        let holder = Holder {
            ahead,
            ..holder_of(Priority::Normal, &waiting(id))
        };
        queue.restore_holder(id, holder, None);
    }
    queue.set_limits(QueueLimits {
        extra: Extra {
            demands: Some(RULE),
            ..Extra::default()
        }
        .boxed(),
        ..plain
    });
    let reasons = |queue: &ActionQueue| {
        let said = queue.explain(0, stands_ahead, "pool", None);
        said.expect("it is there").waits_for
    };
    assert_eq!(reasons(&queue), [Reason::Regrouping { unknown: 2 }]);
    assert!(queue.assign(holds, &demand(0, 2)));
    assert!(queue.assign(stands_ahead, &demand(0, 1)));
    let reasons = reasons(&queue);
    let [Reason::Limit(lack)] = reasons.as_slice() else {
        panic!("{reasons:?}");
    };
    let holders: Vec<_> = lack.holders.iter().map(|it| it.execution_id).collect();
    assert_eq!((lack.capacity, lack.used, lack.cost), (2, 2, 1));
    assert_eq!(holders, [holds]);
}

/// Nobody passes those who stand ahead, also where the limit is lifted for which they do, and their groups have no
/// room while another has.
#[test]
fn nobody_passes_those_ahead_when_the_limit_is_lifted() {
    let (holds, stands_ahead, waits) = (ExecutionId(1), ExecutionId(2), ExecutionId(3));
    let plain = QueueLimits {
        max_concurrent: Some(1),
        max_length: 100,
        timeout_seconds: 60,
        order: OrderRule::Fifo,
        extra: None,
    };
    let mut queue = ActionQueue::new(ActionId(1), plain.clone(), QueueTotals::default());
    for (id, ahead) in [(holds, None), (stands_ahead, Some(1))] {
        let holder = Holder {
            ahead,
            ..holder_of(Priority::Normal, &waiting(id))
        };
        queue.restore_holder(id, holder, None);
    }
    queue
        .enter(Priority::Normal, waiting(waits), None)
        .expect("room");
    queue.set_limits(QueueLimits {
        max_concurrent: None,
        extra: Extra {
            demands: Some(RULE),
            group_limit: Some(1),
            ..Extra::default()
        }
        .boxed(),
        ..plain
    });
    for (id, group) in [(holds, 1), (stands_ahead, 1), (waits, 2)] {
        assert!(queue.assign(id, &demand(group, 1)));
    }
    assert_eq!(queue.hand_on(0), None);
    assert_eq!(queue.grant_next(0), Grant::Blocked(Blocked::Line));
    assert!(queue.forget_holder(holds));
    assert_eq!(queue.hand_on(0).map(|(id, _)| id), Some(stands_ahead));
    assert!(matches!(queue.grant_next(0), Grant::Granted(_)));
}
