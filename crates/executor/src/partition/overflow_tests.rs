//! What an acceptance leads to beside itself, in one commit, and over takeovers.

use attune_core::policy::{OnFull, OnLimit};
use attune_core::{ActionPolicy, Priority, RejectCode, RequestId, Submission};

use super::super::test_world::*;
use super::super::{Event, OnReject, Submit};
use super::*;

/// A world whose action has this policy beside a limit.
fn world(limit: u32, max_length: u32, set: impl FnOnce(&mut ActionPolicy)) -> World {
    let mut world = World::new(Some(limit), max_length);
    let mut action = action(Some(limit));
    action.version += 1;
    set(&mut action.spec.policy);
    action.spec.policy.check(None).unwrap();
    world.round(vec![Event::ActionKnown(Box::new(action))]);
    world
}

fn of_user(request_id: RequestId, user: &str) -> Event {
    let mut submission = Submission::new("core.noop");
    submission.requested_by = Some(user.to_owned());
    Event::Submit {
        submit: Submit::new(request_id, submission, OnReject::Answer),
        known: None,
        reply_to: Some("me".into()),
    }
}

#[test]
fn who_is_dropped_ends_in_the_commit_of_the_acceptance_and_a_copy_drops_nobody() {
    let mut world = world(1, 2, |policy| {
        policy.queue.on_full = Some(OnFull::DropOldest)
    });
    let ids = world.submit(3);
    let copied = submit_event(RequestId::fresh(), Priority::Normal);
    let effects = world.step(copied.clone());
    let ends = effects.iter().filter_map(|effect| match effect {
        Effect::End(end) => Some((end.id, end.outcome.status, end.outcome.code)),
        _ => None,
    });
    let ends: Vec<_> = ends.collect();
    assert_eq!(ends, [(ids[1], Status::Cancelled, Some(EndCode::Dropped))]);
    assert_eq!(world.count(Counter::Dropped), 1);
    for again in [true, false] {
        // In the same round, and later.
        let mut events = vec![copied.clone()];
        if again {
            events.push(copied.clone());
        }
        world.round(events);
        assert!(world.last_answer().as_ref().is_ok_and(|it| it.repeated));
    }
    assert_eq!(world.stored.history.len(), 1);
    let mut world = world.take_over(Some(1));
    world.submit(1);
    assert_eq!(
        world.refused().map(|it| it.code),
        Some(RejectCode::QueueFull),
        "the new owner goes by the action that it loads"
    );
}

#[test]
fn whoever_has_waited_too_long_ends_before_somebody_is_refused() {
    let mut world = World::new(Some(1), 1);
    let ids = world.submit(2);
    world.now += 60_001;
    // Without a tick, which would have ended it by itself.
    world.step(submit_event(RequestId::fresh(), Priority::Normal));
    assert_eq!(world.refused(), None);
    assert_eq!(world.stored.history[&ids[1]], Status::Expired);
}

#[test]
fn the_latest_wins_within_one_round_and_who_is_asked_to_end_is_stored_so() {
    let mut world = world(1, 9, |policy| {
        policy.concurrency.on_limit = Some(OnLimit::CancelRunning);
    });
    let asked = |effects: &[Effect]| -> Vec<ExecutionId> {
        let asked = effects.iter().filter_map(|effect| match effect {
            Effect::CancelRun { worker, grant } => {
                assert_eq!(*worker, WORKER);
                Some(grant.0)
            }
            _ => None,
        });
        asked.collect()
    };
    let ids = world.submit(1);
    let effects = world.step(submit_event(RequestId::fresh(), Priority::Normal));
    assert_eq!(asked(&effects), ids);
    let effects = world.step(submit_event(RequestId::fresh(), Priority::Low));
    assert_eq!(asked(&effects), [], "it is asked already");
    assert_eq!(world.count(Counter::Replaced), 1);
    assert_eq!(world.holders(), ids);
    world.complete(ids[0], 1);
    assert_eq!(world.holders().len(), 1);

    // Accepted, granted and asked to end in one round: the store knows all of it.
    let mut world = super::tests::world(1, 9, |policy| {
        policy.concurrency.on_limit = Some(OnLimit::CancelRunning);
    });
    let mut draft = crate::round::Draft::default();
    for _ in 0..2 {
        let event = submit_event(RequestId::fresh(), Priority::Normal);
        draft.add(PARTITION, world.partition.step(world.now, event));
    }
    let round = draft.into_round(attune_core::OwnerId::fresh(), world.now);
    let inserts = round.commit.batch.inserts.iter();
    let marks: Vec<_> = inserts
        .map(|new| (new.status, new.cancel_requested))
        .collect();
    assert_eq!(marks, [(Status::Requested, true), (Status::Queued, false)]);
}

