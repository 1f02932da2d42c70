//! Tests of what newcomers lead to, by example.

use attune_core::{ActionId, Flow, GroupKey, OrderRule, PartitionId, QueueTotals};

use super::*;
use crate::policy::{Extra, QueueLimits, Share};

pub(super) const RULE: i64 = 7;

pub(super) fn limits(extra: Extra) -> QueueLimits {
    QueueLimits {
        max_concurrent: Some(2),
        max_length: 3,
        timeout_seconds: 60,
        order: OrderRule::Priority,
        extra: extra.boxed(),
    }
}

fn queue(extra: Extra) -> ActionQueue {
    ActionQueue::new(ActionId(1), limits(extra), QueueTotals::default())
}

pub(super) fn id(n: i64) -> ExecutionId {
    ExecutionId::new(PartitionId(0), Seq(n))
}

pub(super) fn waiting(n: i64, now: Millis) -> Waiting {
    Waiting {
        execution_id: id(n),
        seq: Seq(n),
        enqueued_at: now,
        eligible_at: now,
        attempt: Attempt(0),
        unbegun: 0,
        delayed: false,
        front: false,
        share: Share::default(),
    }
}

fn newcomer(n: i64) -> Newcomer<'static> {
    Newcomer {
        priority: Priority::Normal,
        waiting: waiting(n, n),
        demand: None,
        not_before: None,
        most_replaced: 1_000,
    }
}

/// Takes somebody in and gives free slots; tells who is gone and who is asked to end.
fn arrive(queue: &mut ActionQueue, who: &Newcomer<'_>) -> Result<(Vec<i64>, Vec<i64>), Refused> {
    let arrival = queue.arrive(who)?;
    while queue.grant_next(0).granted().is_some() {}
    let gone = arrival.gone.iter().map(|(waiting, _)| waiting.seq.0);
    let asked = arrival.asked.iter().map(|(id, _)| id.seq().0);
    Ok((gone.collect(), asked.collect()))
}

#[test]
fn the_oldest_of_the_lowest_priority_is_dropped_and_nobody_of_a_higher_one() {
    let mut queue = queue(Extra {
        on_full: OnFull::DropOldest,
        ..Extra::default()
    });
    let with = |n, priority| Newcomer {
        priority,
        ..newcomer(n)
    };
    for n in 1..=2 {
        assert_eq!(arrive(&mut queue, &newcomer(n)), Ok((vec![], vec![])));
    }
    for (n, priority) in [
        (3, Priority::High),
        (4, Priority::Normal),
        (5, Priority::Normal),
    ] {
        assert_eq!(arrive(&mut queue, &with(n, priority)), Ok((vec![], vec![])));
    }
    let full = Err(Refused::Full(QueueFull { max_length: 3 }));
    assert_eq!(arrive(&mut queue, &with(6, Priority::Low)), full);
    let taken = arrive(&mut queue, &with(6, Priority::Normal));
    assert_eq!(taken, Ok((vec![4], vec![])));
    let taken = arrive(&mut queue, &with(7, Priority::Critical));
    assert_eq!(taken, Ok((vec![5], vec![])));
    assert_eq!((queue.len(), queue.totals().cancelled), (3, 2));
    // Who has held a slot and waits again is left alone.
    assert!(queue.put_back(id(1), Attempt(1), true, None));
    let taken = arrive(&mut queue, &with(8, Priority::Normal));
    assert_eq!(taken, Ok((vec![6], vec![])));
    assert_eq!(queue.holder(id(1)).map(|it| it.attempt), None);
    assert_eq!(queue.holder(id(7)).map(|it| it.attempt), Some(Attempt(1)));
}

#[test]
fn whoever_would_wait_for_a_limit_is_refused_and_whoever_waits_for_something_else_is_not() {
    let mut queue = queue(Extra {
        on_limit: OnLimit::Reject,
        ..Extra::default()
    });
    queue.set_pool_closed(true);
    for n in 1..=2 {
        assert_eq!(arrive(&mut queue, &newcomer(n)), Ok((vec![], vec![])));
    }
    assert_eq!(queue.blocked(), Some(Blocked::PoolClosed));
    queue.set_pool_closed(false);
    let reached = Err(Refused::Limit { limit: 2 });
    assert_eq!(arrive(&mut queue, &newcomer(3)), reached, "both go first");
    let later = Newcomer {
        not_before: Some(99),
        ..newcomer(3)
    };
    assert_eq!(arrive(&mut queue, &later), Ok((vec![], vec![])));
    assert!(queue.finish(id(1), Attempt(1), false));
    assert_eq!(arrive(&mut queue, &newcomer(4)), Ok((vec![], vec![])));
    assert_eq!(arrive(&mut queue, &newcomer(5)), reached);
}

