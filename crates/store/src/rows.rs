//! What owners read: what is active, who holds slots, and the leases of workers.

use std::collections::BTreeMap;
use std::time::Duration;

use attune_core::{ActionId, Asker, Attempt, Demand, ExecutionId, Priority, Status, WorkerId};
use chrono::{DateTime, Utc};
use serde_json::value::RawValue;

/// An execution that waits or holds a slot, as a new owner loads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveRow {
    /// Its id.
    pub id: ExecutionId,
    /// Its action.
    pub action_id: ActionId,
    /// Its priority.
    pub priority: Priority,
    /// `Queued`, `Requested` or `Running`.
    pub status: Status,
    /// Its attempt.
    pub attempt: Attempt,
    /// The number of its last grant.
    pub grant_no: Option<i64>,
    /// Who was granted that attempt, as long as it holds the slot for it.
    pub worker: Option<WorkerId>,
    /// How many of its grants never began: [`PutBack::unbegun`](crate::PutBack::unbegun).
    pub unbegun: u16,
    /// Whether it has a [`PutBack::last_error`](crate::PutBack::last_error).
    pub retried: bool,
    /// When it was accepted: [`Batch::at`](crate::Batch::at).
    pub created: DateTime<Utc>,
    /// When it may start, if that was delayed, or [`PutBack::not_before`](crate::PutBack::not_before).
    pub not_before: Option<DateTime<Utc>>,
    /// Whether it shall be ended.
    pub cancel_requested: bool,
    /// [`NewExecution::demand`](crate::NewExecution::demand); nothing where what is stored is none.
    pub demand: Option<Demand>,
    /// [`NewExecution::asker`](crate::NewExecution::asker).
    pub asker: Option<Asker>,
    /// [`MovedExecution::front`](crate::MovedExecution::front).
    pub front: bool,
    /// Until when it keeps its slot: [`PutBack::keeps_slot`](crate::PutBack::keeps_slot).
    pub kept_until: Option<DateTime<Utc>>,
}

/// What an execution says by which it can be grouped.
#[derive(Debug, Clone)]
pub struct ExecutionWords {
    /// Which execution.
    pub id: ExecutionId,
    /// The user for whom it runs.
    pub requested_by: Option<String>,
    /// Its own group.
    pub group: Option<String>,
    /// Its labels; none where they cannot be read.
    pub labels: BTreeMap<String, String>,
    /// Its parameters; none where they cannot be read.
    pub parameters: Box<RawValue>,
}

/// Where a page of [`PartitionStore::load_partition`](crate::PartitionStore::load_partition) ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActivePlace {
    /// The action of its last row.
    pub action_id: ActionId,
    /// When that row was accepted.
    pub created: DateTime<Utc>,
    /// Its id.
    pub id: ExecutionId,
}

/// A page of what a partition has active.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActivePage {
    /// The rows.
    pub rows: Vec<ActiveRow>,
    /// Where the next page goes on, when this one is full.
    pub next: Option<ActivePlace>,
}

/// A range of ids, and what is active there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveSlice {
    /// The rows, by rising id.
    pub rows: Vec<ActiveRow>,
    /// The last id of the range, whatever its partition; `None` when nothing comes after its
    /// beginning.
    pub last: Option<ExecutionId>,
}

/// The lease of a worker, as a watcher judges it; see [`ObservedLease`](crate::ObservedLease).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerEnd {
    /// Which worker.
    pub worker: WorkerId,
    /// The pool it serves.
    pub pool: String,
    /// [`WorkerLease::broker_user`](crate::WorkerLease::broker_user), as it was said first.
    pub broker_user: Option<String>,
    /// How many executions it runs at once.
    pub slots: u32,
    /// [`WorkerLease::draining`](crate::WorkerLease::draining).
    pub draining: bool,
    /// Rises with every renewal.
    pub renewals: i64,
    /// How long the lease was when it was last renewed; at most until its end when it was ended.
    pub ttl: Duration,
    /// Whether somebody has ended it ([`PartitionStore::end_workers`](crate::PartitionStore::end_workers)), or its worker itself.
    pub ended: bool,
    /// Whether its process is known to be gone, with everything that it ran; see
    /// [`WorkerStore::worker_over`](crate::WorkerStore::worker_over).
    pub gone: bool,
    /// Which of its grants have begun, said with its end: of those that were active then. `None` when
    /// nobody knows, or it was said more than ten minutes ago.
    pub begun: Option<Vec<(ExecutionId, Attempt)>>,
}

impl WorkerEnd {
    /// What has begun, from JSON as the adapters store it: pairs of id and attempt, or nothing. What nobody could
    /// have written counts as nothing: then nobody knows.
    #[must_use]
    pub fn begun_from(json: Option<&str>) -> Option<Vec<(ExecutionId, Attempt)>> {
        json.and_then(|text| serde_json::from_str(text).ok())
    }
}

/// An execution that holds a slot, as the reconciler compares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotRow {
    /// Its id.
    pub id: ExecutionId,
    /// Its action.
    pub action_id: ActionId,
    /// Its priority.
    pub priority: Priority,
    /// Its attempt.
    pub attempt: Attempt,
    /// As for [`ActiveRow::grant_no`].
    pub grant_no: Option<i64>,
    /// How many of its grants never began.
    pub unbegun: u16,
    /// `Requested` or `Running`.
    pub status: Status,
    /// Who was granted that attempt; nobody where the slot is kept for the next one.
    pub worker: Option<WorkerId>,
    /// Whether the lease of its worker was ended, or its row is gone. Only somebody's decision
    /// ends a lease ([`PartitionStore::end_workers`](crate::PartitionStore::end_workers)), never the store's clock.
    pub worker_over: bool,
    /// When it was accepted: [`Batch::at`](crate::Batch::at).
    pub created: DateTime<Utc>,
    /// When the slot was granted, likewise.
    pub requested_at: Option<DateTime<Utc>>,
    /// How long ago it started, by the store's clock, if its worker has said so
    /// ([`Update::started`](crate::Update::started)).
    pub running_for: Option<Duration>,
    /// Whether it shall be ended.
    pub cancel_requested: bool,
    /// As for [`ActiveRow::demand`].
    pub demand: Option<Demand>,
    /// As for [`ActiveRow::asker`].
    pub asker: Option<Asker>,
    /// As for [`ActiveRow::front`].
    pub front: bool,
    /// As for [`ActiveRow::kept_until`].
    pub kept_until: Option<DateTime<Utc>>,
}
