//! What a life of a worker holds: the worker's half of the protocol.

mod lanes;
#[cfg(test)]
mod lanes_tests;
mod reports;
#[cfg(test)]
mod reports_tests;
mod returns;

#[cfg(test)]
use std::collections::BTreeSet;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use attune_core::{ActionId, Bug, Epoch, OwnerId, PartitionId};

use lanes::Lane;

use crate::section::{Granted, Key, Millis, Section, Why};

/// What waits for so long because all slots are taken is given back: another worker may have a free one.
const GIVEN_BACK_AFTER: Millis = 100;

/// What follows from a section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken<G> {
    /// Whether it was taken: it was neither a copy, nor old, nor came before one that is missing.
    pub taken: bool,
    /// Runs that hold no slot any more: end them and report nothing.
    pub kill: Vec<Key>,
    /// Runs that are to be ended.
    pub cancel: Vec<Key>,
    /// What was cancelled before it began: report it as ended.
    pub cancelled: Vec<G>,
    /// Ends that their owner has not written down: report them again.
    pub again: Vec<Key>,
    /// Ends that their owner has written down: report them no more.
    pub settled: Vec<Key>,
}

impl<G> Default for Taken<G> {
    fn default() -> Self {
        Self {
            taken: false,
            kill: Vec::new(),
            cancel: Vec::new(),
            cancelled: Vec::new(),
            again: Vec::new(),
            settled: Vec::new(),
        }
    }
}

/// What became of the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is kept until it is settled, and to be reported.
    Kept,
    /// It holds no slot any more: nothing is to be reported.
    Gone,
}

#[derive(Debug)]
enum State<G> {
    Waiting {
        grant: G,
        /// Since when a slot of the life is all that it waits for; [`Millis::MAX`] before anybody has looked.
        since: Millis,
        /// It waits for a run of its action to end, in its lane.
        is_ahead: bool,
    },
    Running {
        since: Millis,
        /// Whether the owner was told.
        told: bool,
    },
    /// It has run, and its end is reported until it is settled.
    Ended,
    Returned {
        why: Why,
    },
}

#[derive(Debug)]
struct Entry<G> {
    state: State<G>,
    /// Its action; not known of what a sync names and nobody has seen here.
    action_id: Option<ActionId>,
}

/// The worker's end of the stream of a partition.
#[derive(Debug)]
struct Incoming {
    epoch: Epoch,
    next: u64,
    owner: OwnerId,
    /// The latest epoch of which anything came, taken or not: the owner is that of this one.
    heard: Epoch,
    /// A section is missing; when that was said last.
    missing: Option<Option<Millis>>,
}

impl Incoming {
    /// A stream of which everything is still to come.
    fn unopened<G>(section: &Section<G>) -> Self {
        Self {
            epoch: Epoch(0),
            next: 0,
            owner: section.owner,
            heard: section.epoch,
            missing: None,
        }
    }

    /// A section is taken: what is missing of a later epoch stays missing.
    fn follow<G>(&mut self, section: &Section<G>) {
        (self.epoch, self.next) = (section.epoch, section.number + 1);
        if section.epoch >= self.heard {
            self.heard = section.epoch;
            self.owner = section.owner;
            self.missing = None;
        }
    }
}

/// What was said to an owner.
#[derive(Debug, Default)]
struct Said {
    /// How many grants of others there were.
    elsewhere: u32,
    elsewhere_at: Millis,
    /// When what was given back was reported, and whether there is more since.
    returns_at: Option<Millis>,
    has_more: bool,
}

/// What a life of a worker holds. An entry stays until its owner has written down what became of it, so that
/// whatever was lost on the way is repaired by comparing; its size is bounded by what owners have granted.
#[derive(Debug)]
pub struct Entries<G> {
    slots: usize,
    streams: BTreeMap<PartitionId, Incoming>,
    entries: HashMap<Key, Entry<G>, foldhash::fast::FixedState>,
    /// What waits for a slot of the life, in order of arrival; and some that does no longer.
    order: VecDeque<Key>,
    /// What waits for a run of its action to end.
    lanes: HashMap<ActionId, Lane, foldhash::fast::FixedState>,
    waiting: usize,
    running: usize,
    /// How many wait for a slot of the life or run, by partition.
    unended: BTreeMap<PartitionId, u32>,
    returned: usize,
    said: BTreeMap<OwnerId, Said>,
}

impl<G: Granted> Entries<G> {
    /// Nothing, for a life with so many slots.
    pub fn new(slots: usize) -> Self {
        Self {
            slots,
            streams: BTreeMap::new(),
            entries: HashMap::default(),
            order: VecDeque::new(),
            lanes: HashMap::default(),
            waiting: 0,
            running: 0,
            unended: BTreeMap::new(),
            returned: 0,
            said: BTreeMap::new(),
        }
    }

