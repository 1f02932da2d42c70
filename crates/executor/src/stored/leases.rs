//! Who is there, as it is stored: executors with their partitions, and workers.

use std::collections::BTreeSet;
use std::sync::Arc;

use attune_core::{Epoch, OwnerId, PartitionId, WorkerId};
use attune_dispatch::Key;

use crate::queue::Millis;

/// The lease of a partition, as it is stored. Whether it holds is not: a watcher sees that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLease {
    /// Which partition.
    pub partition: PartitionId,
    /// Who took it and has not given it up.
    pub holder: Option<OwnerId>,
    /// Rises with every change of hands.
    pub epoch: Epoch,
    /// Rises with every renewal and every change of hands.
    pub renewals: i64,
    /// For how long it was renewed last, in milliseconds.
    pub ttl: Millis,
    /// Who is to have it next.
    pub wanted_owner: Option<OwnerId>,
}

impl StoredLease {
    /// What shows that it has moved.
    pub(crate) fn observed(&self) -> ObservedLease {
        ObservedLease {
            partition: self.partition,
            epoch: self.epoch,
            renewals: self.renewals,
        }
    }
}

/// A lease as it stood when somebody looked: it is taken only if it still stands so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedLease {
    /// Which partition.
    pub partition: PartitionId,
    /// [`StoredLease::epoch`].
    pub epoch: Epoch,
    /// [`StoredLease::renewals`].
    pub renewals: i64,
}

/// Another owner, as the list of those who are there shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredExecutor {
    /// Which one.
    pub executor: OwnerId,
    /// Rises with every renewal.
    pub renewals: i64,
    /// Whether it is there by the store's clock.
    pub live: bool,
    /// Whether it says that it cannot reach the bus.
    pub cut_off: bool,
}

/// The lease of a worker, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerEnd {
    /// Which worker.
    pub worker: WorkerId,
    /// The pool it serves.
    pub pool: String,
    /// The user of the broker as whom it speaks, if it has said so.
    pub user: Option<String>,
    /// How many executions it runs at once.
    pub slots: u32,
    /// Rises with every renewal.
    pub renewals: i64,
    /// For how long it was renewed last, in milliseconds.
    pub ttl: Millis,
    /// Whether it was ended.
    pub ended: bool,
    /// Whether it takes nothing more, because it is about to stop.
    pub draining: bool,
    /// Whether its process is known to be gone, with everything that it ran.
    pub gone: bool,
    /// Which of its grants have begun, said with its end; `None` when nobody knows.
    pub begun: Option<Arc<BTreeSet<Key>>>,
}
