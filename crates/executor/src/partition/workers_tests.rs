//! Tests of what workers say of what they were granted, and of who may say it.

use attune_core::{Attempt, PartitionId, RequestId, Status};
use attune_dispatch::Life;

use super::super::test_world::{
    ACTION, CLUSTER, WORKER, World, action, completion, life, submit_event,
};
use super::super::{ClusterBounds, Completion, Event, Partition};
use super::*;
use crate::counters::Counter;
use crate::queue::{Blocked, ExecutionQueueManager, QueueConfig};
use crate::roster::SharedRoster;
use crate::stored::Sets;

fn returned(worker: WorkerId, id: ExecutionId, attempt: i32) -> Event {
    let grants = vec![((id, Attempt(attempt)), Arc::from("it stops"))];
    Event::Returned { worker, grants }
}

fn bounced(worker: WorkerId, id: ExecutionId, attempt: i32) -> Event {
    let grants = vec![(id, Attempt(attempt))];
    Event::Bounced { worker, grants }
}

fn started(worker: WorkerId, id: ExecutionId, attempt: i32, since: Millis) -> Event {
    let runs = vec![((id, Attempt(attempt)), since)];
    Event::Started { worker, runs }
}

impl World {
    fn settled(&mut self) -> Vec<(WorkerId, Key)> {
        std::mem::take(&mut self.stored.settled)
    }
}

#[test]
fn what_comes_back_waits_at_its_place_and_was_no_try() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(3);
    // Its action lets it be tried twice.
    for attempt in 1..=5 {
        world.step(returned(WORKER, ids[0], attempt));
        assert_eq!(world.holders(), ids[..1], "before those who came later");
        assert_eq!(world.attempt(ids[0]), attempt + 1);
        assert_eq!(world.settled(), [(WORKER, (ids[0], Attempt(attempt)))]);
        assert_eq!(world.stored.put_back[&ids[0]].last_error, None);
        assert_eq!(world.roster.lock().held(WORKER), 1);
    }
    assert_eq!(world.stored.put_back[&ids[0]].unbegun, 5);
    // Said again it changes nothing, and is answered.
    for (worker, id, attempt) in [
        (WORKER, ids[0], 5),
        (WORKER, ids[0], 7),
        (WORKER, ids[1], 1),
        (WorkerId::fresh(), ids[0], 6),
        (WORKER, ExecutionId(1), 1),
    ] {
        let effects = world.step(returned(worker, id, attempt));
        let [Effect::Settled { .. }] = effects[..] else {
            panic!("{effects:?}");
        };
        assert_eq!(world.settled(), [(worker, (id, Attempt(attempt)))]);
    }
    assert_eq!(world.attempt(ids[0]), 6);
    assert_eq!(world.holders(), ids[..1]);
    world.complete(ids[0], 6);
    assert_eq!(world.stored.history[&ids[0]], Status::Succeeded);
    assert_eq!(world.holders(), ids[1..2]);
}

#[test]
fn who_was_to_end_and_comes_back_ends() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(2);
    world.step(super::super::test_world::cancel(ids[0]));
    assert_eq!(world.stored.cancelled, [(WORKER, (ids[0], Attempt(1)))]);
    world.step(returned(WORKER, ids[0], 1));
    assert_eq!(world.stored.history[&ids[0]], Status::Cancelled);
    assert_eq!(world.holders(), ids[1..]);
}

