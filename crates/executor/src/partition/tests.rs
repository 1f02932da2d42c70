//! Tests of the decisions, against a plain model of the store.

use attune_core::{Priority, RejectCode, Submission};

use super::test_world::{
    ACTION, CLUSTER, PARTITION, WORKER, World, action, cancel, completed, completion, reconcile,
    roster, submit_event, submitted,
};
use super::*;
use crate::counters::Counter;
use crate::queue::QueueConfig;
use attune_core::Seq;

/// Limit 2; A, B start; C, D, E wait at 0, 1, 2; each completion starts the next.
#[test]
fn five_executions_at_limit_two() {
    let mut world = World::new(Some(2), 100);
    let ids = world.submit(5);
    let positions: Vec<Option<u64>> = world
        .stored
        .answers
        .iter()
        .map(|answer| answer.as_ref().unwrap().position)
        .collect();
    assert_eq!(positions, [None, None, Some(0), Some(1), Some(2)]);
    for id in &ids {
        world.complete(*id, 1);
        assert!(world.holders().len() <= 2);
    }
    let started: Vec<ExecutionId> = world.stored.dispatched.iter().map(|(id, _)| *id).collect();
    assert_eq!(started, ids);
    assert_eq!(world.stored.history.len(), 5);
    assert_eq!(world.stored.totals.completed, 5);
}

#[test]
fn completions_and_submissions_of_one_round_keep_order_and_limit() {
    let mut world = World::new(Some(1), 100);
    let first = world.submit(1)[0];
    // The completion frees the slot in the round in which two more come: the first of them gets it.
    let answered = world.stored.answers.len();
    world.round(vec![
        submit_event(RequestId::fresh(), Priority::Normal),
        completed(first, 1),
        submit_event(RequestId::fresh(), Priority::Normal),
    ]);
    let ids = world.accepted(answered);
    assert_eq!(world.holders(), [ids[0]]);
    assert_eq!(world.stored.active[&ids[1]].0, Status::Queued);
}

#[test]
fn duplicate_foreign_and_late_completions_change_nothing() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(3);
    world.complete(ids[1], 1);
    world.complete(ids[0], 2);
    world.complete(ExecutionId(1), 1);
    assert_eq!(world.count(Counter::StaleCompletion), 3);
    world.complete(ids[0], 1);
    world.complete(ids[0], 1);
    assert_eq!(world.count(Counter::StaleCompletion), 4);
    assert_eq!(world.holders(), [ids[1]]);
}

#[test]
fn a_repeated_request_gives_the_same_execution_and_a_different_body_a_conflict() {
    let mut world = World::new(Some(1), 100);
    let request = RequestId::fresh();
    let event = || submit_event(request, Priority::Normal);
    // Twice in one round, and again in a later one.
    world.round(vec![event(), event()]);
    world.round(vec![event()]);
    let ids = world.accepted(0);
    assert_eq!(ids.len(), 3);
    assert!(ids.iter().all(|id| *id == ids[0]));
    assert_eq!(world.stored.totals.enqueued, 1);
    world.round(vec![submit_event(request, Priority::High)]);
    assert_eq!(world.refused().unwrap().code, RejectCode::Conflict);
}

#[test]
fn what_is_refused_is_answered_or_recorded_but_never_lost() {
    let mut world = World::new(Some(1), 1);
    world.submit(2);
    let event = |on_reject, action_ref: &str| {
        submitted(RequestId::fresh(), Submission::new(action_ref), on_reject)
    };
    world.round(vec![event(OnReject::Answer, "core.noop")]);
    let reject = world.refused().unwrap();
    assert_eq!(reject.message, "Queue full (max length: 1)");
    assert_eq!(reject.retry_after_seconds, Some(1));
    assert!(world.stored.history.is_empty());

    world.round(vec![event(OnReject::Record, "core.noop")]);
    assert_eq!(world.refused().unwrap().retry_after_seconds, None);
    assert_eq!(
        world.stored.history.values().collect::<Vec<_>>(),
        [&Status::Rejected]
    );

    let effects = world.partition.step(0, event(OnReject::Record, "no.such"));
    assert!(
        effects.iter().any(|effect| matches!(
            effect,
            Effect::DeadLetter(letter) if letter.reject.message.contains("no.such")
        )),
        "{effects:?}"
    );
    assert_eq!(world.stored.totals.enqueued, 2);
}

