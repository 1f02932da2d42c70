//! Tests of what is tried again.

use std::sync::Arc;

use attune_core::policy::{Backoff, Factor, Retry, TryEnds};
use attune_core::{ActionSpec, RequestId, Status};

use super::super::test_world::{ACTION, World, action, cancel, completion};
use super::super::{Event, ForceRelease};
use super::*;

/// Tries three times, whatever happens; waits 100 ms, then 200.
fn retrying(limit: u32, change: impl FnOnce(&mut ActionSpec)) -> World {
    let mut world = World::new(Some(limit), 100);
    let mut action = action(Some(limit));
    action.version = 2;
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
        hold_slot: false,
    });
    change(&mut action.spec);
    world.round(vec![Event::ActionKnown(Box::new(action))]);
    world
}

fn ended(id: ExecutionId, attempt: i32, status: Status, error: Option<&str>) -> Event {
    let mut completion = completion(id, attempt);
    completion.outcome = Arc::new(Outcome::of(status, error.map(str::to_owned)));
    Event::Completed(completion)
}

fn failed(id: ExecutionId, attempt: i32) -> Event {
    ended(id, attempt, Status::Failed, Some("no luck"))
}

impl World {
    /// Lets time pass, as an owner that wakes when there is something to do.
    fn pass(&mut self, millis: Millis) {
        self.now += millis;
        self.round(vec![]);
    }

    fn written(&self, id: ExecutionId) -> &PutBack {
        &self.stored.put_back[&id]
    }
}

#[test]
fn a_failed_try_gives_its_slot_back_and_comes_again_at_its_place() {
    let mut world = retrying(1, |_| ());
    let ids = world.submit(4);
    assert_eq!(world.holders(), [ids[0]]);
    world.round(vec![failed(ids[0], 1)]);
    assert_eq!(world.holders(), [ids[1]], "its slot is free at once");
    assert_eq!(world.written(ids[0]).not_before, Some(100));
    let error = world.written(ids[0]).last_error.as_deref();
    assert_eq!(error, Some("no luck"));
    world.pass(99);
    world.complete(ids[1], 1);
    assert_eq!(world.holders(), [ids[2]], "it is not due yet");
    world.pass(1);
    world.complete(ids[2], 1);
    assert_eq!(world.holders(), [ids[0]], "before who came later");
    // It waits for longer after the second try, and the third is the last.
    world.round(vec![ended(ids[0], 2, Status::TimedOut, None)]);
    assert_eq!(world.written(ids[0]).not_before, Some(300));
    let error = world.written(ids[0]).last_error.as_deref();
    assert_eq!(error, Some("timed_out"));
    world.pass(200);
    world.complete(ids[3], 1);
    world.round(vec![failed(ids[0], 3)]);
    assert_eq!(world.stored.history[&ids[0]], Status::Failed);
    assert_eq!(world.count(Counter::Retried), 2);
    assert_eq!(world.stored.totals.completed, 4, "once for each execution");
}

#[test]
fn what_the_policy_does_not_name_ends() {
    let only = |on: &[TryEnd]| {
        let on: TryEnds = on.iter().copied().collect();
        retrying(1, |spec| {
            spec.on_worker_lost = None;
            spec.policy.retry.as_mut().unwrap().on = Some(on);
        })
    };
    let mut world = only(&[TryEnd::TimedOut]);
    let id = world.submit(1)[0];
    world.round(vec![failed(id, 1)]);
    assert_eq!(world.stored.history[&id], Status::Failed);
    let id = world.submit(1)[0];
    world.start(id);
    let slot = world.slot(id, true);
    world.reconcile(vec![slot]);
    assert_eq!(world.stored.history[&id], Status::Abandoned);
    let id = world.submit(1)[0];
    world.round(vec![ended(id, 1, Status::TimedOut, None)]);
    assert_eq!(world.stored.active[&id].0, Status::Queued);
    // What is reported twice, or late, changes nothing.
    world.round(vec![ended(id, 1, Status::TimedOut, None)]);
    assert_eq!(world.count(Counter::StaleCompletion), 1);
}

