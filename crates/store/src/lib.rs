//! Storage ports of Attune.
//!
//! A port is a small trait; an adapter implements all of them ([`Store`]). Three rules
//! hold for every method:
//!
//! - **The caller may be dropped, the work may not.** An adapter runs each call in a task of
//!   its own, so that a cancelled caller never leaves a connection inside a transaction.
//! - **A batch is one statement or one transaction**: all of it happens or none of it.
//! - **Every time is the database's.** Callers compare ages, never clocks.

pub mod actions;
mod actor;
pub mod audit;
pub mod dead_letters;
pub mod error;
pub mod executions;
pub mod keys;
pub mod leases;
pub mod meters;
pub mod operations;
pub mod partitions;
pub mod pauses;
pub mod policies;
pub mod pools;
pub mod rows;
pub mod stats;
pub mod workers;

use async_trait::async_trait;
use uuid::Uuid;

pub use actions::{ActionStore, Applied, PolicyChange, audit_of_apply};
pub use actor::{Actor, ActorKind, Origin, Via};
pub use audit::{
    AuditEntry, AuditStore, ChainCheck, ChainLink, NewAudit, ProcessStart, RawAudit, StoredOrigin,
    Violations, What, audit_of_takeover, check_chain, check_links,
};
pub use dead_letters::{
    DeadLetter, DeadLetterFilter, DeadLetterRetention, DeadLetterStore, LETTER_OVERHEAD,
    LetterGauge, NewDeadLetter, Requeue,
};
pub use error::StoreError;
pub use executions::{
    Bodies, Cursor, ExecutionFilter, ExecutionPage, ExecutionRecord, ExecutionStore,
    HistoryRetention, RecordRetention, SlotHolder, SlotWorker, Standing, Stock, stored_labels,
};
pub use keys::{
    KeyOutcome, KeyRecord, KeyRotation, KeyStore, MAX_KEYS, NewKey, Standing as KeyStanding,
    audit_of_revocation, stored_grants,
};
pub use leases::{ExecutorRow, Lease, LeaseTrouble, ObservedLease, TroubleNote};
pub use meters::{Meter, MeterPage, MeterPlace, MeterRow};
pub use operations::{
    Depth, ExecutionLabels, MAX_OPEN_OPERATIONS, NewOperation, OperationRecord, OperationRow,
    OperationStore, Unread, read_part, read_record, stored_kind, stored_place, stored_state,
};
pub use partitions::{
    Batch, CommitError, Committed, End, GrantedBody, KnownRequest, Lookup, MAX_BODIES_BYTES,
    MovedExecution, NewExecution, PartitionStore, PutBack, Update,
};
pub use pauses::{MAX_PAUSES, MAX_RESUMED, Pause, PauseChange, PauseOutcome, PauseSet, PauseStore};
pub use policies::{
    DocumentChange, MAX_DOCUMENTS, MAX_SET_BYTES, PolicyChanges, PolicyMark, PolicyOutcome,
    PolicyStore, PolicyVersion, StoredPolicies,
};
pub use pools::{CallCounts, PoolFigures};
pub use rows::{
    ActivePage, ActivePlace, ActiveRow, ActiveSlice, ExecutionWords, SlotRow, WorkerEnd,
};
pub use stats::{StatsCursor, StatsPage, StatsRow, StatsStore, StoredStats, lacks_key_text};
pub use workers::{WorkerLease, WorkerRow, WorkerStore};

/// How far [`Store::restore_fence`] makes the epochs jump: further than partitions change hands
/// between a backup and its restore. From epoch 8192 on ids are larger than 2^53, which clients that
/// read numbers as doubles take for others; so it can be done seven times before.
pub const FENCE_JUMP: i64 = 1_024;
/// By how much it raises the attempts of what waits: by more than the life that is lost can have granted it. With
/// the same number for what was never begun, no try is used up.
pub const FENCE_ATTEMPTS: i64 = 1_000;
/// No more grants that were never begun are counted of one execution: 16 bits.
pub const MAX_UNBEGUN: i64 = 65_000;

/// Whether a migration of this name only adds to the schema, so that older programs work with it.
pub fn is_additive(migration: &str) -> bool {
    migration.starts_with("additive_")
}

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
    + PauseStore
    + PolicyStore
    + OperationStore
    + KeyStore
    + Send
    + Sync
    + 'static
{
    /// Brings the schema to the version this program needs. Safe to run by several at once.
    ///
    /// # Errors
    /// When the store cannot be reached or holds a newer schema.
    async fn migrate(&self) -> Result<(), StoreError>;

    /// Answers when the store can be used by this program. A schema with newer migrations fits
    /// when all of them only add to it: their names begin with `additive_`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when it cannot be reached, [`StoreError::Schema`] when its
    /// schema is not one that this program can work with, [`StoreError::Conflict`] when a setting
    /// of the server would break a promise; it names the setting and the way out.
    async fn check(&self) -> Result<(), StoreError>;

    /// With how many partitions the cluster was made; `None` when no executor has started yet.
    ///
    /// # Errors
    /// When the store fails.
    async fn partition_count(&self) -> Result<Option<u16>, StoreError>;

    /// Through which bus the messages of the cluster go, if that was noted.
    ///
    /// # Errors
    /// When the store fails.
    async fn noted_bus(&self) -> Result<Option<String>, StoreError>;

    /// Through which bus the messages of the cluster go: `name`, if none was noted before, or what
    /// was; `None` when no cluster has been made yet.
    ///
    /// # Errors
    /// When the store fails.
    async fn agree_on_bus(&self, name: &str) -> Result<Option<String>, StoreError>;

    /// The id of the system that this store belongs to, by which a broker tells it from others; `None`
    /// where no other process can use the store.
    ///
    /// # Errors
    /// When the store fails.
    async fn system_id(&self) -> Result<Option<Uuid>, StoreError>;

    /// To be called once after the store was set back to an earlier state (a backup was restored,
    /// a standby took over without the last commits), before anything else starts: makes the
    /// epochs of all partitions jump by [`FENCE_JUMP`], so that no id of an execution is given a
    /// second time, raises the attempts of what waits by [`FENCE_ATTEMPTS`], so that none is granted a second
    /// time either, ends every lease, and writes an entry in the audit log for `who`. Where the same state was
    /// restored before, all of it was done before from the same numbers: `again` says how often, and everything
    /// jumps as many times further.
    ///
    /// # Errors
    /// When the store fails, or the epochs are used up.
    async fn restore_fence(&self, who: &Actor, again: u16) -> Result<(), StoreError>;

    /// From now on the upkeep removes no entry of the audit log that is younger, whatever it is told. To be called
    /// by the owner of the tables.
    ///
    /// # Errors
    /// When the store fails, or the caller may not.
    async fn keep_audit_for(&self, days: u32) -> Result<(), StoreError>;

    /// Finishes what is under way and closes every connection.
    async fn close(&self);

    /// What its connections do, by what they are for.
    fn pools(&self) -> Vec<PoolFigures>;
}
