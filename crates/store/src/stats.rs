//! Snapshots of queues for people who look with SQL.

use async_trait::async_trait;
use attune_core::{ActionId, QueueStats};
use chrono::{DateTime, Utc};

use crate::error::StoreError;

/// A snapshot to be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatsRow {
    /// Rises with every snapshot of a queue, over changes of its owner too; an older one never
    /// overwrites a newer one.
    pub version: i64,
    /// The queue at that moment.
    pub stats: QueueStats,
}

/// A snapshot as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredStats {
    /// The action's ref.
    pub action_ref: String,
    /// The queue at that moment.
    pub stats: QueueStats,
    /// When the row was written.
    pub last_updated: DateTime<Utc>,
}

/// What the stats persister and the API ask.
#[async_trait]
pub trait StatsStore: Send + Sync {
    /// Keeps snapshots; of several of one queue the newest is kept.
    ///
    /// # Errors
    /// When the store fails.
    async fn upsert_queue_stats(&self, rows: &[StatsRow]) -> Result<(), StoreError>;

    /// The snapshot of one action's queue.
    ///
    /// # Errors
    /// When the store fails.
    async fn find_by_action(&self, action: ActionId) -> Result<Option<StoredStats>, StoreError>;

    /// Every snapshot, the longest queue first.
    ///
    /// # Errors
    /// When the store fails.
    async fn list_queue_stats(&self) -> Result<Vec<StoredStats>, StoreError>;
}
