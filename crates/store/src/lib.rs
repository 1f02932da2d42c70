//! Storage ports of Attune and the conformance suite every adapter passes.
//!
//! A port is a small trait; an adapter implements all of them ([`Store`]). Three rules
//! hold for every method:
//!
//! - **The caller may be dropped, the work may not.** An adapter runs each call in a task of
//!   its own, so that a cancelled caller never leaves a connection inside a transaction.
//! - **A batch is one statement or one transaction**: all of it happens or none of it.
//! - **Every time is the database's.** Callers compare ages, never clocks.

pub mod actions;
pub mod audit;
pub mod conformance;
pub mod dead_letters;
pub mod error;
pub mod executions;
pub mod partitions;
pub mod stats;
pub mod workers;

use async_trait::async_trait;

pub use actions::{ActionStore, Applied, PolicyChange};
pub use audit::{AuditEntry, AuditStore, NewAudit, Violations};
pub use dead_letters::{
    DeadLetter, DeadLetterFilter, DeadLetterRetention, DeadLetterStore, LETTER_OVERHEAD,
    NewDeadLetter, Requeue,
};
pub use error::StoreError;
pub use executions::{
    Bodies, Cursor, ExecutionFilter, ExecutionPage, ExecutionRecord, ExecutionStore,
    HistoryRetention, SlotHolder, SlotWorker,
};
pub use partitions::{
    ActiveRow, Batch, CommitError, Committed, End, ExecutorRow, GrantedBody, KnownRequest, Lease,
    Lookup, NewExecution, ObservedLease, Outcome, PartitionStore, SlotRow, Update, WorkerEnd,
};
pub use stats::{StatsCursor, StatsPage, StatsRow, StatsStore, StoredStats};
pub use workers::{Claim, WorkerLease, WorkerRow, WorkerStore};

/// Everything that an adapter provides.
#[async_trait]
pub trait Store:
    PartitionStore
    + ActionStore
    + ExecutionStore
    + WorkerStore
    + StatsStore
    + AuditStore
    + DeadLetterStore
    + Send
    + Sync
    + 'static
{
    /// Brings the schema to the version this program needs. Safe to run by several at once.
    ///
    /// # Errors
    /// When the store cannot be reached or holds a newer schema.
    async fn migrate(&self) -> Result<(), StoreError>;

    /// Answers when the store can be used by this program.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when it cannot be reached, [`StoreError::Schema`] when its
    /// schema is not the one this program needs.
    async fn check(&self) -> Result<(), StoreError>;

    /// Finishes what is under way and closes every connection.
    async fn close(&self);
}
