//! Reading executions, and the upkeep of their history.

use std::sync::Arc;

use async_trait::async_trait;
use attune_core::{ActionId, Attempt, ExecutionId, RequestId, Status, TraceParent, WorkerId};
use attune_store::{
    Cursor, ExecutionFilter, ExecutionPage, ExecutionRecord, ExecutionStore, HistoryRetention,
    SlotHolder, SlotWorker, Standing, Stock, StoreError, stored_labels,
};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use crate::error::Failure;
use crate::rows::{
    duration, foreign_json, list, optional_time, priority, status, time, time_text, unsigned, uuid,
};
use crate::sql;
use crate::store::{Inner, SqliteStore};
use crate::upkeep;

#[async_trait]
impl ExecutionStore for SqliteStore {
    async fn find_execution(&self, id: ExecutionId) -> Result<Option<ExecutionRecord>, StoreError> {
        let query = sqlx::query(sql::FIND_EXECUTION).bind(id.0);
        self.task(async move |inner: Arc<Inner>| {
            let row = query.fetch_optional(&mut *inner.reader().await?).await?;
            Ok(row.as_ref().map(record).transpose()?)
        })
        .await
    }

    async fn find_standing(&self, id: ExecutionId) -> Result<Option<Standing>, StoreError> {
        let query = sqlx::query(sql::FIND_STANDING).bind(id.0);
        self.task(async move |inner: Arc<Inner>| {
            let row = query.fetch_optional(&mut *inner.reader().await?).await?;
            Ok(row.as_ref().map(standing).transpose()?)
        })
        .await
    }

