//! Tests of what operators rely on: taking slots back, the detector, the reconciler's other half.

use attune_core::{Priority, Reject, RejectCode, WorkerId};

use super::test_world::{
    ACTION, PARTITION, WORKER, World, action, completed, reconcile, submit_event,
};
use super::*;
use crate::counters::Counter;
use crate::detector::Broken;
use crate::policy::QueueLimits;
use crate::queue::Waiting;
use crate::round::Draft;
use crate::stored::Audit;
use attune_core::OnWorkerLost;
use attune_core::Seq;

fn command(id: ExecutionId, attempt: i32) -> ForceRelease {
    ForceRelease {
        request_id: RequestId::fresh(),
        execution_id: id,
        attempt: Attempt(attempt),
        who: "ann".to_owned(),
        reason: "its host is gone".to_owned(),
        worker: Some(WorkerId::fresh()),
        never_begun: false,
    }
}

impl World {
    fn force_release(&mut self, command: ForceRelease) -> Vec<Effect> {
        let (command, reply_to) = (Box::new(command), Some(Arc::from("asker")));
        self.step(Event::ForceRelease { command, reply_to })
    }

    fn refused_with(&self) -> Option<RejectCode> {
        self.refused().map(|reject: &Reject| reject.code)
    }

    /// Works on the queue behind the back of the partition.
    fn tamper<T>(&mut self, work: impl FnOnce(&mut ActionQueue) -> T) -> T {
        self.tampered = true;
        self.partition.queues.with_existing(ACTION, work).unwrap()
    }

    /// One pass over everything, as an owner makes it.
    fn sweep(&mut self) -> Vec<Effect> {
        let waiting = Event::ReconcileRange {
            after: None,
            last: None,
            rows: self.rows(),
            changed: Arc::default(),
        };
        let mut effects = Vec::new();
        for event in [reconcile(self.slots()), waiting] {
            effects.extend(self.partition.step(self.now, event));
        }
        let mut draft = Draft::default();
        draft.add(PARTITION, effects.clone());
        self.commit(draft);
        effects
    }
}

fn audits(effects: &[Effect]) -> Vec<&Audit> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Audit(entry) => Some(entry),
            _ => None,
        })
        .collect()
}

/// Where the execution stands after the slot that was taken back, as the audit log has it.
fn audited_status(effects: &[Effect]) -> Status {
    match audits(effects)[..] {
        [Audit::ForceRelease { status, .. }] => *status,
        ref other => panic!("{other:?}"),
    }
}

/// Whether the worker hears that the attempt is none of its own any more.
fn ends_a_run(effects: &[Effect], id: ExecutionId, wanted: i32) -> bool {
    effects.iter().any(|effect| {
        matches!(effect, Effect::Settled { worker, grant }
            if (*worker, *grant) == (WORKER, (id, Attempt(wanted))))
    })
}

#[test]
fn an_operator_takes_a_slot_back_and_the_execution_keeps_its_place() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(3);
    world.start(ids[0]);
    let taken = command(ids[0], 1);
    let effects = world.force_release(taken.clone());
    assert!(ends_a_run(&effects, ids[0], 1));
    // Granted again, before those who came later.
    assert_eq!(world.stored.active[&ids[0]].1, Attempt(2));
    assert_eq!(world.holders(), [ids[0]]);
    let written = Audit::ForceRelease {
        request_id: taken.request_id,
        who: taken.who.clone(),
        reason: taken.reason.clone(),
        execution_id: ids[0],
        attempt: Attempt(1),
        action_ref: "core.noop".to_owned(),
        worker: taken.worker,
        cancel_requested: false,
        status: Status::Queued,
    };
    assert_eq!(audits(&effects), [&written]);

    // The same command again takes nothing, and is answered as it was.
    let effects = world.force_release(taken.clone());
    assert_eq!(world.refused_with(), None);
    assert_eq!(audits(&effects), [&written]);
    assert_eq!(world.stored.active[&ids[0]].1, Attempt(2));
    // Neither does another command for the attempt that is over, nor its report.
    let late = command(ids[0], 1);
    let effects = world.force_release(late.clone());
    assert_eq!(world.refused_with(), Some(RejectCode::AlreadyEnded));
    let tried = Audit::ReleaseRefused {
        request_id: late.request_id,
        who: late.who,
        reason: late.reason,
        execution_id: ids[0],
        attempt: Attempt(1),
    };
    assert_eq!(audits(&effects), [&tried]);
    world.complete(ids[0], 1);
    assert_eq!(world.count(Counter::StaleCompletion), 1);
    assert_eq!(world.holders(), [ids[0]]);
    assert_eq!(world.count(Counter::ForceReleased), 1);
    assert_eq!(world.count(Counter::OrderViolation), 0);
}

