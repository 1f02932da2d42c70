//! Tests of what lives of workers are told, in which order, and of what they say.

use attune_core::{Outcome, Refusal, Submission};
use attune_dispatch::{Key, Section};

use super::*;
use crate::partition::{Completion, ForceRelease, OnReject, Submit};

const HERE: PartitionId = PartitionId(0);

/// A message to a life.
pub(super) struct Sent {
    pub(super) id: PublishId,
    pub(super) worker: WorkerId,
    pub(super) sections: Vec<Section<Dispatch>>,
}

impl Sent {
    /// What it grants.
    pub(super) fn ids(&self) -> impl Iterator<Item = ExecutionId> + '_ {
        self.keys().map(|(id, _)| id)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        let grants = self.sections.iter().flat_map(|section| &section.grants);
        grants.map(|grant| (grant.grantee.execution_id, grant.grantee.attempt))
    }

    /// Its only section: its number, what its sync names, what is settled and what it grants.
    pub(super) fn only(&self) -> (u64, Option<&[Key]>, &[Key], Vec<Key>) {
        let [section] = &self.sections[..] else {
            panic!("{:?}", self.sections);
        };
        assert_eq!(section.partition, HERE);
        let sync = section.sync.as_deref();
        (
            section.number,
            sync,
            &section.settled,
            self.keys().collect(),
        )
    }
}

pub(super) fn nothing_of(worker: WorkerId) -> Reported {
    Reported::nothing(worker)
}

impl World {
    /// What was sent arrives; what it grants.
    pub(super) fn confirm(&mut self) -> Vec<ExecutionId> {
        let sent = std::mem::take(&mut self.sent);
        for sent in &sent {
            self.publish(sent.id, Published::Confirmed);
        }
        sent.iter().flat_map(Sent::ids).collect()
    }

    pub(super) fn publish(&mut self, id: PublishId, published: Published) {
        self.give(VecDeque::from([Input::Published(id, published)]));
    }

    pub(super) fn refuse(&mut self, sent: &Sent, refusal: &Refusal) {
        let places = 0..sent.sections.len();
        let refused = places.map(|place| (place, refusal.clone())).collect();
        self.publish(sent.id, Published::Refused(refused));
    }

    /// The only message that was sent.
    pub(super) fn only(&mut self) -> Sent {
        let mut sent = std::mem::take(&mut self.sent);
        assert_eq!(sent.len(), 1);
        sent.remove(0)
    }

    /// It serves an action with this limit, and nobody has come yet.
    fn ready(limit: Option<u32>) -> Self {
        let mut world = Self::new().free();
        world.owner.options.cluster.lane_length = 256;
        world.action.spec.policy.concurrency.limit = limit;
        if limit.is_some() {
            // The rows that this store shows to a comparison are those of slots alone.
            world.owner.options.reconcile.interval = 60_000;
        }
        let mut names = (0..).map(|n| format!("t.a{n}"));
        let name = names.find(|name| PartitionId::of(name, PARTITIONS) == HERE);
        world.action.spec.action_ref = name.unwrap().parse().unwrap();
        world.pass(5_000, true);
        assert!(world.sent.is_empty());
        world
    }

    /// The same with a worker, which it knows.
    pub(super) fn with_worker(slots: u32) -> (Self, WorkerId) {
        Self::with_limit(None, slots)
    }

    /// The same, and a limit of the action.
    pub(super) fn with_limit(limit: Option<u32>, slots: u32) -> (Self, WorkerId) {
        let mut world = Self::ready(limit);
        let worker = world.worker_of(slots);
        world.look();
        (world, worker)
    }

    /// It looks at the workers.
    pub(super) fn look(&mut self) {
        self.give(VecDeque::from([Input::Hello(Vec::new())]));
    }

    pub(super) fn ask(&mut self, many: usize) {
        let submission = Submission::new(self.action.spec.action_ref.as_str());
        let items = (0..many).map(|_| {
            let submission = submission.clone();
            Submit::new(RequestId::fresh(), submission, OnReject::Record)
        });
        self.deliver(1, 0, Work::Submits(items.collect()));
    }