#[test]
fn what_nobody_received_goes_elsewhere_or_waits_at_its_place() {
    let mut world = World::new(Some(1), 100);
    let other = WorkerId::fresh();
    let ids = world.submit(2);
    assert_eq!(world.stored.workers[&ids[0]], WORKER);
    world.lives([life(WORKER, 9), life(other, 9)]);
    world.roster.lock().note_reach(WORKER, false);
    world.step(bounced(WORKER, ids[0], 1));
    assert_eq!(world.stored.workers[&ids[0]], other, "at once");
    assert_eq!(world.attempt(ids[0]), 2);
    assert_eq!(world.stored.put_back[&ids[0]].unbegun, 1);
    assert_eq!(world.settled(), [], "nobody asked");
    // Told twice it changes nothing.
    world.step(bounced(WORKER, ids[0], 1));
    assert_eq!(world.attempt(ids[0]), 2);
    // Nobody can be reached: it waits, first in its queue, until somebody is heard of.
    world.roster.lock().note_reach(other, false);
    world.step(bounced(other, ids[0], 2));
    world.serve_line();
    assert_eq!(world.holders(), []);
    world.roster.lock().note_reach(WORKER, true);
    world.serve_line();
    assert_eq!(world.holders(), ids[..1]);
    assert_eq!(world.stored.workers[&ids[0]], WORKER);
    assert_eq!(world.attempt(ids[0]), 3);
}

#[test]
fn the_end_of_a_run_that_another_life_holds_changes_nothing_and_is_settled() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(2);
    let other = WorkerId::fresh();
    let by = |worker, attempt| {
        Event::Completed(Completion {
            worker,
            ..completion(ids[0], attempt)
        })
    };
    for (times, (worker, attempt)) in [(other, 1), (WORKER, 2), (other, 2)]
        .into_iter()
        .enumerate()
    {
        world.step(by(worker, attempt));
        assert_eq!(world.holders(), ids[..1]);
        assert_eq!(world.settled(), [(worker, (ids[0], Attempt(attempt)))]);
        assert_eq!(world.count(Counter::StaleCompletion), times as u64 + 1);
    }
    world.step(by(WORKER, 1));
    assert_eq!(world.stored.history[&ids[0]], Status::Succeeded);
    assert_eq!(world.holders(), ids[1..]);
    let held = world.roster.lock().held_by(WORKER);
    assert_eq!(held, [(ids[1], Attempt(1))]);
    // It is said again until it is heard that it is settled.
    world.settled();
    world.step(by(WORKER, 1));
    assert_eq!(world.settled(), [(WORKER, (ids[0], Attempt(1)))]);
    assert_eq!(world.holders(), ids[1..]);
}

#[test]
fn that_it_runs_is_written_once_and_for_this_attempt_only() {
    let mut world = World::new(Some(1), 100);
    let id = world.submit(1)[0];
    for event in [
        started(WorkerId::fresh(), id, 1, 5),
        started(WORKER, id, 2, 5),
        started(WORKER, ExecutionId(1), 1, 5),
    ] {
        assert!(world.step(event).is_empty());
    }
    world.step(started(WORKER, id, 1, 5));
    assert_eq!(world.stored.active[&id].0, Status::Running);
    assert_eq!(world.stored.started[&id], 5);
    assert!(world.step(started(WORKER, id, 1, 7)).is_empty(), "once");
    // The next owner knows it from the row.
    let mut world = world.take_over(Some(1));
    assert!(world.step(started(WORKER, id, 1, 8)).is_empty());
    assert!(world.partition.unheard_of(Millis::MAX).is_empty());
    // Of the next attempt nothing is known, and what comes late of this one is nothing.
    let slot = world.slot(id, true);
    world.round(vec![
        Event::Reconcile {
            slots: vec![slot],
            changed: Arc::default(),
        },
        started(WORKER, id, 1, 9),
    ]);
    assert_eq!(world.attempt(id), 2);
    assert_eq!(world.stored.active[&id].0, Status::Requested);
    assert_eq!(world.partition.unheard_of(Millis::MAX), [WORKER].into());
    // Heard of and given back in one round: the store keeps nothing of it.
    world.round(vec![started(WORKER, id, 2, 10), returned(WORKER, id, 2)]);
    assert_eq!(world.attempt(id), 3);
    assert_eq!(world.stored.active[&id].0, Status::Requested);
    assert_eq!(world.stored.started.get(&id), None);
}