#[test]
fn whoever_is_due_and_asleep_is_no_limit_for_those_who_come() {
    let mut queue = queue(Extra {
        on_limit: OnLimit::Reject,
        demands: Some(RULE),
        ..Extra::default()
    });
    let demand = |cost| Demand {
        rule: RULE,
        group: GroupKey([0; 16]),
        cost,
        user: None,
        rate: GroupKey::default(),
        flow: Flow::default(),
    };
    let (one, two) = (demand(1), demand(2));
    let later = |n, demand, time| Newcomer {
        demand: Some(demand),
        not_before: Some(time),
        ..newcomer(n)
    };
    let now = |n, priority| Newcomer {
        priority,
        demand: Some(&one),
        ..newcomer(n)
    };
    // One runs, and the first that waits takes two: there is no room for it, nor a reason that a
    // more urgent one should wait behind it.
    assert!(queue.arrive(&now(1, Priority::High)).is_ok());
    assert!(queue.grant_next(1).granted().is_some());
    assert!(queue.arrive(&later(2, &two, 3)).is_ok());
    queue.wake_delayed(3, usize::MAX);
    assert!(queue.grant_next(3).granted().is_none());
    assert!(queue.arrive(&later(3, &one, 9)).is_ok());
    let normal = queue.arrive(&Newcomer {
        waiting: waiting(4, 9),
        ..now(4, Priority::Normal)
    });
    assert_eq!(normal.map(|_| ()), Err(Refused::Limit { limit: 2 }));
    // The third is due and asleep: who comes waits for it to wake, and not for a limit.
    let urgent = queue.arrive(&Newcomer {
        waiting: waiting(5, 9),
        ..now(5, Priority::Critical)
    });
    assert_eq!(urgent.map(|arrival| arrival.gone), Ok(vec![]));
    assert_eq!(
        queue
            .grant_next(9)
            .granted()
            .map(|granted| granted.execution_id),
        Some(id(5))
    );
}

#[test]
fn the_latest_wins_and_as_many_as_needed_are_asked_to_end() {
    let mut queue = queue(Extra {
        on_limit: OnLimit::CancelRunning,
        ..Extra::default()
    });
    for n in 1..=2 {
        assert_eq!(arrive(&mut queue, &newcomer(n)), Ok((vec![], vec![])));
    }
    assert_eq!(arrive(&mut queue, &newcomer(3)), Ok((vec![], vec![1])));
    assert_eq!(queue.active_count(), 2, "it has the slot when it is free");
    assert_eq!(
        arrive(&mut queue, &newcomer(4)),
        Ok((vec![3], vec![])),
        "one is on its way out"
    );
    let later = Newcomer {
        not_before: Some(99),
        ..newcomer(5)
    };
    assert_eq!(arrive(&mut queue, &later), Ok((vec![], vec![])));
    assert!(queue.finish(id(1), Attempt(1), true));
    assert!(queue.grant_next(0).granted().is_some());
    // Who is to be tried again is older than whoever comes, even if that one starts at once.
    assert!(queue.put_back(id(2), Attempt(1), true, Some(500)));
    assert_eq!(arrive(&mut queue, &newcomer(6)), Ok((vec![2], vec![])));
    queue.set_hold(attune_core::Hold {
        mode: Some(attune_core::PauseMode::Pause),
        ..attune_core::Hold::NONE
    });
    assert_eq!(
        arrive(&mut queue, &newcomer(7)),
        Ok((vec![], vec![])),
        "nobody ends for one who cannot start"
    );
}