#[test]
fn what_is_recorded_as_rejected_stays_refused_when_it_comes_again() {
    let mut world = World::new(Some(1), 1);
    let ids = world.submit(2);
    let request = RequestId::fresh();
    let event = |on_reject| submitted(request, Submission::new("core.noop"), on_reject);
    // Twice in one round, when the store does not know it yet, and again when there is room.
    world.round(vec![event(OnReject::Record), event(OnReject::Record)]);
    assert_eq!(world.count(Counter::Rejected), 1);
    world.complete(ids[0], 1);
    world.complete(ids[1], 1);
    let rows = world.stored.history.len();
    for on_reject in [OnReject::Answer, OnReject::Record] {
        world.round(vec![event(on_reject)]);
        let reject = world.refused().unwrap();
        assert_eq!(reject.code, RejectCode::AlreadyRejected);
        assert_eq!(reject.retry_after_seconds, None);
        let (id, _) = world.stored.history.iter().next_back().unwrap();
        let command = format!("`attune executions show {id}`");
        assert!(reject.message.contains(&command), "{}", reject.message);
    }
    assert_eq!(world.count(Counter::Repeated), 3);
    assert_eq!(world.count(Counter::Rejected), 1);
    assert_eq!(world.stored.history.len(), rows);
    assert_eq!(world.stored.totals.enqueued, 2);
    let again = world.step(event(OnReject::Record));
    let is_letter = |effect: &Effect| matches!(effect, Effect::DeadLetter(_));
    assert!(!again.iter().any(is_letter), "{again:?}");
    // Another body under that id is still one that only a letter can keep.
    let mut other = Submission::new("core.noop");
    other.priority = Some(Priority::High);
    let other = world.step(submitted(request, other, OnReject::Record));
    assert!(other.iter().any(is_letter), "{other:?}");
}

#[test]
fn a_firing_under_a_request_id_that_is_taken_becomes_a_letter() {
    let mut world = World::new(Some(1), 10);
    let request = RequestId::fresh();
    let firing = |priority| {
        let mut submission = Submission::new("core.noop");
        submission.priority = Some(priority);
        submitted(request, submission, OnReject::Record)
    };
    world.round(vec![firing(Priority::Normal)]);
    for priority in [Priority::Normal, Priority::High] {
        let effects = world.partition.step(0, firing(priority));
        let letters = effects.iter().filter(|effect| {
            matches!(effect, Effect::DeadLetter(letter) if letter.reject.code == RejectCode::Conflict)
        });
        assert_eq!(letters.count(), usize::from(priority == Priority::High));
    }
}

#[test]
fn cancelling_at_positions_2_5_and_8_leaves_the_order_of_the_others() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(11);
    for position in [2, 5, 8] {
        let execution_id = ids[position + 1];
        world.round(vec![cancel(execution_id)]);
        assert_eq!(world.stored.history[&execution_id], Status::Cancelled);
    }
    let left: Vec<ExecutionId> = ids
        .iter()
        .copied()
        .filter(|id| !world.stored.history.contains_key(id))
        .collect();
    for id in &left {
        world.complete(*id, 1);
    }
    let started: Vec<ExecutionId> = world.stored.dispatched.iter().map(|(id, _)| *id).collect();
    assert_eq!(started, left);
    assert_eq!(world.stored.totals.cancelled, 3);
}

#[test]
fn cancelling_a_run_keeps_its_slot_until_the_worker_says_so() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(2);
    world.round(vec![cancel(ids[0])]);
    assert_eq!(world.holders(), [ids[0]]);
    let mut done = completion(ids[0], 1);
    Arc::make_mut(&mut done.outcome).status = Status::Cancelled;
    world.round(vec![Event::Completed(done)]);
    assert_eq!(world.stored.history[&ids[0]], Status::Cancelled);
    assert_eq!(world.holders(), [ids[1]]);
    world.round(vec![cancel(ids[0])]);
    assert_eq!(world.refused().unwrap().code, RejectCode::AlreadyEnded);
}

#[test]
fn waiting_too_long_expires_at_the_deadline_that_was_announced() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(2);
    let deadline = world.partition.next_deadline().unwrap();
    assert_eq!(deadline, 60_000);
    expire_at(&mut world, deadline, &ids[1..]);
}

