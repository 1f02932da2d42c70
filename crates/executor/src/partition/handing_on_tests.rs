//! Tests of executions that are granted to a worker ahead of their slots.

use attune_core::policy::Retry;
use attune_core::{
    ActionSpec, OnWorkerLost, Operation, OperationFilter, OperationId, OperationKind,
    OperationProgress, Outcome, PartOfOperation, PauseMode, PauseTarget, Priority, RejectCode,
    RequestId, WorkerId,
};

use super::super::test_world::{
    ACTION, WORKER, World, action, cancel, completed, completion, life, submit_event,
};
use super::super::*;
use crate::counters::Counter;
use crate::queue::Blocked;

/// A world in which an action of this limit has had four ends, and `waiting` more than its slots are there.
fn world(limit: u32, waiting: usize) -> (World, Vec<ExecutionId>) {
    let mut world = World::new(Some(limit), 1_000);
    world.partition.cluster.lane_length = 256;
    let mut ids = world.submit(4 + limit as usize + waiting);
    for id in ids.drain(..4) {
        assert_eq!(world.ahead(), [], "nobody knows yet how long runs take");
        world.now += 10;
        world.complete(id, 1);
    }
    (world, ids)
}

#[test]
fn the_worker_that_has_all_slots_is_granted_more_than_it_has() {
    let (mut world, ids) = world(2, 20);
    assert_eq!(world.holders(), ids[..2]);
    assert_eq!(world.ahead(), ids[2..10], "as many as at first");
    let dispatched: Vec<_> = ids[..10].iter().map(|id| (*id, Attempt(1))).collect();
    assert!(world.stored.dispatched.ends_with(&dispatched));
    assert_eq!(world.partition.stats(ACTION).unwrap().queue_length, 20);
    assert_eq!(
        world.partition.blocked(ACTION),
        Some(Blocked::Limit { limit: 2 })
    );
    assert_eq!(world.roster.lock().held(WORKER), 2, "they take no room");
    // One that ends hands its slot on, and the line is filled up again.
    world.now += 10;
    world.complete(ids[1], 1);
    assert_eq!(world.holders(), [ids[0], ids[2]]);
    assert_eq!(world.ahead(), ids[3..11]);
    // Whoever comes later stands behind them.
    let before = world.stored.answers.len();
    world.submit(1);
    let answer = world.stored.answers[before].as_ref().unwrap();
    assert_eq!(answer.position, Some(19));
}

#[test]
fn what_begins_and_ends_in_one_round_is_written_once() {
    let (mut world, ids) = world(1, 30);
    world.now += 10;
    let ends = ids[..5].iter().map(|id| completed(*id, 1)).collect();
    world.round(ends);
    assert_eq!(world.holders(), [ids[5]]);
    // More than half of the line ended in one round: it is longer from now on.
    assert_eq!(world.ahead(), ids[6..22]);
    assert_eq!(world.count(Counter::Granted), 10, "each has had its slot");
}

#[test]
fn an_end_that_comes_before_the_one_before_it_counts() {
    let (mut world, ids) = world(1, 9);
    let granted = world.count(Counter::Granted);
    world.complete(ids[1], 1);
    assert_eq!(world.holders(), [ids[0]]);
    assert_eq!(world.count(Counter::Granted), granted);
    world.complete(ids[0], 1);
    assert_eq!(world.holders(), [ids[2]]);
    world.complete(ids[1], 1);
    assert_eq!(world.count(Counter::StaleCompletion), 1);
}

#[test]
fn who_belongs_before_them_calls_them_back() {
    let (mut world, ids) = world(1, 9);
    let urgent = world.submit_with(1, Priority::High)[0];
    assert_eq!(world.stored.recalled, [(WORKER, ACTION)]);
    world.submit_with(1, Priority::High);
    assert_eq!(world.stored.recalled.len(), 1, "once");
    assert_eq!(world.partition.recalled_from(WORKER), [ACTION]);
    // One begins before its worker hears of it; the rest comes back.
    world.complete(ids[0], 1);
    assert_eq!(world.holders(), [ids[1]]);
    give_back(&mut world, &ids[2..9]);
    assert_eq!(world.partition.recalled_from(WORKER), []);
    let dispatched = &world.stored.dispatched;
    let first = dispatched[dispatched.len() - 8];
    assert_eq!(
        first,
        (urgent, Attempt(1)),
        "the lane begins anew, in order"
    );
    assert_eq!(world.attempt(ids[2]), 2, "and they behind it");
    assert_eq!(world.partition.holds(ids[2]), Some(Attempt(2)));
}

