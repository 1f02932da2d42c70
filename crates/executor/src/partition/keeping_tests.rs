//! Tests of who keeps its slot between two tries.

use std::collections::HashSet;

use attune_core::policy::{Backoff, Factor, OnLimit, Retry};
use attune_core::{Attempt, PauseMode, PauseTarget, Pauses, Priority, RequestId, Status};

use super::super::test_world::{
    ACTION, PARTITION, WORKER, World, action, cancel, completion, life, reconcile, submit_event,
};
use super::super::{Event, ForceRelease};
use super::*;

/// Tries three times, whatever happens, in the slot that it has: after 100 ms, then after 200.
fn keeping(limit: u32) -> World {
    let mut world = World::new(Some(limit), 100);
    world.round(vec![Event::ActionKnown(Box::new(keeps(limit, 2)))]);
    world
}

fn keeps(limit: u32, version: i64) -> Action {
    let mut action = action(Some(limit));
    action.version = version;
    action.spec.max_attempts = None;
    action.spec.policy.retry = Some(Retry {
        max_attempts: Some(3),
        on: None,
        backoff: Backoff {
            initial_ms: 100,
            factor: Factor(2.0),
            max_ms: 10_000,
            jitter: Factor(0.0),
        },
        hold_slot: true,
    });
    action
}

fn failed(id: ExecutionId, attempt: i32) -> Event {
    let mut completion = completion(id, attempt);
    completion.outcome = Arc::new(Outcome::failed("no luck".to_owned()));
    Event::Completed(completion)
}

impl World {
    fn wait(&mut self, millis: Millis) {
        self.now += millis;
        self.round(vec![]);
    }
}

#[test]
fn who_keeps_its_slot_begins_anew_in_it_at_its_time_and_gives_it_back_at_the_end() {
    let mut world = keeping(1);
    let ids = world.submit(2);
    world.start(ids[0]);
    world.round(vec![failed(ids[0], 1)]);
    assert_eq!(world.holders(), [ids[0]], "nobody else has it");
    let (status, attempt, _) = world.stored.active[&ids[0]];
    assert_eq!((status, attempt), (Status::Requested, Attempt(1)));
    let written = world.stored.put_back[&ids[0]].clone();
    assert_eq!((written.not_before, written.keeps_slot), (Some(100), true));
    assert_eq!(written.last_error.as_deref(), Some("no luck"));
    // What is reported of the try that is over changes nothing, however it is said to have ended.
    world.complete(ids[0], 1);
    world.round(vec![failed(ids[0], 1)]);
    assert_eq!(world.count(Counter::StaleCompletion), 2);
    let dispatched = world.stored.dispatched.len();
    world.wait(99);
    assert_eq!(world.attempt(ids[0]), 1);
    world.wait(1);
    assert_eq!(world.attempt(ids[0]), 2);
    let told = &world.stored.dispatched[dispatched..];
    assert_eq!(told, [(ids[0], Attempt(2))]);
    assert!(!world.stored.put_back[&ids[0]].keeps_slot);
    world.round(vec![failed(ids[0], 2)]);
    world.wait(200);
    world.round(vec![failed(ids[0], 3)]);
    assert_eq!(world.stored.history[&ids[0]], Status::Failed, "the last");
    assert_eq!(world.holders(), [ids[1]]);
    assert_eq!(world.count(Counter::Retried), 2);
    assert_eq!(world.stored.totals.completed, 1);
}

#[test]
fn the_next_owner_gives_its_slot_to_nobody_and_knows_its_time() {
    let mut world = keeping(1);
    let ids = world.submit(2);
    world.round(vec![failed(ids[0], 1)]);
    world.wait(40);
    let dispatched = world.stored.dispatched.len();
    let mut world = world.take_over(Some(1));
    world.round(vec![Event::ActionKnown(Box::new(keeps(1, 2)))]);
    assert_eq!(world.holders(), [ids[0]]);
    let slots = world.slots();
    world.reconcile(slots);
    world.round(vec![Event::ReconcileRange {
        after: None,
        last: None,
        rows: world.rows(),
        changed: Arc::new(HashSet::new()),
    }]);
    assert_eq!(world.count(Counter::SlotMissingMended), 0);
    assert_eq!(world.count(Counter::SlotLeakMended), 0);
    world.wait(59);
    assert_eq!(world.stored.dispatched.len(), dispatched, "not told before");
    world.wait(1);
    assert_eq!(world.attempt(ids[0]), 2);
    world.complete(ids[0], 2);
    assert_eq!(world.holders(), [ids[1]]);
}