#[test]
fn who_holds_a_slot_at_no_worker_is_put_back_by_the_next_owner() {
    let mut world = World::new(Some(2), 100);
    let ids = world.submit(3);
    world.stored.workers.remove(&ids[0]);
    let mut world = world.load(Some(2));
    assert_eq!(world.partition.held(), ids[..2]);
    world.round(vec![]);
    assert_eq!(world.holders(), ids[..2]);
    let of = |world: &World, id| (world.attempt(id), world.stored.workers[&id]);
    assert_eq!(of(&world, ids[0]), (2, WORKER), "as never begun");
    assert_eq!(world.stored.put_back[&ids[0]].unbegun, 1);
    assert_eq!(of(&world, ids[1]), (1, WORKER), "as it was");
    assert_eq!(world.settled(), []);
    world.complete(ids[0], 2);
    assert_eq!(world.holders(), ids[1..]);
}

#[test]
fn what_a_lost_life_held_counts_as_begun_whether_it_was_heard_of_or_not() {
    let mut world = World::new(Some(1), 100);
    let id = world.submit(1)[0];
    for attempt in [1, 2] {
        assert_eq!(world.attempt(id), attempt);
        assert_eq!(world.stored.active[&id].0, Status::Requested);
        world.reconcile(vec![world.slot(id, true)]);
    }
    assert_eq!(world.stored.history[&id], Status::Abandoned, "two tries");
    assert_eq!(world.roster.lock().held(WORKER), 0);
}

const TWO: ClusterBounds = ClusterBounds {
    partitions: 2,
    ..CLUSTER
};

/// The name of an action, which belongs to the first partition or to the second.
fn name(action: i64) -> String {
    let mut names = (0..).map(|n| format!("t.a{action}-{n}"));
    let of = |name: &String| i64::from(PartitionId::of(name, TWO.partitions).0);
    names.find(|name| of(name) == action / 2).unwrap()
}

/// Two partitions with two actions each, and one worker.
struct Line {
    roster: SharedRoster,
    partitions: Vec<Partition>,
    turn: usize,
    /// Who was granted a slot, in order: the action.
    granted: Vec<i64>,
    held: Vec<Completion>,
}

impl Line {
    fn new(slots: u32) -> Self {
        let roster = SharedRoster::default();
        roster.lock().set([life(WORKER, slots)]);
        let partition = |place: u16| {
            let queues = ExecutionQueueManager::new(QueueConfig::default());
            let id = PartitionId(place);
            let epoch = attune_core::Epoch(1);
            let mut partition = Partition::new(id, epoch, TWO, queues, roster.clone());
            let actions = (0..2).map(|n| {
                let mut action = action(None);
                action.id = ActionId(i64::from(place) * 2 + n);
                action.partition = id;
                action.spec.action_ref = name(action.id.0).parse().unwrap();
                action
            });
            let actions = actions.collect();
            partition.step(
                0,
                Event::Recover {
                    actions,
                    totals: vec![],
                    sets: Sets::default(),
                },
            );
            partition
        };
        Self {
            partitions: (0..2).map(partition).collect(),
            roster,
            turn: 0,
            granted: vec![],
            held: vec![],
        }
    }

    fn step(&mut self, partition: usize, event: Event) {
        for effect in self.partitions[partition].step(0, event) {
            if let Effect::Dispatch(of) = effect {
                self.granted.push(of.action.id.0);
                self.held.push(Completion {
                    action_id: of.action.id,
                    worker: of.worker,
                    ..completion(of.execution_id, of.attempt.0)
                });
            }
        }
    }

    fn submit(&mut self, action: i64, many: usize) {
        for _ in 0..many {
            let mut event = submit_event(RequestId::fresh(), attune_core::Priority::Normal);
            if let Event::Submit { submit, .. } = &mut event {
                let submission = Arc::make_mut(&mut submit.submission);
                submission.action_ref = name(action);
            }
            self.step((action / 2) as usize, event);
        }
    }

    /// The first that runs ends, and whoever stands in line has its turn, as an owner does it.
    fn end(&mut self) {
        let ended = self.held.remove(0);
        let partition = (ended.action_id.0 / 2) as usize;
        self.step(partition, Event::Completed(ended));
        self.serve();
    }