fn give_back(world: &mut World, ids: &[ExecutionId]) {
    let attempt = |id: &ExecutionId| world.stored.active[id].1;
    let grants = ids
        .iter()
        .map(|id| ((*id, attempt(id)), Arc::from("called")));
    let grants = grants.collect();
    world.round(vec![Event::Returned {
        worker: WORKER,
        grants,
    }]);
}

/// Who is granted in the same round is on its way to nobody yet: it would be handed the slot of what comes back.
#[test]
fn nobody_is_granted_ahead_before_it_is_decided_on_what_comes_back_in_the_same_round() {
    let (mut world, ids) = world(1, 20);
    assert_eq!(world.ahead(), ids[1..9]);
    world.partition.expects(BTreeMap::from([(WORKER, 2)]));
    world.now += 10;
    world.complete(ids[0], 1);
    assert_eq!(
        (world.holders(), world.ahead()),
        (vec![ids[1]], ids[2..9].to_vec())
    );
    give_back(&mut world, &ids[1..5]);
    assert_eq!(
        (world.holders(), world.ahead()),
        (vec![ids[5]], ids[6..9].to_vec())
    );
    give_back(&mut world, &ids[5..9]);
    assert_eq!(world.holders(), [ids[1]]);
    assert_eq!(world.ahead().first(), Some(&ids[2]));
}

#[test]
fn a_paused_queue_calls_them_back_and_grants_nobody_ahead() {
    let (mut world, ids) = world(1, 9);
    pause(&mut world, true);
    assert_eq!(world.stored.recalled, [(WORKER, ACTION)]);
    give_back(&mut world, &ids[1..9]);
    world.complete(ids[0], 1);
    assert_eq!((world.holders(), world.ahead()), (vec![], vec![]));
    pause(&mut world, false);
    assert_eq!(world.holders(), [ids[1]]);
}

fn pause(world: &mut World, holds: bool) {
    let mut pauses = Pauses::clone(&world.partition.pauses);
    pauses.version += 1;
    let all = PauseTarget::All;
    match holds {
        true => pauses.held.insert(all, PauseMode::Pause),
        false => pauses.held.remove(&all),
    };
    world.round(vec![Event::Pauses(Arc::new(pauses))]);
}

/// Nobody here knows which of them have begun: one that has goes on, as everybody does who runs.
#[test]
fn an_operation_that_ends_who_waits_calls_them_back_first() {
    let include_running = false;
    for kind in [
        OperationKind::Clear,
        OperationKind::Cancel { include_running },
    ] {
        let (mut world, ids) = world(1, 9);
        let operation = begin(&mut world, kind);
        assert_eq!(world.stored.recalled, [(WORKER, ACTION)]);
        while let Some(page) = world.partition.page(operation, 3, |_| false) {
            assert_eq!(page.ids, [], "{kind:?}");
            world.round(vec![Event::Page(page, Vec::new())]);
        }
        assert_eq!(world.ahead(), ids[1..9], "{kind:?}");
        // One begins before its worker hears of it; the rest comes back, and is not granted again.
        world.complete(ids[0], 1);
        give_back(&mut world, &ids[2..9]);
        assert_eq!((world.holders(), world.ahead()), (vec![ids[1]], vec![]));
        while let Some(page) = world.partition.page(operation, 3, |_| false) {
            world.round(vec![Event::Page(page, Vec::new())]);
        }
        assert!(!world.partition.wants_lanes_of(&action(Some(1))));
        let left: Vec<_> = world.stored.active.keys().copied().collect();
        assert_eq!(left, [ids[1]], "{kind:?}");
        assert_eq!(world.stored.totals.cancelled, 8, "{kind:?}");
    }
}

/// What runs is asked to end, and those ahead with it: for that nobody has to come back.
#[test]
fn an_operation_that_ends_what_runs_asks_them_to_end() {
    let (mut world, ids) = world(1, 9);
    let include_running = true;
    let operation = begin(&mut world, OperationKind::Cancel { include_running });
    while let Some(page) = world.partition.page(operation, 100, |_| false) {
        world.round(vec![Event::Page(page, Vec::new())]);
    }
    assert_eq!(world.stored.recalled, []);
    let asked = |id: &ExecutionId| {
        let queue = |queue: &mut ActionQueue| queue.holder(*id);
        let holder = world.partition.queues.with_existing(ACTION, queue);
        holder.flatten().is_some_and(|it| it.cancel_requested)
    };
    assert!(ids[..9].iter().all(asked));
}