#[test]
fn a_user_has_so_many_and_no_more() {
    let mut queue = queue(Extra {
        demands: Some(RULE),
        per_user: Some(2),
        on_full: OnFull::DropOldest,
        ..Extra::default()
    });
    let demand = |user: Option<u8>| Demand {
        rule: RULE,
        group: GroupKey::default(),
        cost: 1,
        user: user.map(|user| GroupKey([user; 16])),
        rate: GroupKey::default(),
        flow: Flow::default(),
    };
    let (ann, bob, nobody) = (demand(Some(1)), demand(Some(2)), demand(None));
    let of = |n, demand| Newcomer {
        demand: Some(demand),
        ..newcomer(n)
    };
    let taken = Ok((vec![], vec![]));
    let refused = Err(Refused::User { limit: 2 });
    assert_eq!(arrive(&mut queue, &of(1, &ann)), taken);
    assert_eq!(arrive(&mut queue, &of(2, &ann)), taken);
    assert_eq!(arrive(&mut queue, &of(3, &ann)), refused);
    let later = Newcomer {
        not_before: Some(99),
        ..of(3, &ann)
    };
    assert_eq!(arrive(&mut queue, &later), refused);
    for n in 3..6 {
        assert_eq!(arrive(&mut queue, &of(n, &nobody)), taken, "who is nobody");
    }
    assert_eq!(arrive(&mut queue, &of(6, &bob)), Ok((vec![3], vec![])));
    assert!(queue.finish(id(1), Attempt(1), false));
    while queue.grant_next(0).granted().is_some() {}
    assert_eq!(arrive(&mut queue, &of(7, &ann)), taken);
    assert_eq!(arrive(&mut queue, &of(8, &ann)), refused);
    // Whose own one makes room has no more than before.
    assert_eq!(arrive(&mut queue, &of(9, &bob)), Ok((vec![5], vec![])));
    assert_eq!(arrive(&mut queue, &of(10, &bob)), Ok((vec![6], vec![])));
    assert!(queue.cancel_waiting(Seq(7)).is_some());
    assert_eq!(arrive(&mut queue, &of(11, &ann)), taken);
}

/// Whose an execution is follows from no rule: another one does not make a user have none.
#[test]
fn a_user_has_no_more_while_a_queue_is_grouped_anew() {
    let with = |demands| Extra {
        demands: Some(demands),
        per_user: Some(2),
        ..Extra::default()
    };
    let demand = |rule, user: u8| Demand {
        rule,
        group: GroupKey([user; 16]),
        cost: 1,
        user: Some(GroupKey([user; 16])),
        rate: GroupKey::default(),
        flow: Flow::default(),
    };
    let of = |n, demand| Newcomer {
        demand: Some(demand),
        ..newcomer(n)
    };
    let (taken, refused) = (Ok((vec![], vec![])), Err(Refused::User { limit: 2 }));
    let mut queue = queue(with(RULE));
    let (other, before) = (RULE + 1, demand(RULE, 1));
    for n in 1..=2 {
        assert_eq!(arrive(&mut queue, &of(n, &before)), taken);
    }
    queue.set_limits(limits(with(other)));
    assert_eq!(queue.unknown().count(), 2);
    let (ann, bob) = (demand(other, 1), demand(other, 2));
    assert_eq!(arrive(&mut queue, &of(3, &ann)), refused);
    assert_eq!(arrive(&mut queue, &of(3, &bob)), taken);
    assert!(queue.finish(id(1), Attempt(1), false));
    assert_eq!(arrive(&mut queue, &of(4, &ann)), taken, "one has ended");
    assert!(queue.assign(id(2), &ann));
    assert_eq!(arrive(&mut queue, &of(5, &ann)), refused, "counted once");
    assert!(queue.finish(id(2), Attempt(1), false));
    assert_eq!(arrive(&mut queue, &of(5, &ann)), taken);

    // Whoever takes over before all is known reads whose each is.
    let mut next = self::queue(with(other));
    for n in 1..=2 {
        next.restore_waiting(Priority::Normal, waiting(n, n), Some(&before), None);
    }
    assert_eq!(next.unknown().count(), 2);
    assert_eq!(arrive(&mut next, &of(3, &ann)), refused);
    assert!(next.cancel_waiting(Seq(1)).is_some());
    assert_eq!(arrive(&mut next, &of(3, &ann)), taken);
}

/// Whoever comes looks at none of those again who are asked to end already.
#[test]
fn many_holders_are_asked_to_end_in_good_time() {
    const MANY: i64 = 20_000;
    let mut limits = limits(Extra {
        on_limit: OnLimit::CancelRunning,
        ..Extra::default()
    });
    limits.max_concurrent = Some(MANY as u32);
    let mut queue = ActionQueue::new(ActionId(1), limits, QueueTotals::default());
    let began = std::time::Instant::now();
    for n in 1..=MANY {
        assert_eq!(arrive(&mut queue, &newcomer(n)), Ok((vec![], vec![])));
    }
    for n in 1..=MANY {
        let arrival = queue.arrive(&newcomer(MANY + n)).unwrap();
        let asked: &[_] = if n == 1 { &[(id(1), Attempt(1))] } else { &[] };
        assert_eq!(arrival.asked, asked, "one on its way out is enough");
        assert_eq!(arrival.gone.len(), usize::from(n > 1));
    }
    let took = began.elapsed();
    assert!(took.as_secs() < 20, "it took {took:?}");
}
