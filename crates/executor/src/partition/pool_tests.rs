//! Tests of what no worker can be told: pools without room, dispatches that are too large, attempts
//! that can never be sent.

use attune_core::{RawValue, RejectCode, Submission, WorkerId};
use attune_dispatch::Life;

use super::test_world::{
    ACTION, CLUSTER, WORKER, World, action, completed, completion, life, roster, submit_event,
    submitted,
};
use super::*;
use crate::counters::Counter;
use crate::queue::Blocked;
use crate::queue::QueueConfig;

/// What says that a worker of the pool of these tests has room.
fn room() -> Event {
    let pool = Arc::from(action(None).spec.pool);
    Event::Room { pool }
}

#[test]
fn nothing_is_granted_while_no_worker_has_room_and_at_once_when_one_has() {
    let mut world = World::new(Some(2), 100);
    world.lives([life(WORKER, 1)]);
    let first = world.submit(1)[0];
    let answered = world.stored.answers.len();
    let waiting = world.submit(3);
    let positions = world.stored.answers[answered..].iter();
    let positions: Vec<_> = positions
        .map(|answer| answer.as_ref().unwrap().position)
        .collect();
    assert_eq!(
        positions,
        [Some(0), Some(1), Some(2)],
        "accepted, and told that they wait"
    );
    assert_eq!(world.holders(), [first]);
    assert_eq!(world.partition.blocked(ACTION), Some(Blocked::PoolClosed));
    // Time passes, the definition comes again, a worker of another pool comes: nobody follows.
    let elsewhere = Life {
        pool: "another".to_owned(),
        ..life(WorkerId::fresh(), 9)
    };
    world.lives([life(WORKER, 1), elsewhere]);
    for event in [Event::Tick, Event::ActionKnown(Box::new(action(Some(2))))] {
        world.step(event);
        assert_eq!(world.holders(), [first]);
    }
    // Whoever holds a slot may end; the next has the room that is free then.
    world.complete(first, 1);
    world.serve_line();
    assert_eq!(world.holders(), waiting[..1]);
    let told = world.stored.dispatched.len();
    world.lives([life(WORKER, 5)]);
    assert_eq!(
        world.holders(),
        waiting[..2],
        "as many as the limit lets run"
    );
    assert_eq!(world.stored.dispatched.len(), told + 1);
    assert_eq!(
        world.partition.blocked(ACTION),
        Some(Blocked::Limit { limit: 2 })
    );
    assert_eq!(world.roster.lock().held(WORKER), 2);
    assert!(world.step(room()).is_empty(), "nobody stands in line");
}

#[test]
fn nobody_is_granted_to_who_drains_or_is_over() {
    let mut world = World::new(Some(2), 100);
    let other = WorkerId::fresh();
    let draining = Life {
        draining: true,
        ..life(WORKER, 9)
    };
    world.lives([draining, life(other, 1)]);
    let ids = world.submit(2);
    assert_eq!(world.holders(), ids[..1]);
    assert_eq!(world.stored.workers[&ids[0]], other);
    world.lives([]);
    assert_eq!(world.holders(), ids[..1], "its end is another matter");
    world.lives([life(WORKER, 1)]);
    assert_eq!(world.stored.workers[&ids[1]], WORKER);
}

#[test]
fn who_waits_for_a_worker_can_be_cancelled_and_expires() {
    let mut world = World::new(Some(1), 100);
    world.lives([]);
    let ids = world.submit(2);
    world.round(vec![super::test_world::cancel(ids[0])]);
    assert_eq!(world.stored.history[&ids[0]], Status::Cancelled);
    world.now = world.partition.next_deadline().unwrap();
    world.round(vec![]);
    assert_eq!(world.stored.history[&ids[1]], Status::Expired);
    // Whoever stands in line for nobody is no obstacle.
    world.lives([life(WORKER, 1)]);
    assert_eq!(world.partition.waited_for().count(), 0);
    assert!(!world.roster.lock().is_waited_for(&action(None).spec.pool));
    let id = world.submit(1)[0];
    assert_eq!(world.holders(), [id]);
}

#[test]
fn an_action_that_moves_to_another_pool_leaves_the_line_of_its_own() {
    let mut world = World::new(Some(1), 100);
    let elsewhere = Life {
        pool: "another".to_owned(),
        ..life(WorkerId::fresh(), 1)
    };
    world.lives([elsewhere.clone()]);
    let ids = world.submit(2);
    assert_eq!(world.holders(), []);
    let mut moved = action(Some(1));
    moved.version = 2;
    moved.spec.pool = "another".to_owned();
    world.round(vec![Event::ActionKnown(Box::new(moved))]);
    assert_eq!(world.holders(), ids[..1]);
    assert_eq!(world.stored.workers[&ids[0]], elsewhere.worker);
    assert_eq!(world.partition.waited_for().count(), 0);
    // What becomes of its old pool is no matter to it any more, that of the new one is.
    world.lives([life(WORKER, 9)]);
    world.step(Event::Completed(Completion {
        worker: elsewhere.worker,
        ..completion(ids[0], 1)
    }));
    assert_eq!(world.holders(), []);
    assert_eq!(world.partition.blocked(ACTION), Some(Blocked::PoolClosed));
    assert!(world.partition.waited_for().eq(["another"]));
    world.roster.lock().set([elsewhere]);
    let pool = Arc::from("another");
    world.step(Event::Room { pool });
    assert_eq!(world.holders(), ids[1..]);
}