#[test]
fn a_lost_worker_is_waited_for_likewise_and_what_never_began_is_no_try() {
    let mut world = retrying(1, |_| ());
    let id = world.submit(1)[0];
    let give_back = |attempt: i32| Event::ForceRelease {
        command: Box::new(ForceRelease {
            request_id: RequestId::fresh(),
            execution_id: id,
            attempt: Attempt(attempt),
            who: "worker".to_owned(),
            reason: "it can start nothing".to_owned(),
            worker: None,
            never_begun: true,
        }),
        reply_to: None,
    };
    for attempt in 1..=5 {
        world.round(vec![give_back(attempt)]);
        assert_eq!(world.holders(), [id], "at once, however often");
    }
    assert_eq!(world.written(id).unbegun, 5);
    let error = &world.written(id).last_error;
    assert_eq!(error, &None, "no try has ended");
    // After a takeover that is still so.
    let mut world = world.take_over(Some(1));
    let mut known = action(Some(1));
    known.version = 2;
    known.spec.policy.retry = Some(Retry {
        max_attempts: Some(2),
        ..Retry::default()
    });
    known.spec.max_attempts = None;
    world.round(vec![Event::ActionKnown(Box::new(known))]);
    world.start(id);
    let slot = world.slot(id, true);
    world.reconcile(vec![slot]);
    assert_eq!(world.stored.active[&id].0, Status::Queued, "the first try");
    let written = world.written(id);
    let words = "its worker was lost in attempt 6";
    assert_eq!(written.last_error.as_deref(), Some(words));
    assert!((800..=1_000).contains(&written.not_before.unwrap()));
    world.pass(1_000);
    world.round(vec![failed(id, 7)]);
    assert_eq!(world.stored.history[&id], Status::Failed, "the second");
}

#[test]
fn who_waits_to_be_tried_again_can_be_cancelled_and_does_not_expire() {
    let mut world = retrying(1, |spec| {
        spec.policy.queue.timeout_seconds = Some(1);
        let backoff = &mut spec.policy.retry.as_mut().unwrap().backoff;
        backoff.initial_ms = 5_000;
    });
    let ids = world.submit(2);
    world.round(vec![failed(ids[0], 1)]);
    world.round(vec![failed(ids[1], 1)]);
    world.pass(1_500);
    world.round(vec![cancel(ids[1])]);
    assert_eq!(world.stored.history[&ids[1]], Status::Cancelled);
    world.pass(3_500);
    assert_eq!(world.holders(), [ids[0]], "its first slot came in time");
    // Who shall end is not tried again.
    world.round(vec![cancel(ids[0]), failed(ids[0], 2)]);
    assert_eq!(world.stored.history[&ids[0]], Status::Failed);
    world.check_balance();
}

#[test]
fn the_next_owner_knows_until_when_it_waits() {
    let mut world = retrying(2, |_| ());
    let ids = world.submit(3);
    world.round(vec![failed(ids[0], 1), failed(ids[1], 1)]);
    world.pass(40);
    let mut world = world.take_over(Some(2));
    assert_eq!(world.holders(), [ids[2]]);
    // The comparison with the store finds them where they are.
    world.round(vec![Event::ReconcileRange {
        after: None,
        last: None,
        rows: world.rows(),
        changed: Arc::default(),
    }]);
    assert_eq!(world.count(Counter::WaitingMissingMended), 0);
    assert_eq!(world.count(Counter::WaitingLeakMended), 0);
    world.pass(59);
    assert_eq!(world.holders(), [ids[2]]);
    world.pass(1);
    assert_eq!(world.holders(), [ids[0], ids[2]], "the first in order");
    assert_eq!(world.partition.stats(ACTION).unwrap().queue_length, 1);
    world.complete(ids[2], 1);
    world.complete(ids[0], 2);
    world.complete(ids[1], 2);
    assert_eq!(world.stored.history.len(), 3);
}

#[test]
fn an_action_that_says_nothing_is_tried_again_as_before() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(2);
    world.round(vec![failed(ids[0], 1)]);
    assert_eq!(world.stored.history[&ids[0]], Status::Failed);
    world.start(ids[1]);
    let slot = world.slot(ids[1], true);
    world.reconcile(vec![slot]);
    assert_eq!(world.holders(), [ids[1]], "at once");
    assert_eq!(world.written(ids[1]).not_before, None);
    let revoked = |fact: &Fact| matches!(fact, Fact::Revoked { .. });
    assert_eq!(
        world.stored.facts.iter().filter(|it| revoked(it)).count(),
        1
    );
}

#[test]
fn a_queue_has_one_deadline_however_many_back_off() {
    let mut world = retrying(1, |spec| {
        let retry = spec.policy.retry.as_mut().unwrap();
        retry.max_attempts = Some(1_000_000);
        retry.backoff.factor = Factor(1.0);
        spec.policy.queue.timeout_seconds = Some(1_000_000);
    });
    let ids = world.submit(90);
    let mut attempts = std::collections::HashMap::new();
    for _ in 0..3 {
        let holder = world.holders()[0];
        let attempt = attempts.entry(holder).or_insert(0);
        *attempt += 1;
        world.round(vec![failed(holder, *attempt)]);
        world.pass(150);
    }
    let few = world.partition.deadlines.len();
    // The first ones fail again and again, the last ones never get their first slot.
    for _ in 0..2_000 {
        let holder = world.holders()[0];
        let attempt = attempts.entry(holder).or_insert(0);
        *attempt += 1;
        world.round(vec![failed(holder, *attempt)]);
        world.pass(150);
    }
    let many = world.partition.deadlines.len();
    assert!(
        many < few + 10,
        "{few} -> {many}, {} wait, {ids:?}",
        world.partition.scheduled.len()
    );
}
