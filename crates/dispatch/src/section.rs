//! What an owner tells a worker, and what a worker tells an owner.

use std::sync::Arc;

use attune_core::{ActionId, Attempt, Epoch, ExecutionId, OwnerId, PartitionId};

/// Names a grant: an attempt of an execution is granted once, to one life.
pub type Key = (ExecutionId, Attempt);

/// Milliseconds by a clock that only measures durations.
pub type Millis = i64;

/// Something that is granted.
pub trait Granted {
    /// Names the grant.
    fn key(&self) -> Key;

    /// Its action.
    fn action_id(&self) -> ActionId;

    /// How many executions of its action may run at this life at once, where it is granted ahead of its slot:
    /// it begins when one of them has ended.
    fn slots(&self) -> Option<u32>;
}

/// A part of the stream of one partition, in one epoch, to one life. Sections are numbered from 0 on; the
/// first of an epoch has a [`sync`](Self::sync). Its parts come true in the order in which they stand here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section<G> {
    /// Of which partition.
    pub partition: PartitionId,
    /// In which epoch.
    pub epoch: Epoch,
    /// Its place in the stream.
    pub number: u64,
    /// To whom reports about the partition go.
    pub owner: OwnerId,
    /// Everything of the partition that the life holds, by what its owner has committed; but for what is
    /// granted in this section and later ones.
    pub sync: Option<Vec<Key>>,
    /// The sync goes on after this execution: it is not the first part of one that no section could hold.
    pub sync_after: Option<ExecutionId>,
    /// The sync ends with this execution: what is held of later ones stands in the sections that follow.
    pub sync_to: Option<ExecutionId>,
    /// What the owner has written down as ended, put back or taken away: it can be forgotten.
    pub settled: Vec<Key>,
    /// What may begin.
    pub grants: Vec<G>,
    /// What is to be ended.
    pub cancel: Vec<Key>,
    /// The actions of which everything that waits is to be given back.
    pub recall: Vec<ActionId>,
}

impl<G> Section<G> {
    /// Whether it is understood without the sections before it: a sync, or the first part of one.
    pub(crate) fn opens(&self) -> bool {
        self.sync.is_some() && self.sync_after.is_none()
    }

    /// Whether its sync tells of this execution.
    pub(crate) fn tells_of(&self, id: ExecutionId) -> bool {
        id.partition() == self.partition
            && self.sync_after.is_none_or(|after| id > after)
            && self.sync_to.is_none_or(|last| id <= last)
    }

    /// A section that says nothing yet.
    pub fn new(partition: PartitionId, epoch: Epoch, number: u64, owner: OwnerId) -> Self {
        Self {
            partition,
            epoch,
            number,
            owner,
            sync: None,
            sync_after: None,
            sync_to: None,
            settled: Vec::new(),
            grants: Vec::new(),
            cancel: Vec::new(),
            recall: Vec::new(),
        }
    }
}

/// Why a grant never began at the worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    /// For people.
    pub words: &'static str,
    /// The id of the key that the worker lacks, where it is for want of that.
    pub lacks_key: Option<Arc<str>>,
}

impl From<&'static str> for Why {
    fn from(words: &'static str) -> Self {
        Self {
            words,
            lacks_key: None,
        }
    }
}

/// A grant that never began at the worker, and never will.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Returned {
    /// Which grant.
    pub key: Key,
    /// Why.
    pub why: Why,
}

/// A run that has lasted for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// Which grant.
    pub key: Key,
    /// For how long it has been running.
    pub age: Millis,
}

/// What a worker tells the owner of some partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// To whom.
    pub owner: OwnerId,
    /// How many grants of other owners the worker has that have not ended.
    pub elsewhere: u32,
    /// Everything of this owner that is given back and not settled.
    pub returned: Vec<Returned>,
    /// What runs and was not told yet.
    pub started: Vec<Started>,
    /// Of which partitions a section is missing.
    pub resync: Vec<PartitionId>,
}

impl Report {
    pub(crate) fn new(owner: OwnerId, elsewhere: u32) -> Self {
        Self {
            owner,
            elsewhere,
            returned: Vec::new(),
            started: Vec::new(),
            resync: Vec::new(),
        }
    }
}