    pub(super) fn report(&mut self, report: Reported) {
        self.give(VecDeque::from([Input::Reported(vec![report])]));
    }

    pub(super) fn end(&mut self, worker: WorkerId, (execution_id, attempt): Key) {
        let completion = Completion {
            execution_id,
            attempt,
            action_id: ActionId(1),
            outcome: Arc::new(Outcome::succeeded(None)),
            worker,
            user: None,
            ran: Some(1),
        };
        let partition = execution_id.partition().0;
        self.deliver(2, partition, Work::Completions(vec![completion]));
    }

    pub(super) fn status(&self, id: ExecutionId) -> Option<(Status, i32, Option<WorkerId>)> {
        let mut slots = self.slots.iter().map(|(slot, _)| slot);
        let slot = slots.find(|slot| slot.id == id)?;
        Some((slot.status, slot.attempt.0, slot.worker))
    }
}

#[test]
fn sections_are_numbered_from_0_and_the_first_is_a_sync() {
    let (mut world, worker) = World::with_worker(64);
    world.ask(1);
    let first = world.only();
    assert_eq!(first.worker, worker);
    let key = first.keys().next().unwrap();
    assert_eq!(first.only(), (0, Some(&[][..]), &[][..], vec![key]));
    let section = &first.sections[0];
    assert_eq!(section.epoch, world.leases[0].epoch);
    assert_eq!(section.owner, world.owner.options.id);
    // One message after the other: what comes meanwhile gathers.
    world.ask(1);
    world.ask(2);
    assert!(world.sent.is_empty());
    world.publish(first.id, Published::Confirmed);
    let second = world.only();
    let (number, sync, settled, keys) = second.only();
    assert_eq!((number, sync, settled.len(), keys.len()), (1, None, 0, 3));
    world.publish(second.id, Published::Confirmed);
    world.ask(1);
    assert_eq!(world.only().only().0, 2);
    // A life that comes later has a stream of its own.
    let other = world.worker_of(64);
    world.look();
    world.ask(1);
    let sent = world.only();
    assert_eq!((sent.worker, sent.only().0), (other, 0));
}

#[test]
fn a_lost_message_is_followed_by_a_sync_that_names_nothing_that_was_not_sent() {
    let (mut world, worker) = World::with_worker(64);
    world.ask(1);
    let lost = world.only();
    let key = lost.keys().next().unwrap();
    world.ask(1);
    world.publish(lost.id, Published::Unknown);
    assert!(world.sent.is_empty(), "not at once");
    world.pass(200, true);
    let again = world.only();
    let (number, sync, _, keys) = again.only();
    assert_eq!((number, sync), (1, Some(&[key][..])));
    assert_eq!(keys.len(), 1);
    assert_ne!(keys[0], key, "it is told once");
    // The worker does not have it: it goes out anew.
    world.publish(again.id, Published::Confirmed);
    world.report(Reported {
        returned: vec![(key, Arc::from("it was lost on its way"))],
        ..nothing_of(worker)
    });
    // Who has given something back rests for a while.
    assert_eq!(world.status(key.0), Some((Status::Queued, 1, None)));
    world.pass(60, true);
    let settled = world.only();
    assert_eq!(settled.only(), (2, None, &[key][..], vec![]));
    world.publish(settled.id, Published::Confirmed);
    world.pass(60, true);
    let granted = world.only();
    let next = (key.0, Attempt(2));
    assert_eq!(granted.only(), (3, None, &[][..], vec![next]));
    // It is lost again and again: the pauses grow, and nothing turns round and round.
    world.publish(granted.id, Published::Unknown);
    let mut times = 0;
    let until = world.now + 10_000;
    while world.now < until {
        world.pass(10, true);
        for sent in std::mem::take(&mut world.sent) {
            times += 1;
            world.publish(sent.id, Published::Unknown);
        }
    }
    assert!((4..=20).contains(&times), "{times}");
}

