//! Leases as they are shown: of partitions, and the presence of executors.

use std::time::Duration;

use attune_core::{Epoch, OwnerId, PartitionId};
use chrono::{DateTime, Utc};

/// A partition as its lease row shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Which partition.
    pub partition: PartitionId,
    /// Who owns it; `None` when nobody does or the lease has expired.
    pub owner: Option<OwnerId>,
    /// The owner's name for people.
    pub owner_name: Option<String>,
    /// Rises with every change of hands.
    pub epoch: Epoch,
    /// How long the lease still holds; zero when it has expired.
    pub remaining: Duration,
    /// How long nobody has owned it; zero while somebody does.
    pub free_for: Duration,
    /// To whom its last owner has handed it over, until somebody takes it.
    pub wanted_owner: Option<OwnerId>,
    /// Whom the row names as its owner, whatever the store's clock says.
    pub holder: Option<OwnerId>,
    /// Rises with every renewal and every change of hands.
    pub renewals: i64,
    /// How long the lease was when it was last renewed; zero when it was given up.
    pub ttl: Duration,
    /// What keeps its owner from its work, as long as somebody owns it.
    pub trouble: Option<LeaseTrouble>,
}

/// What keeps the owner of a partition from its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseTrouble {
    /// Since when, by the store's clock.
    pub since: DateTime<Utc>,
    /// What, for people.
    pub words: String,
}

impl LeaseTrouble {
    /// How the words of an owner begin that gets and sends no messages. Unlike one whose commits are
    /// refused it goes on deciding: waits end and limits change meanwhile.
    pub const NO_BROKER: &str = "its executor has no message broker";
    /// How the words of an owner begin that can accept nothing. It goes on granting slots, and ending
    /// what runs.
    pub const UNREAD: &str = "what it needs cannot be read";
    /// How the words of an owner begin that cannot read some of what it needs beside its decisions: what
    /// was granted may not be dispatched again, and slots of lost workers may stay taken.
    pub const PARTLY_UNREAD: &str = "its executor cannot read all of its store";
    /// How the words of an owner begin that cannot store dead letters or entries of the audit log; all
    /// else goes on.
    pub const NOT_KEPT: &str = "dead letters or entries of the audit log cannot be stored";
    /// How the words of an owner begin whom ends of runs do not reach: slots stay taken.
    pub const NO_ENDS: &str = "ends of runs do not arrive";
    /// How the words of an owner begin that cannot store what an operation does; all else goes on.
    pub const OPERATION_REFUSED: &str = "an operation is held off";
    /// How the words of an owner begin whose commits and look-ups are made and take long: it decides
    /// nothing meanwhile.
    pub const SLOW: &str = "its executor waits for its store";
    /// How the words of an owner begin that reaches the broker, which refuses or holds back some of
    /// what it does there.
    pub const BROKER_ILL: &str = "its executor has trouble with the message broker";
}

/// What an owner says about a partition of its own, for those who look at its queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TroubleNote {
    /// Which partition.
    pub partition: PartitionId,
    /// In which epoch it is owned.
    pub epoch: Epoch,
    /// For how long something has kept it from its work, and what, for people; `None` when nothing
    /// does any more.
    pub trouble: Option<(Duration, String)>,
}

impl Lease {
    /// The lease as it stands now, to see later whether it has moved.
    pub fn observed(&self) -> ObservedLease {
        ObservedLease {
            partition: self.partition,
            epoch: self.epoch,
            renewals: self.renewals,
        }
    }
}

/// What a watcher remembers of a lease. A lease whose `epoch` and `renewals` stay as they are for
/// its ttl and a margin, by a clock of the watcher's own that only goes forward, is over: its
/// owner has missed its renewals. Time in which the store did not answer does not count, because
/// its owner could not renew either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedLease {
    /// Which partition.
    pub partition: PartitionId,
    /// [`Lease::epoch`].
    pub epoch: Epoch,
    /// [`Lease::renewals`].
    pub renewals: i64,
}

/// An executor as its presence row shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutorRow {
    /// Its id; fresh at every start of the process.
    pub executor: OwnerId,
    /// Its name for people.
    pub name: String,
    /// How long it still counts as alive; zero when it does not any more.
    pub remaining: Duration,
    /// Rises with every renewal.
    pub renewals: i64,
    /// Whether it says that it cannot reach the bus.
    pub cut_off: bool,
}
