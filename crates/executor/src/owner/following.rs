//! The sets that every partition goes by: what operators hold, and the policy documents. Each is read beside
//! the rounds: when a command says that it has changed, and once in a while, so that a lost command
//! costs one pass. The whole set is read, and every partition gets it in its next round, the documents before
//! anything else is decided there: so what is decided in a round is decided under one version.
//!
//! The commands wait for the read, and then take their turn among the others of their partition:
//! whoever is answered knows that the change is in force. When a set cannot be read, everything
//! goes on by the one that is known, and that is told. The sets are read apart: one that cannot be read
//! holds up no change of the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use attune_core::{PartitionId, Pauses, PolicySet, RequestId};

use super::{Call, Delivered, Owner, Purpose, Reply, Work};
use crate::partition::Event;
use crate::queue::Millis;
use crate::round::Draft;

/// When what could not be read is read again, in milliseconds.
const AFTER_FAILURE: Millis = 2_000;

/// A set that is read whole.
pub(super) trait Followed: Sized {
    /// Rises with every change.
    fn version(&self) -> i64;
    /// What an owner knows of it.
    fn of(owner: &mut Owner) -> &mut Following<Self>;
    /// How it is read, if it is newer.
    fn read(newer_than: i64) -> (Purpose, Call);
    /// What was read; `None` when it could not be.
    fn of_reply(reply: Reply) -> Option<Option<Arc<Self>>>;
    /// A command that says that it has changed, with these requests.
    fn work(requests: Vec<RequestId>) -> Work;
}

impl Followed for Pauses {
    fn version(&self) -> i64 {
        self.version
    }

    fn of(owner: &mut Owner) -> &mut Following<Self> {
        &mut owner.pausing
    }

    fn read(newer_than: i64) -> (Purpose, Call) {
        (Purpose::Pauses, Call::LoadPauses { newer_than })
    }

    fn of_reply(reply: Reply) -> Option<Option<Arc<Self>>> {
        match reply {
            Reply::Pauses(pauses) => Some(pauses),
            _ => None,
        }
    }

    fn work(requests: Vec<RequestId>) -> Work {
        Work::Pauses(requests)
    }
}

impl Followed for PolicySet {
    fn version(&self) -> i64 {
        self.version
    }

    fn of(owner: &mut Owner) -> &mut Following<Self> {
        &mut owner.policing
    }

    fn read(newer_than: i64) -> (Purpose, Call) {
        (Purpose::Policies, Call::LoadPolicies { newer_than })
    }

    fn of_reply(reply: Reply) -> Option<Option<Arc<Self>>> {
        match reply {
            Reply::Policies(policies) => Some(policies),
            _ => None,
        }
    }

    fn work(requests: Vec<RequestId>) -> Work {
        Work::Policies(requests)
    }
}

/// The set that is known, and who waits for a newer one.
#[derive(Debug, Default)]
pub(super) struct Following<S> {
    known: Arc<S>,
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

impl<S: Followed> Following<S> {
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

    /// A set was read that may be newer.
    pub(super) fn learn(&mut self, set: Arc<S>) {
        if set.version() > self.known.version() {
            self.known = set;
        }
    }

    /// A partition is served from now on, by the set with which it was loaded: it is read again at
    /// that time at the latest.
    pub(super) fn adopt(&mut self, at: Millis) {
        self.at.get_or_insert(at);
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
            work: S::work(Vec::new()),
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
    /// Reads a set when it is time.
    pub(super) fn go_on_following<S: Followed>(&mut self, now: Millis) {
        let has_ended = self.has_ended();
        let following = S::of(self);
        let is_due = following.wake_at().is_some_and(|at| at <= now);
        if !is_due || has_ended {
            return;
        }
        following.asking = true;
        following.at = None;
        following.reading.append(&mut following.asked);
        let (purpose, call) = S::read(following.known.version());
        self.call(purpose, call);
    }

    /// The store has answered.
    pub(super) fn set_read<S: Followed>(&mut self, now: Millis, reply: Reply) {
        let interval = self.options.reconcile.interval;
        let following = S::of(self);
        following.asking = false;
        let Some(newer) = S::of_reply(reply) else {
            following.failed = true;
            let newer = std::mem::take(&mut following.asked);
            following.asked.append(&mut following.reading);
            following.asked.extend(newer);
            following.at = Some(now + AFTER_FAILURE);
            let passed = following.pass_all_but_newest();
            return self.put_back(passed);
        };
        following.failed = false;
        following.at = Some(if following.asked.is_empty() {
            now + interval
        } else {
            now
        });
        if let Some(newer) = newer {
            following.learn(newer);
        }
        let read = std::mem::take(&mut following.reading);
        self.put_back(read);
    }

    /// Whether a partition goes by an older set than one that was read.
    pub(super) fn is_behind(&self, id: PartitionId) -> bool {
        let (pauses, policies) = (&self.pausing.known, &self.policing.known);
        self.partition(id).is_some_and(|it| {
            it.pauses_version() < pauses.version || it.goes_by() < policies.version
        })
    }

    /// Brings the documents to the partitions that go by older ones, before anything else is decided.
    pub(super) fn bring_policies(&mut self, wall: Millis, open: &[PartitionId], draft: &mut Draft) {
        let policies = Arc::clone(&self.policing.known);
        for id in open {
            let behind = self.partition_mut(*id);
            let behind = behind.filter(|partition| partition.goes_by() < policies.version);
            if let Some(partition) = behind {
                let event = Event::Policies(Arc::clone(&policies));
                draft.add(*id, partition.step(wall, event));
            }
        }
    }

    /// Brings what operators hold likewise, but after what has changed of actions: what is resumed is
    /// granted at once, and under the limits that this round learns of.
    pub(super) fn bring_pauses(&mut self, wall: Millis, open: &[PartitionId], draft: &mut Draft) {
        let pauses = Arc::clone(&self.pausing.known);
        for id in open {
            let behind = self.partition_mut(*id);
            let behind = behind.filter(|partition| partition.pauses_version() < pauses.version);
            if let Some(partition) = behind {
                let event = Event::Pauses(Arc::clone(&pauses));
                draft.add(*id, partition.step(wall, event));
            }
        }
    }
}