#[test]
fn who_keeps_its_slot_is_cancelled_at_once() {
    let mut world = keeping(1);
    let ids = world.submit(2);
    world.round(vec![failed(ids[0], 1)]);
    world.round(vec![cancel(ids[0])]);
    assert_eq!(world.stored.history[&ids[0]], Status::Cancelled);
    let answer = world.last_answer().clone().unwrap();
    assert_eq!(answer.status, Some(Status::Cancelled));
    world.wait(0);
    assert_eq!(world.holders(), [ids[1]], "its slot is handed on");
    // Who was asked to end before is not tried again.
    world.round(vec![cancel(ids[1]), failed(ids[1], 1)]);
    assert_eq!(world.stored.history[&ids[1]], Status::Failed);
}

#[test]
fn a_slot_that_is_kept_can_be_taken_back_by_force_and_its_time_stays() {
    let mut world = keeping(1);
    let ids = world.submit(2);
    world.round(vec![failed(ids[0], 1)]);
    world.wait(30);
    world.round(vec![Event::ForceRelease {
        command: Box::new(ForceRelease {
            request_id: RequestId::fresh(),
            execution_id: ids[0],
            attempt: Attempt(1),
            who: "ann".to_owned(),
            reason: "others are in a hurry".to_owned(),
            worker: None,
            never_begun: false,
        }),
        reply_to: Some("ann".into()),
    }]);
    assert_eq!(world.holders(), [ids[1]]);
    let answer = world.last_answer().clone().unwrap();
    assert_eq!(answer.status, Some(Status::Queued));
    let written = &world.stored.put_back[&ids[0]];
    assert_eq!((written.not_before, written.keeps_slot), (Some(100), false));
    world.complete(ids[1], 1);
    world.wait(69);
    assert_eq!(world.holders(), []);
    world.wait(1);
    assert_eq!(world.holders(), [ids[0]]);
}

#[test]
fn a_next_try_that_never_began_comes_again_in_its_slot() {
    let mut world = keeping(1);
    let ids = world.submit(2);
    world.round(vec![failed(ids[0], 1)]);
    world.wait(100);
    for attempt in 2..=4 {
        assert_eq!(world.attempt(ids[0]), attempt);
        world.round(vec![Event::ForceRelease {
            command: Box::new(ForceRelease {
                request_id: RequestId::fresh(),
                execution_id: ids[0],
                attempt: Attempt(attempt),
                who: "worker".to_owned(),
                reason: "it can start nothing".to_owned(),
                worker: None,
                never_begun: true,
            }),
            reply_to: Some("worker".into()),
        }]);
        let answer = world.last_answer().clone().unwrap();
        assert_eq!(answer.status, Some(Status::Requested));
        assert_eq!(world.holders(), [ids[0]], "nobody gets in between");
        let written = &world.stored.put_back[&ids[0]];
        assert_eq!(i32::from(written.unbegun), attempt - 1);
        assert_eq!(written.last_error.as_deref(), Some("no luck"));
        // Whoever takes over knows all of it.
        world = world.take_over(Some(1));
        world.round(vec![Event::ActionKnown(Box::new(keeps(1, 2)))]);
        world.wait(1);
    }
    // None of them was a try: the second fails now, and there is a third.
    world.round(vec![failed(ids[0], 5)]);
    assert_eq!(world.holders(), [ids[0]]);
    world.wait(200);
    world.round(vec![failed(ids[0], 6)]);
    assert_eq!(world.stored.history[&ids[0]], Status::Failed);
}

#[test]
fn a_lost_worker_leaves_its_slot_to_the_next_try() {
    let mut world = keeping(1);
    let ids = world.submit(2);
    world.start(ids[0]);
    let slot = world.slot(ids[0], true);
    world.reconcile(vec![slot]);
    assert_eq!(world.holders(), [ids[0]]);
    world.wait(100);
    assert_eq!(world.attempt(ids[0]), 2);
}

#[test]
fn nobody_begins_anew_while_the_queue_is_held_or_its_pool_closed() {
    let mut world = keeping(2);
    let id = world.submit(1)[0];
    world.round(vec![failed(id, 1)]);
    let pauses = |version, mode: Option<PauseMode>| {
        let held = mode.map(|mode| (PauseTarget::All, mode));
        Event::Pauses(Arc::new(Pauses {
            version,
            held: held.into_iter().collect(),
            ..Pauses::default()
        }))
    };
    world.round(vec![pauses(1, Some(PauseMode::Pause))]);
    world.wait(500);
    assert_eq!(world.attempt(id), 1);
    assert!(
        world
            .partition
            .next_deadline()
            .is_none_or(|it| it > world.now)
    );
    world.round(vec![pauses(2, None)]);
    assert_eq!(world.attempt(id), 2, "its time is over");
    world.round(vec![failed(id, 2)]);
    world.lives([]);
    world.wait(500);
    assert_eq!(world.attempt(id), 2);
    world.lives([life(WORKER, 1)]);
    assert_eq!(world.attempt(id), 3);
    assert_eq!(world.stored.workers[&id], WORKER);
}