/// Nothing has ended before a deadline, and these expire at it.
#[track_caller]
pub(super) fn expire_at(world: &mut World, deadline: Millis, ids: &[ExecutionId]) {
    world.now = deadline - 1;
    world.round(vec![]);
    assert!(world.stored.history.is_empty());
    world.now = deadline;
    world.round(vec![]);
    for id in ids {
        assert_eq!(world.stored.history[id], Status::Expired);
    }
}

#[test]
fn a_raised_limit_grants_at_once_and_a_lowered_one_drains() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(5);
    world.round(vec![Event::ActionKnown(Box::new(action(Some(3))))]);
    assert_eq!(world.holders(), ids[..3]);
    world.round(vec![Event::ActionKnown(Box::new(action(Some(1))))]);
    world.complete(ids[0], 1);
    world.complete(ids[1], 1);
    assert_eq!(world.holders(), [ids[2]]);
    world.complete(ids[2], 1);
    assert_eq!(world.holders(), [ids[3]]);
}

#[test]
fn a_higher_priority_is_granted_first() {
    let mut world = World::new(Some(1), 100);
    let first = world.submit(1)[0];
    let low = world.submit_with(2, Priority::Low);
    let high = world.submit_with(2, Priority::High);
    let mut running = first;
    for expected in high.iter().chain(&low) {
        world.complete(running, 1);
        assert_eq!(world.holders(), [*expected]);
        running = *expected;
    }
}

#[test]
fn a_new_owner_continues_where_the_old_one_stopped() {
    let mut world = World::new(Some(2), 100);
    let ids = world.submit(5);
    world.start(ids[0]);
    let told = world.stored.dispatched.len();
    let mut world = world.take_over(Some(2));
    // What is granted stays with its worker, whether it is known to run or not; nothing is told twice.
    assert_eq!(world.stored.dispatched[told..], []);
    assert_eq!(world.holders(), ids[..2]);
    let keys = ids[..2].iter().map(|id| (*id, Attempt(1)));
    assert_eq!(world.partition.granted_to(WORKER), Vec::from_iter(keys));
    let later = world.submit(1)[0];
    assert!(later.seq() > ids[4].seq());
    for id in ids.iter().chain([&later]) {
        world.complete(*id, 1);
        assert!(world.holders().len() <= 2);
    }
    assert_eq!(world.stored.totals.enqueued, 6);
    assert_eq!(world.stored.totals.completed, 6);
    assert!(world.stored.active.is_empty());
}

#[test]
fn a_dead_workers_slot_comes_back_and_the_execution_keeps_its_place() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(3);
    world.start(ids[0]);
    world.reconcile(vec![world.slot(ids[0], false)]);
    assert_eq!(world.holders(), [ids[0]], "its lease is not over");
    world.reconcile(vec![world.slot(ids[0], true)]);
    assert_eq!(
        world.stored.active[&ids[0]],
        (Status::Requested, Attempt(2), Some(1 << 32 | 1))
    );
    world.complete(ids[0], 1);
    assert_eq!(world.count(Counter::StaleCompletion), 1);
    // The attempts are used up with the second.
    world.start(ids[0]);
    world.reconcile(vec![world.slot(ids[0], true)]);
    assert_eq!(world.stored.history[&ids[0]], Status::Abandoned);
    assert_eq!(world.holders(), [ids[1]]);
}

#[test]
fn the_reconciler_mends_both_directions() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(2);
    // The store knows no holder: memory lets go, and the next is granted.
    world.stored.active.remove(&ids[0]);
    world.stored.totals.enqueued -= 1;
    world.partition.step(0, reconcile(vec![]));
    assert_eq!(world.partition.stats(ACTION).unwrap().active_count, 1);
    assert_eq!(world.partition.holds(ids[1]), Some(Attempt(1)));
    assert_eq!(world.partition.holds(ids[0]), None);

    // Memory knows no holder: it counts from now on.
    let mut world = World::new(Some(1), 100);
    let id = ExecutionId::new(PARTITION, Seq::new(Epoch(1), 9));
    let row = (Status::Requested, Attempt(1), None);
    world.stored.active.insert(id, row);
    world.stored.totals.enqueued = 1;
    let row = world.slot(id, false);
    let effects = world.partition.step(0, reconcile(vec![row]));
    assert!(
        effects
            .iter()
            .any(|e| matches!(e, Effect::Count(Counter::SlotMissingMended)))
    );
    assert_eq!(world.partition.stats(ACTION).unwrap().active_count, 1);
}