#[test]
fn what_can_never_be_told_ends_as_failed_and_frees_its_slot() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(2);
    let undispatchable = |execution_id, attempt| Event::Undispatchable {
        execution_id,
        attempt: Attempt(attempt),
        why: "its dispatch has 9 bytes, and a message may have 8".to_owned(),
    };
    // Another attempt, one that waits, one that nobody knows: nothing happens.
    for event in [
        undispatchable(ids[0], 2),
        undispatchable(ids[1], 1),
        undispatchable(ExecutionId(1), 1),
    ] {
        assert!(world.step(event).is_empty());
    }
    let effects = world.step(undispatchable(ids[0], 1));
    let words = effects.iter().find_map(|effect| match effect {
        Effect::End(end) => end.outcome.error.as_deref(),
        _ => None,
    });
    assert_eq!(
        words,
        Some("its dispatch has 9 bytes, and a message may have 8")
    );
    assert_eq!(world.stored.history[&ids[0]], Status::Failed);
    assert_eq!(world.holders(), ids[1..]);
    assert_eq!(world.count(Counter::Undispatchable), 1);
    // The same word again, and a report that comes late, end nothing.
    assert!(world.step(undispatchable(ids[0], 1)).is_empty());
    world.step(completed(ids[0], 1));
    assert_eq!(world.count(Counter::StaleCompletion), 1);
    assert_eq!(world.holders(), ids[1..]);
}

/// A submission whose parameters have so many bytes.
fn of_size(bytes: usize, on_reject: OnReject) -> Event {
    let text = format!(r#"{{"x":"{}"}}"#, "a".repeat(bytes - r#"{"x":""}"#.len()));
    let parameters = RawValue::from_string(text).unwrap();
    assert_eq!(parameters.get().len(), bytes);
    let submission = Submission {
        parameters,
        ..Submission::new("core.noop")
    };
    submitted(RequestId::fresh(), submission, on_reject)
}

#[test]
fn what_no_message_could_carry_is_not_accepted() {
    let mut world = World::new(Some(1), 100);
    let room = CLUSTER.max_message_bytes - action(None).spec.dispatch_bytes() - ENVELOPE_BYTES;
    world.step(of_size(room, OnReject::Answer));
    assert_eq!(world.refused(), None);
    world.step(of_size(room + 1, OnReject::Answer));
    let reject = world.refused().unwrap();
    assert_eq!(
        (reject.code, reject.field.as_deref()),
        (RejectCode::InvalidInput, Some("parameters"))
    );
    for words in [
        (room + 1).to_string(),
        room.to_string(),
        "max_message_bytes".to_owned(),
    ] {
        assert!(reject.message.contains(&words), "{}", reject.message);
    }
    assert_eq!(world.stored.totals.enqueued, 1);

    // Somebody was told that it is safe: it is kept as rejected.
    world.step(of_size(room + 1, OnReject::Record));
    let ends: Vec<Status> = world.stored.history.values().copied().collect();
    assert_eq!(ends, [Status::Rejected]);

    // The larger the definition, the less room is left.
    let mut larger = action(Some(1));
    larger.spec.env.insert("NAME".to_owned(), "value".into());
    world.step(Event::ActionKnown(Box::new(larger)));
    world.step(of_size(room, OnReject::Answer));
    assert_eq!(
        world.refused().unwrap().field.as_deref(),
        Some("parameters")
    );
}

/// The bound of a small cluster lets nothing through, and says so instead of failing.
#[test]
fn a_definition_that_fills_a_message_by_itself_leaves_no_room() {
    let cluster = ClusterBounds {
        max_message_bytes: 1_000,
        lane_length: 0,
        ..CLUSTER
    };
    let queues = ExecutionQueueManager::new(QueueConfig::default());
    let mut partition = Partition::new(PartitionId(0), Epoch(1), cluster, queues, roster());
    let (actions, totals) = (vec![action(None)], vec![]);
    partition.step(
        0,
        Event::Recover {
            actions,
            totals,
            sets: Sets::default(),
        },
    );
    let event = submit_event(RequestId::fresh(), attune_core::Priority::Normal);
    let effects = partition.step(0, event);
    let refused = effects.iter().find_map(|effect| match effect {
        Effect::Answer { answer, .. } => answer.outcome.as_ref().err(),
        _ => None,
    });
    let refused = refused.unwrap();
    assert!(
        refused.message.contains("room for 0"),
        "{}",
        refused.message
    );
}