/// A worker that does not answer holds up what has to know whether it has begun, and nothing else.
#[test]
fn an_operation_that_waits_for_a_lane_is_passed_by_those_that_need_not() {
    let (mut world, ids) = world(1, 9);
    let clear = begin(&mut world, OperationKind::Clear);
    let front = begin_as(&mut world, 2, OperationKind::MoveToFront);
    let include_running = true;
    let cancel = begin_as(&mut world, 3, OperationKind::Cancel { include_running });
    let in_turn: Vec<_> = world.partition.open_operations(|_| false).collect();
    assert_eq!(in_turn, [clear, front, cancel]);
    for operation in [clear, front] {
        while let Some(page) = world.partition.page(operation, 100, |_| false) {
            assert_eq!(page.ids, [], "{operation}");
            world.round(vec![Event::Page(page, Vec::new())]);
        }
    }
    let awaited = world.partition.waits_for(clear);
    let spec = action(Some(1)).spec;
    assert_eq!(awaited, Some((WORKER, spec.action_ref)));
    assert_eq!(
        world.partition.waits_for(front),
        None,
        "it waits for the first one"
    );
    // One that is held off is passed by all.
    let page = world.partition.page(front, 100, |of| of == clear).unwrap();
    assert_eq!(page.ids.len(), 1, "those ahead are nobody's to move");
    while let Some(page) = world.partition.page(cancel, 100, |_| false) {
        world.round(vec![Event::Page(page, Vec::new())]);
    }
    assert_eq!(world.stored.totals.cancelled, 1, "who waited is ended");
    // What was begun ends, the rest comes back, and the others find nothing any more.
    world.complete(ids[0], 1);
    give_back(&mut world, &ids[1..9]);
    for operation in [clear, front] {
        while let Some(page) = world.partition.page(operation, 100, |_| false) {
            world.round(vec![Event::Page(page, Vec::new())]);
        }
    }
    assert_eq!(world.partition.open_operations(|_| false).next(), None);
    assert_eq!(world.stored.active.len(), 0);
}

fn begin(world: &mut World, kind: OperationKind) -> OperationId {
    begin_as(world, 1, kind)
}

fn begin_as(world: &mut World, id: i64, kind: OperationKind) -> OperationId {
    let id = OperationId(id);
    let filter = OperationFilter {
        all: true,
        ..OperationFilter::default()
    };
    world.round(vec![Event::Operations(vec![PartOfOperation {
        operation: Operation { id, kind, filter },
        partition: world.partition.id,
        progress: OperationProgress::default(),
    }])]);
    id
}

#[test]
fn another_limit_calls_them_back() {
    for limit in [1, 3] {
        let (mut world, ids) = world(2, 20);
        world.round(vec![Event::ActionKnown(Box::new(action(Some(limit))))]);
        assert_eq!(world.stored.recalled, [(WORKER, ACTION)]);
        give_back(&mut world, &ids[4..10]);
        world.complete(ids[0], 1);
        world.complete(ids[1], 1);
        assert!(world.holders().len() <= (limit as usize).max(2));
        assert!(world.holders().starts_with(&ids[2..3]));
    }
}

/// The worker is lost with all that these were granted; another one comes in its place.
fn lose_worker(world: &mut World, ids: &[ExecutionId]) -> WorkerId {
    let lost: Vec<_> = ids.iter().map(|id| world.slot(*id, true)).collect();
    let other = WorkerId::fresh();
    world.roster.lock().set([life(other, 9)]);
    world.reconcile(lost);
    other
}

fn tried_at_most(most: u32) -> Event {
    let mut action = action(Some(1));
    action.spec.max_attempts = Some(most);
    Event::ActionKnown(Box::new(action))
}

