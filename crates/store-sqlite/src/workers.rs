//! Worker leases and the claim.

use std::sync::Arc;

use async_trait::async_trait;
use attune_core::{Attempt, ExecutionId, WorkerId};
use attune_store::{Claim, StoreError, WorkerLease, WorkerRow, WorkerStore};
use serde::Serialize;
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::error::Failure;
use crate::rows::{duration, list, unsigned, uuid};
use crate::sql;
use crate::store::{Inner, SqliteStore};

#[derive(Serialize)]
struct WantedRow {
    id: i64,
    attempt: i32,
}

#[async_trait]
impl WorkerStore for SqliteStore {
    async fn renew_worker(&self, lease: &WorkerLease) -> Result<(), StoreError> {
        let worker = lease.worker;
        let query = sqlx::query(sql::RENEW_WORKER)
            .bind(worker.to_string())
            .bind(lease.name.clone())
            .bind(lease.pool.clone())
            .bind(i64::from(lease.slots))
            .bind(lease.ttl.as_secs_f64());
        self.task(async move |inner: Arc<Inner>| {
            let done = inner
                .writer
                .run(move |connection| {
                    Box::pin(async move { Ok(query.execute(connection).await?) })
                })
                .await?;
            if done.rows_affected() == 0 {
                return Err(over(worker));
            }
            Ok(())
        })
        .await
    }

    async fn retire_worker(&self, worker: WorkerId) -> Result<(), StoreError> {
        let query = sqlx::query(sql::RETIRE_WORKER).bind(worker.to_string());
        self.execute(query).await
    }

    async fn claim(
        &self,
        worker: WorkerId,
        wanted: &[(ExecutionId, Attempt)],
    ) -> Result<Vec<Claim>, StoreError> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let wanted = wanted.iter().map(|(id, attempt)| WantedRow {
            id: id.0,
            attempt: attempt.0,
        });
        let query = sqlx::query(sql::CLAIM)
            .bind(worker.to_string())
            .bind(list(wanted));
        self.task(async move |inner: Arc<Inner>| {
            let claimed = inner.writer.run(move |connection| {
                Box::pin(async move {
                    let rows = query.fetch_all(&mut *connection).await?;
                    // Whoever got something had a lease that held, and one that has ended never
                    // holds again: asking afterwards is soon enough.
                    if rows.is_empty() && !holds(connection, worker).await? {
                        return Err(over(worker));
                    }
                    Ok(rows)
                })
            });
            let rows = claimed.await?;
            Ok(rows.iter().map(claim).collect::<Result<_, _>>()?)
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

async fn holds(connection: &mut SqliteConnection, worker: WorkerId) -> Result<bool, Failure> {
    let holds = sqlx::query_scalar(sql::WORKER_HOLDS)
        .bind(worker.to_string())
        .fetch_one(connection);
    Ok(holds.await?)
}

fn over(worker: WorkerId) -> Failure {
    Failure::Store(StoreError::Conflict(format!(
        "the lease of worker {worker} is over; it must come back under a fresh id"
    )))
}

fn claim(row: &SqliteRow) -> Result<Claim, sqlx::Error> {
    Ok(Claim {
        execution_id: ExecutionId(row.try_get("id")?),
        attempt: Attempt(row.try_get("attempt")?),
        cancel_requested: row.try_get("cancel_requested")?,
    })
}

fn worker_row(row: &SqliteRow) -> Result<WorkerRow, sqlx::Error> {
    Ok(WorkerRow {
        worker: WorkerId(uuid(row.try_get("worker")?)?),
        name: row.try_get("name")?,
        pool: row.try_get("pool")?,
        slots: unsigned(row.try_get("slots")?)?,
        remaining: duration(row.try_get("remaining")?),
        seen_ago: row.try_get::<Option<f64>, _>("seen_ago")?.map(duration),
    })
}
