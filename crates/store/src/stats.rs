//! Snapshots of queues for people who look with SQL.

use async_trait::async_trait;
use attune_core::policy::QueueBounds;
use attune_core::{ActionId, LacksKey, QueueStats};
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
    /// The workers that may run it.
    pub pool: String,
    /// The queue at that moment.
    pub stats: QueueStats,
    /// When the row was written.
    pub last_updated: DateTime<Utc>,
    /// The bounds of the queue that the action's policy sets.
    pub bounds: QueueBounds,
    /// Whether executions of the action demand different things of its limits: a slot that is free may
    /// be nobody's of those who wait.
    pub grouped: bool,
    /// Whether its starts are counted, so that who waits may wait for its rate.
    pub counted: bool,
    /// Whether its policy says itself that whoever comes takes the place of those who wait.
    pub replaces: bool,
}

impl StoredStats {
    /// The bounds that stand in the stored policy of an action, as JSON: none where there are none, or they
    /// cannot be read.
    #[must_use]
    pub fn bounds_of(stored: Option<&str>) -> QueueBounds {
        let read = stored.and_then(|text| serde_json::from_str(text).ok());
        read.unwrap_or_default()
    }

    /// The key that workers lack, as [`lacks_key_text`] has written it: none where there is none, or it cannot be
    /// read.
    #[must_use]
    pub fn lacks_key_of(stored: Option<String>) -> Option<LacksKey> {
        serde_json::from_str(&stored?).ok()
    }
}

/// How the key that workers lack is stored: as JSON.
#[must_use]
pub fn lacks_key_text(lacks: Option<&LacksKey>) -> Option<String> {
    serde_json::to_string(lacks?).ok()
}

/// A place in the list of snapshots: the longest come first, by (length, action).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatsCursor {
    /// The length of the last queue of the page.
    pub queue_length: u64,
    /// Its action.
    pub action_id: ActionId,
}

/// Part of the list of snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StatsPage {
    /// The snapshots, the longest queue first.
    pub rows: Vec<StoredStats>,
    /// How many there are in all.
    pub total: u64,
}

/// What the stats persister and the API ask.
#[async_trait]
pub trait StatsStore: Send + Sync {
    /// Keeps snapshots; of several of one queue the newest is kept. The last one of each minute
    /// stays as the queue's history, which the upkeep bounds.
    ///
    /// # Errors
    /// When the store fails.
    async fn upsert_queue_stats(&self, rows: &[StatsRow]) -> Result<(), StoreError>;

    /// The snapshot of one action's queue.
    ///
    /// # Errors
    /// When the store fails.
    async fn find_by_action(&self, action: ActionId) -> Result<Option<StoredStats>, StoreError>;

    /// Up to `limit` snapshots, the longest queue first, after `after`.
    ///
    /// # Errors
    /// When the store fails.
    async fn list_queue_stats(
        &self,
        after: Option<StatsCursor>,
        limit: u32,
    ) -> Result<StatsPage, StoreError>;
}
