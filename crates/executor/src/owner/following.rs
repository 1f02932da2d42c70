//! The sets that every partition goes by: what operators hold, and the policy documents. Each is read beside
//! the rounds: when a command says that it has changed, and once in a while, so that a lost command
//! costs one pass. The whole set is read, and every partition gets it in its next round, the documents before
//! anything else is decided there: so what is decided in a round is decided under one version.
//!
//! The commands wait for the read, and then take their turn among the others of their partition, and where
//! somebody stands ahead of a slot of a queue that is held, until that one has come back:
//! whoever is answered knows that the change is in force. A worker that does not give back what it was granted
//! ahead is named in the answer after a while. When a set cannot be read, everything
//! goes on by the one that is known, and that is told. The sets are read apart: one that cannot be read
//! holds up no change of the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use attune_core::{PartitionId, Pauses, PolicySet, Reject, RejectCode, RequestId};

use super::{Call, Delivered, Owner, Purpose, Reply, Work};
use crate::partition::{Event, Partition};
use crate::queue::Millis;
use crate::round::Draft;

/// When what could not be read is read again, in milliseconds.
const AFTER_FAILURE: Millis = 2_000;
/// How often is looked whether what keeps a set from being in force is over, in milliseconds.
const LOOK_AGAIN: Millis = 10;
/// How often while no command waits for that.
const LOOK_IDLY: Millis = 1_000;
/// For how long commands wait for that, in milliseconds; then all that come are told at once. Whoever asks sends
/// its command again meanwhile, and takes a refusal for one when every copy is refused.
const PATIENCE: Millis = 5_000;
/// How many commands of one partition wait for that at most: what is not acknowledged takes the place of submissions.
const WAIT_AT_MOST: usize = 64;

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
    /// What keeps it from being in force in a partition that goes by it, in words.
    fn is_kept_by(partition: &Partition) -> Option<String>;
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

    fn is_kept_by(partition: &Partition) -> Option<String> {
        let (worker, action_ref) = partition.held_lane()?;
        Some(format!(
            "worker {worker} has not given back what it was granted ahead of `{action_ref}`, and may begin it"
        ))
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

    fn is_kept_by(_: &Partition) -> Option<String> {
        None
    }
}

/// What is to be said to a command about a set.
pub(super) enum Told {
    /// It is in force; or what keeps it from that has lasted for longer than anybody waits.
    Now(Delivered, Result<(), Reject>),
    /// Nothing yet: the command is kept.
    Later,
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
    /// Commands of partitions in which something keeps the set from being in force.
    kept: Vec<Delivered>,
    /// In which partitions a command has met that, and when first.
    kept_since: BTreeMap<PartitionId, Millis>,
    /// When is looked again whether that is over.
    look_at: Millis,
}

impl<S: Followed> Following<S> {
    pub(super) fn wake_at(&self) -> Option<Millis> {
        let look_at = (!self.kept.is_empty()).then_some(self.look_at);
        self.read_at().into_iter().chain(look_at).min()
    }

    fn look_interval(&self) -> Millis {
        if self.kept.is_empty() {
            LOOK_IDLY
        } else {
            LOOK_AGAIN
        }
    }

    fn read_at(&self) -> Option<Millis> {
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
        self.kept.retain(|of| of.partition != partition);
        self.kept_since.remove(&partition);
    }

    /// Whether commands of a partition wait for what keeps the set from being in force there.
    fn waits(&self, now: Millis, partition: PartitionId) -> bool {
        let since = self.kept_since.get(&partition);
        since.is_some_and(|since| now < since + PATIENCE)
    }
}

impl Owner {
    /// Reads a set when it is time.
    pub(super) fn go_on_following<S: Followed>(&mut self, now: Millis) {
        self.look_again::<S>(now);
        let has_ended = self.has_ended();
        let following = S::of(self);
        let is_due = following.read_at().is_some_and(|at| at <= now);
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

    /// Lets commands take their turn again that nothing keeps any more, or that have waited for long enough.
    fn look_again<S: Followed>(&mut self, now: Millis) {
        let following = S::of(self);
        if following.kept_since.is_empty() || now < following.look_at {
            return;
        }
        let mut kept_since = std::mem::take(&mut following.kept_since);
        kept_since.retain(|id, _| self.partition(*id).and_then(S::is_kept_by).is_some());
        let following = S::of(self);
        following.kept_since = kept_since;
        let all = std::mem::take(&mut following.kept).into_iter();
        let (kept, over): (Vec<_>, Vec<_>) = all.partition(|of| following.waits(now, of.partition));
        following.kept = kept;
        following.look_at = now + following.look_interval();
        self.put_back(over);
    }

    /// What is to be said to a command whose partition goes by the set.
    pub(super) fn tell_in_force<S: Followed>(&mut self, now: Millis, delivered: Delivered) -> Told {
        let partition = delivered.partition;
        let is_kept = self.partition(partition).and_then(S::is_kept_by);
        let following = S::of(self);
        let Some(words) = is_kept else {
            following.kept_since.remove(&partition);
            return Told::Now(delivered, Ok(()));
        };
        following.kept_since.entry(partition).or_insert(now);
        let others = following.kept.iter();
        let others = others.filter(|of| of.partition == partition).count();
        if !following.waits(now, partition) || others >= WAIT_AT_MOST {
            let reject = Reject::new(RejectCode::Conflict, words);
            return Told::Now(delivered, Err(reject));
        }
        following.kept.push(delivered);
        if following.kept.len() == 1 {
            following.look_at = now + following.look_interval();
        }
        Told::Later
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