#[test]
fn a_user_who_has_enough_is_refused_by_name() {
    let mut world = world(1, 9, |policy| policy.per_user_limit = Some(2));
    for _ in 0..2 {
        world.round(vec![of_user(RequestId::fresh(), "ann")]);
        assert_eq!(world.refused(), None);
    }
    world.round(vec![of_user(RequestId::fresh(), "ann")]);
    let refusal = world.refused().unwrap();
    assert_eq!(refusal.code, RejectCode::UserLimitReached);
    assert!(refusal.message.contains("`ann`"), "{refusal}");
    assert_eq!(refusal.retry_after_seconds, Some(1));
    world.round(vec![of_user(RequestId::fresh(), "bob")]);
    assert_eq!(world.refused(), None);
    let ids = world.submit(3);
    assert_eq!(ids.len(), 3, "who names no user is not counted");
}

#[test]
fn who_would_wait_for_the_limit_is_refused() {
    let mut world = world(1, 9, |policy| {
        policy.concurrency.on_limit = Some(OnLimit::Reject);
    });
    let ids = world.submit(2);
    assert_eq!(ids.len(), 1);
    let refusal = world.refused().unwrap();
    assert_eq!(refusal.code, RejectCode::LimitReached);
    assert_eq!(refusal.retry_after_seconds, Some(1));
    world.complete(ids[0], 1);
    assert_eq!(world.submit(1).len(), 1);
}

#[test]
fn a_round_replaces_so_many_and_those_that_come_later_the_others() {
    let mut world = World::new(Some(1), 5_000);
    assert_eq!(world.submit(2_501).len(), 2_501);
    let mut action = action(Some(1));
    action.version += 1;
    action.spec.policy.concurrency.on_limit = Some(OnLimit::ReplaceWaiting);
    world.round(vec![Event::ActionKnown(Box::new(action))]);
    let mut replaced = Vec::new();
    for in_round in [3, 3, 3] {
        let before = world.count(Counter::Replaced);
        assert_eq!(world.submit(in_round).len(), in_round);
        replaced.push(world.count(Counter::Replaced) - before);
    }
    // Of the last round the first replaces all who are left, and each other one the one before it.
    assert_eq!(replaced, [1_016, 1_016, 2_506 - 2 * 1_016 + 2]);
    assert_eq!(world.partition.stats(ACTION).unwrap().queue_length, 1);
}

#[test]
fn a_queue_that_was_just_taken_over_gives_its_slots_before_it_refuses_anybody() {
    let mut world = World::new(Some(1), 2);
    let ids = world.submit(3);
    world.submit(1);
    let code = world.refused().map(|reject| reject.code);
    assert_eq!(code, Some(RejectCode::QueueFull), "as many wait as may");
    let mut world = world.load(Some(2));
    assert_eq!(
        world.holders(),
        ids[..1],
        "nobody was given the second slot yet"
    );
    world.step(submit_event(RequestId::fresh(), Priority::Normal));
    assert_eq!(world.refused(), None);
    assert_eq!(world.holders(), ids[..2]);
    assert_eq!(world.partition.stats(ACTION).unwrap().queue_length, 2);
}

#[test]
fn a_queue_is_served_once_for_somebody_who_is_refused_all_the_same() {
    let shorter = |version, max_length| {
        let mut action = action(Some(1));
        action.version = version;
        action.spec.policy.queue.max_length = Some(max_length);
        Event::ActionKnown(Box::new(action))
    };
    let mut world = World::new(Some(1), 9);
    let old = world.submit(2)[1];
    world.now += 30_000;
    world.submit(2);
    world.round(vec![shorter(2, 1)]);
    world.now += 30_001;
    // One of those that wait has waited too long, and those who are left are more than may wait.
    let effects = world.step(submit_event(RequestId::fresh(), Priority::Normal));
    let code = world.refused().map(|reject| reject.code);
    assert_eq!(code, Some(RejectCode::QueueFull));
    assert_eq!(world.stored.history[&old], Status::Expired);
    let served = effects
        .iter()
        .filter(|effect| matches!(effect, Effect::Touched(_)));
    assert_eq!(served.count(), 1);
}
