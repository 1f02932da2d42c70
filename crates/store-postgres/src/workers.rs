//! Worker leases and the claim.

use async_trait::async_trait;
use attune_core::{Attempt, Bug, ExecutionId, WorkerId};
use attune_store::{Claim, StoreError, WorkerLease, WorkerRow, WorkerStore};
use uuid::Uuid;

use crate::commit::number;
use crate::partitions::{between, micros};
use crate::time::Time;
use crate::{PostgresStore, sql, text};

/// id, attempt, cancel_requested; all of them NULL when the lease is over.
type ClaimColumns = (Option<i64>, Option<i32>, Option<bool>);

fn claim((id, attempt, cancel_requested): ClaimColumns) -> Option<Claim> {
    Some(Claim {
        execution_id: ExecutionId(id?),
        attempt: Attempt(attempt?),
        cancel_requested: cancel_requested?,
    })
}

fn over(worker: WorkerId) -> StoreError {
    StoreError::Conflict(format!(
        "the lease of worker {worker} is over; it must come back under a fresh id"
    ))
}

#[async_trait]
impl WorkerStore for PostgresStore {
    async fn renew_worker(&self, lease: &WorkerLease) -> Result<(), StoreError> {
        let query = sqlx::query(sql::RENEW_WORKER)
            .bind(lease.worker.0)
            .bind(text::text(&lease.name).into_owned())
            .bind(text::text(&lease.pool).into_owned())
            .bind(number(lease.slots))
            .bind(micros(lease.ttl));
        let pool = self.db.lease.clone();
        let renewed = self
            .db
            .run(async move { Ok(query.fetch_optional(&pool).await?.is_some()) })
            .await?;
        if renewed {
            return Ok(());
        }
        Err(over(lease.worker))
    }

    async fn retire_worker(&self, worker: WorkerId) -> Result<(), StoreError> {
        let pool = self.db.lease.clone();
        self.db
            .run(async move {
                sqlx::query(sql::RETIRE_WORKER)
                    .bind(worker.0)
                    .execute(&pool)
                    .await?;
                Ok(())
            })
            .await
    }

    async fn claim(
        &self,
        worker: WorkerId,
        wanted: &[(ExecutionId, Attempt)],
    ) -> Result<Vec<Claim>, StoreError> {
        let mut wanted = wanted.to_vec();
        // The statement finds an id by bisection. Of several attempts of one execution only the
        // highest can still be requested: an owner has granted it, so the others are over.
        wanted.sort_unstable_by_key(|(id, attempt)| (*id, std::cmp::Reverse(*attempt)));
        wanted.dedup_by_key(|(id, _)| *id);
        let asked = Bug::NoClaim.is_planted().then(|| wanted.clone());
        let (ids, attempts): (Vec<i64>, Vec<i32>) =
            wanted.iter().map(|(id, attempt)| (id.0, attempt.0)).unzip();
        let pool = self.db.key.clone();
        self.db
            .run(async move {
                let rows: Vec<ClaimColumns> = sqlx::query_as(sql::CLAIM)
                    .bind(worker.0)
                    .bind(ids)
                    .bind(attempts)
                    .fetch_all(&pool)
                    .await?;
                let claims: Option<Vec<Claim>> = rows.into_iter().map(claim).collect();
                let claims = claims.ok_or_else(|| over(worker))?;
                let Some(asked) = asked else {
                    return Ok(claims);
                };
                // Whoever asks has won.
                let won = asked.into_iter().map(|(execution_id, attempt)| Claim {
                    execution_id,
                    attempt,
                    cancel_requested: false,
                });
                Ok(won.collect())
            })
            .await
    }

    async fn workers(&self) -> Result<Vec<WorkerRow>, StoreError> {
        type Columns = (Uuid, String, String, i32, Time, Option<Time>, Time);
        let pool = self.db.general.clone();
        self.db
            .run(async move {
                let rows: Vec<Columns> = sqlx::query_as(sql::WORKERS).fetch_all(&pool).await?;
                let row =
                    |(worker, name, pool, slots, Time(expires_at), renewed_at, Time(now)): Columns| WorkerRow {
                        worker: WorkerId(worker),
                        name,
                        pool,
                        slots: slots.unsigned_abs(),
                        remaining: between(now, expires_at),
                        seen_ago: renewed_at.map(|Time(at)| between(at, now)),
                    };
                Ok(rows.into_iter().map(row).collect())
            })
            .await
    }
}
