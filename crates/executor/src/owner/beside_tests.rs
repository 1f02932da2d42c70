//! Tests of what stands beside executions when the store does not take it.

use attune_core::{OnWorkerLost, Submission};

use super::look_ups::change;
use super::*;
use crate::partition::{ForceRelease, OnReject, Submit};

/// A table for dead letters or for the audit log that takes nothing.
fn stands_beside(call: &Call) -> bool {
    let Call::Commit(commit) = call else {
        return false;
    };
    !commit.batch.letters.is_empty() || !commit.batch.audit.is_empty()
}

/// The request that an entry of the audit log names.
pub(super) fn request_of(entry: &Audit) -> Option<RequestId> {
    match entry {
        Audit::ForceRelease { request_id, .. } => Some(*request_id),
        _ => None,
    }
}

fn release(slot: &StoredSlot) -> ForceRelease {
    ForceRelease {
        request_id: RequestId::from_key("release"),
        execution_id: slot.id,
        attempt: slot.attempt,
        who: "somebody".to_owned(),
        reason: "it hangs".to_owned(),
        worker: None,
        never_begun: false,
    }
}

/// A submission to an action that nobody knows, whose sender waits for no answer.
fn unknown() -> Work {
    submit("t.nobody".to_owned())
}

fn submit(action_ref: String) -> Work {
    let submission = Submission::new(action_ref);
    Work::Submits(vec![Submit::new(
        RequestId::fresh(),
        submission,
        OnReject::Record,
    )])
}

fn troubles(world: &World) -> usize {
    world.owner.set_aside_since(world.now).count()
}

#[test]
fn an_audit_log_that_takes_nothing_holds_up_only_who_is_answered_after_its_entry() {
    let worker = WorkerId::fresh();
    let mut world = World::serving(3, worker);
    world.action.spec.on_worker_lost = Some(OnWorkerLost::Retry);
    let slot = world.slots[0].0.clone();
    world.refuses = Some(stands_beside);
    world.deliver(1, 0, Work::Releases(vec![release(&slot)]));
    world.deliver(2, 0, Work::Releases(vec![release(&slot)]));
    world.pass(1_000, true);
    assert_eq!(world.taken_back.len(), 1, "its slot is taken back");
    for id in 10..20 {
        world.deliver(id, 0, change("t.good"));
        world.pass(1_000, true);
        assert!(world.is_acked(id), "{id}: {:?}", world.acked);
    }
    assert!(!world.is_acked(1) && !world.is_acked(2));
    assert_eq!((troubles(&world), world.entries.len()), (1, 0));
    let trouble = world.owner.trouble(world.now).unwrap();
    assert!(trouble.for_ms >= 10_000, "{trouble:?}");
    assert!(trouble.words.contains("the audit log of partition 0"));
    assert_eq!(world.owner.refusals(world.now).count(), 0);

    world.refuses = None;
    world.pass(2_100, true);
    assert!(world.is_acked(1) && world.is_acked(2));
    // Each copy has written it: the store keeps one of a request.
    assert_eq!(world.entries, [RequestId::from_key("release"); 2]);
    assert_eq!((troubles(&world), world.taken_back.len()), (0, 1));
    assert_eq!(world.owner.trouble(world.now), None);
}

#[test]
fn dead_letters_that_cannot_be_kept_wait_in_their_order_and_nobody_else_does() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.refuses = Some(stands_beside);
    for id in (1..40).step_by(2) {
        world.deliver(id, 0, unknown());
        world.deliver(id + 1, 0, change("t.good"));
        world.pass(500, true);
        assert!(!world.is_acked(id) && world.is_acked(id + 1), "{id}");
    }
    world.refuses = None;
    world.pass(2_100, true);
    let acked = world.acked.iter().map(|id| id.0);
    let late: Vec<u64> = acked.filter(|id| id % 2 == 1).collect();
    assert_eq!(late, (1..40).step_by(2).collect::<Vec<u64>>());
    assert_eq!(world.letters, 20);
}

/// The next owner gets the messages again.
#[test]
fn what_is_aside_goes_with_its_partition() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.refuses = Some(stands_beside);
    world.deliver(1, 1, unknown());
    world.pass(1_000, true);
    assert_eq!(troubles(&world), 1);
    world.away_until = world.now + 4 * TTL;
    world.pass(4 * TTL, false);
    assert_eq!(troubles(&world), 0);
    world.refuses = None;
    world.pass(5_000, true);
    assert!(!world.is_acked(1));
    assert_eq!(world.letters, 0);
}

/// One message holds an execution and a letter: it is acknowledged when both are stored.
#[test]
fn a_message_with_both_waits_for_both() {
    let mut world = World::serving(0, WorkerId::fresh());
    let known = world.action.spec.action_ref.as_str().to_owned();
    let (Work::Submits(mut items), Work::Submits(more)) = (unknown(), submit(known)) else {
        panic!("both are submissions");
    };
    items.extend(more);
    world.refuses = Some(|call| matches!(call, Call::Commit(_)));
    world.deliver(1, 0, Work::Submits(items));
    world.pass(500, true);
    // The table for letters is healed first.
    world.refuses = Some(|call| match call {
        Call::Commit(commit) => commit.executions().next().is_some(),
        _ => false,
    });
    world.pass(5_000, true);
    assert_eq!((world.letters, world.is_acked(1)), (0, false));
    world.refuses = None;
    world.pass(2_100, true);
    assert_eq!((world.letters, world.is_acked(1)), (1, true));
}

/// After a lost connection the same messages come again, and are decided again.
#[test]
fn what_comes_again_is_written_once() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.refuses = Some(stands_beside);
    let submit = || {
        let request = RequestId::from_key("again");
        let submission = Submission::new("t.nobody".to_owned());
        Work::Submits(vec![Submit::new(request, submission, OnReject::Record)])
    };
    for id in 1..=20 {
        world.deliver(id, 0, submit());
        world.pass(300, true);
    }
    world.refuses = None;
    world.pass(2_100, true);
    assert_eq!(world.letters, 1);
    assert!((1..=20).all(|id| world.is_acked(id)), "{:?}", world.acked);
}

/// A locked table holds each try up: they go one after the other, so that rounds have connections.
#[test]
fn one_partition_is_written_at_a_time() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.refuses = Some(stands_beside);
    for partition in 0..PARTITIONS {
        world.deliver(u64::from(partition) + 1, partition, unknown());
    }
    world.pass(500, true);
    world.holds_back = Some(stands_beside);
    world.pass(30_000, true);
    assert_eq!(world.held_back.len(), 1);
    (world.holds_back, world.refuses) = (None, None);
    let late: VecDeque<Input> = world
        .held_back
        .drain(..)
        .map(|(id, reply)| Input::Answered(id, reply))
        .collect();
    world.give(late);
    world.pass(5_000, true);
    assert_eq!(world.letters, usize::from(PARTITIONS));
}