#[test]
fn a_slot_taken_back_follows_the_policy_for_lost_workers() {
    // The attempts are used up with the second.
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(2);
    world.start(ids[0]);
    world.force_release(command(ids[0], 1));
    world.start(ids[0]);
    world.force_release(command(ids[0], 2));
    assert_eq!(world.stored.history[&ids[0]], Status::Abandoned);
    assert_eq!(world.holders(), [ids[1]]);

    // What was cancelled before is cancelled now; what has not begun can be taken as well.
    world.step(super::test_world::cancel(ids[1]));
    let effects = world.force_release(command(ids[1], 1));
    assert_eq!(world.stored.history[&ids[1]], Status::Cancelled);
    assert_eq!(audited_status(&effects), Status::Cancelled);

    let mut world = World::new(Some(1), 100);
    let mut fails = action(Some(1));
    fails.spec.on_worker_lost = Some(OnWorkerLost::Fail);
    world.step(Event::ActionKnown(Box::new(fails)));
    let ids = world.submit(2);
    world.force_release(command(ids[0], 1));
    assert_eq!(world.stored.history[&ids[0]], Status::Abandoned);
    assert_eq!(world.holders(), [ids[1]]);
}

/// A worker that could start nothing gives back what it never began, however often: neither the
/// policy nor the number of attempts counts that as a lost worker.
#[test]
fn what_was_never_begun_waits_again_whatever_the_policy_says() {
    let mut world = World::new(Some(1), 100);
    let mut fails = action(Some(1));
    fails.spec.on_worker_lost = Some(OnWorkerLost::Fail);
    fails.spec.max_attempts = Some(1);
    world.step(Event::ActionKnown(Box::new(fails)));
    let ids = world.submit(2);
    for attempt in 1..=3 {
        let mut given_back = command(ids[0], attempt);
        given_back.never_begun = true;
        let effects = world.force_release(given_back);
        assert_eq!(audited_status(&effects), Status::Queued);
        assert_eq!(world.stored.active[&ids[0]].1, Attempt(attempt + 1));
        assert_eq!(world.holders(), [ids[0]], "at its old place");
    }
    world.force_release(command(ids[0], 4));
    assert_eq!(world.stored.history[&ids[0]], Status::Abandoned);
}

#[test]
fn what_holds_no_slot_or_says_no_reason_is_refused() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(2);
    world.force_release(command(ids[1], 0));
    assert_eq!(world.refused_with(), Some(RejectCode::AlreadyEnded));
    world.force_release(command(ExecutionId(1), 1));
    assert_eq!(world.refused_with(), Some(RejectCode::WrongPartition));
    let mut silent = command(ids[0], 1);
    silent.reason = String::new();
    world.force_release(silent);
    assert_eq!(world.refused_with(), Some(RejectCode::InvalidInput));
    assert_eq!(world.holders(), [ids[0]]);
    assert_eq!(world.count(Counter::ForceReleased), 0);
}

#[test]
fn granting_beyond_the_limit_is_found() {
    let mut world = World::new(Some(2), 100);
    let ids = world.submit(5);
    let found = |world: &World| world.count(Counter::LimitViolation);
    assert_eq!(found(&world), 0);
    // The queue believes in another limit than the policy says.
    world.tamper(|queue| {
        let limits = queue.limits().clone();
        queue.set_limits(QueueLimits {
            max_concurrent: Some(3),
            ..limits
        });
    });
    world.complete(ids[0], 1);
    assert_eq!(found(&world), 1);
    world.complete(ids[1], 1);
    assert_eq!(found(&world), 2, "each one is counted");

    // A lowered limit drains, and is none.
    let mut world = World::new(Some(3), 100);
    let ids = world.submit(6);
    world.step(Event::ActionKnown(Box::new(action(Some(1)))));
    world.sweep();
    for id in &ids {
        world.complete(*id, 1);
        world.sweep();
    }
    assert_eq!(found(&world), 0);
    assert_eq!(world.stored.history.len(), 6);
}

/// One that waits for its first slot.
fn entry(execution_id: ExecutionId, seq: Seq) -> Waiting {
    Waiting {
        front: false,
        execution_id,
        seq,
        enqueued_at: 0,
        eligible_at: 0,
        attempt: Attempt(0),
        unbegun: 0,
        delayed: false,
        share: crate::policy::Share::default(),
    }
}