#[test]
fn who_was_lost_ahead_waits_again_and_nobody_is_granted_ahead_until_one_has_ended() {
    let (mut world, ids) = world(1, 20);
    world.round(vec![tried_at_most(3)]);
    let other = lose_worker(&mut world, &ids[..9]);
    assert_eq!(
        world.holders(),
        [ids[0]],
        "it is tried again, at another worker"
    );
    assert_eq!(world.ahead(), []);
    for id in &ids[..9] {
        let put_back = &world.stored.put_back[id];
        assert_eq!(put_back.unbegun, 0, "it may have begun, and counts");
    }
    world.round(vec![Event::Completed(Completion {
        worker: other,
        ..completion(ids[0], 2)
    })]);
    assert_eq!(world.holders(), [ids[1]]);
    assert_eq!(world.ahead(), ids[2..10]);
}

/// Where it is lost, begun or not, it would end, or run more often than it may.
#[test]
fn nobody_stands_ahead_with_the_last_try() {
    let (mut world, ids) = world(1, 20);
    world.round(vec![tried_at_most(2)]);
    assert_eq!(world.stored.recalled, [], "they have another try");
    let other = lose_worker(&mut world, &ids[..9]);
    for id in &ids[..8] {
        assert_eq!((world.holders(), world.ahead()), (vec![*id], vec![]));
        world.round(vec![Event::Completed(Completion {
            worker: other,
            ..completion(*id, 2)
        })]);
    }
    assert_eq!(world.holders(), [ids[8]]);
    assert_eq!(world.ahead(), ids[9..], "they have two");
}

#[test]
fn who_may_stand_ahead_no_longer_is_called_back() {
    let rules: [fn(&mut ActionSpec); 3] = [
        |spec| spec.max_attempts = Some(1),
        |spec| spec.on_worker_lost = Some(OnWorkerLost::Fail),
        |spec| spec.policy.retry = Some(Retry::default()),
    ];
    for rule in rules {
        let (mut world, ids) = world(1, 9);
        let mut action = action(Some(1));
        let action_ref = action.spec.action_ref.clone();
        rule(&mut action.spec);
        world.round(vec![Event::ActionKnown(Box::new(action))]);
        assert_eq!(world.stored.recalled, [(WORKER, ACTION)]);
        let outdated = |world: &World| world.partition.outdated_lane(|_| true);
        assert_eq!(outdated(&world), Some((WORKER, action_ref)));
        give_back(&mut world, &ids[1..9]);
        assert_eq!(outdated(&world), None);
        world.complete(ids[0], 1);
        assert_eq!((world.holders(), world.ahead()), (vec![ids[1]], vec![]));
    }
}

/// Lost with their worker they would end, begun or not.
#[test]
fn who_stands_ahead_with_what_has_become_the_last_try_is_called_back() {
    let (mut world, ids) = world(1, 20);
    world.round(vec![tried_at_most(3)]);
    let other = lose_worker(&mut world, &ids[..9]);
    world.round(vec![Event::Completed(Completion {
        worker: other,
        ..completion(ids[0], 2)
    })]);
    assert_eq!(world.ahead(), ids[2..10]);
    let outdated = |world: &World| world.partition.outdated_lane(|_| true);
    assert_eq!(outdated(&world), None);
    world.round(vec![tried_at_most(2)]);
    assert_eq!(world.stored.recalled, [(other, ACTION)]);
    assert_eq!(outdated(&world).unwrap().0, other);
}

#[test]
fn a_later_owner_knows_them_and_calls_them_back() {
    let (world, ids) = world(1, 20);
    let mut world = world.take_over(Some(1));
    assert_eq!(world.ahead(), ids[1..9]);
    assert_eq!(world.stored.recalled, [(WORKER, ACTION)]);
    assert_eq!(world.roster.lock().held(WORKER), 1);
    world.complete(ids[0], 1);
    assert_eq!(world.holders(), [ids[1]]);
    give_back(&mut world, &ids[2..9]);
    assert_eq!(world.ahead(), [], "it does not know how long runs take");
    assert_eq!(world.rows()[8].worker, None);
}

#[test]
fn one_that_is_cancelled_is_asked_to_end_and_the_rest_stays() {
    let (mut world, ids) = world(1, 9);
    world.round(vec![cancel(ids[3])]);
    assert_eq!(world.stored.cancelled, [(WORKER, (ids[3], Attempt(1)))]);
    assert_eq!(world.ahead().len(), 8);
    let outcome = Arc::new(Outcome::of(Status::Cancelled, None));
    world.round(vec![Event::Completed(Completion {
        outcome,
        ..completion(ids[3], 1)
    })]);
    assert_eq!(world.stored.history[&ids[3]], Status::Cancelled);
    assert!(!world.ahead().contains(&ids[3]));
    assert_eq!(world.holders(), [ids[0]]);
}

