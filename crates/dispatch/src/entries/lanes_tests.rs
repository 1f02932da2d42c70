//! Lanes: who begins when, and what is given back.

use attune_core::{ActionId, Attempt, Epoch, ExecutionId, OwnerId, PartitionId, Seq};

use crate::{Entries, Granted, Key, Outcome, Section};

/// A grant: which, of what action, and of how many slots where it is ahead of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Job(pub(super) Key, pub(super) ActionId, pub(super) Option<u32>);

impl Granted for Job {
    fn key(&self) -> Key {
        self.0
    }

    fn action_id(&self) -> ActionId {
        self.1
    }

    fn slots(&self) -> Option<u32> {
        self.2
    }
}

fn owner() -> OwnerId {
    OwnerId("00000000-0000-0000-0000-000000000001".parse().unwrap())
}

fn key(n: u32) -> Key {
    let id = ExecutionId::new(PartitionId(0), Seq::new(Epoch(1), n));
    (id, Attempt(1))
}

fn plain(n: u32) -> Job {
    Job(key(n), ActionId(7), None)
}

fn ahead(n: u32, slots: u32) -> Job {
    Job(key(n), ActionId(7), Some(slots))
}

/// A life, and what its owner tells it.
struct Life {
    entries: Entries<Job>,
    number: u64,
}

impl Life {
    fn new(slots: usize) -> Self {
        Self {
            entries: Entries::new(slots),
            number: 0,
        }
    }

    fn told(&mut self, with: impl FnOnce(&mut Section<Job>)) -> crate::Taken<Job> {
        let mut section = Section::new(PartitionId(0), Epoch(1), self.number, owner());
        section.sync = (self.number == 0).then(Vec::new);
        with(&mut section);
        self.number += 1;
        let taken = self.entries.take(0, section);
        assert!(taken.taken);
        taken
    }

    fn granted(&mut self, grants: impl IntoIterator<Item = Job>) {
        let grants = grants.into_iter().collect();
        self.told(|section| section.grants = grants);
    }

    /// Everything that may begin now begins.
    fn begun(&mut self) -> Vec<Key> {
        let next = || self.entries.begin_next(0).map(|job| job.0);
        std::iter::from_fn(next).collect()
    }

    fn returned(&mut self, now: i64) -> Vec<Key> {
        let reports = self.entries.reports(now).into_iter();
        let returned = reports.flat_map(|report| report.returned);
        returned.map(|returned| returned.key).collect()
    }
}

#[test]
fn the_next_begins_when_one_has_ended() {
    let mut life = Life::new(8);
    life.granted([plain(1)]);
    assert_eq!(life.begun(), [key(1)]);
    life.granted([ahead(2, 1), ahead(3, 1)]);
    assert!(life.begun().is_empty());
    assert_eq!(life.entries.end(key(1)), Outcome::Kept);
    assert_eq!(life.begun(), [key(2)]);
    life.entries.end(key(2));
    life.entries.end(key(2));
    assert_eq!(life.begun(), [key(3)], "an end counts once");
    life.entries.end(key(3));
    life.granted([plain(4)]);
    assert_eq!(life.begun(), [key(4)]);
}

#[test]
fn as_many_run_as_the_latest_word_says() {
    let mut life = Life::new(8);
    life.granted([plain(1), plain(2)]);
    assert_eq!(life.begun(), [key(1), key(2)]);
    life.granted([ahead(3, 2), ahead(4, 2), ahead(5, 2)]);
    life.entries.end(key(2));
    assert_eq!(life.begun(), [key(3)]);
    life.granted([ahead(6, 3)]);
    assert_eq!(life.begun(), [key(4)]);
    life.granted([ahead(7, 1)]);
    life.entries.end(key(1));
    life.entries.end(key(3));
    assert!(life.begun().is_empty());
    life.entries.end(key(4));
    assert_eq!(life.begun(), [key(5)]);
    // A plain one says that all before it have a slot.
    life.granted([plain(8)]);
    assert_eq!(life.begun(), [key(6), key(7), key(8)]);
}

#[test]
fn what_is_called_back_comes_back_whole_and_what_runs_goes_on() {
    let mut life = Life::new(8);
    life.granted([plain(1)]);
    life.begun();
    life.granted([ahead(2, 1), ahead(3, 1), ahead(4, 1)]);
    life.told(|section| section.recall = vec![ActionId(7)]);
    assert_eq!(life.returned(0), [key(2), key(3), key(4)]);
    life.entries.end(key(1));
    assert!(life.begun().is_empty());
    // Until that is settled nothing of the action is taken.
    life.granted([ahead(5, 1)]);
    assert_eq!(life.returned(10), [key(2), key(3), key(4), key(5)]);
    life.told(|section| {
        section.settled = vec![key(2), key(3), key(4), key(5)];
        section.grants = vec![plain(6)];
    });
    assert_eq!(life.begun(), [key(6)]);
}

#[test]
fn one_that_is_cancelled_or_taken_away_leaves_the_others_their_order() {
    let mut life = Life::new(8);
    life.granted([plain(1)]);
    life.begun();
    life.granted([ahead(2, 1), ahead(3, 1), ahead(4, 1)]);
    let taken = life.told(|section| section.cancel = vec![key(2)]);
    assert_eq!(taken.cancelled, [ahead(2, 1)]);
    life.told(|section| section.settled = vec![key(3)]);
    life.entries.end(key(1));
    assert_eq!(life.begun(), [key(4)]);
    assert_eq!(life.entries.waiting(), 0);
}

#[test]
fn what_could_not_begin_takes_its_lane_back_with_it() {
    let mut life = Life::new(8);
    life.granted([plain(1)]);
    assert_eq!(life.begun(), [key(1)]);
    life.granted([ahead(2, 1), ahead(3, 1)]);
    life.entries.give_up(key(1), "it could not begin");
    assert!(life.begun().is_empty());
    assert_eq!(life.returned(0), [key(1), key(2), key(3)]);
    assert_eq!(life.entries.waiting(), 0);
}

#[test]
fn a_worker_without_slots_gives_back_what_has_one_and_all_behind_it() {
    let mut life = Life::new(1);
    let other = Job(key(9), ActionId(8), None);
    life.granted([plain(1), other]);
    assert_eq!(life.begun(), [key(1)]);
    life.granted([ahead(2, 1), ahead(3, 1)]);
    life.entries.end(key(1));
    assert_eq!(life.begun(), [key(9)]);
    // What was handed on waits from now on.
    life.entries.give_back_late(5_000, 0);
    assert!(life.returned(5_000).is_empty());
    life.entries.give_back_late(5_100, 0);
    assert_eq!(life.returned(5_100), [key(2), key(3)]);
}