#[test]
fn what_nobody_receives_goes_elsewhere_at_once() {
    let (mut world, _) = World::with_worker(64);
    let other = world.worker_of(64);
    world.look();
    assert_eq!(world.confirm(), [], "it is asked first");
    world.ask(1);
    let first = world.only();
    let key = first.keys().next().unwrap();
    let (gone, other) = match first.worker == other {
        true => (other, world.workers[0].worker),
        false => (first.worker, other),
    };
    // What gathered for it meanwhile never left either.
    world.ask(8);
    for sent in std::mem::take(&mut world.sent) {
        assert_eq!(sent.worker, other);
        world.publish(sent.id, Published::Confirmed);
    }
    world.refuse(&first, &Refusal::Unroutable);
    let mut told = Vec::new();
    for _ in 0..10 {
        world.pass(100, false);
        for sent in std::mem::take(&mut world.sent) {
            assert_eq!(sent.worker, other);
            told.extend(sent.keys());
            world.publish(sent.id, Published::Confirmed);
        }
    }
    assert!(told.contains(&(key.0, Attempt(2))), "{told:?}");
    assert!(told.len() >= 4, "{told:?}");
    assert!(
        world
            .slots
            .iter()
            .all(|(slot, _)| slot.worker == Some(other))
    );
    world.ask(8);
    assert!(world.sent.iter().all(|sent| sent.worker == other));
    world.confirm();
    // It is heard of: it compares first, and may be granted something again.
    world.report(nothing_of(gone));
    let sent = world.only();
    assert_eq!(sent.worker, gone);
    assert_eq!(sent.only(), (2, Some(&[][..]), &[][..], vec![]));
    world.publish(sent.id, Published::Confirmed);
    world.ask(1);
    let sent = world.only();
    assert_eq!(sent.worker, gone, "it has most room");
    let (number, sync, _, keys) = sent.only();
    assert_eq!((number, sync, keys.len()), (3, None, 1));
}

#[test]
fn what_is_settled_goes_along_or_soon() {
    let (mut world, worker) = World::with_worker(64);
    world.ask(2);
    let sent = world.only();
    let keys: Vec<Key> = sent.keys().collect();
    world.publish(sent.id, Published::Confirmed);
    world.end(worker, keys[0]);
    assert!(world.sent.is_empty());
    world.pass(40, true);
    assert!(world.sent.is_empty());
    world.pass(20, true);
    let sent = world.only();
    assert_eq!(sent.only(), (1, None, &keys[..1], vec![]));
    world.publish(sent.id, Published::Confirmed);
    // The same end again is settled again; what is granted takes it along.
    world.end(worker, keys[0]);
    world.end(worker, keys[1]);
    world.ask(1);
    let sent = world.only();
    let (number, sync, settled, granted) = sent.only();
    assert_eq!((number, sync, settled), (2, None, &keys[..]));
    assert_eq!(granted.len(), 1);
    world.publish(sent.id, Published::Confirmed);
    world.pass(100, true);
    assert!(world.sent.is_empty(), "once");
}

#[test]
fn a_sync_waits_for_the_round_under_way() {
    let (mut world, worker) = World::with_worker(64);
    world.ask(1);
    let sent = world.only();
    let key = sent.keys().next().unwrap();
    world.publish(sent.id, Published::Confirmed);
    world.holds_back = Some(|call| matches!(call, Call::Commit(_)));
    world.end(worker, key);
    let commit = world.held_back.pop().unwrap();
    world.report(Reported {
        resync: vec![HERE],
        ..nothing_of(worker)
    });
    world.pass(900, true);
    assert!(world.sent.is_empty(), "its end is not stored yet");
    world.give(VecDeque::from([Input::Answered(commit.0, commit.1)]));
    let sent = world.only();
    assert_eq!(sent.only(), (1, Some(&[][..]), &[key][..], vec![]));
}

