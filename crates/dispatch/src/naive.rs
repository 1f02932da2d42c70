//! [`Entries`](crate::Entries) beside a model that never forgets, while owners come and go and everything on
//! the way is lost, doubled, late and out of order.

mod tenure;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{ActionId, Epoch, PartitionId};

use crate::{Granted, Key, Section, Taken};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Job(Key, ActionId);

impl Granted for Job {
    fn key(&self) -> Key {
        self.0
    }

    fn action_id(&self) -> ActionId {
        self.1
    }

    fn slots(&self) -> Option<u32> {
        slots_of(self.1)
    }
}

/// How many of an action run at once: one, of every other action, and then whatever else is granted is ahead.
fn slots_of(action_id: ActionId) -> Option<u32> {
    (action_id.0 % 2 == 0).then_some(1)
}

/// What the model thinks of a grant that it has ever heard of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Waiting,
    Running,
    Ended,
    Returned,
    Forgotten,
}

/// A life that remembers everything that it was ever told.
#[derive(Debug, Default)]
struct Naive {
    /// Every section that was taken.
    taken: BTreeSet<(PartitionId, Epoch, u64)>,
    fates: BTreeMap<Key, Fate>,
    actions: BTreeMap<Key, ActionId>,
}

impl Naive {
    /// Takes a section as [`Entries::take`] is to do it: the answer is what it must say.
    fn take(&mut self, section: &Section<Job>) -> Taken<Job> {
        let mut said = Taken::default();
        let place = (section.partition, section.epoch, section.number);
        let of_partition = (place.0, Epoch(0), 0)..=(place.0, Epoch::MAX, u64::MAX);
        let is_later = self.taken.range(of_partition).all(|taken| *taken < place);
        let before = section.number.checked_sub(1);
        let before = before.map(|number| (place.0, place.1, number));
        let follows = before.is_some_and(|before| self.taken.contains(&before));
        let opens = section.sync.is_some() && section.sync_after.is_none();
        if !is_later || (!opens && !follows) {
            return said;
        }
        self.taken.insert(place);
        said.taken = true;
        if let Some(holds) = &section.sync {
            let held: Vec<Key> = self.fates.keys().copied().collect();
            let (after, to) = (section.sync_after, section.sync_to);
            let is_told = |key: &Key| {
                key.0.partition() == place.0
                    && after.is_none_or(|after| key.0 > after)
                    && to.is_none_or(|to| key.0 <= to)
            };
            let held = held.into_iter().filter(is_told);
            for key in held.filter(|key| !holds.contains(key)) {
                self.forget(key, &mut said);
            }
        }
        for key in &section.settled {
            self.forget(*key, &mut said);
        }
        for key in section.sync.iter().flatten() {
            match self.fates.get(key) {
                Some(Fate::Ended) => said.again.push(*key),
                Some(Fate::Forgotten) => panic!("{key:?} is named after it was forgotten"),
                Some(_) => {}
                None => {
                    self.fates.insert(*key, Fate::Returned);
                }
            }
        }
        for Job(key, action_id) in &section.grants {
            if self.fates.contains_key(key) {
                continue;
            }
            let mut returned = self
                .fates
                .iter()
                .filter(|(_, fate)| **fate == Fate::Returned);
            let is_closed = returned.any(|(of, _)| {
                let action_of = self.actions.get(of);
                of.0.partition() == place.0 && action_of.is_none_or(|of| of == action_id)
            });
            let fate = if is_closed {
                Fate::Returned
            } else {
                Fate::Waiting
            };
            self.fates.insert(*key, fate);
            self.actions.insert(*key, *action_id);
        }
        for key in &section.cancel {
            match self.fates.get(key) {
                Some(Fate::Running) => said.cancel.push(*key),
                Some(Fate::Waiting) => {
                    self.fates.insert(*key, Fate::Ended);
                    said.cancelled.push(Job(*key, self.actions[key]));
                }
                _ => {}
            }
        }
        said
    }

    fn forget(&mut self, key: Key, said: &mut Taken<Job>) {
        if let Some(fate) = self.fates.get_mut(&key) {
            match *fate {
                Fate::Running => said.kill.push(key),
                Fate::Ended => said.settled.push(key),
                _ => {}
            }
            *fate = Fate::Forgotten;
        }
    }

    /// Whether fewer of its action run than may at once.
    fn has_room(&self, key: &Key) -> bool {
        let action_id = self.actions[key];
        let running = self.all(Fate::Running).into_iter();
        let beside = running.filter(|key| self.actions[key] == action_id);
        slots_of(action_id).is_none_or(|slots| beside.count() < slots as usize)
    }

    fn all(&self, wanted: Fate) -> BTreeSet<Key> {
        let fates = self.fates.iter().filter(|(_, fate)| **fate == wanted);
        fates.map(|(key, _)| *key).collect()
    }

    /// What waits and is of the action of one of these, or of any.
    fn give_back(&mut self, late: Option<&BTreeSet<ActionId>>) {
        for key in self.all(Fate::Waiting) {
            if late.is_none_or(|late| late.contains(&self.actions[&key])) {
                self.fates.insert(key, Fate::Returned);
            }
        }
    }
}
