//! The owner's port.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use attune_core::{
    Action, ActionId, Epoch, ExecutionId, OwnerId, PartOfOperation, PartitionId, QueueTotals,
    RequestGap, RequestId, Status, WorkerId,
};
use attune_store::{
    ActivePage, ActivePlace, ActiveRow, ActiveSlice, AuditStore as _, Batch, CommitError,
    Committed, ExecutionLabels, ExecutionWords, ExecutorRow, GrantedBody, Lease, Lookup,
    MAX_BODIES_BYTES, MeterPage, MeterPlace, MeterRow, ObservedLease, PartitionStore, PauseSet,
    SlotRow, StoreError, StoredPolicies, TroubleNote, WorkerEnd, audit_of_takeover,
};
use chrono::{DateTime, Utc};
use sqlx::Sqlite;
use sqlx::query::QueryAs;
use sqlx::sqlite::{SqliteArguments, SqliteConnection};

use crate::batch::{BatchLists, HeldRow, ObservedRow, ObservedWorker, TroubleRow};
use crate::commit;
use crate::error::Failure;
use crate::partition_rows::{
    active_place, active_row, executor_row, known_request, lease, meter, request_gap, slot_row,
    totals, words, worker_end,
};
use crate::rows::{action, body, digits, list, partition, partition_list, time, time_text, uuid};
use crate::store::{Inner, SqliteStore};
use crate::{operations, pauses, policies, sql};

#[async_trait]
impl PartitionStore for SqliteStore {
    async fn ensure_partitions(&self, count: u16) -> Result<(), StoreError> {
        if !(1..=PartitionId::MAX_COUNT).contains(&count) {
            return Err(StoreError::Conflict(format!(
                "a cluster has from 1 to {} partitions, not {count}",
                PartitionId::MAX_COUNT
            )));
        }
        self.task(async move |inner: Arc<Inner>| {
            inner
                .writer
                .transaction(move |connection| Box::pin(ensure_partitions(connection, count)))
                .await
        })
        .await
    }