#[test]
fn who_says_nothing_of_a_grant_is_asked_to_compare() {
    let (mut world, worker) = World::with_worker(64);
    world.ask(2);
    let sent = world.only();
    let keys: Vec<Key> = sent.keys().collect();
    world.publish(sent.id, Published::Confirmed);
    world.pass(1_400, true);
    assert!(world.sent.is_empty());
    world.pass(1_300, true);
    let sent = world.only();
    assert_eq!(sent.only(), (1, Some(&keys[..]), &[][..], vec![]));
    world.publish(sent.id, Published::Confirmed);
    // One runs, which is written down; the other one is asked for again.
    world.report(Reported {
        started: vec![(keys[0], 300)],
        ..nothing_of(worker)
    });
    let running = Some((Status::Running, 1, Some(worker)));
    assert_eq!(world.status(keys[0].0), running);
    world.pass(1_100, true);
    let sent = world.only();
    assert_eq!(sent.only().1, Some(&keys[..]));
    world.report(Reported {
        started: vec![(keys[1], 300)],
        ..nothing_of(worker)
    });
    world.publish(sent.id, Published::Confirmed);
    world.confirm();
    world.pass(10_000, true);
    assert!(world.sent.is_empty(), "everything is heard of");
}

#[test]
fn whoever_takes_over_opens_streams_to_those_who_hold_something() {
    let worker = WorkerId::fresh();
    let mut world = World::serving(2, worker);
    let keys = Vec::from_iter(world.slots.iter().map(|(slot, _)| (slot.id, slot.attempt)));
    assert!(world.sent.is_empty(), "where it listens its lease says");
    let other = world.worker_of(64);
    let mut lease = world.workers.remove(0);
    assert_eq!(lease.worker, other);
    (lease.worker, lease.ttl) = (worker, 600_000);
    world.workers.push(lease);
    world.pass(1_000, true);
    let sent = world.only();
    assert_eq!(sent.worker, worker);
    assert_eq!(sent.only(), (0, Some(&keys[..]), &[][..], vec![]));
    let epoch = sent.sections[0].epoch;
    world.publish(sent.id, Published::Confirmed);
    world.pass(10_000, true);
    assert!(world.sent.is_empty(), "they are known to run");
    // In the next epoch everything begins anew.
    let now = world.now;
    world.owner.let_go(now, HERE, None);
    world.pass(20_000, true);
    let sent = world.only();
    assert_eq!(sent.only().0, 0);
    assert!(sent.sections[0].epoch > epoch);
}

/// What it has to say would go to an earlier owner.
#[test]
fn whoever_takes_over_speaks_to_all_that_live() {
    let (mut world, worker) = World::with_worker(64);
    let now = world.now;
    world.owner.let_go(now, HERE, None);
    world.pass(20_000, true);
    let sent = world.only();
    assert_eq!(sent.worker, worker);
    assert_eq!(sent.only(), (0, Some(&[][..]), &[][..], vec![]));
}

#[test]
fn reports_about_what_is_not_served_here_change_nothing() {
    let (mut world, worker) = World::with_worker(1);
    world.ask(2);
    let sent = world.only();
    let key = sent.keys().next().unwrap();
    world.publish(sent.id, Published::Confirmed);
    let elsewhere = (
        ExecutionId::new(PartitionId(77), Seq::new(Epoch(1), 1)),
        Attempt(1),
    );
    world.report(Reported {
        returned: vec![(elsewhere, Arc::from("it stops"))],
        started: vec![(elsewhere, 100)],
        resync: vec![PartitionId(77)],
        ..nothing_of(worker)
    });
    assert!(world.sent.is_empty());
    // What it has of others leaves no room for the second one, until it has ended.
    world.report(Reported {
        elsewhere: 1,
        ..nothing_of(worker)
    });
    world.end(worker, key);
    assert_eq!(world.held(), 0);
    world.report(nothing_of(worker));
    assert_eq!(world.held(), 1);
}

/// Anybody who may report could name any number of lives that there never were.
#[test]
fn reports_of_nobody_are_not_answered() {
    let (mut world, worker) = World::with_worker(1);
    let asks = |worker| Reported {
        resync: vec![HERE],
        ..nothing_of(worker)
    };
    world.report(asks(WorkerId::fresh()));
    world.pass(5_000, true);
    assert!(world.sent.is_empty(), "it has no lease and holds nothing");
    world.report(asks(worker));
    assert_eq!(world.only().worker, worker);
}

