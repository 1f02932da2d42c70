//! Worker leases.

use std::sync::Arc;

use async_trait::async_trait;
use attune_core::{Attempt, ExecutionId, WorkerId};
use attune_store::{StoreError, WorkerLease, WorkerRow, WorkerStore};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Row as _, Sqlite};

use crate::rows::{duration, list, unsigned, uuid};
use crate::sql;
use crate::store::{Inner, SqliteStore};

#[async_trait]
impl WorkerStore for SqliteStore {
    async fn renew_worker(&self, lease: &WorkerLease) -> Result<(), StoreError> {
        let worker = lease.worker;
        let query = sqlx::query(sql::RENEW_WORKER)
            .bind(worker.to_string())
            .bind(lease.name.clone())
            .bind(lease.pool.clone())
            .bind(i64::from(lease.slots))
            .bind(lease.ttl.as_secs_f64())
            .bind(lease.draining)
            .bind(lease.broker_user.clone())
            .bind(lease.principal.clone());
        match self.execute(query).await? {
            0 => Err(over(worker)),
            _ => Ok(()),
        }
    }

    async fn retire_worker(
        &self,
        worker: WorkerId,
        begun: Option<&[(ExecutionId, Attempt)]>,
    ) -> Result<(), StoreError> {
        self.execute(ending(worker, begun, false)).await.map(drop)
    }

    async fn worker_over(
        &self,
        worker: WorkerId,
        begun: Option<&[(ExecutionId, Attempt)]>,
    ) -> Result<bool, StoreError> {
        Ok(self.execute(ending(worker, begun, true)).await? > 0)
    }

    async fn principal_of(&self, worker: WorkerId) -> Result<Option<Option<String>>, StoreError> {
        let query = sqlx::query_scalar(sql::PRINCIPAL_OF).bind(worker.to_string());
        self.task(async move |inner: Arc<Inner>| {
            Ok(query.fetch_optional(&mut *inner.reader().await?).await?)
        })
        .await
    }

    async fn workers(&self) -> Result<Vec<WorkerRow>, StoreError> {
        self.task(async |inner: Arc<Inner>| {
            let rows = sqlx::query(sql::WORKERS)
                .fetch_all(&mut *inner.reader().await?)
                .await?;
            Ok(rows.iter().map(worker_row).collect::<Result<_, _>>()?)
        })
        .await
    }
}

/// Ends the lease of a worker, and says what has begun there and whether its process is gone.
fn ending(
    worker: WorkerId,
    begun: Option<&[(ExecutionId, Attempt)]>,
    gone: bool,
) -> Query<'static, Sqlite, SqliteArguments> {
    sqlx::query(sql::WORKER_ENDED)
        .bind(worker.to_string())
        .bind(begun.map(|begun| list(begun.iter())))
        .bind(gone)
}

fn over(worker: WorkerId) -> StoreError {
    StoreError::Conflict(format!(
        "the lease of worker {worker} is over; it must come back under a fresh id"
    ))
}

fn worker_row(row: &SqliteRow) -> Result<WorkerRow, sqlx::Error> {
    Ok(WorkerRow {
        worker: WorkerId(uuid(row.try_get("worker")?)?),
        name: row.try_get("name")?,
        pool: row.try_get("pool")?,
        slots: unsigned(row.try_get("slots")?)?,
        draining: row.try_get("draining")?,
        remaining: duration(row.try_get("remaining")?),
        seen_ago: row.try_get::<Option<f64>, _>("seen_ago")?.map(duration),
    })
}