#[test]
fn a_mark_to_end_stays_when_the_slot_comes() {
    let (mut world, ids) = world(1, 9);
    world.round(vec![cancel(ids[1])]);
    let effects = world.step(completed(ids[0], 1));
    let marked = effects.iter().any(|effect| {
        matches!(effect, Effect::Change(change) if change.id == ids[1] && change.cancel_requested)
    });
    assert!(marked, "{effects:?}");
}

#[test]
fn who_stands_ahead_has_no_slot_to_be_taken_back() {
    let (mut world, ids) = world(1, 9);
    let command = ForceRelease {
        request_id: RequestId::fresh(),
        execution_id: ids[1],
        attempt: Attempt(1),
        who: "test".to_owned(),
        reason: "it seems stuck".to_owned(),
        worker: None,
        never_begun: false,
    };
    world.round(vec![Event::ForceRelease {
        command: Box::new(command),
        reply_to: Some(Arc::from("asker")),
    }]);
    assert_eq!(world.refused().unwrap().code, RejectCode::AlreadyEnded);
    assert_eq!(world.ahead().len(), 8);
}

#[test]
fn they_wait_and_are_told_for_whom() {
    let (world, ids) = world(1, 9);
    let said = world.partition.explanation(world.now, ids[3]).unwrap();
    assert_eq!(said.state, attune_core::explain::QueueState::Waiting);
    assert_eq!(said.position, Some(2));
    let attune_core::explain::Reason::Limit(lack) = &said.waits_for[0] else {
        panic!("{said:?}");
    };
    assert_eq!((lack.used, lack.ahead, lack.holders.len()), (1, 2, 1));
    assert_eq!(lack.holders[0].execution_id, ids[0]);
}

#[test]
fn nobody_is_granted_ahead_where_that_could_change_what_is_promised() {
    // A failure is tried again at its old place: the next would pass it.
    let mut fails = action(Some(1));
    fails.spec.policy.retry = Some(attune_core::policy::Retry {
        max_attempts: Some(3),
        on: None,
        backoff: Default::default(),
        hold_slot: false,
    });
    let mut world = World::new(Some(1), 1_000);
    world.partition.cluster.lane_length = 256;
    world.round(vec![Event::ActionKnown(Box::new(fails))]);
    let ids = world.submit(30);
    for id in &ids[..12] {
        world.now += 10;
        world.complete(*id, 1);
    }
    assert_eq!(world.ahead(), []);
    // Others wait for the slots of the worker.
    let (mut world, ids) = self::world(1, 30);
    let pool = action(None).spec.pool;
    world.roster.lock().wait_for(&pool, PartitionId(9));
    for id in &ids[..9] {
        world.complete(*id, 1);
    }
    assert_eq!(world.ahead(), []);
    // It has all slots, and fewer places than the action has slots.
    let mut world = World::new(Some(2), 1_000);
    world.partition.cluster.lane_length = 256;
    world.lives([life(WORKER, 1), life(WorkerId::fresh(), 1)]);
    world.submit(30);
    assert_eq!(world.ahead(), []);
    let _ = submit_event;
}

#[test]
fn slots_of_short_runs_gather_at_one_worker() {
    let mut world = World::new(Some(4), 1_000);
    world.partition.cluster.lane_length = 256;
    let other = WorkerId::fresh();
    world.roster.lock().set([life(WORKER, 4), life(other, 4)]);
    let ids = world.submit(40);
    let held = |world: &World| world.roster.lock().held(WORKER);
    assert_eq!(held(&world), 2, "nobody knows yet how long runs take");
    // Those of the other one end first.
    let mut ended = 0;
    while held(&world) < 4 {
        world.now += 2;
        let of = world.stored.workers.clone();
        let holders = world.holders();
        let id = holders.iter().find(|id| of[id] == other);
        let id = *id.unwrap_or(&holders[0]);
        world.round(vec![Event::Completed(Completion {
            worker: of[&id],
            ..completion(id, 1)
        })]);
        ended += 1;
        assert!(ended < 20, "they do not gather");
    }
    assert!(!world.ahead().is_empty(), "and then some are granted ahead");
    let _ = ids;
}