/// What is taken back before it was told never leaves: the worker would begin it.
#[test]
fn what_is_released_by_force_before_it_was_told_is_not_told() {
    let (mut world, _) = World::with_worker(64);
    world.ask(1);
    let first = world.only();
    world.ask(1);
    let mut ids = world.slots.iter().map(|(slot, _)| slot.id);
    let waits = ids.find(|id| first.ids().all(|of| of != *id)).unwrap();
    let command = ForceRelease {
        request_id: RequestId::fresh(),
        execution_id: waits,
        attempt: Attempt(1),
        who: "ann".to_owned(),
        reason: "it hangs".to_owned(),
        worker: None,
        never_begun: true,
    };
    world.deliver(3, 0, Work::Releases(vec![command]));
    assert_eq!(world.status(waits).unwrap().1, 2);
    world.publish(first.id, Published::Confirmed);
    let second = world.only();
    assert_eq!(second.only().3, [(waits, Attempt(2))]);
}

/// A section in which one is too large: each goes by itself, and only that one ends.
#[test]
fn what_the_bus_does_not_take_together_goes_one_by_one() {
    let (mut world, _) = World::with_worker(64);
    world.ask(3);
    let sent = world.only();
    let too_large = Refusal::TooLarge { bytes: 9, max: 8 };
    world.refuse(&sent, &too_large);
    assert!(world.sent.is_empty(), "not at once");
    world.pass(200, true);
    let again = world.only();
    assert_eq!(again.keys().count(), 3);
    assert_eq!(again.sections[0].sync, Some(vec![]));
    let each = again.sections.iter().map(|section| section.grants.len());
    assert!(each.max() == Some(1), "{:?}", again.sections);
    let bad = again.keys().nth(1).unwrap();
    let place = again.sections.iter().position(|section| {
        let mut grants = section.grants.iter();
        grants.any(|grant| grant.grantee.execution_id == bad.0)
    });
    let refused = vec![(place.unwrap(), too_large)];
    world.publish(again.id, Published::Refused(refused));
    assert_eq!(world.status(bad.0), None, "it has ended");
    assert_eq!(world.held(), 2);
    world.pass(200, true);
    let sent = world.only();
    assert_eq!(sent.keys().count(), 0);
    let sync = sent.sections[0].sync.as_ref().unwrap();
    assert_eq!(sync.len(), 2);
}

/// Some queue of the life was full, and another one may have taken it: only a comparison tells.
#[test]
fn what_finds_a_full_queue_is_compared() {
    let (mut world, _) = World::with_worker(64);
    world.ask(1);
    let sent = world.only();
    let key = sent.keys().next().unwrap();
    world.refuse(&sent, &Refusal::Full);
    assert!(world.sent.is_empty(), "not at once");
    world.pass(200, true);
    let sync = world.only();
    assert_eq!(sync.only(), (1, Some(&[key][..]), &[][..], vec![]));
}

#[test]
fn partitions_have_turns_for_the_slot_of_a_worker() {
    let mut world = World::new().free();
    let mut other = world.action.clone();
    (other.id, other.partition) = (ActionId(2), PartitionId(1));
    other.spec.action_ref = "t.other".parse().unwrap();
    world.others = vec![other];
    let waiting = |place, partition: u16| {
        let mut slot = slot(place, WorkerId::fresh());
        (slot.status, slot.worker) = (Status::Queued, None);
        slot.id = ExecutionId::new(PartitionId(partition), Seq::new(Epoch(2), place));
        slot.action_id = ActionId(i64::from(partition) + 1);
        (slot, true)
    };
    world.slots = (1..=20).map(|place| waiting(place, 0)).collect();
    world.slots.extend((1..=20).map(|place| waiting(place, 1)));
    let worker = world.worker_of(1);
    let mut granted = Vec::new();
    let until = world.now + 60_000;
    while granted.len() < 40 && world.now < until {
        world.pass(100, true);
        for sent in std::mem::take(&mut world.sent) {
            world.publish(sent.id, Published::Confirmed);
            for key in sent.keys() {
                granted.push(key.0.partition().0);
                world.end(worker, key);
            }
        }
    }
    assert_eq!(granted.len(), 40);
    for pair in granted.chunks(4) {
        let first = pair.iter().filter(|of| **of == 0).count();
        assert!((1..=3).contains(&first), "{granted:?}");
    }
}