    fn serve(&mut self) {
        let pool: Arc<str> = Arc::from(action(None).spec.pool);
        while self.roster.lock().has_room(&pool) && self.roster.lock().is_waited_for(&pool) {
            self.turn += 1;
            let partition = self.turn % 2;
            if self.partitions[partition].waited_for().count() > 0 {
                let pool = Arc::clone(&pool);
                self.step(partition, Event::Room { pool });
            }
        }
    }

    fn shares(&self, from: usize) -> [usize; 4] {
        [0, 1, 2, 3].map(|action| {
            let granted = self.granted[from..].iter();
            granted.filter(|of| **of == action).count()
        })
    }
}

#[test]
fn whoever_is_always_busy_leaves_others_their_turns() {
    let mut line = Line::new(1);
    line.submit(0, 100);
    line.submit(1, 3);
    for _ in 0..6 {
        line.end();
    }
    assert_eq!(line.granted, [0, 0, 1, 0, 1, 0, 1], "in turns");
    // Also over two partitions, however late somebody comes.
    line.submit(2, 20);
    let from = line.granted.len();
    for _ in 0..20 {
        line.end();
    }
    let [busy, _, late, _] = line.shares(from);
    assert!(
        (9..=11).contains(&busy) && busy + late == 20,
        "{busy}, {late}"
    );
    line.submit(3, 20);
    let from = line.granted.len();
    for _ in 0..18 {
        line.end();
    }
    let [busy, _, late, last] = line.shares(from);
    assert!(
        busy >= 8 && late >= 4 && last >= 4,
        "{busy}, {late}, {last}"
    );
}

#[test]
fn who_stands_in_line_alone_has_all_the_room_and_two_share_it() {
    let mut line = Line::new(1);
    line.submit(0, 20);
    line.submit(1, 20);
    line.roster.lock().set([life(WORKER, 9)]);
    line.serve();
    assert_eq!(line.granted.len(), 9);
    let [one, other, ..] = line.shares(1);
    assert_eq!((one, other), (4, 4));
    let mut line = Line::new(0);
    line.submit(3, 20);
    let draining = Life {
        draining: true,
        ..life(WORKER, 9)
    };
    line.roster.lock().set([draining]);
    line.serve();
    assert!(line.granted.is_empty());
    line.roster.lock().set([life(WORKER, 9)]);
    let pool = Arc::from(action(None).spec.pool);
    line.step(1, Event::Room { pool });
    assert_eq!(line.granted, [3; 9], "by one step");
}

/// The same, for want of a key.
fn keyless(worker: WorkerId, id: ExecutionId, attempt: i32) -> Vec<Event> {
    let grants = vec![((id, Attempt(attempt)), Arc::from("k"))];
    let lacks = Event::LacksKeys { worker, grants };
    vec![lacks, returned(worker, id, attempt)]
}

#[test]
fn a_queue_whose_workers_lack_a_key_rests_until_others_come() {
    let mut world = World::new(Some(2), 100);
    let ids = world.submit(3);
    let lacks = |world: &World| world.partition.stats(ACTION).and_then(|it| it.lacks_key);
    for attempt in 1..=2 {
        assert_eq!(world.attempt(ids[0]), attempt);
        world.round(keyless(WORKER, ids[0], attempt));
    }
    // Said again, it counts for nothing.
    world.round(keyless(WORKER, ids[0], 2));
    assert_eq!(world.holders(), ids[1..2], "{:?}", world.holders());
    let blocked = world.partition.blocked(ACTION);
    let Some(Blocked::Key { until }) = blocked else {
        panic!("{blocked:?}");
    };
    assert_eq!(world.partition.next_deadline(), Some(until));
    let why = world.partition.explanation(world.now, ids[0]).unwrap();
    assert!(why.words().contains("\"k\""), "{}", why.words());
    assert_eq!(lacks(&world).map(|it| it.executions), Some(1));
    world.partition.rest_no_more();
    world.round(vec![]);
    assert_eq!(world.holders(), ids[..2], "before those that came later");
    world.start(ids[0]);
    assert_eq!(lacks(&world), None);
}