    async fn leases(&self) -> Result<Vec<Lease>, StoreError> {
        self.task(async |inner: Arc<Inner>| {
            let rows = sqlx::query(sql::LEASES)
                .fetch_all(&mut *inner.reader().await?)
                .await?;
            Ok(rows.iter().map(lease).collect::<Result<_, _>>()?)
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
        let query = sqlx::query_as::<_, (i64, i64)>(sql::ACQUIRE)
            .bind(owner.to_string())
            .bind(owner_name.to_owned())
            .bind(partition_list(partitions))
            .bind(ttl.as_secs_f64());
        self.task(async move |inner: Arc<Inner>| take(&inner, query).await)
            .await
    }

    async fn acquire_observed(
        &self,
        owner: OwnerId,
        owner_name: &str,
        observed: &[ObservedLease],
        ttl: Duration,
    ) -> Result<Vec<(PartitionId, Epoch)>, StoreError> {
        let observed = list(observed.iter().map(|seen| ObservedRow {
            partition: seen.partition.0,
            epoch: seen.epoch.0,
            renewals: seen.renewals,
        }));
        let query = sqlx::query_as::<_, (i64, i64)>(sql::ACQUIRE_OBSERVED)
            .bind(owner.to_string())
            .bind(owner_name.to_owned())
            .bind(observed)
            .bind(ttl.as_secs_f64());
        self.task(async move |inner: Arc<Inner>| take(&inner, query).await)
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
        let query = sqlx::query_as::<_, (i64,)>(sql::RENEW)
            .bind(owner.to_string())
            .bind(held_list(held))
            .bind(ttl.as_secs_f64());
        self.task(async move |inner: Arc<Inner>| {
            let rows = inner
                .writer
                .run(move |connection| {
                    Box::pin(async move { Ok(query.fetch_all(connection).await?) })
                })
                .await?;
            let kept = rows.into_iter().map(|(number,)| partition(number));
            Ok(kept.collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn give_up(
        &self,
        owner: OwnerId,
        held: &[(PartitionId, Epoch)],
        to: Option<OwnerId>,
    ) -> Result<(), StoreError> {
        let query = sqlx::query(sql::GIVE_UP)
            .bind(owner.to_string())
            .bind(held_list(held))
            .bind(to.map(|owner| owner.to_string()));
        self.execute(query).await.map(drop)
    }

    async fn note_trouble(
        &self,
        owner: OwnerId,
        notes: &[TroubleNote],
    ) -> Result<Vec<PartitionId>, StoreError> {
        let notes = list(notes.iter().map(|note| {
            let trouble = note.trouble.as_ref();
            TroubleRow {
                partition: note.partition.0,
                epoch: note.epoch.0,
                trouble: trouble.map(|(_, words)| words.as_str()),
                // Whole milliseconds: a shorter time may be written in a way SQLite cannot read.
                lasted: trouble.map(|(lasted, _)| {
                    Duration::from_millis(attune_core::millis(*lasted)).as_secs_f64()
                }),
            }
        }));
        let query = sqlx::query(sql::NOTE_TROUBLE)
            .bind(owner.to_string())
            .bind(notes);
        self.execute(query).await?;
        Ok(Vec::new())
    }

    async fn renew_executor(
        &self,
        executor: OwnerId,
        name: &str,
        ttl: Duration,
        cut_off: bool,
    ) -> Result<Vec<ExecutorRow>, StoreError> {
        let query = sqlx::query(sql::RENEW_EXECUTOR)
            .bind(executor.to_string())
            .bind(name.to_owned())
            .bind(ttl.as_secs_f64())
            .bind(cut_off);
        self.execute(query).await?;
        let mut live = self.executors().await?;
        live.retain(|row| !row.remaining.is_zero());
        Ok(live)
    }

    async fn retire_executor(&self, executor: OwnerId) -> Result<(), StoreError> {
        let query = sqlx::query(sql::RETIRE_EXECUTOR).bind(executor.to_string());
        self.execute(query).await.map(drop)
    }

    async fn executors(&self) -> Result<Vec<ExecutorRow>, StoreError> {
        self.task(async |inner: Arc<Inner>| {
            let rows = sqlx::query(sql::EXECUTORS)
                .fetch_all(&mut *inner.reader().await?)
                .await?;
            Ok(rows.iter().map(executor_row).collect::<Result<_, _>>()?)
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
            .bind(i64::from(partition.0))
            .bind(after.map_or(i64::MIN, |place| place.action_id.0))
            .bind(after.map(|place| time_text(place.created)))
            .bind(after.map(|place| place.id.0))
            .bind(limit);
        self.task(async move |inner: Arc<Inner>| {
            let rows = query.fetch_all(&mut *inner.reader().await?).await?;
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
        let mine = partitions.to_vec();
        let query = sqlx::query(sql::SCAN_ACTIVE)
            .bind(after.map_or(i64::MIN, |id| id.0))
            .bind(limit);
        self.task(async move |inner: Arc<Inner>| {
            let found = query.fetch_all(&mut *inner.reader().await?).await?;
            let mut rows: Vec<ActiveRow> =
                found.iter().map(active_row).collect::<Result<_, _>>()?;
            let last = rows.last().map(|row| row.id);
            rows.retain(|row| mine.contains(&row.id.partition()));
            Ok(ActiveSlice { rows, last })
        })
        .await
    }

    async fn pauses(&self, newer_than: Option<i64>) -> Result<Option<PauseSet>, StoreError> {
        pauses::load(self, newer_than).await
    }

    async fn policies(
        &self,
        newer_than: Option<i64>,
    ) -> Result<Option<StoredPolicies>, StoreError> {
        policies::load(self, newer_than).await
    }

    async fn open_operations(
        &self,
        partitions: &[PartitionId],
    ) -> Result<Vec<PartOfOperation>, StoreError> {
        operations::open(self, partitions).await
    }

    async fn load_totals(
        &self,
        partitions: &[PartitionId],
    ) -> Result<Vec<(ActionId, QueueTotals)>, StoreError> {
        let query = sqlx::query(sql::LOAD_TOTALS).bind(partition_list(partitions));
        self.task(async move |inner: Arc<Inner>| {
            let rows = query.fetch_all(&mut *inner.reader().await?).await?;
            Ok(rows.iter().map(totals).collect::<Result<_, _>>()?)
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
            .bind(i64::from(partition.0))
            .bind(limit_id)
            .bind(digits(&key))
            .bind(limit);
        self.task(async move |inner: Arc<Inner>| {
            let rows = query.fetch_all(&mut *inner.reader().await?).await?;
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
        let query = sqlx::query(sql::LOAD_ACTIONS).bind(partition_list(partitions));
        self.task(async move |inner: Arc<Inner>| {
            let rows = query.fetch_all(&mut *inner.reader().await?).await?;
            Ok(rows.iter().map(action).collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn load_slots(&self, ids: &[ExecutionId]) -> Result<Vec<SlotRow>, StoreError> {
        let query = sqlx::query(sql::LOAD_SLOTS).bind(list(ids));
        self.task(async move |inner: Arc<Inner>| {
            let rows = query.fetch_all(&mut *inner.reader().await?).await?;
            Ok(rows.iter().map(slot_row).collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn worker_ends(&self) -> Result<Vec<WorkerEnd>, StoreError> {
        self.task(async |inner: Arc<Inner>| {
            let rows = sqlx::query(sql::WORKER_ENDS)
                .fetch_all(&mut *inner.reader().await?)
                .await?;
            Ok(rows.iter().map(worker_end).collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn end_workers(&self, observed: &[(WorkerId, i64)]) -> Result<Vec<WorkerId>, StoreError> {
        let observed = list(observed.iter().map(|(worker, renewals)| ObservedWorker {
            worker: worker.to_string(),
            renewals: *renewals,
        }));
        self.task(async move |inner: Arc<Inner>| {
            let ended = inner
                .writer
                .transaction(move |connection| Box::pin(end_workers(connection, observed)));
            ended.await
        })
        .await
    }

    async fn now(&self) -> Result<DateTime<Utc>, StoreError> {
        self.task(async |inner: Arc<Inner>| {
            let (now,) = sqlx::query_as::<_, (String,)>(sql::NOW)
                .fetch_one(&mut *inner.reader().await?)
                .await?;
            Ok(time(&now)?)
        })
        .await
    }

    async fn load_bodies(&self, ids: &[ExecutionId]) -> Result<Vec<GrantedBody>, StoreError> {
        let query = sqlx::query(sql::LOAD_BODIES)
            .bind(list(ids))
            .bind(MAX_BODIES_BYTES as i64);
        self.task(async move |inner: Arc<Inner>| {
            let rows = query.fetch_all(&mut *inner.reader().await?).await?;
            Ok(rows.iter().map(body).collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn load_words(&self, ids: &[ExecutionId]) -> Result<Vec<ExecutionWords>, StoreError> {
        let query = sqlx::query(sql::LOAD_WORDS)
            .bind(list(ids))
            .bind(MAX_BODIES_BYTES as i64);
        self.task(async move |inner: Arc<Inner>| {
            let rows = query.fetch_all(&mut *inner.reader().await?).await?;
            Ok(rows.iter().map(words).collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn load_labels(&self, ids: &[ExecutionId]) -> Result<Vec<ExecutionLabels>, StoreError> {
        operations::labels(self, ids).await
    }

    async fn look_up(
        &self,
        requests: &[RequestId],
        action_refs: &[String],
    ) -> Result<Lookup, StoreError> {
        let request_list = (!requests.is_empty()).then(|| list(requests));
        let ref_list = (!action_refs.is_empty()).then(|| list(action_refs));
        self.task(async move |inner: Arc<Inner>| {
            let mut reader = inner.reader().await?;
            let mut found = Lookup::default();
            if let Some(asked) = request_list {
                let rows = sqlx::query(sql::LOOK_UP_REQUESTS).bind(asked);
                let rows = rows.fetch_all(&mut *reader).await?;
                found.requests = rows.iter().map(known_request).collect::<Result<_, _>>()?;
            }
            if let Some(asked) = ref_list {
                let rows = sqlx::query(sql::LOOK_UP_ACTIONS).bind(asked);
                let rows = rows.fetch_all(&mut *reader).await?;
                found.actions = rows.iter().map(action).collect::<Result<_, _>>()?;
            }
            Ok(found)
        })
        .await
    }

    async fn request_gap(&self, around: RequestId) -> Result<RequestGap, StoreError> {
        let query = sqlx::query(sql::REQUEST_GAP).bind(around.to_string());
        self.task(async move |inner: Arc<Inner>| {
            let row = query.fetch_one(&mut *inner.reader().await?).await?;
            Ok(request_gap(&row)?)
        })
        .await
    }

    async fn commit(&self, batch: &Batch) -> Result<Committed, CommitError> {
        let allowed = [None, Some(Status::Queued), Some(Status::Requested)];
        if let Some(update) = batch
            .updates
            .iter()
            .find(|update| !allowed.contains(&update.status))
        {
            return Err(StoreError::Conflict(format!(
                "an update of execution {} to {:?} is not the owner's to write",
                update.id, update.status
            ))
            .into());
        }
        let lists = BatchLists::of(batch);
        let committed = self.task::<_, CommitError, _, _>(async move |inner: Arc<Inner>| {
            inner
                .writer
                .run(move |connection| Box::pin(commit::write(connection, lists)))
                .await
        });
        let committed = committed.await?;
        // Nobody waits for it.
        drop(self.letters_were_added(&batch.letters));
        Ok(committed)
    }
}

async fn ensure_partitions(connection: &mut SqliteConnection, count: u16) -> Result<(), Failure> {
    let ensure = sqlx::query(sql::ENSURE_CLUSTER).bind(i64::from(count));
    ensure.execute(&mut *connection).await?;
    let (made_with,) = sqlx::query_as::<_, (i64,)>(sql::CLUSTER_PARTITIONS)
        .fetch_one(&mut *connection)
        .await?;
    if made_with != i64::from(count) {
        return Err(StoreError::Conflict(format!(
            "the cluster was made with {made_with} partitions, which stay as they are; {count} were asked for"
        ))
        .into());
    }
    let leases = sqlx::query(sql::ENSURE_LEASES).bind(i64::from(count));
    leases.execute(connection).await?;
    Ok(())
}

/// Runs a statement that takes partitions.
async fn take(
    inner: &Inner,
    query: QueryAs<'static, Sqlite, (i64, i64), SqliteArguments>,
) -> Result<Vec<(PartitionId, Epoch)>, Failure> {
    let rows = inner
        .writer
        .run(move |connection| Box::pin(async move { Ok(query.fetch_all(connection).await?) }))
        .await?;
    let taken = rows
        .into_iter()
        .map(|(number, epoch)| Ok((partition(number)?, Epoch(epoch))));
    Ok(taken.collect::<Result<_, sqlx::Error>>()?)
}

async fn end_workers(
    connection: &mut SqliteConnection,
    observed: String,
) -> Result<Vec<WorkerId>, Failure> {
    let end = sqlx::query(sql::END_WORKERS).bind(observed.clone());
    end.execute(&mut *connection).await?;
    let over: Vec<(String,)> = sqlx::query_as(sql::WORKERS_OVER)
        .bind(observed)
        .fetch_all(connection)
        .await?;
    let over = over.iter().map(|(worker,)| uuid(worker).map(WorkerId));
    Ok(over.collect::<Result<_, _>>()?)
}

fn held_list(held: &[(PartitionId, Epoch)]) -> String {
    list(held.iter().map(|(partition, epoch)| HeldRow {
        partition: partition.0,
        epoch: epoch.0,
    }))
}
