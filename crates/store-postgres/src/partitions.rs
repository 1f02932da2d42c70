//! The owner's port.

use std::time::Duration;

use async_trait::async_trait;
use attune_core::{
    Action, ActionId, Epoch, ExecutionId, OwnerId, PartOfOperation, PartitionId, Priority,
    QueueTotals, RequestGap, RequestId, Status, WorkerId,
};
use attune_store::{
    ActivePage, ActivePlace, ActiveSlice, AuditStore as _, Batch, CommitError, Committed,
    ExecutionLabels, ExecutionWords, ExecutorRow, GrantedBody, Lease, Lookup, MAX_BODIES_BYTES,
    MeterPage, MeterPlace, MeterRow, ObservedLease, PartitionStore, PauseSet, SlotRow, StoreError,
    StoredPolicies, TroubleNote, WorkerEnd, audit_of_takeover,
};
use chrono::{DateTime, Utc};
use sqlx::postgres::PgPool;
use uuid::Uuid;

use crate::actions::{self, ActionColumns};
use crate::bind::Binds;
use crate::commit::load_bodies;
use crate::failure::{Failure, unreadable};
use crate::partition_rows::{
    active_place, active_row, compared_rows, execution_id, executor_row, lease, meter, slot_rows,
    words, worker_end,
};
use crate::sessions::Purpose;
use crate::time::{Place, Time};
use crate::{PostgresStore, operations, pauses, policies, requests, sql};

