//! Snapshots of queues.

use std::sync::Arc;

use async_trait::async_trait;
use attune_core::{ActionId, QueueStats};
use attune_store::{
    StatsCursor, StatsPage, StatsRow, StatsStore, StoreError, StoredStats, lacks_key_text,
};
use serde::Serialize;
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::error::Failure;
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
    lacks_key: Option<String>,
}

#[async_trait]
impl StatsStore for SqliteStore {
    async fn upsert_queue_stats(&self, rows: &[StatsRow]) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        let rows = list(rows.iter().map(snapshot));
        self.task(async move |inner: Arc<Inner>| {
            inner
                .writer
                .transaction(move |connection| Box::pin(upsert(connection, rows)))
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

    async fn list_queue_stats(
        &self,
        after: Option<StatsCursor>,
        limit: u32,
    ) -> Result<StatsPage, StoreError> {
        let length = after.map(|after| i64::try_from(after.queue_length).unwrap_or(i64::MAX));
        let query = sqlx::query(sql::LIST_QUEUE_STATS)
            .bind(length)
            .bind(after.map(|after| after.action_id.0))
            .bind(limit);
        self.task(async move |inner: Arc<Inner>| {
            let mut reader = inner.reader().await?;
            let rows = query.fetch_all(&mut *reader).await?;
            let total: i64 = sqlx::query_scalar(sql::COUNT_QUEUE_STATS)
                .fetch_one(&mut *reader)
                .await?;
            Ok(StatsPage {
                rows: rows.iter().map(stored).collect::<Result<_, _>>()?,
                total: total.unsigned_abs(),
            })
        })
        .await
    }
}

/// Keeps snapshots, and the last ones of their minute.
async fn upsert(connection: &mut SqliteConnection, rows: String) -> Result<(), Failure> {
    for statement in [sql::UPSERT_QUEUE_STATS, sql::KEEP_STATS_MINUTE] {
        sqlx::query(statement)
            .bind(rows.clone())
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
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
        lacks_key: lacks_key_text(stats.lacks_key.as_ref()),
    }
}

fn stored(row: &SqliteRow) -> Result<StoredStats, sqlx::Error> {
    let bounds: Option<String> = row.try_get("bounds")?;
    let limit: Option<i64> = row.try_get("max_concurrent")?;
    Ok(StoredStats {
        action_ref: row.try_get("ref")?,
        pool: row.try_get("pool")?,
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
            lacks_key: StoredStats::lacks_key_of(row.try_get("lacks_key")?),
        },
        last_updated: time(row.try_get("last_updated")?)?,
        bounds: StoredStats::bounds_of(bounds.as_deref()),
        grouped: row.try_get("grouped")?,
        counted: row.try_get("counted")?,
        replaces: row.try_get("replaces")?,
    })
}
