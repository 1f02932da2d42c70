//! Reading executions, and the upkeep of their history.

use std::time::Duration;

use async_trait::async_trait;
use attune_core::{ActionId, Attempt, ExecutionId, RequestId, TraceParent, WorkerId};
use attune_store::{
    Cursor, ExecutionFilter, ExecutionPage, ExecutionRecord, ExecutionStore, HistoryRetention,
    SlotHolder, SlotWorker, Standing, Stock, StoreError, stored_labels,
};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::failure::Failure;
use crate::partition_rows::named;
use crate::partitions::{between, priority, status};
use crate::sessions::Purpose;
use crate::{PostgresStore, history, sql, text, time, upkeep};

#[async_trait]
impl ExecutionStore for PostgresStore {
    async fn find_execution(&self, id: ExecutionId) -> Result<Option<ExecutionRecord>, StoreError> {
        let pool = self.db.general();
        self.db
            .run(
                Purpose::General,
                async move { history::find(&pool, id).await },
            )
            .await
    }

    async fn find_standing(&self, id: ExecutionId) -> Result<Option<Standing>, StoreError> {
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                history::find_standing(&pool, id).await
            })
            .await
    }

    async fn find_parameters(&self, id: ExecutionId) -> Result<Option<String>, StoreError> {
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                history::find_parameters(&pool, id).await
            })
            .await
    }

    async fn list_executions(
        &self,
        filter: &ExecutionFilter,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<ExecutionPage, StoreError> {
        let filter = filter.clone();
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                history::list(&pool, &filter, after, limit).await
            })
            .await
    }

    async fn slot_holders(
        &self,
        action: ActionId,
        after: Option<ExecutionId>,
        limit: u32,
    ) -> Result<Vec<SlotHolder>, StoreError> {
        let query = sqlx::query(sql::SLOT_HOLDERS)
            .bind(action.0)
            .bind(after.map_or(i64::MIN, |id| id.0))
            .bind(i64::from(limit));
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let rows = query.fetch_all(&pool).await?;
                rows.iter().map(|row| named(row, slot_holder)).collect()
            })
            .await
    }

    async fn maintain_history(&self, keep: HistoryRetention) -> Result<(), StoreError> {
        upkeep::maintain(self, keep).await
    }

    async fn stock(&self) -> Result<Stock, StoreError> {
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let row = sqlx::query(sql::STOCK).fetch_one(&pool).await?;
                let count = |column| row.try_get::<i64, _>(column).map(i64::unsigned_abs);
                Ok(Stock {
                    days_ahead: Some(count("days_ahead")?),
                    of_no_day: count("of_no_day")?,
                    letters: count("letters")?,
                })
            })
            .await
    }
}

fn slot_holder(row: &PgRow) -> Result<SlotHolder, Failure> {
    let now = time::time(row, "now")?;
    let requested_at = time::optional(row, "requested_at")?;
    let started_at = time::optional(row, "started_at")?;
    let renewed_at = time::optional(row, "renewed_at")?;
    let expires_at = time::optional(row, "expires_at")?;
    // A worker without a row is lost since it was last known to be there.
    let end = expires_at.or(started_at).or(requested_at).unwrap_or(now);
    let (name, pool) = (row.try_get("name")?, row.try_get("pool")?);
    let worker = row
        .try_get::<Option<Uuid>, _>("worker")?
        .map(|id| SlotWorker {
            id: WorkerId(id),
            name,
            pool,
            seen_ago: renewed_at.map(|at| between(at, now)),
            remaining: between(now, end),
            lost_for: between(end, now),
        });
    Ok(SlotHolder {
        id: ExecutionId(row.try_get("id")?),
        attempt: Attempt(row.try_get("attempt")?),
        status: status(row.try_get("status")?)?,
        requested_at,
        held_for: requested_at.map_or(Duration::ZERO, |since| between(since, now)),
        started_at,
        cancel_requested: row.try_get("cancel_requested")?,
        worker,
    })
}

/// Where an execution stands, active or ended.
pub(crate) fn standing(row: &PgRow) -> Result<Standing, Failure> {
    named(row, |row| {
        let worker: Option<Uuid> = row.try_get("worker")?;
        Ok(Standing {
            status: status(row.try_get("status")?)?,
            attempt: Attempt(row.try_get("attempt")?),
            worker: worker.map(WorkerId),
        })
    })
}

/// An execution, active or ended.
pub(crate) fn record(row: &PgRow) -> Result<ExecutionRecord, Failure> {
    named(row, whole)
}

fn whole(row: &PgRow) -> Result<ExecutionRecord, Failure> {
    let labels: Option<String> = row.try_get("labels")?;
    let timeout_seconds: Option<i32> = row.try_get("timeout_seconds")?;
    let worker: Option<Uuid> = row.try_get("worker")?;
    let parameters: Option<String> = row.try_get("parameters")?;
    let result: Option<String> = row.try_get("result")?;
    Ok(ExecutionRecord {
        id: ExecutionId(row.try_get("id")?),
        action_id: ActionId(row.try_get("action")?),
        action_ref: row.try_get("action_ref")?,
        status: status(row.try_get("status")?)?,
        priority: priority(row.try_get("priority")?)?,
        attempt: Attempt(row.try_get("attempt")?),
        grant_no: row.try_get("grant_no")?,
        request_id: RequestId(row.try_get("request_id")?),
        enforcement_id: row.try_get("enforcement_id")?,
        requested_by: row.try_get("requested_by")?,
        group: row.try_get("group_key")?,
        labels: stored_labels(labels.as_deref().unwrap_or("null")),
        parameters: parameters.map_or(serde_json::Value::Null, text::value),
        not_before: time::optional(row, "not_before")?,
        timeout_seconds: timeout_seconds.map(i32::unsigned_abs),
        cancel_requested: row.try_get("cancel_requested")?,
        worker: worker.map(WorkerId),
        created: time::time(row, "created")?,
        requested_at: time::optional(row, "requested_at")?,
        started_at: time::optional(row, "started_at")?,
        finished_at: time::optional(row, "finished_at")?,
        result: result.map(text::value),
        end_code: row.try_get("end_code")?,
        error: row.try_get("error")?,
        exit_code: row.try_get("exit_code")?,
        stdout: row.try_get("stdout")?,
        stderr: row.try_get("stderr")?,
        requeue_of: row
            .try_get::<Option<i64>, _>("requeue_of")?
            .map(ExecutionId),
        last_error: row.try_get("last_error")?,
        trace: row
            .try_get::<Option<&str>, _>("traceparent")?
            .and_then(TraceParent::parse),
    })
}