#[async_trait]
impl PartitionStore for PostgresStore {
    async fn ensure_partitions(&self, count: u16) -> Result<(), StoreError> {
        if !(1..=PartitionId::MAX_COUNT).contains(&count) {
            return Err(StoreError::Conflict(format!(
                "a cluster has from 1 to {} partitions, not {count}",
                PartitionId::MAX_COUNT
            )));
        }
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                make_partitions(&pool, i32::from(count)).await
            })
            .await
    }

    async fn leases(&self) -> Result<Vec<Lease>, StoreError> {
        let pool = self.db.lease();
        self.db
            .run(Purpose::Lease, async move {
                let rows = sqlx::query(sql::LEASES).fetch_all(&pool).await?;
                rows.iter().map(lease).collect()
            })
            .await
    }

    async fn acquire(
        &self,
        owner: OwnerId,
        owner_name: &str,
        partitions: &[PartitionId],
        ttl: Duration,
    ) -> Result<Vec<(PartitionId, Epoch)>, StoreError> {
        let query = sqlx::query_as(sql::ACQUIRE)
            .bind(numbers(partitions))
            .bind(owner.0)
            .bind(crate::text::text(owner_name).into_owned())
            .bind(micros(ttl));
        let pool = self.db.lease();
        self.db
            .run(Purpose::Lease, async move {
                Ok(taken(query.fetch_all(&pool).await?))
            })
            .await
    }

    async fn acquire_observed(
        &self,
        owner: OwnerId,
        owner_name: &str,
        observed: &[ObservedLease],
        ttl: Duration,
    ) -> Result<Vec<(PartitionId, Epoch)>, StoreError> {
        let mut binds = Binds::default();
        binds.column(observed, |seen| i32::from(seen.partition.0));
        binds.column(observed, |seen| seen.epoch.0);
        binds.column(observed, |seen| seen.renewals);
        binds.value(owner.0);
        binds.value(crate::text::text(owner_name));
        binds.value(micros(ttl));
        let parameters = binds.finish()?;
        let pool = self.db.lease();
        self.db
            .run(Purpose::Lease, async move {
                let rows = sqlx::query_as_with(sql::ACQUIRE_OBSERVED, parameters);
                Ok(taken(rows.fetch_all(&pool).await?))
            })
            .await
    }

    async fn note_takeover(
        &self,
        owner: OwnerId,
        owner_name: &str,
        taken: &[(PartitionId, Epoch)],
    ) -> Result<(), StoreError> {
        self.note_audit(&audit_of_takeover(owner, owner_name, taken))
            .await
    }

    async fn renew(
        &self,
        owner: OwnerId,
        held: &[(PartitionId, Epoch)],
        ttl: Duration,
    ) -> Result<Vec<PartitionId>, StoreError> {
        let (partitions, epochs) = columns(held);
        let query = sqlx::query_scalar(sql::RENEW)
            .bind(owner.0)
            .bind(partitions)
            .bind(epochs)
            .bind(micros(ttl));
        let pool = self.db.lease();
        self.db
            .run(Purpose::Lease, async move {
                let rows: Vec<i32> = query.fetch_all(&pool).await?;
                Ok(rows.into_iter().map(place).collect())
            })
            .await
    }

    async fn give_up(
        &self,
        owner: OwnerId,
        held: &[(PartitionId, Epoch)],
        to: Option<OwnerId>,
    ) -> Result<(), StoreError> {
        let (partitions, epochs) = columns(held);
        let query = sqlx::query(sql::GIVE_UP)
            .bind(owner.0)
            .bind(partitions)
            .bind(epochs)
            .bind(to.map(|owner| owner.0));
        let pool = self.db.lease();
        self.db
            .run(Purpose::Lease, async move {
                query.execute(&pool).await?;
                Ok(())
            })
            .await
    }

    async fn note_trouble(
        &self,
        owner: OwnerId,
        notes: &[TroubleNote],
    ) -> Result<Vec<PartitionId>, StoreError> {
        let mut binds = Binds::default();
        binds.value(owner.0);
        binds.column(notes, |note| i32::from(note.partition.0));
        binds.column(notes, |note| note.epoch.0);
        binds.column(notes, |note| {
            let trouble = note.trouble.as_ref();
            trouble.map(|(_, words)| crate::text::text(words))
        });
        binds.column(notes, |note| {
            note.trouble.as_ref().map(|(lasted, _)| micros(*lasted))
        });
        let parameters = binds.finish()?;
        let pool = self.db.lease();
        self.db
            .run(Purpose::Lease, async move {
                let query = sqlx::query_scalar_with(sql::NOTE_TROUBLE, parameters);
                let rows: Vec<i32> = query.fetch_all(&pool).await?;
                Ok(rows.into_iter().map(place).collect())
            })
            .await
    }

    async fn renew_executor(
        &self,
        executor: OwnerId,
        name: &str,
        ttl: Duration,
        cut_off: bool,
    ) -> Result<Vec<ExecutorRow>, StoreError> {
        let query = sqlx::query_as(sql::RENEW_EXECUTOR)
            .bind(executor.0)
            .bind(crate::text::text(name).into_owned())
            .bind(micros(ttl))
            .bind(cut_off);
        let pool = self.db.lease();
        self.db
            .run(Purpose::Lease, async move {
                let rows = query.fetch_all(&pool).await?;
                Ok(rows.into_iter().map(executor_row).collect())
            })
            .await
    }

    async fn retire_executor(&self, executor: OwnerId) -> Result<(), StoreError> {
        let query = sqlx::query(sql::RETIRE_EXECUTOR).bind(executor.0);
        let pool = self.db.lease();
        self.db
            .run(Purpose::Lease, async move {
                query.execute(&pool).await?;
                Ok(())
            })
            .await
    }

    async fn executors(&self) -> Result<Vec<ExecutorRow>, StoreError> {
        let pool = self.db.lease();
        self.db
            .run(Purpose::Lease, async move {
                let rows = sqlx::query_as(sql::EXECUTORS).fetch_all(&pool).await?;
                Ok(rows.into_iter().map(executor_row).collect())
            })
            .await
    }

    async fn load_partition(
        &self,
        partition: PartitionId,
        after: Option<ActivePlace>,
        limit: u32,
    ) -> Result<ActivePage, StoreError> {
        // No action has the number that stands for the beginning.
        let query = sqlx::query(sql::LOAD_PARTITION)
            .bind(i32::from(partition.0))
            .bind(after.map_or(i64::MAX, |place| place.action_id.0))
            .bind(after.map(|place| Place::rising(place.created)))
            .bind(after.map(|place| place.id.0))
            .bind(i64::from(limit));
        let pool = self.db.key();
        self.db
            .run(Purpose::Key, async move {
                let rows = query.fetch_all(&pool).await?;
                let last = rows.last().filter(|_| rows.len() == limit as usize);
                Ok(ActivePage {
                    next: last.map(active_place).transpose()?,
                    rows: rows.iter().map(active_row).collect::<Result<_, _>>()?,
                })
            })
            .await
    }

    async fn scan_active(
        &self,
        partitions: &[PartitionId],
        after: Option<ExecutionId>,
        limit: u32,
    ) -> Result<ActiveSlice, StoreError> {
        let mine = low_bytes(partitions);
        let query = sqlx::query(sql::SCAN_ACTIVE)
            .bind(mine.clone())
            .bind(after.map_or(i64::MIN, |id| id.0))
            .bind(i64::from(limit));
        let pool = self.db.key();
        self.db
            .run(Purpose::Key, async move {
                let found = query.fetch_all(&pool).await?;
                let last = found.last().map(execution_id).transpose()?;
                let rows = compared_rows(&found, &mine)?;
                Ok(ActiveSlice { rows, last })
            })
            .await
    }

    async fn pauses(&self, newer_than: Option<i64>) -> Result<Option<PauseSet>, StoreError> {
        pauses::load(&self.db, newer_than).await
    }

    async fn policies(
        &self,
        newer_than: Option<i64>,
    ) -> Result<Option<StoredPolicies>, StoreError> {
        policies::load(&self.db, newer_than).await
    }

    async fn open_operations(
        &self,
        partitions: &[PartitionId],
    ) -> Result<Vec<PartOfOperation>, StoreError> {
        operations::open(&self.db, partitions).await
    }

    async fn load_totals(
        &self,
        partitions: &[PartitionId],
    ) -> Result<Vec<(ActionId, QueueTotals)>, StoreError> {
        let query = sqlx::query_as(sql::LOAD_TOTALS).bind(numbers(partitions));
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let rows: Vec<(i64, i64, i64, i64, i64)> = query.fetch_all(&pool).await?;
                Ok(rows
                    .into_iter()
                    .map(|(action, enqueued, completed, cancelled, expired)| {
                        let totals = QueueTotals {
                            enqueued: enqueued.unsigned_abs(),
                            completed: completed.unsigned_abs(),
                            cancelled: cancelled.unsigned_abs(),
                            expired: expired.unsigned_abs(),
                        };
                        (ActionId(action), totals)
                    })
                    .collect())
            })
            .await
    }

    async fn load_meters(
        &self,
        partition: PartitionId,
        after: Option<MeterPlace>,
        limit: u32,
    ) -> Result<MeterPage, StoreError> {
        // No limit has an empty name, which stands for the beginning.
        let (limit_id, key) = after.map_or_else(Default::default, |it| (it.limit_id, it.key));
        let query = sqlx::query(sql::LOAD_METERS)
            .bind(i32::from(partition.0))
            .bind(limit_id)
            .bind(key.to_vec())
            .bind(i64::from(limit));
        let pool = self.db.key();
        self.db
            .run(Purpose::Key, async move {
                let rows = query.fetch_all(&pool).await?;
                let is_full = rows.len() == limit as usize;
                let rows: Vec<MeterRow> = rows.iter().map(meter).collect::<Result<_, _>>()?;
                let next = rows.last().filter(|_| is_full);
                Ok(MeterPage {
                    next: next.map(|row| row.place.clone()),
                    rows,
                })
            })
            .await
    }

    async fn load_actions(&self, partitions: &[PartitionId]) -> Result<Vec<Action>, StoreError> {
        let query = sqlx::query_as(sql::LOAD_ACTIONS).bind(numbers(partitions));
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let rows: Vec<ActionColumns> = query.fetch_all(&pool).await?;
                rows.into_iter().map(actions::action).collect()
            })
            .await
    }

    async fn load_slots(&self, ids: &[ExecutionId]) -> Result<Vec<SlotRow>, StoreError> {
        let ids: Vec<i64> = ids.iter().map(|id| id.0).collect();
        let query = sqlx::query(sql::LOAD_SLOTS).bind(ids);
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let rows = query.fetch_all(&pool).await?;
                slot_rows(&rows)
            })
            .await
    }

    async fn worker_ends(&self) -> Result<Vec<WorkerEnd>, StoreError> {
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let rows = sqlx::query(sql::WORKER_ENDS).fetch_all(&pool).await?;
                rows.iter().map(worker_end).collect()
            })
            .await
    }

    async fn end_workers(&self, observed: &[(WorkerId, i64)]) -> Result<Vec<WorkerId>, StoreError> {
        let (workers, renewals): (Vec<Uuid>, Vec<i64>) = observed
            .iter()
            .map(|(worker, renewals)| (worker.0, *renewals))
            .unzip();
        let query = sqlx::query_scalar(sql::END_WORKERS)
            .bind(workers)
            .bind(renewals);
        let pool = self.db.lease();
        self.db
            .run(Purpose::Lease, async move {
                let over: Vec<Uuid> = query.fetch_all(&pool).await?;
                Ok(over.into_iter().map(WorkerId).collect())
            })
            .await
    }

    async fn now(&self) -> Result<DateTime<Utc>, StoreError> {
        let pool = self.db.lease();
        self.db
            .run(Purpose::Lease, async move {
                let Time(now) = sqlx::query_scalar(sql::NOW).fetch_one(&pool).await?;
                Ok(now)
            })
            .await
    }

    async fn load_bodies(&self, ids: &[ExecutionId]) -> Result<Vec<GrantedBody>, StoreError> {
        let ids: Vec<i64> = ids.iter().map(|id| id.0).collect();
        let pool = self.db.key();
        self.db
            .run(Purpose::Key, async move { load_bodies(&pool, ids).await })
            .await
    }

    async fn load_words(&self, ids: &[ExecutionId]) -> Result<Vec<ExecutionWords>, StoreError> {
        let ids: Vec<i64> = ids.iter().map(|id| id.0).collect();
        let query = sqlx::query(sql::LOAD_WORDS)
            .bind(ids)
            .bind(MAX_BODIES_BYTES as i64);
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let rows = query.fetch_all(&pool).await?;
                rows.iter().map(words).collect()
            })
            .await
    }

    async fn load_labels(&self, ids: &[ExecutionId]) -> Result<Vec<ExecutionLabels>, StoreError> {
        operations::labels(&self.db, ids).await
    }

    async fn look_up(
        &self,
        requests: &[RequestId],
        action_refs: &[String],
    ) -> Result<Lookup, StoreError> {
        let requests: Vec<Uuid> = requests.iter().map(|request| request.0).collect();
        let refs: Vec<String> = action_refs
            .iter()
            .map(|text| crate::text::text(text).into_owned())
            .collect();
        let pool = self.db.key();
        self.db
            .run(Purpose::Key, async move {
                Ok(Lookup {
                    requests: requests::known(&pool, requests).await?,
                    actions: actions::by_ref(&pool, refs).await?,
                })
            })
            .await
    }

    async fn request_gap(&self, around: RequestId) -> Result<RequestGap, StoreError> {
        let query = sqlx::query_as(sql::REQUEST_GAP).bind(around.0);
        let pool = self.db.key();
        self.db
            .run(Purpose::Key, async move {
                let (above, below): (Option<Uuid>, Option<Uuid>) = query.fetch_one(&pool).await?;
                Ok(RequestGap {
                    above: above.map(RequestId),
                    below: below.map(RequestId),
                })
            })
            .await
    }

    async fn commit(&self, batch: &Batch) -> Result<Committed, CommitError> {
        self.db.commit_batch(batch).await
    }
}