#[test]
fn a_lowered_limit_takes_no_slot_that_is_kept() {
    let mut world = keeping(2);
    let ids = world.submit(3);
    world.round(vec![failed(ids[0], 1), failed(ids[1], 1)]);
    let limit = |world: &World| world.partition.stats(ACTION).unwrap().max_concurrent;
    world.round(vec![Event::ActionKnown(Box::new(keeps(1, 3)))]);
    assert_eq!(limit(&world), Some(1));
    world.wait(100);
    assert_eq!((world.attempt(ids[0]), world.attempt(ids[1])), (2, 2));
    world.complete(ids[0], 2);
    assert_eq!(world.holders(), [ids[1]]);
    world.complete(ids[1], 2);
    assert_eq!(world.holders(), [ids[2]]);
}

#[test]
fn a_newcomer_that_ends_who_keeps_the_slot_has_it_in_the_same_commit() {
    let mut world = World::new(Some(1), 9);
    let mut action = keeps(1, 2);
    action.spec.policy.concurrency.on_limit = Some(OnLimit::CancelRunning);
    world.round(vec![Event::ActionKnown(Box::new(action))]);
    let kept = world.submit(1)[0];
    world.round(vec![failed(kept, 1)]);
    assert_eq!(world.holders(), [kept]);
    let answered = world.stored.answers.len();
    world.step(submit_event(RequestId::fresh(), Priority::Normal));
    let newcomer = world.accepted(answered);
    assert_eq!(world.stored.history[&kept], Status::Cancelled);
    assert_eq!(world.holders(), newcomer);
    world.wait(1_000);
    assert_eq!(world.holders(), newcomer);
}

#[test]
fn who_is_cancelled_while_its_queue_is_held_ends_and_its_slot_waits_for_the_resume() {
    let mut world = keeping(1);
    let ids = world.submit(2);
    world.round(vec![failed(ids[0], 1)]);
    let pauses = |version, held: Vec<(PauseTarget, PauseMode)>| {
        Event::Pauses(Arc::new(Pauses {
            version,
            held: held.into_iter().collect(),
            ..Pauses::default()
        }))
    };
    world.round(vec![pauses(1, vec![(PauseTarget::All, PauseMode::Drain)])]);
    world.round(vec![cancel(ids[0])]);
    assert_eq!(world.stored.history[&ids[0]], Status::Cancelled);
    assert_eq!(world.holders(), []);
    world.wait(500);
    assert_eq!(world.holders(), []);
    world.round(vec![pauses(2, vec![])]);
    assert_eq!(world.holders(), [ids[1]]);
}

#[test]
fn a_kept_slot_that_the_store_does_not_know_is_released_and_nobody_begins_in_it() {
    let mut world = keeping(1);
    let ids = world.submit(2);
    world.round(vec![failed(ids[0], 1)]);
    world.tampered = true;
    world.stored.active.remove(&ids[0]);
    world.stored.totals.completed += 1;
    let mut draft = crate::round::Draft::default();
    for event in [reconcile(vec![]), Event::Tick] {
        draft.add(PARTITION, world.partition.step(world.now, event));
    }
    world.commit(draft);
    assert_eq!(world.count(Counter::SlotLeakMended), 1);
    assert_eq!(world.holders(), [ids[1]]);
    world.wait(1_000);
    assert_eq!(world.holders(), [ids[1]]);
    assert_eq!(world.partition.kept_until(ACTION, ids[0]), None);
}

#[test]
fn a_step_of_the_clock_and_another_owner_neither_lose_a_kept_slot_nor_begin_twice_in_it() {
    let mut world = keeping(1);
    let ids = world.submit(2);
    world.now = 10_000;
    world.round(vec![failed(ids[0], 1)]);
    // The next owner believes that it is earlier, and the one after it that it is much later.
    world.now = 4_000;
    let mut world = world.take_over(Some(1));
    world.round(vec![Event::ActionKnown(Box::new(keeps(1, 2)))]);
    assert_eq!((world.holders(), world.attempt(ids[0])), (vec![ids[0]], 1));
    world.now = 900_000;
    let world = world.take_over(Some(1));
    assert_eq!((world.holders(), world.attempt(ids[0])), (vec![ids[0]], 2));
    let mut world = world.take_over(Some(1));
    assert_eq!((world.holders(), world.attempt(ids[0])), (vec![ids[0]], 2));
    world.complete(ids[0], 2);
    assert_eq!(world.stored.history[&ids[0]], Status::Succeeded);
}
