//! Snapshots of queues.

use std::sync::Arc;

use async_trait::async_trait;
use attune_core::{ActionId, QueueStats};
use attune_store::{StatsRow, StatsStore, StoreError, StoredStats};
use serde::Serialize;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use crate::rows::{list, optional_time, time, time_text, unsigned};
use crate::sql;
use crate::store::{Inner, SqliteStore};

/// The members are the columns.
#[derive(Serialize)]
struct SnapshotRow {
    action_id: i64,
    queue_length: u64,
    active_count: u64,
    max_concurrent: Option<u32>,
    oldest_enqueued_at: Option<String>,
    total_enqueued: u64,
    total_completed: u64,
    total_cancelled: u64,
    total_expired: u64,
    version: i64,
}

#[async_trait]
impl StatsStore for SqliteStore {
    async fn upsert_queue_stats(&self, rows: &[StatsRow]) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        let query = sqlx::query(sql::UPSERT_QUEUE_STATS).bind(list(rows.iter().map(snapshot)));
        self.task(async move |inner: Arc<Inner>| {
            inner
                .writer
                .run(move |connection| {
                    Box::pin(async move {
                        query.execute(connection).await?;
                        Ok(())
                    })
                })
                .await
        })
        .await
    }

    async fn find_by_action(&self, action: ActionId) -> Result<Option<StoredStats>, StoreError> {
        let query = sqlx::query(sql::FIND_QUEUE_STATS).bind(action.0);
        self.task(async move |inner: Arc<Inner>| {
            let row = query.fetch_optional(&mut *inner.reader().await?).await?;
            Ok(row.as_ref().map(stored).transpose()?)
        })
        .await
    }

    async fn list_queue_stats(&self) -> Result<Vec<StoredStats>, StoreError> {
        self.task(async |inner: Arc<Inner>| {
            let rows = sqlx::query(sql::LIST_QUEUE_STATS)
                .fetch_all(&mut *inner.reader().await?)
                .await?;
            Ok(rows.iter().map(stored).collect::<Result<_, _>>()?)
        })
        .await
    }
}

fn snapshot(row: &StatsRow) -> SnapshotRow {
    let stats = &row.stats;
    SnapshotRow {
        action_id: stats.action_id.0,
        queue_length: stats.queue_length,
        active_count: stats.active_count,
        max_concurrent: stats.max_concurrent,
        oldest_enqueued_at: stats.oldest_enqueued_at.map(time_text),
        total_enqueued: stats.total_enqueued,
        total_completed: stats.total_completed,
        total_cancelled: stats.total_cancelled,
        total_expired: stats.total_expired,
        version: row.version,
    }
}

fn stored(row: &SqliteRow) -> Result<StoredStats, sqlx::Error> {
    let limit: Option<i64> = row.try_get("max_concurrent")?;
    Ok(StoredStats {
        action_ref: row.try_get("ref")?,
        stats: QueueStats {
            action_id: ActionId(row.try_get("action_id")?),
            queue_length: unsigned(row.try_get("queue_length")?)?,
            active_count: unsigned(row.try_get("active_count")?)?,
            max_concurrent: limit.map(unsigned).transpose()?,
            oldest_enqueued_at: optional_time(row, "oldest_enqueued_at")?,
            total_enqueued: unsigned(row.try_get("total_enqueued")?)?,
            total_completed: unsigned(row.try_get("total_completed")?)?,
            total_cancelled: unsigned(row.try_get("total_cancelled")?)?,
            total_expired: unsigned(row.try_get("total_expired")?)?,
        },
        last_updated: time(row.try_get("last_updated")?)?,
    })
}
