//! Snapshots of queues.

use std::collections::BTreeMap;

use async_trait::async_trait;
use attune_core::{ActionId, QueueStats};
use attune_store::{
    StatsCursor, StatsPage, StatsRow, StatsStore, StoreError, StoredStats, lacks_key_text,
};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::bind::Binds;
use crate::commit::{counter, number};
use crate::failure::Failure;
use crate::sessions::Purpose;
use crate::{PostgresStore, sql, text, time};

#[async_trait]
impl StatsStore for PostgresStore {
    async fn upsert_queue_stats(&self, rows: &[StatsRow]) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        // One statement can write a row only once; sorted, so that two writers do not deadlock.
        let mut newest: BTreeMap<ActionId, &StatsRow> = BTreeMap::new();
        for row in rows {
            let kept = newest.entry(row.stats.action_id).or_insert(row);
            if row.version > kept.version {
                *kept = row;
            }
        }
        let mut binds = Binds::default();
        let rows = || newest.values();
        binds.column(rows(), |row| row.stats.action_id.0);
        binds.column(rows(), |row| counter(row.stats.queue_length));
        binds.column(rows(), |row| counter(row.stats.active_count));
        binds.column(rows(), |row| row.stats.max_concurrent.map(number));
        binds.column(rows(), |row| row.stats.oldest_enqueued_at.map(text::time));
        binds.column(rows(), |row| counter(row.stats.total_enqueued));
        binds.column(rows(), |row| counter(row.stats.total_completed));
        binds.column(rows(), |row| counter(row.stats.total_cancelled));
        binds.column(rows(), |row| counter(row.stats.total_expired));
        binds.column(rows(), |row| row.version);
        binds.column(rows(), |row| lacks_key_text(row.stats.lacks_key.as_ref()));
        let parameters = binds.finish()?;
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                sqlx::query_with(sql::UPSERT_QUEUE_STATS, parameters)
                    .execute(&pool)
                    .await?;
                Ok(())
            })
            .await
    }

    async fn find_by_action(&self, action: ActionId) -> Result<Option<StoredStats>, StoreError> {
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let row = sqlx::query(sql::FIND_QUEUE_STATS)
                    .bind(action.0)
                    .fetch_optional(&pool)
                    .await?;
                row.as_ref().map(stored).transpose()
            })
            .await
    }

    async fn list_queue_stats(
        &self,
        after: Option<StatsCursor>,
        limit: u32,
    ) -> Result<StatsPage, StoreError> {
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let rows = sqlx::query(sql::LIST_QUEUE_STATS)
                    .bind(after.map(|after| counter(after.queue_length)))
                    .bind(after.map(|after| after.action_id.0))
                    .bind(i64::from(limit))
                    .fetch_all(&pool)
                    .await?;
                let total: i64 = sqlx::query_scalar(sql::COUNT_QUEUE_STATS)
                    .fetch_one(&pool)
                    .await?;
                Ok(StatsPage {
                    rows: rows.iter().map(stored).collect::<Result<_, Failure>>()?,
                    total: total.unsigned_abs(),
                })
            })
            .await
    }
}

fn stored(row: &PgRow) -> Result<StoredStats, Failure> {
    let count = |name: &str| row.try_get::<i64, _>(name).map(i64::unsigned_abs);
    let bounds: Option<String> = row.try_get("bounds")?;
    let max_concurrent: Option<i32> = row.try_get("max_concurrent")?;
    Ok(StoredStats {
        action_ref: row.try_get("ref")?,
        pool: row.try_get("pool")?,
        stats: QueueStats {
            action_id: ActionId(row.try_get("action_id")?),
            queue_length: count("queue_length")?,
            active_count: count("active_count")?,
            max_concurrent: max_concurrent.map(i32::unsigned_abs),
            oldest_enqueued_at: time::optional(row, "oldest_enqueued_at")?,
            total_enqueued: count("total_enqueued")?,
            total_completed: count("total_completed")?,
            total_cancelled: count("total_cancelled")?,
            total_expired: count("total_expired")?,
            lacks_key: StoredStats::lacks_key_of(row.try_get("lacks_key")?),
        },
        last_updated: time::time(row, "last_updated")?,
        bounds: StoredStats::bounds_of(bounds.as_deref()),
        grouped: row.try_get("grouped")?,
        counted: row.try_get("counted")?,
        replaces: row.try_get("replaces")?,
    })
}