    async fn find_parameters(&self, id: ExecutionId) -> Result<Option<String>, StoreError> {
        let query = sqlx::query(sql::FIND_PARAMETERS).bind(id.0);
        self.task(async move |inner: Arc<Inner>| {
            let row = query.fetch_optional(&mut *inner.reader().await?).await?;
            Ok(row.map(|row| row.try_get("parameters")).transpose()?)
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
        self.task(async move |inner: Arc<Inner>| page(&inner, filter, after, limit).await)
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
            .bind(limit);
        self.task(async move |inner: Arc<Inner>| {
            let rows = query.fetch_all(&mut *inner.reader().await?).await?;
            Ok(rows.iter().map(slot_holder).collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Executions are kept for as long as their requests are, even when `keep` says less, so that
    /// a repeated request always finds what it led to.
    async fn maintain_history(&self, keep: HistoryRetention) -> Result<(), StoreError> {
        self.task(async move |inner: Arc<Inner>| upkeep::maintain(&inner, keep).await)
            .await
    }

    async fn stock(&self) -> Result<Stock, StoreError> {
        self.task(async move |inner: Arc<Inner>| {
            let count = sqlx::query_as::<_, (i64,)>(sql::STOCK);
            let (letters,) = count.fetch_one(&mut *inner.reader().await?).await?;
            Ok(Stock {
                days_ahead: None,
                of_no_day: 0,
                letters: letters.unsigned_abs(),
            })
        })
        .await
    }
}

async fn page(
    inner: &Inner,
    filter: ExecutionFilter,
    after: Option<Cursor>,
    limit: u32,
) -> Result<ExecutionPage, Failure> {
    if limit == 0 {
        return Ok(ExecutionPage::default());
    }
    // One more than asked for tells whether another page follows.
    let wanted = i64::from(limit) + 1;
    let arm = |holds: fn(&Status) -> bool| {
        let any = filter.statuses.is_empty() || filter.statuses.iter().any(holds);
        if any { wanted } else { 0 }
    };
    // Text above every time, for the first page.
    let (created, id) = after.map_or_else(
        || ("~".to_owned(), i64::MAX),
        |after| (time_text(after.created), after.id.0),
    );
    let statement = match filter.action_ref {
        Some(_) => sql::LIST_EXECUTIONS_OF_ACTION,
        None => sql::LIST_EXECUTIONS,
    };
    let mut query = sqlx::query(statement)
        .bind(created)
        .bind(id)
        .bind(list(&filter.statuses))
        .bind(filter.requested_by.clone())
        .bind(filter.group.clone())
        .bind(arm(|status| !status.is_terminal()))
        .bind(arm(|status| status.is_terminal()))
        .bind(wanted)
        .bind(filter.bodies.parameters)
        .bind(filter.bodies.result)
        .bind(filter.bodies.stdout)
        .bind(filter.bodies.stderr);
    if let Some(action_ref) = filter.action_ref {
        query = query.bind(action_ref);
    }
    let ranks = filter.priorities.iter().map(|it| it.rank());
    query = query.bind(list(ranks));
    let rows = query.fetch_all(&mut *inner.reader().await?).await?;
    let mut executions: Vec<_> = rows.iter().map(record).collect::<Result<_, _>>()?;
    let more = executions.len() > limit as usize;
    executions.truncate(limit as usize);
    let last = executions.last().filter(|_| more);
    Ok(ExecutionPage {
        next: last.map(|last| Cursor {
            created: last.created,
            id: last.id,
        }),
        executions,
    })
}

fn slot_holder(row: &SqliteRow) -> Result<SlotHolder, sqlx::Error> {
    let seconds = |name: &str| row.try_get::<Option<f64>, _>(name);
    let remaining = seconds("remaining")?.unwrap_or_default();
    let worker = match row.try_get::<Option<&str>, _>("worker")? {
        Some(id) => Some(SlotWorker {
            id: WorkerId(uuid(id)?),
            name: row.try_get("name")?,
            pool: row.try_get("pool")?,
            seen_ago: seconds("seen_ago")?.map(duration),
            remaining: duration(remaining),
            lost_for: duration(-remaining),
        }),
        None => None,
    };
    Ok(SlotHolder {
        id: ExecutionId(row.try_get("id")?),
        attempt: Attempt(row.try_get("attempt")?),
        status: status(row.try_get("status")?)?,
        requested_at: optional_time(row, "requested_at")?,
        held_for: duration(seconds("held_for")?.unwrap_or_default()),
        started_at: optional_time(row, "started_at")?,
        cancel_requested: row.try_get("cancel_requested")?,
        worker,
    })
}

fn standing(row: &SqliteRow) -> Result<Standing, sqlx::Error> {
    let worker: Option<&str> = row.try_get("worker")?;
    Ok(Standing {
        status: status(row.try_get("status")?)?,
        attempt: Attempt(row.try_get("attempt")?),
        worker: worker.map(uuid).transpose()?.map(WorkerId),
    })
}

fn record(row: &SqliteRow) -> Result<ExecutionRecord, sqlx::Error> {
    let worker: Option<&str> = row.try_get("worker")?;
    let timeout: Option<i64> = row.try_get("timeout_seconds")?;
    let parameters: Option<&str> = row.try_get("parameters")?;
    let result: Option<&str> = row.try_get("result")?;
    Ok(ExecutionRecord {
        id: ExecutionId(row.try_get("id")?),
        action_id: ActionId(row.try_get("action")?),
        action_ref: row.try_get("action_ref")?,
        status: status(row.try_get("status")?)?,
        priority: priority(row.try_get("priority")?)?,
        attempt: Attempt(row.try_get("attempt")?),
        grant_no: row.try_get("grant_no")?,
        request_id: RequestId(uuid(row.try_get("request_id")?)?),
        enforcement_id: row.try_get("enforcement_id")?,
        requested_by: row.try_get("requested_by")?,
        group: row.try_get("group_key")?,
        labels: stored_labels(row.try_get("labels")?),
        parameters: parameters.map_or(serde_json::Value::Null, foreign_json),
        not_before: optional_time(row, "not_before")?,
        timeout_seconds: timeout.map(unsigned).transpose()?,
        cancel_requested: row.try_get("cancel_requested")?,
        worker: worker.map(uuid).transpose()?.map(WorkerId),
        created: time(row.try_get("created")?)?,
        requested_at: optional_time(row, "requested_at")?,
        started_at: optional_time(row, "started_at")?,
        finished_at: optional_time(row, "finished_at")?,
        result: result.map(foreign_json),
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
