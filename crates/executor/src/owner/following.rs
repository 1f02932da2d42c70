//! What operators hold, read beside the rounds: when a command says that it has changed, and once in
//! a while, so that a lost command costs one pass. The whole set is read, and every partition gets it.
//!
//! The commands wait for the read, and then take their turn among the others of their partition:
//! whoever is answered knows that the change is in force. When the set cannot be read, everything
//! goes on by the one that is known, and that is told.

use std::collections::BTreeMap;
use std::sync::Arc;

use attune_core::{PartitionId, Pauses};

use super::{Call, Delivered, Owner, Purpose, Reply, Work};
use crate::partition::{Event, Partition};
use crate::queue::Millis;

/// When what could not be read is read again, in milliseconds.
const AFTER_FAILURE: Millis = 2_000;

/// The set that is known, and who waits for a newer one.
#[derive(Debug, Default)]
pub(super) struct Pausing {
    known: Arc<Pauses>,
    /// When it is read next; `None` while no partition is served and nobody asks.
    at: Option<Millis>,
    /// It is being read, for the commands in `reading`.
    asking: bool,
    /// The last read failed.
    failed: bool,
    reading: Vec<Delivered>,
    /// Commands that came since it is being read: what is read may be older.
    asked: Vec<Delivered>,
}

impl Pausing {
    pub(super) fn wake_at(&self) -> Option<Millis> {
        self.at.filter(|_| !self.asking)
    }

    /// A command says that the set has changed.
    pub(super) fn ask(&mut self, delivered: Delivered) {
        self.asked.push(delivered);
        if !self.failed {
            self.at = Some(Millis::MIN);
        }
    }

    /// Takes out all commands but the newest of each partition. They are acknowledged without an answer:
    /// what is not acknowledged takes the place of submissions, and the newest will say no less.
    fn pass_all_but_newest(&mut self) -> Vec<Delivered> {
        let mut newest = BTreeMap::new();
        for (at, of) in self.asked.iter().enumerate() {
            newest.insert(of.partition, at);
        }
        let all = std::mem::take(&mut self.asked).into_iter().enumerate();
        let (kept, passed): (Vec<_>, Vec<_>) =
            all.partition(|(at, of)| newest.get(&of.partition) == Some(at));
        self.asked = kept.into_iter().map(|(_, of)| of).collect();
        let unanswered = passed.into_iter().map(|(_, of)| Delivered {
            work: Work::Pauses(Vec::new()),
            ..of
        });
        unanswered.collect()
    }

    pub(super) fn forget(&mut self, partition: PartitionId) {
        self.reading.retain(|of| of.partition != partition);
        self.asked.retain(|of| of.partition != partition);
    }
}

impl Owner {
    /// Reads the set when it is time.
    pub(super) fn go_on_pausing(&mut self, now: Millis) {
        let is_due = self.pausing.wake_at().is_some_and(|at| at <= now);
        if !is_due || self.has_ended() {
            return;
        }
        self.pausing.asking = true;
        self.pausing.at = None;
        self.pausing.reading.append(&mut self.pausing.asked);
        let newer_than = self.pausing.known.version;
        self.call(Purpose::Pauses, Call::LoadPauses { newer_than });
    }

    /// The store has answered.
    pub(super) fn pauses_read(&mut self, now: Millis, reply: Reply) {
        let interval = self.options.reconcile.interval;
        let pausing = &mut self.pausing;
        pausing.asking = false;
        let Reply::Pauses(pauses) = reply else {
            pausing.failed = true;
            let newer = std::mem::take(&mut pausing.asked);
            pausing.asked.append(&mut pausing.reading);
            pausing.asked.extend(newer);
            let passed = pausing.pass_all_but_newest();
            self.put_back(passed);
            let pausing = &mut self.pausing;
            pausing.at = Some(now + AFTER_FAILURE);
            return;
        };
        pausing.failed = false;
        pausing.at = Some(if pausing.asked.is_empty() {
            now + interval
        } else {
            now
        });
        let read = std::mem::take(&mut pausing.reading);
        let newer = pauses.filter(|read| read.version > pausing.known.version);
        if let Some(newer) = newer {
            pausing.known = newer;
        }
        let places: Vec<PartitionId> = self.places.keys().copied().collect();
        for id in places {
            self.tell_pauses(id);
        }
        self.put_back(read);
    }

    /// Brings the set to a partition that goes by an older one.
    pub(super) fn tell_pauses(&mut self, id: PartitionId) {
        let known = Arc::clone(&self.pausing.known);
        let goes_by = self.partition(id).map(Partition::pauses_version);
        if goes_by.is_some_and(|version| version < known.version) {
            self.pending.push_back((id, Event::Pauses(known)));
        }
    }

    /// A partition is served from now on, as its pauses were when it was loaded.
    pub(super) fn adopt_pauses(&mut self, now: Millis, id: PartitionId) {
        let interval = self.options.reconcile.interval;
        self.pausing.at.get_or_insert(now + interval);
        self.tell_pauses(id);
    }

    /// Whether a partition goes by everything that was read.
    pub(super) fn goes_by_pauses(&self, id: PartitionId) -> bool {
        let version = self.partition(id).map(Partition::pauses_version);
        version.is_some_and(|version| version >= self.pausing.known.version)
    }
}