async fn make_partitions(pool: &PgPool, count: i32) -> Result<(), Failure> {
    let mut transaction = pool.begin().await?;
    sqlx::query(sql::MAKE_CLUSTER)
        .bind(count)
        .execute(&mut *transaction)
        .await?;
    let kept: i32 = sqlx::query_scalar(sql::CLUSTER_PARTITIONS)
        .fetch_one(&mut *transaction)
        .await?;
    if kept != count {
        return Err(Failure::Store(StoreError::Conflict(format!(
            "the cluster was made with {kept} partitions, not {count}; the number cannot change"
        ))));
    }
    sqlx::query(sql::MAKE_LEASES)
        .bind(count)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(())
}

/// Partitions that were taken, and in which epochs.
fn taken(rows: Vec<(i32, i64)>) -> Vec<(PartitionId, Epoch)> {
    rows.into_iter()
        .map(|(partition, epoch)| (place(partition), Epoch(epoch)))
        .collect()
}

/// The time from `start` to `end`, zero when it is negative.
pub(crate) fn between(start: DateTime<Utc>, end: DateTime<Utc>) -> Duration {
    (end - start).to_std().unwrap_or_default()
}

/// A duration as the statements take it; what does not fit is as good as for ever.
pub(crate) fn micros(duration: Duration) -> i64 {
    // A century: large enough to mean "never", small enough to be added to a time.
    const LONGEST: i64 = 100 * 366 * 24 * 3600 * 1_000_000;
    i64::try_from(duration.as_micros()).map_or(LONGEST, |micros| micros.min(LONGEST))
}

/// A stored status.
pub(crate) fn status(text: &str) -> Result<Status, Failure> {
    text.parse().map_err(|error| unreadable("status", error))
}

/// A stored priority.
pub(crate) fn priority(rank: i16) -> Result<Priority, Failure> {
    u8::try_from(rank)
        .ok()
        .and_then(Priority::from_rank)
        .ok_or_else(|| unreadable("priority", rank))
}

/// A partition as a number column holds it.
pub(crate) fn place(partition: i32) -> PartitionId {
    PartitionId(u16::try_from(partition).expect("the schema allows 0 to 255"))
}

fn numbers(partitions: &[PartitionId]) -> Vec<i32> {
    partitions.iter().map(|place| i32::from(place.0)).collect()
}

/// Partitions as they appear in the low byte of an execution's id.
fn low_bytes(partitions: &[PartitionId]) -> Vec<i64> {
    partitions.iter().map(|place| i64::from(place.0)).collect()
}

fn columns(held: &[(PartitionId, Epoch)]) -> (Vec<i32>, Vec<i64>) {
    held.iter()
        .map(|(partition, epoch)| (i32::from(partition.0), epoch.0))
        .unzip()
}