#[test]
fn what_belongs_to_another_partition_is_sent_back() {
    let queues = ExecutionQueueManager::new(QueueConfig::default());
    let home = PartitionId::of("core.noop", 16);
    let other = PartitionId((home.0 + 1) % 16);
    let cluster = ClusterBounds {
        partitions: 16,
        ..CLUSTER
    };
    let mut partition = Partition::new(other, Epoch(1), cluster, queues, roster());
    partition.step(
        0,
        Event::Recover {
            actions: vec![action(None)],
            totals: vec![],
            sets: Sets::default(),
        },
    );
    let effects = partition.step(0, submit_event(RequestId::fresh(), Priority::Normal));
    let rejected = effects.iter().find_map(|effect| match effect {
        Effect::Answer { answer, .. } => answer.outcome.as_ref().err(),
        _ => None,
    });
    assert_eq!(rejected.unwrap().code, RejectCode::WrongPartition);
}

#[test]
fn a_completion_that_names_a_wrong_action_still_frees_its_slot() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(2);
    let mut done = completion(ids[0], 1);
    done.action_id = ActionId(999);
    world.round(vec![Event::Completed(done)]);
    assert_eq!(world.holders(), [ids[1]]);
}

/// Executions of several partitions have the same place in their orders.
#[test]
fn a_cancellation_meant_for_another_partition_ends_nothing() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(2);
    let execution_id = ExecutionId::new(PartitionId(PARTITION.0 + 1), ids[1].seq());
    world.round(vec![cancel(execution_id)]);
    assert_eq!(world.refused().unwrap().code, RejectCode::WrongPartition);
    assert_eq!(world.stored.active[&ids[1]].0, Status::Queued);
}

/// A partition is taken over by an owner that is `behind` the one that accepted somebody, and catches up. The wait
/// ends when `until` says, by the time of the acceptance.
#[track_caller]
fn is_accepted_ahead(behind: Millis, until: impl Fn(Millis) -> Millis) {
    let mut world = World::new(Some(0), 100);
    let id = world.submit(1)[0];
    let mut rows = world.rows();
    let accepted = world.now;
    rows[0].created = accepted;
    world.now -= behind;
    let mut world = world.load_rows(Some(0), rows);
    expire_at(&mut world, until(accepted), &[id]);
}

#[test]
fn who_was_accepted_by_an_owner_that_was_ahead_waits_as_long_as_was_promised() {
    is_accepted_ahead(4_000, |accepted| accepted + 60_000);
}

#[test]
fn who_was_accepted_by_a_clock_that_was_wrong_counts_from_when_it_was_seen() {
    is_accepted_ahead(7_200_000, |accepted| accepted - 7_200_000 + 60_000);
}

#[test]
fn what_waits_again_for_a_slot_does_not_expire_and_holds_up_nobody() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(2);
    world.start(ids[0]);
    world.now = 10_000;
    let other = world.submit(1)[0];
    world.now = 60_000;
    world.reconcile(vec![world.slot(ids[0], true)]);
    // It had run for a minute, longer than one may wait: it runs again, the next one expires.
    assert_eq!(world.holders(), [ids[0]]);
    assert_eq!(world.stored.active[&ids[0]].1, Attempt(2));
    world.round(vec![]);
    assert_eq!(world.stored.history[&ids[1]], Status::Expired);
    assert_eq!(world.stored.active[&other].0, Status::Queued);
}

#[test]
fn after_a_take_over_a_delayed_start_counts_as_waiting_from_its_time_on() {
    let mut world = World::new(Some(1), 100);
    world.submit(1);
    let now = 10_000_000;
    let row = StoredExecution {
        front: false,
        id: ExecutionId::new(PARTITION, Seq::new(Epoch(1), 100)),
        action_id: ACTION,
        priority: Priority::Normal,
        status: Status::Queued,
        attempt: Attempt(0),
        grant_no: None,
        unbegun: 0,
        retried: false,
        created: now - 3_600_000,
        not_before: Some(now - 59_999),
        cancel_requested: false,
        demand: None,
        asker: None,
        kept_until: None,
        worker: None,
    };
    world.partition.step(now, Event::RecoverRows(vec![row]));
    let mut ends_at = |now| {
        let effects = world.partition.step(now, Event::Tick);
        let is_end = |effect: &&Effect| matches!(effect, Effect::End(_));
        effects.iter().filter(is_end).count()
    };
    assert_eq!((ends_at(now), ends_at(now + 1)), (0, 1));
}

