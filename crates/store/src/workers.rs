//! Worker leases and the claim: the one write that is not the owner's.

use std::time::Duration;

use async_trait::async_trait;
use attune_core::{Attempt, ExecutionId, WorkerId};

use crate::error::StoreError;

/// What a worker says of itself when it renews its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerLease {
    /// Fresh at every start of the process.
    pub worker: WorkerId,
    /// Its name for people.
    pub name: String,
    /// The pool it serves.
    pub pool: String,
    /// How many executions it runs at once.
    pub slots: u32,
    /// How long it counts as alive without a renewal.
    pub ttl: Duration,
}

/// A worker as its lease row shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerRow {
    /// Its id.
    pub worker: WorkerId,
    /// Its name for people.
    pub name: String,
    /// The pool it serves.
    pub pool: String,
    /// How many executions it runs at once.
    pub slots: u32,
    /// How long its lease still holds; zero when it has expired.
    pub remaining: Duration,
    /// How long ago it last renewed its lease, as far as is known.
    pub seen_ago: Option<Duration>,
}

/// A claim that was won.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Which attempt of it.
    pub attempt: Attempt,
    /// Whether it was cancelled before anyone claimed it: report it as cancelled, do not run it.
    pub cancel_requested: bool,
}

/// What a worker asks of the store.
#[async_trait]
pub trait WorkerStore: Send + Sync {
    /// Starts or renews the lease of a worker.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when the lease had expired: the worker may have lost what it
    /// runs, so it must end that and come back under a fresh id.
    async fn renew_worker(&self, lease: &WorkerLease) -> Result<(), StoreError>;

    /// Ends the lease of a worker that has nothing left to run.
    ///
    /// # Errors
    /// When the store fails.
    async fn retire_worker(&self, worker: WorkerId) -> Result<(), StoreError>;

    /// Claims for a worker whose lease holds those of `wanted` that are still requested in that
    /// attempt. Those that this worker has claimed before are returned as well, so that a claim
    /// whose answer was lost can be repeated.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when the lease of the worker is over: nothing was claimed, and
    /// somebody else may still claim it all.
    async fn claim(
        &self,
        worker: WorkerId,
        wanted: &[(ExecutionId, Attempt)],
    ) -> Result<Vec<Claim>, StoreError>;

    /// Every worker whose row is kept, by name.
    ///
    /// # Errors
    /// When the store fails.
    async fn workers(&self) -> Result<Vec<WorkerRow>, StoreError>;
}