    /// Takes a section, if it is the next of its stream, or a sync that is not older. One that is neither
    /// changes nothing; where one before it is missing, that is reported.
    pub fn take(&mut self, now: Millis, section: Section<G>) -> Taken<G> {
        let mut taken = Taken::default();
        let place = (section.epoch, section.number);
        let stream = self.streams.get_mut(&section.partition);
        let next = stream.as_ref().map(|stream| (stream.epoch, stream.next));
        let fits = match section.opens() {
            true => next.is_none_or(|next| place >= next),
            false => next == Some(place),
        };
        let fits =
            fits || Bug::AnySection.is_planted() && next.is_some_and(|next| place.0 >= next.0);
        let is_old = next.is_some_and(|next| place.0 < next.0);
        let fits = fits || Bug::OldSection.is_planted() && is_old;
        if !fits {
            if next.is_none_or(|next| place > next) {
                self.note_missing(&section);
            }
            return taken;
        }
        taken.taken = true;
        match stream {
            Some(stream) => stream.follow(&section),
            None => {
                let mut stream = Incoming::unopened(&section);
                stream.follow(&section);
                self.streams.insert(section.partition, stream);
            }
        }
        if let Some(holds) = &section.sync {
            self.forget_others(&section, holds, &mut taken);
        }
        for key in &section.settled {
            self.forget(key, &mut taken);
        }
        if let Some(holds) = section.sync {
            self.compare(section.partition, holds, &mut taken);
        }
        for grant in section.grants {
            self.accept(now, section.partition, grant);
        }
        for key in section.cancel {
            self.cancel(key, &mut taken);
        }
        if !section.recall.is_empty() {
            let actions = section.recall.into_iter().collect();
            self.give_back_of(&actions, "it was called back");
        }
        taken
    }

    /// A section came too early: of a stream that nobody has opened here, or after one that is missing.
    fn note_missing(&mut self, section: &Section<G>) {
        let stream = self.streams.entry(section.partition);
        let stream = stream.or_insert_with(|| Incoming::unopened(section));
        // Whoever has the latest epoch knows what is missing.
        if section.epoch >= stream.heard {
            stream.heard = section.epoch;
            stream.owner = section.owner;
            stream.missing.get_or_insert(None);
        }
    }

    /// Forgets what a sync does not name.
    fn forget_others(&mut self, section: &Section<G>, holds: &[Key], taken: &mut Taken<G>) {
        let holds: HashSet<&Key> = holds.iter().collect();
        let keys = self.entries.keys();
        let others = keys.filter(|key| section.tells_of(key.0) && !holds.contains(key));
        let mut others: Vec<Key> = others.copied().collect();
        others.sort_unstable();
        for key in others {
            self.forget(&key, taken);
        }
    }

    /// What a sync names and is not here will never begin here; what is here is told again.
    fn compare(&mut self, partition: PartitionId, holds: Vec<Key>, taken: &mut Taken<G>) {
        for key in holds {
            match self.entries.get_mut(&key) {
                None => {
                    self.entries.insert(
                        key,
                        Entry {
                            state: State::Returned {
                                why: "it was lost on its way".into(),
                            },
                            action_id: None,
                        },
                    );
                    self.returned += 1;
                    self.has_returned(partition);
                }
                Some(entry) => match &mut entry.state {
                    State::Running { told, .. } => *told = false,
                    State::Ended => taken.again.push(key),
                    State::Returned { .. } if Bug::ReturnOnce.is_planted() => {}
                    State::Returned { .. } => self.has_returned(partition),
                    State::Waiting { .. } => {}
                },
            }
        }
    }

    fn has_returned(&mut self, partition: PartitionId) {
        if let Some(stream) = self.streams.get(&partition) {
            self.said.entry(stream.owner).or_default().has_more = true;
        }
    }

    fn accept(&mut self, now: Millis, partition: PartitionId, grant: G) {
        let (key, action_id, slots) = (grant.key(), grant.action_id(), grant.slots());
        if self.entries.contains_key(&key) {
            return;
        }
        let state = if self.is_closed(partition, action_id) {
            // Something of it is on its way back: what begins here now might overtake it.
            self.returned += 1;
            self.has_returned(partition);
            State::Returned {
                why: "something before it was given back".into(),
            }
        } else {
            self.waiting += 1;
            let is_ahead = self.joins_lane(key, action_id, slots);
            if !is_ahead {
                *self.unended.entry(partition).or_default() += 1;
                self.order.push_back(key);
            }
            State::Waiting {
                grant,
                since: now,
                is_ahead,
            }
        };
        let action_id = Some(action_id);
        self.entries.insert(key, Entry { state, action_id });
    }

    /// Whether something of an action was given back and is not settled, or something of its partition of
    /// which nobody knows the action.
    fn is_closed(&self, partition: PartitionId, action_id: ActionId) -> bool {
        self.returned > 0
            && self.entries.iter().any(|(key, entry)| {
                matches!(entry.state, State::Returned { .. })
                    && key.0.partition() == partition
                    && entry.action_id.is_none_or(|of| of == action_id)
            })
    }

    /// Forgets an entry: its owner has written down what became of it.
    fn forget(&mut self, key: &Key, taken: &mut Taken<G>) {
        let Some(entry) = self.entries.remove(key) else {
            return;
        };
        match entry.state {
            State::Waiting { is_ahead, .. } => {
                self.waiting -= 1;
                if !is_ahead {
                    self.has_ended(key, entry.action_id);
                }
            }
            State::Running { .. } => {
                self.running -= 1;
                self.has_ended(key, entry.action_id);
                taken.kill.push(*key);
            }
            State::Ended => taken.settled.push(*key),
            State::Returned { .. } => self.returned -= 1,
        }
        self.tidy();
    }