/// Its worker was lost, and the next owner's clock shows two hours less: its delay was over when it
/// was granted, so nobody who came later gets before it.
#[test]
fn after_a_take_over_who_had_a_slot_before_is_not_delayed_again() {
    let mut world = World::new(Some(1), 100);
    world.submit(1);
    let now = 10_000_000;
    let row = |n: u32, attempt: i32, not_before: Option<Millis>| StoredExecution {
        front: false,
        id: ExecutionId::new(PARTITION, Seq::new(Epoch(1), n)),
        action_id: ACTION,
        priority: Priority::Normal,
        status: Status::Queued,
        attempt: Attempt(attempt),
        grant_no: None,
        unbegun: 0,
        retried: false,
        created: now,
        not_before,
        cancel_requested: false,
        demand: None,
        asker: None,
        kept_until: None,
        worker: None,
    };
    let later = Some(now + 7_200_000);
    // Of one it is written that it is tried again then.
    let mut retried = row(99, 1, later);
    retried.retried = true;
    let rows = vec![
        retried,
        row(100, 1, later),
        row(101, 0, later),
        row(102, 0, None),
    ];
    let seqs = [99, 100, 101, 102].map(|n| Seq::new(Epoch(1), n));
    world.partition.step(now, Event::RecoverRows(rows));
    let place = |seq| {
        let queues = &world.partition.queues;
        queues.with_existing(ACTION, |queue| queue.position(seq))
    };
    let expected = [Some(None), Some(Some(0)), Some(None), Some(Some(1))];
    assert_eq!(seqs.map(place), expected);
}

/// The kinds that are logged of one life, in the order of the decisions.
#[test]
fn what_is_decided_is_logged_in_order() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(2);
    world.complete(ids[0], 1);
    world.complete(ids[0], 1);
    world.round(vec![Event::ActionKnown(Box::new(action(Some(2))))]);
    world.start(ids[1]);
    let slot = world.slot(ids[1], true);
    world.reconcile(vec![slot]);
    let mut world = world.take_over(Some(2));
    world.complete(ids[1], 2);
    let kinds: Vec<&str> = world.stored.facts.iter().map(kind).collect();
    let expected = [
        "acquired", "bounds", "accepted", "granted", "accepted",
        "totals", // two are submitted
        "ended", "granted", "totals", "stale",  // the first ends, twice
        "bounds", // the limit is raised
        "totals", "revoked", "granted", "totals", // a worker is lost
        "acquired", "bounds", "held", "totals", "ended", "totals", // another owner
    ];
    assert_eq!(kinds, expected);
    // The same definition again is nothing new.
    world.round(vec![Event::ActionKnown(Box::new(action(Some(2))))]);
    let bounds = |fact: &&Fact| matches!(fact, Fact::Bounds { .. });
    assert_eq!(world.stored.facts.iter().filter(bounds).count(), 3);
}

fn kind(fact: &Fact) -> &'static str {
    match fact {
        Fact::Acquired { .. } => "acquired",
        Fact::Bounds { .. } => "bounds",
        Fact::Held { .. } => "held",
        Fact::Accepted { .. } => "accepted",
        Fact::Grouped { .. } => "grouped",
        Fact::HandedOn { .. } => "handed on",
        Fact::Granted { .. } => "granted",
        Fact::Ended { .. } => "ended",
        Fact::Revoked { .. } => "revoked",
        Fact::Retried { .. } => "retried",
        Fact::KeptOn { .. } => "kept on",
        Fact::Moved(_) => "moved",
        Fact::Operated { .. } => "operated",
        Fact::Stale { .. } => "stale",
        Fact::Line { .. } => "line",
        Fact::Refused { .. } => "refused",
        Fact::Asked { .. } => "asked",
        Fact::Paused { .. } => "paused",
        Fact::Lost => "lost",
        Fact::Fenced => "fenced",
        Fact::Policies { .. } => "policies",
        Fact::Totals { .. } => "totals",
    }
}
