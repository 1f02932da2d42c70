use attune_core::{ActionId, Attempt, PartitionId, Priority, QueueTotals, Seq};

use super::super::entry::{Blocked, Grant, Waiting};
use super::*;
use crate::policy::{Extra, QueueLimits, Share};

fn id(n: i64) -> ExecutionId {
    ExecutionId::new(PartitionId(0), Seq(n))
}

/// A queue of two slots in which so many wait.
fn queue(waiting: i64) -> ActionQueue {
    let limits = QueueLimits {
        max_concurrent: Some(2),
        max_length: 10_000,
        timeout_seconds: 3_600,
        order: attune_core::OrderRule::default(),
        extra: Extra::default().boxed(),
    };
    let mut queue = ActionQueue::new(ActionId(1), limits, QueueTotals::default());
    for n in 1..=waiting {
        let waiting = Waiting {
            execution_id: id(n),
            seq: Seq(n),
            enqueued_at: 0,
            eligible_at: 0,
            attempt: Attempt(0),
            unbegun: 0,
            delayed: false,
            front: false,
            share: Share::default(),
        };
        queue.enter(Priority::Normal, waiting, None).unwrap();
    }
    queue
}

/// Grants the next to a worker, which gives it back for want of the key `k`.
fn give_back(queue: &mut ActionQueue, now: Millis, worker: WorkerId, lives: usize) -> ExecutionId {
    let granted = queue.grant_next(now).granted().unwrap();
    queue.give_to(granted.execution_id, worker);
    queue.note_keyless(now, granted.execution_id, (worker, Arc::from("k")), lives);
    assert!(queue.put_back(granted.execution_id, granted.attempt, false, None));
    granted.execution_id
}

#[test]
fn a_queue_rests_ever_longer_once_every_worker_had_its_turn() {
    let (mut queue, worker) = (queue(2), WorkerId::fresh());
    let (mut now, mut rests) = (0, Vec::new());
    for times in 1..=9 {
        assert_eq!(
            give_back(&mut queue, now, worker, 2),
            id(1),
            "nobody passes"
        );
        match queue.blocked() {
            None => assert!(times <= 2, "{times}"),
            Some(Blocked::Key { until }) => {
                assert_eq!(queue.next_deadline(), Some(until));
                rests.push(until - now);
                queue.pass(until - 1);
                assert_eq!(
                    queue.grant_next(until - 1),
                    Grant::Blocked(Blocked::Key { until })
                );
                queue.pass(until);
                now = until;
            }
            blocked => panic!("{blocked:?}"),
        }
    }
    assert_eq!(rests, [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
    // Other workers may have the key.
    give_back(&mut queue, now, worker, 2);
    assert!(queue.blocked().is_some());
    queue.rest_no_more();
    assert_eq!(queue.blocked(), None);
    // One has begun: the queue is well again, and so is that one.
    let granted = queue.grant_next(now).granted().unwrap();
    queue.give_to(granted.execution_id, worker);
    assert!(queue.note_started(granted.execution_id));
    assert_eq!((queue.lacks_key(), queue.keyless().is_none()), (None, true));
}

#[test]
fn where_others_begin_meanwhile_it_does_not_rest() {
    let (mut queue, worker) = (queue(100), WorkerId::fresh());
    for now in 0..20 {
        let back = give_back(&mut queue, now, worker, 1);
        // The other slot is somebody's who can be opened.
        let again = queue.grant_next(now).granted().unwrap();
        let other = queue.grant_next(now).granted().unwrap();
        assert_eq!(again.execution_id, back);
        assert!(queue.finish(other.execution_id, other.attempt, false));
        queue.put_back(back, again.attempt, false, None);
        assert_eq!(queue.blocked(), None, "{now}");
    }
    let lacks = queue.stats().lacks_key.unwrap();
    assert_eq!((lacks.key.as_str(), lacks.executions), ("k", 1));
}

#[test]
fn it_is_said_who_waits_for_which_key_and_no_longer_than_it_does() {
    let (mut queue, worker) = (queue(2), WorkerId::fresh());
    assert_eq!(queue.stats().lacks_key, None);
    give_back(&mut queue, 5_000, worker, 1);
    give_back(&mut queue, 6_000, worker, 1);
    let lacks = LacksKey {
        key: "k".to_owned(),
        worker,
        last_at: time(6_000),
        executions: 1,
    };
    assert_eq!(queue.stats().lacks_key, Some(lacks));
    let reason = |times| Reason::Key {
        key: "k".to_owned(),
        times,
        worker,
        worker_name: None,
        last_at: time(6_000),
        until: Some(time(7_000)),
    };
    let why = |queue: &ActionQueue, n| queue.explain(6_500, id(n), "default", None).unwrap();
    // Its own key, and that of the one before it.
    assert_eq!(why(&queue, 1).waits_for[0], reason(2));
    assert_eq!(why(&queue, 2).waits_for[0], reason(0));
    assert_eq!(
        why(&queue, 1).no_estimate,
        Some(attune_core::explain::NoEstimate::Key)
    );
    queue.pass(7_000);
    // While it is at a worker that will give it back.
    queue.grant_next(7_000).granted().unwrap();
    queue.grant_next(7_000).granted().unwrap();
    assert!(matches!(
        why(&queue, 1).waits_for[..],
        [Reason::Key { times: 2, .. }]
    ));
    assert_eq!(why(&queue, 2).waits_for, []);
    // It is cancelled there.
    assert!(queue.finish(id(1), Attempt(3), true));
    assert_eq!(queue.stats().lacks_key, None);
}

#[test]
fn no_more_are_remembered_than_there_is_room_for() {
    let (mut queue, worker) = (queue(0), WorkerId::fresh());
    for n in 1..=KEPT as i64 + 10 {
        queue.note_keyless(n, id(n), (worker, Arc::from("k")), 1);
    }
    assert!(queue.keyless().unwrap().given_back.len() <= KEPT);
}
