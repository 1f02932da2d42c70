//! Worker leases: who may be granted executions.

use std::time::Duration;

use async_trait::async_trait;
use attune_core::{Attempt, ExecutionId, WorkerId};

use crate::error::StoreError;

/// What a worker says of itself when it renews its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerLease {
    /// Fresh at every start of the process, and whenever its lease was ended.
    pub worker: WorkerId,
    /// Its name for people.
    pub name: String,
    /// The pool it serves.
    pub pool: String,
    /// How many executions it runs at once.
    pub slots: u32,
    /// Whether it takes nothing more and goes away when what it runs has ended.
    pub draining: bool,
    /// How long it counts as alive without a renewal.
    pub ttl: Duration,
    /// The user of the broker as whom it speaks. Not given: the one of the process that asks, as far as
    /// its store was told. What is said first holds as long as the lease.
    pub broker_user: Option<String>,
    /// Whose life it is, where it was registered with a key; nobody else may renew or end it.
    pub principal: Option<String>,
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
    /// [`WorkerLease::draining`].
    pub draining: bool,
    /// How long its lease still holds; zero when it has expired.
    pub remaining: Duration,
    /// How long ago it last renewed its lease, as far as is known.
    pub seen_ago: Option<Duration>,
}

/// What a worker asks of the store.
#[async_trait]
pub trait WorkerStore: Send + Sync {
    /// Starts or renews the lease of a worker.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when somebody has ended the lease: the worker may have lost what it
    /// runs, so it must end that and come back under a fresh id; also when the life is somebody else's.
    async fn renew_worker(&self, lease: &WorkerLease) -> Result<(), StoreError>;

    /// Whose life this is: `None` for one that nobody has registered, and in it `None` for one that was
    /// registered without a key.
    ///
    /// # Errors
    /// When the store fails.
    async fn principal_of(&self, worker: WorkerId) -> Result<Option<Option<String>>, StoreError>;

    /// Ends the lease of a worker that has nothing left to run, and says which of its grants have begun, of those
    /// that nobody has settled: with `None` nobody knows. A lease that was ended before stays as it is.
    ///
    /// # Errors
    /// When the store fails.
    async fn retire_worker(
        &self,
        worker: WorkerId,
        begun: Option<&[(ExecutionId, Attempt)]>,
    ) -> Result<(), StoreError>;

    /// Says that the process of a worker is gone, with everything that it ran, and which of its
    /// grants have begun: with `None` nobody knows. Ends its lease. What was said first stands.
    /// False when the store does not know the worker.
    ///
    /// # Errors
    /// When the store fails.
    async fn worker_over(
        &self,
        worker: WorkerId,
        begun: Option<&[(ExecutionId, Attempt)]>,
    ) -> Result<bool, StoreError>;

    /// Every worker whose row is kept, by name.
    ///
    /// # Errors
    /// When the store fails.
    async fn workers(&self) -> Result<Vec<WorkerRow>, StoreError>;
}