    /// Something waits for a slot of the life no longer, and does not run: the next of its lane may.
    fn has_ended(&mut self, key: &Key, action_id: Option<ActionId>) {
        if let Some(many) = self.unended.get_mut(&key.0.partition()) {
            *many -= 1;
        }
        if let Some(action_id) = action_id
            && !self.lanes.is_empty()
        {
            self.hand_on(action_id);
        }
    }

    /// Drops from the order what waits no longer, once that is most of it.
    fn tidy(&mut self) {
        if self.order.len() > 2 * self.waiting + 64 {
            let entries = &self.entries;
            let waits = |key: &Key| {
                let entry = entries.get(key);
                entry.is_some_and(|entry| matches!(entry.state, State::Waiting { .. }))
            };
            self.order.retain(waits);
        }
    }

    fn cancel(&mut self, key: Key, taken: &mut Taken<G>) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        match &entry.state {
            State::Running { .. } => taken.cancel.push(key),
            State::Waiting { .. } => {
                let ended = std::mem::replace(&mut entry.state, State::Ended);
                let action_id = entry.action_id;
                self.waiting -= 1;
                if let State::Waiting {
                    grant, is_ahead, ..
                } = ended
                {
                    taken.cancelled.push(grant);
                    if !is_ahead {
                        self.has_ended(&key, action_id);
                    }
                }
                self.tidy();
            }
            State::Ended | State::Returned { .. } => {}
        }
    }

    /// The next one that may begin, while there is a free slot; it counts as running from now on. Whoever
    /// takes it must be sure of its lease.
    pub fn begin_next(&mut self, now: Millis) -> Option<G> {
        if self.running >= self.slots || self.waiting == 0 {
            return None;
        }
        while let Some(key) = self.order.pop_front() {
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            if !matches!(entry.state, State::Waiting { .. }) {
                continue;
            }
            let running = State::Running {
                since: now,
                told: false,
            };
            if let State::Waiting { grant, .. } = std::mem::replace(&mut entry.state, running) {
                self.waiting -= 1;
                self.running += 1;
                return Some(grant);
            }
        }
        None
    }

    /// What was taken to be begun still waits for its start: until it is said to run it counts from now.
    pub fn put_off(&mut self, key: Key, now: Millis) {
        let state = self.entries.get_mut(&key).map(|entry| &mut entry.state);
        if let Some(State::Running { since, told: false }) = state {
            *since = now;
        }
    }

    /// A run has ended.
    pub fn end(&mut self, key: Key) -> Outcome {
        match self.entries.get_mut(&key) {
            Some(entry) if matches!(entry.state, State::Running { .. }) => {
                entry.state = State::Ended;
                let action_id = entry.action_id;
                self.running -= 1;
                self.has_ended(&key, action_id);
                if Bug::EntryForgotten.is_planted() {
                    self.entries.remove(&key);
                }
                Outcome::Kept
            }
            _ => Outcome::Gone,
        }
    }

    /// What was taken to be begun was not, and never will be. What waits of the same action is given back with
    /// it: it would overtake.
    pub fn give_up(&mut self, key: Key, why: impl Into<Why>) {
        if let Some(entry) = self.entries.get_mut(&key)
            && matches!(entry.state, State::Running { .. })
        {
            entry.state = State::Returned { why: why.into() };
            let action_id = entry.action_id;
            self.running -= 1;
            self.returned += 1;
            self.has_returned(key.0.partition());
            // Before its place is free: nothing that stood behind it begins.
            let actions = action_id.into_iter().collect();
            self.give_back_of(&actions, "something before it was given back");
            self.has_ended(&key, action_id);
        }
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// What waits.
    #[cfg(test)]
    pub(crate) fn waiting_keys(&self) -> BTreeSet<Key> {
        let waits = |entry: &Entry<G>| matches!(entry.state, State::Waiting { .. });
        let waiting = self.entries.iter().filter(|(_, entry)| waits(entry));
        waiting.map(|(key, _)| *key).collect()
    }

    /// How many run.
    pub fn running(&self) -> usize {
        self.running
    }

    /// How many entries there are, also of what has ended and is not settled.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether everything is settled.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether this one is not settled.
    pub fn holds(&self, key: &Key) -> bool {
        self.entries.contains_key(key)
    }

    /// What has begun and is not settled.
    pub fn begun(&self) -> impl Iterator<Item = Key> {
        let began = |entry: &Entry<G>| matches!(entry.state, State::Running { .. } | State::Ended);
        let begun = self.entries.iter().filter(move |(_, entry)| began(entry));
        begun.map(|(key, _)| *key)
    }

    /// Whether the end of this one is not settled.
    pub fn is_unsettled(&self, key: &Key) -> bool {
        let entry = self.entries.get(key);
        entry.is_some_and(|entry| matches!(entry.state, State::Ended))
    }
}