#[test]
fn granting_out_of_order_is_found() {
    let found = |world: &World| world.count(Counter::OrderViolation);
    // One that waits is passed over, and granted after the one behind it.
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(3);
    let passed = entry(ids[1], ids[1].seq());
    assert!(world.tamper(|queue| queue.forget_waiting(passed.seq)));
    world.complete(ids[0], 1);
    assert_eq!(world.holders(), [ids[2]]);
    world.tamper(|queue| queue.restore_waiting(Priority::Normal, passed, None, None));
    assert_eq!(found(&world), 0);
    let effects = world.step(completed(ids[2], 1));
    assert_eq!(found(&world), 1);
    let [Audit::Violation(written)] = audits(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(written.broken, Broken::Order);
    assert_eq!(written.action_ref, "core.noop");
    assert_eq!(written.executions[0], ids[1]);
    assert_eq!(written.stats.active_count, 1);

    // One with an earlier place stands behind: it waits while the later is granted.
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(3);
    world.tamper(|queue| {
        for id in &ids[1..] {
            queue.forget_waiting(id.seq());
        }
        queue.restore_waiting(Priority::Normal, entry(ids[2], Seq(1)), None, None);
        queue.restore_waiting(Priority::Normal, entry(ids[1], Seq(2)), None, None);
    });
    world.complete(ids[0], 1);
    assert_eq!(world.holders(), [ids[2]]);
    assert_eq!(found(&world), 1);
}

#[test]
fn retries_delays_and_priorities_are_no_violations() {
    let mut world = World::new(Some(1), 100);
    let late = submit_delayed(&mut world, 1000);
    let normal = world.submit(3);
    let high = world.submit_with(2, Priority::High);
    world.start(normal[0]);
    world.force_release(command(normal[0], 1));
    let order = [high[0], high[1], late, normal[0], normal[1], normal[2]];
    world.now = 2000;
    for id in order {
        assert_eq!(world.holders(), [id]);
        let attempt = world.stored.active[&id].1.0;
        world.complete(id, attempt);
        world.sweep();
    }
    assert_eq!(world.count(Counter::OrderViolation), 0);
    assert_eq!(world.count(Counter::LimitViolation), 0);
}

/// Submits one that may not start before then.
fn submit_delayed(world: &mut World, at: Millis) -> ExecutionId {
    let mut event = submit_event(RequestId::fresh(), Priority::Normal);
    if let Event::Submit { submit, .. } = &mut event {
        Arc::make_mut(&mut submit.submission).not_before =
            chrono::DateTime::from_timestamp_millis(at);
    }
    let answered = world.stored.answers.len();
    world.round(vec![event]);
    world.accepted(answered)[0]
}

#[test]
fn too_many_slots_in_the_store_are_found() {
    let mut world = World::new(Some(1), 100);
    world.submit(2);
    world.sweep();
    let stranger = ExecutionId::new(PARTITION, Seq::new(Epoch(1), 99));
    world.tampered = true;
    world
        .stored
        .active
        .insert(stranger, (Status::Running, Attempt(1), None));
    let effects = world.sweep();
    assert_eq!(world.count(Counter::SlotMissingMended), 1);
    assert_eq!(world.count(Counter::LimitViolation), 1);
    assert!(matches!(
        audits(&effects)[..],
        [Audit::Violation(written)] if written.broken == Broken::Limit
    ));
    // It is the same two until one of them ends.
    world.sweep();
    assert_eq!(world.count(Counter::LimitViolation), 1);
}

#[test]
fn a_later_one_that_started_earlier_is_found_at_limit_1() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(2);
    world.now = 30_000;
    let seen = |world: &mut World, id: ExecutionId, running_for: Millis| {
        world.start(id);
        let mut row = world.slot(id, false);
        row.running_for = Some(running_for);
        world.reconcile(vec![row]);
        world.complete(id, 1);
    };
    seen(&mut world, ids[0], 1000);
    seen(&mut world, ids[1], 20_000);
    assert_eq!(world.count(Counter::OrderViolation), 1);
}

#[test]
fn who_waits_in_one_place_only_is_mended() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(4);
    // Lost from memory: it is granted in its turn.
    world.tamper(|queue| queue.forget_waiting(ids[1].seq()));
    world.sweep();
    assert_eq!(world.count(Counter::WaitingMissingMended), 1);
    world.complete(ids[0], 1);
    assert_eq!(world.holders(), [ids[1]]);
    // Gone from the store: nothing of it is granted.
    world.stored.active.remove(&ids[2]);
    world.stored.totals.completed += 1;
    world.sweep();
    assert_eq!(world.count(Counter::WaitingLeakMended), 1);
    world.complete(ids[1], 1);
    assert_eq!(world.holders(), [ids[3]]);
    world.complete(ids[3], 1);
    assert_eq!(world.stored.totals.completed, 4);

    // Each took the other for what it is not.
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(2);
    world.tampered = true;
    world.stored.active.get_mut(&ids[0]).unwrap().0 = Status::Queued;
    world.stored.active.get_mut(&ids[1]).unwrap().0 = Status::Running;
    world.stored.active.get_mut(&ids[1]).unwrap().1 = Attempt(1);
    world.stored.workers = [(ids[1], WORKER)].into();
    world.sweep();
    assert_eq!(world.count(Counter::SlotLeakMended), 1);
    assert_eq!(world.holders(), [ids[1]]);
    world.complete(ids[1], 1);
    assert_eq!(world.holders(), [ids[0]]);
    // Between the two looks the first was nowhere: it counts as gone, and as come again.
    let totals = world.stored.totals;
    assert_eq!((totals.enqueued, totals.completed), (3, 2));
    // What agrees costs nothing.
    let effects = world.sweep();
    assert!(effects.is_empty(), "{effects:?}");
}
