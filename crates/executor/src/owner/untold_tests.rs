//! Tests of what comes back, and of who stands behind it and is not told.

use attune_core::Refusal;
use attune_dispatch::Key;

use super::links_tests::{Sent, nothing_of};
use super::*;

impl World {
    /// The next message that grants anything; what comes before arrives.
    fn granting(&mut self) -> Sent {
        for _ in 0..100 {
            for sent in std::mem::take(&mut self.sent) {
                if sent.keys().next().is_some() {
                    return sent;
                }
                self.publish(sent.id, Published::Confirmed);
            }
            self.pass(5, true);
        }
        panic!("nothing is granted");
    }

    /// Runs of an action with limit 1 are short, so that others are granted ahead; the message that grants the
    /// first of two that wait a slot, and the other one a place ahead of one.
    fn with_lane() -> (Self, WorkerId, Sent) {
        let (mut world, worker) = Self::with_limit(Some(1), 64);
        world.ask(6);
        for _ in 0..4 {
            let sent = world.granting();
            let key = sent.keys().next().unwrap();
            world.publish(sent.id, Published::Confirmed);
            world.end(worker, key);
        }
        let sent = world.granting();
        assert_eq!(sent.keys().count(), 2);
        (world, worker, sent)
    }

    /// A message about another partition is on its way.
    fn busy(&mut self, worker: WorkerId) -> Sent {
        self.report(Reported {
            resync: vec![PartitionId(1)],
            ..nothing_of(worker)
        });
        let sent = self.only();
        assert_eq!(sent.sections[0].partition, PartitionId(1));
        sent
    }

    /// Messages arrive for a second; those that grant anything.
    fn arrive(&mut self) -> Vec<Sent> {
        let mut granting = Vec::new();
        for _ in 0..20 {
            self.pass(50, true);
            for sent in std::mem::take(&mut self.sent) {
                self.publish(sent.id, Published::Confirmed);
                if sent.keys().next().is_some() {
                    granting.push(sent);
                }
            }
        }
        granting
    }
}

/// Whoever is granted ahead of its slot, and gathers while what comes before it is on its way.
#[test]
fn who_stands_behind_what_came_back_comes_back_with_it_although_its_worker_is_there() {
    for refusal in [Refusal::Unroutable, Refusal::Invalid("no".into())] {
        let (mut world, worker, lost) = World::with_lane();
        let lost_ids: Vec<ExecutionId> = lost.ids().collect();
        world.ask(1);
        assert!(world.sent.is_empty(), "one message after the other");
        world.greet(worker);
        world.refuse(&lost, &refusal);
        let told: Vec<ExecutionId> = world.arrive().iter().flat_map(Sent::ids).collect();
        assert!(told.starts_with(&lost_ids), "{refusal:?}: {told:?}");
        assert_eq!(told.len(), 3, "{refusal:?}: {told:?}");
    }
}

/// What was lined up for a worker that is cut off comes back, and was never told: who is granted behind it by the
/// round under way comes behind a sync that names it, so that the worker gives both back.
#[test]
fn who_is_granted_while_others_come_back_that_were_lined_up_comes_behind_a_sync() {
    let (mut world, worker, first) = World::with_lane();
    world.publish(first.id, Published::Confirmed);
    let busy = world.busy(worker);
    world.ask(1);
    let granted = world.owner.partition(PartitionId(0)).unwrap();
    let lined_up = *granted.granted_to(worker).last().unwrap();
    assert!(first.keys().all(|key| key != lined_up));
    // Another one is granted behind it by the round under way.
    world.holds_back = Some(|call| matches!(call, Call::Commit(_)));
    world.ask(1);
    let commit = world.held_back.pop().unwrap();
    world.refuse(&busy, &Refusal::Unroutable);
    world.report(nothing_of(worker));
    world.pass(200, true);
    assert_eq!(world.confirm(), [], "of the other partition");
    world.holds_back = None;
    world.give(VecDeque::from([Input::Answered(commit.0, commit.1)]));
    let sent = world.only();
    let [section] = &sent.sections[..] else {
        panic!("{:?}", sent.sections)
    };
    assert_eq!(sent.keys().count(), 1);
    assert!(section.sync.iter().flatten().any(|key| *key == lined_up));
}

