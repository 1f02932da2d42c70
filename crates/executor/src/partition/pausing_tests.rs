//! Tests of queues that operators hold.

use attune_core::{PauseMode, PauseTarget, RejectCode};

use super::test_world::{ACTION, World, action};
use super::tests::expire_at;
use super::*;
use crate::queue::Blocked;

fn set(version: i64, held: &[(PauseTarget, PauseMode)], resumed: Option<i64>) -> Event {
    Event::Pauses(Arc::new(Pauses {
        version,
        held: held.iter().cloned().collect(),
        resumed: resumed
            .map(|at| (PauseTarget::All, at))
            .into_iter()
            .collect(),
    }))
}

fn own() -> PauseTarget {
    PauseTarget::Action(action(None).spec.action_ref)
}

fn pack() -> PauseTarget {
    PauseTarget::Pack(action(None).spec.action_ref.pack().to_owned())
}

#[test]
fn nothing_is_granted_until_the_last_pause_is_lifted() {
    let mut world = World::new(Some(2), 100);
    let first = world.submit(1)[0];
    let (by_action, by_all) = (
        (own(), PauseMode::Pause),
        (PauseTarget::All, PauseMode::Pause),
    );
    world.step(set(1, &[by_action.clone(), by_all.clone()], None));
    let waiting = world.submit(2);
    assert_eq!(world.holders(), [first], "who runs goes on");
    assert_eq!(world.partition.blocked(ACTION), Some(Blocked::Paused));
    world.complete(first, 1);
    for event in [
        Event::Tick,
        Event::ActionKnown(Box::new(action(Some(2)))),
        set(1, &[], None), // of the same version: read twice
        set(2, &[by_all], None),
    ] {
        world.step(event);
        assert!(world.holders().is_empty());
    }
    world.step(set(3, &[], Some(world.now)));
    assert_eq!(world.holders(), waiting);
    world.step(set(2, &[(own(), PauseMode::Pause)], None));
    assert_eq!(
        world.partition.blocked(ACTION),
        Some(Blocked::Empty),
        "an older set"
    );
}

#[test]
fn a_pause_of_something_else_is_no_matter() {
    let mut world = World::new(Some(1), 100);
    let other = PauseTarget::Pack("other".to_owned());
    let effects = world.step(set(1, &[(other, PauseMode::Drain)], None));
    assert!(effects.is_empty());
    assert_eq!(world.submit(1), world.holders());
}

#[test]
fn who_is_drained_takes_nothing_new_and_keeps_what_waits() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(2);
    world.step(set(
        1,
        &[(pack(), PauseMode::Drain), (own(), PauseMode::Pause)],
        None,
    ));
    let answered = world.stored.answers.len();
    world.submit(1);
    let refusal = world.stored.answers[answered].as_ref().unwrap_err();
    assert_eq!(refusal.code, RejectCode::QueueDraining);
    assert!(refusal.retry_after_seconds.is_some());
    world.complete(ids[0], 1);
    assert!(world.holders().is_empty(), "done when nothing runs");
    world.step(set(2, &[], Some(world.now)));
    assert_eq!(world.holders(), ids[1..]);
}

#[test]
fn nothing_expires_during_a_pause_and_waits_count_anew_after_it() {
    let mut world = World::new(Some(0), 100);
    let id = world.submit(1)[0];
    let expires = world.partition.next_deadline().unwrap();
    world.step(set(1, &[(own(), PauseMode::Pause)], None));
    world.now = expires + 1_000_000;
    world.round(vec![]);
    assert!(world.stored.history.is_empty());
    let resumed = world.now;
    world.step(set(2, &[], Some(resumed)));
    // Another owner knows it too, and who came later is counted from then on.
    let later = world.submit(1)[0];
    let deadline = world.partition.next_deadline().unwrap();
    assert_eq!(deadline, resumed + 60_000);
    expire_at(&mut world, deadline, &[id, later]);
}

/// A partition is taken over, and a queue is resumed at a time that its new owner has not come to yet, by
/// `ahead`. Then the owner sees what time it is.
#[track_caller]
fn is_resumed_ahead(ahead: Millis, waits_until: impl Fn(Millis) -> Millis) {
    for knows_it_held in [false, true] {
        let mut world = World::new(Some(0), 100);
        let id = world.submit(1)[0];
        world.step(set(1, &[(own(), PauseMode::Pause)], None));
        let mut world = world.take_over(Some(0));
        if !knows_it_held {
            world.step(set(2, &[], Some(world.now)));
        }
        let resumed = world.now + ahead;
        world.step(set(3, &[], Some(resumed)));
        let until = waits_until(resumed);
        world.now = until - 1;
        world.round(vec![]);
        assert!(world.stored.history.is_empty(), "{knows_it_held}");
        world.now = until;
        world.round(vec![]);
        assert_eq!(world.stored.history[&id], Status::Expired);
    }
}

#[test]
fn waits_count_from_a_resume_that_an_owner_has_not_come_to_yet() {
    is_resumed_ahead(5_360, |resumed| resumed + 60_000);
}

#[test]
fn a_resume_by_a_clock_that_was_wrong_keeps_nobody_waiting() {
    is_resumed_ahead(7_200_000, |resumed| resumed - 7_200_000 + 60_000);
}

#[test]
fn pauses_of_others_put_off_nobody_who_was_resumed_by_a_clock_that_was_wrong() {
    let mut world = World::new(Some(0), 100);
    let id = world.submit(1)[0];
    world.step(set(1, &[(own(), PauseMode::Pause)], None));
    let wrong = world.now + 86_400_000;
    let until = world.now + 60_000;
    world.step(set(2, &[], Some(wrong)));
    for version in 3..9 {
        world.now += 5_000;
        let other = PauseTarget::Pack("other".to_owned());
        let held = [(other, PauseMode::Pause)];
        let held = if version % 2 == 1 { &held[..] } else { &[] };
        world.step(set(version, held, Some(wrong)));
    }
    world.now = until;
    world.round(vec![]);
    assert_eq!(world.stored.history[&id], Status::Expired);
}

#[test]
fn a_pause_that_is_recovered_holds_from_the_first_moment() {
    let mut world = World::new(Some(2), 100);
    world.step(set(4, &[(own(), PauseMode::Pause)], None));
    let ids = world.submit(2);
    let mut world = world.take_over(Some(2));
    assert!(world.holders().is_empty());
    assert_eq!(world.partition.blocked(ACTION), Some(Blocked::Paused));
    world.step(set(5, &[], Some(world.now)));
    assert_eq!(world.holders(), ids);
}

#[test]
fn who_waits_in_a_paused_queue_fills_it() {
    let mut world = World::new(Some(5), 2);
    world.step(set(1, &[(own(), PauseMode::Pause)], None));
    let answered = world.stored.answers.len();
    world.submit(3);
    let answers = &world.stored.answers[answered..];
    assert!(answers[..2].iter().all(Result::is_ok));
    assert_eq!(answers[2].as_ref().unwrap_err().code, RejectCode::QueueFull);
}
