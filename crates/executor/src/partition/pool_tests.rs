//! Tests of what cannot be told to a worker: pools that take nothing, dispatches that are too
//! large, attempts that can never be sent.

use attune_core::{RawValue, RejectCode, Submission};

use super::test_world::{ACTION, CLUSTER, World, action, completed, submit_event, submitted};
use super::*;
use crate::counters::Counter;
use crate::queue::Blocked;
use crate::queue::QueueConfig;

fn pool(name: &str, closed: bool) -> Event {
    let name = Arc::from(name);
    Event::Pool { name, closed }
}

/// The pool of the action of these tests.
fn own(closed: bool) -> Event {
    pool(&action(None).spec.pool, closed)
}

#[test]
fn nothing_is_granted_while_the_pool_is_closed_and_at_once_when_it_opens() {
    let mut world = World::new(Some(2), 100);
    let first = world.submit(1)[0];
    world.step(pool("another", true));
    let second = world.submit(1)[0];
    assert_eq!(
        world.holders(),
        [first, second],
        "another pool is no matter"
    );

    world.step(own(true));
    let answered = world.stored.answers.len();
    let waiting = world.submit(2);
    let positions = world.stored.answers[answered..].iter();
    let positions: Vec<_> = positions
        .map(|answer| answer.as_ref().unwrap().position)
        .collect();
    assert_eq!(
        positions,
        [Some(0), Some(1)],
        "accepted, and told that they wait"
    );
    // Who holds a slot keeps it and may end; nobody follows.
    world.complete(first, 1);
    world.complete(second, 1);
    assert!(world.holders().is_empty());
    assert_eq!(world.partition.blocked(ACTION), Some(Blocked::PoolClosed));
    let told = world.stored.dispatched.len();
    // Time passes, the definition comes again, the same word comes again: it stays closed.
    for event in [
        Event::Tick,
        Event::ActionKnown(Box::new(action(Some(2)))),
        own(true),
    ] {
        world.step(event);
        assert!(world.holders().is_empty());
    }

    world.step(own(false));
    assert_eq!(world.holders(), waiting);
    assert_eq!(world.stored.dispatched.len(), told + 2);
    assert_eq!(world.partition.blocked(ACTION), Some(Blocked::Empty));
    assert!(world.step(own(false)).is_empty(), "it is open already");
}

#[test]
fn who_waits_for_a_closed_pool_can_be_cancelled_and_expires() {
    let mut world = World::new(Some(1), 100);
    world.step(own(true));
    let ids = world.submit(2);
    world.round(vec![super::test_world::cancel(ids[0])]);
    assert_eq!(world.stored.history[&ids[0]], Status::Cancelled);
    world.now = world.partition.next_deadline().unwrap();
    world.round(vec![]);
    assert_eq!(world.stored.history[&ids[1]], Status::Expired);
}

#[test]
fn an_action_that_moves_to_another_pool_leaves_the_closed_one() {
    let mut world = World::new(Some(1), 100);
    world.step(own(true));
    let ids = world.submit(2);
    let mut moved = action(Some(1));
    moved.spec.pool = "another".to_owned();
    world.step(Event::ActionKnown(Box::new(moved)));
    assert_eq!(world.holders(), ids[..1]);
    // What becomes of its old pool is no matter to it any more, that of the new one is.
    world.step(own(false));
    world.step(own(true));
    world.complete(ids[0], 1);
    assert_eq!(world.holders(), ids[1..]);
    world.step(pool("another", true));
    world.complete(ids[1], 1);
    world.submit(1);
    assert_eq!(world.partition.blocked(ACTION), Some(Blocked::PoolClosed));
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
    larger
        .spec
        .env
        .insert("NAME".to_owned(), "value".to_owned());
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
        ..CLUSTER
    };
    let queues = ExecutionQueueManager::new(QueueConfig::default());
    let mut partition = Partition::new(PartitionId(0), Epoch(1), cluster, queues);
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