/// By then nobody knows any more what of it is granted.
#[test]
fn what_was_taken_back_is_not_told_by_an_owner_that_lets_its_partition_go() {
    let (mut world, worker, first) = World::with_lane();
    let held: Vec<Key> = first.keys().collect();
    world.publish(first.id, Published::Confirmed);
    let busy = world.busy(worker);
    world.ask(1);
    assert!(world.sent.is_empty());
    world.report(Reported {
        returned: held.iter().map(|key| (*key, Arc::from("full"))).collect(),
        ..nothing_of(worker)
    });
    world.give(VecDeque::from([Input::Leave]));
    world.publish(busy.id, Published::Confirmed);
    let told = world.arrive();
    let told: Vec<Key> = told.iter().flat_map(Sent::keys).collect();
    assert_eq!(told, []);
}

impl World {
    /// What was granted comes back and is granted anew under the next attempt; its parameters are not read.
    fn granted_anew(&mut self, worker: WorkerId, keys: &[Key]) -> Vec<Key> {
        self.report(Reported {
            returned: keys.iter().map(|key| (*key, Arc::from("full"))).collect(),
            ..nothing_of(worker)
        });
        // Who has given something back rests for a while.
        self.pass(150, true);
        let next = keys.iter().map(|(id, attempt)| (*id, attempt.next()));
        let next: Vec<Key> = next.collect();
        let here = self.owner.partition(PartitionId(0)).unwrap();
        assert_eq!(here.granted_to(worker), next);
        next
    }
}

/// Nobody stands ahead of whoever is not told, whoever else is.
#[test]
fn an_owner_that_lets_its_partition_go_tells_nobody_behind_parameters_that_are_not_read() {
    let (mut world, worker, first) = World::with_lane();
    world.refuses = Some(|call| matches!(call, Call::LoadBodies(_)));
    // The first message stays on its way: the owner waits for it.
    let keys: Vec<Key> = first.keys().collect();
    world.granted_anew(worker, &keys);
    world.ask(1);
    world.pass(500, true);
    assert!(world.sent.is_empty());
    world.give(VecDeque::from([Input::Leave]));
    world.pass(1_900, true);
    world.publish(first.id, Published::Confirmed);
    let told = world.arrive();
    let told: Vec<Key> = told.iter().flat_map(Sent::keys).collect();
    assert_eq!(told, []);
}

/// It is granted anew while its last grant, which came back, is still asked for.
#[test]
fn whose_parameters_could_not_be_read_is_told_under_each_of_its_attempts() {
    let (mut world, worker, first) = World::with_lane();
    let keys: Vec<Key> = first.keys().collect();
    world.publish(first.id, Published::Confirmed);
    world.refuses = Some(|call| matches!(call, Call::LoadBodies(_)));
    let second = world.granted_anew(worker, &keys);
    world.pass(500, true);
    let third = world.granted_anew(worker, &second);
    world.refuses = None;
    world.pass(3_000, true);
    let mut told: Vec<Key> = Vec::new();
    for _ in 0..3 {
        told.extend(world.arrive().iter().flat_map(Sent::keys));
    }
    assert_eq!(told, third);
}

/// Its worker hears the first time before it knows of it.
#[test]
fn who_is_cancelled_before_it_is_told_is_told_with_that() {
    let (mut world, worker, first) = World::with_lane();
    let keys: Vec<Key> = first.keys().collect();
    world.publish(first.id, Published::Confirmed);
    world.holds_back = Some(|call| matches!(call, Call::LoadBodies(_)));
    let next = world.granted_anew(worker, &keys);
    world.deliver(3, 0, Work::Cancels(vec![(RequestId::fresh(), next[1].0)]));
    world.pass(200, true);
    world.confirm();
    world.holds_back = None;
    let told = world.arrive();
    let sections = told.iter().flat_map(|sent| &sent.sections);
    let with = sections.filter(|section| section.cancel.contains(&next[1]));
    let told: Vec<Key> = told.iter().flat_map(Sent::keys).collect();
    assert_eq!((told, with.count()), (next, 1));
}
