//! Worker leases.

use async_trait::async_trait;
use attune_core::{Attempt, ExecutionId, WorkerId};
use attune_store::{StoreError, WorkerLease, WorkerRow, WorkerStore};
use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use uuid::Uuid;

use crate::commit::number;
use crate::partitions::{between, micros};
use crate::sessions::Purpose;
use crate::time::Time;
use crate::{PostgresStore, sql, text};

/// worker, name, pool, slots, draining, expires_at, renewed_at, now.
type WorkerColumns = (Uuid, String, String, i32, bool, Time, Option<Time>, Time);

fn worker_row(columns: WorkerColumns) -> WorkerRow {
    let (worker, name, pool, slots, draining, Time(expires_at), renewed_at, Time(now)) = columns;
    WorkerRow {
        worker: WorkerId(worker),
        name,
        pool,
        slots: slots.unsigned_abs(),
        draining,
        remaining: between(now, expires_at),
        seen_ago: renewed_at.map(|Time(at)| between(at, now)),
    }
}

/// Ends the lease of a worker, and says what has begun there and whether its process is gone.
fn ending(
    worker: WorkerId,
    begun: Option<&[(ExecutionId, Attempt)]>,
    gone: bool,
) -> Query<'static, Postgres, PgArguments> {
    let (ids, attempts) = begun
        .map(|begun| begun.iter().map(|(id, attempt)| (id.0, attempt.0)).unzip())
        .map_or((None, None), |(ids, attempts): (Vec<i64>, Vec<i32>)| {
            (Some(ids), Some(attempts))
        });
    sqlx::query(sql::WORKER_ENDED)
        .bind(worker.0)
        .bind(ids)
        .bind(attempts)
        .bind(gone)
}

fn over(worker: WorkerId) -> StoreError {
    StoreError::Conflict(format!(
        "the lease of worker {worker} is over; it must come back under a fresh id"
    ))
}

#[async_trait]
impl WorkerStore for PostgresStore {
    async fn renew_worker(&self, lease: &WorkerLease) -> Result<(), StoreError> {
        let own = self.broker_user.as_deref();
        let user = lease.broker_user.as_deref().or(own);
        let query = sqlx::query(sql::RENEW_WORKER)
            .bind(lease.worker.0)
            .bind(text::text(&lease.name).into_owned())
            .bind(text::text(&lease.pool).into_owned())
            .bind(number(lease.slots))
            .bind(micros(lease.ttl))
            .bind(lease.draining)
            .bind(user.map(|user| text::text(user).into_owned()))
            .bind(lease.principal.clone());
        let pool = self.db.lease();
        let renewed = self
            .db
            .run(Purpose::Lease, async move {
                Ok(query.fetch_optional(&pool).await?.is_some())
            })
            .await?;
        if renewed {
            return Ok(());
        }
        Err(over(lease.worker))
    }

    async fn retire_worker(
        &self,
        worker: WorkerId,
        begun: Option<&[(ExecutionId, Attempt)]>,
    ) -> Result<(), StoreError> {
        let query = ending(worker, begun, false);
        let pool = self.db.lease();
        self.db
            .run(Purpose::Lease, async move {
                query.execute(&pool).await?;
                Ok(())
            })
            .await
    }

    async fn worker_over(
        &self,
        worker: WorkerId,
        begun: Option<&[(ExecutionId, Attempt)]>,
    ) -> Result<bool, StoreError> {
        let query = ending(worker, begun, true);
        let pool = self.db.lease();
        self.db
            .run(Purpose::Lease, async move {
                Ok(query.fetch_optional(&pool).await?.is_some())
            })
            .await
    }

    async fn principal_of(&self, worker: WorkerId) -> Result<Option<Option<String>>, StoreError> {
        let query = sqlx::query_scalar(sql::PRINCIPAL_OF).bind(worker.0);
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                Ok(query.fetch_optional(&pool).await?)
            })
            .await
    }

    async fn workers(&self) -> Result<Vec<WorkerRow>, StoreError> {
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let rows: Vec<WorkerColumns> =
                    sqlx::query_as(sql::WORKERS).fetch_all(&pool).await?;
                Ok(rows.into_iter().map(worker_row).collect())
            })
            .await
    }
}
