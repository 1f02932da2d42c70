//! Bulk operations.

use std::sync::Arc;

use async_trait::async_trait;
use attune_core::{
    ExecutionId, Operation, OperationFilter, OperationId, OperationKind, OperationProgress,
    OperationWords, PartOfOperation, PartitionId, RequestId,
};
use attune_store::{
    Depth, NewOperation, OperationRecord, OperationStore, StoreError, read_kind, stored_kind,
    stored_labels,
};
use futures_util::TryStreamExt as _;
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::error::{Failure, unreadable};
use crate::rows::{json, list, partition, partition_list, priority, text_of, time, unsigned, uuid};
use crate::store::{Inner, SqliteStore};
use crate::{batch, sql};

#[async_trait]
impl OperationStore for SqliteStore {
    async fn begin_operation(&self, new: &NewOperation) -> Result<OperationRecord, StoreError> {
        let new = new.clone();
        self.task(async move |inner: Arc<Inner>| {
            inner
                .writer
                .transaction(move |connection| {
                    Box::pin(async move { begin(connection, &new).await })
                })
                .await
        })
        .await
    }

    async fn find_operation(&self, id: OperationId) -> Result<Option<OperationRecord>, StoreError> {
        let query = sqlx::query(sql::FIND_OPERATION)
            .bind(id.0)
            .bind(None::<String>);
        self.task(async move |inner: Arc<Inner>| {
            let row = query.fetch_optional(&mut *inner.reader().await?).await?;
            Ok(row.as_ref().map(record).transpose()?)
        })
        .await
    }

    async fn list_operations(
        &self,
        before: Option<OperationId>,
        limit: u32,
    ) -> Result<Vec<OperationRecord>, StoreError> {
        let query = sqlx::query(sql::LIST_OPERATIONS)
            .bind(before.map(|id| id.0))
            .bind(limit);
        self.task(async move |inner: Arc<Inner>| {
            let rows = query.fetch_all(&mut *inner.reader().await?).await?;
            Ok(rows.iter().map(record).collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn count_meant(
        &self,
        kind: OperationKind,
        filter: &OperationFilter,
    ) -> Result<u64, StoreError> {
        let filter = filter.clone();
        self.task(async move |inner: Arc<Inner>| {
            let mut reader = inner.reader().await?;
            Ok(count(&mut reader, kind, &filter).await?)
        })
        .await
    }

    async fn depth(&self) -> Result<Depth, StoreError> {
        self.task(async move |inner: Arc<Inner>| {
            let mut reader = inner.reader().await?;
            let rows: Vec<(bool, i64, i64)> =
                sqlx::query_as(sql::DEPTH).fetch_all(&mut *reader).await?;
            let mut depth = Depth::default();
            for (waits, rank, many) in rows {
                if waits {
                    depth.waiting.push((priority(rank)?, many.unsigned_abs()));
                } else {
                    depth.active += many.unsigned_abs();
                }
            }
            Ok(depth)
        })
        .await
    }
}

/// Runs in a transaction that began as a write.
async fn begin(
    connection: &mut SqliteConnection,
    new: &NewOperation,
) -> Result<OperationRecord, Failure> {
    let (kind, args) = stored_kind(new.kind);
    let id: Option<(i64,)> = sqlx::query_as(sql::ADD_OPERATION)
        .bind(new.request_id.to_string())
        .bind(kind)
        .bind(text_of(&new.filter))
        .bind(args.to_string())
        .bind(new.who.clone())
        .bind(new.reason.clone())
        .fetch_optional(&mut *connection)
        .await?;
    if let Some((id,)) = id {
        sqlx::query(sql::ADD_OPERATION_PARTS)
            .bind(id)
            .bind(partition_list(&new.partitions))
            .execute(&mut *connection)
            .await?;
        let entry = new.audit(OperationId(id));
        sqlx::query(sql::INSERT_AUDIT)
            .bind(batch::audit_list(&[entry]))
            .execute(&mut *connection)
            .await?;
    }
    let row = sqlx::query(sql::FIND_OPERATION)
        .bind(id.map(|(id,)| id))
        .bind(new.request_id.to_string())
        .fetch_one(connection)
        .await?;
    Ok(record(&row)?)
}

async fn count(
    reader: &mut SqliteConnection,
    kind: OperationKind,
    filter: &OperationFilter,
) -> Result<u64, sqlx::Error> {
    let statement = if filter.labels.is_empty() {
        sql::COUNT_MEANT
    } else {
        sql::MEANT_LABELS
    };
    let query = sqlx::query(statement)
        .bind(kind.includes_running())
        .bind(filter.action.as_ref().map(ToString::to_string))
        .bind(filter.pack.clone())
        .bind(filter.user.clone())
        .bind(filter.priority.map(|it| i64::from(it.rank())))
        .bind((!filter.ids.is_empty()).then(|| list(&filter.ids)));
    if filter.labels.is_empty() {
        return unsigned(query.fetch_one(reader).await?.try_get(0)?);
    }
    let labels_only = OperationFilter {
        user: None,
        ..filter.clone()
    };
    let mut rows = query.fetch(reader);
    let mut many = 0;
    while let Some(row) = rows.try_next().await? {
        let labels = stored_labels(row.try_get(0)?);
        let words = OperationWords {
            user: None,
            labels: &labels,
        };
        many += u64::from(labels_only.matches(words));
    }
    Ok(many)
}

fn record(row: &SqliteRow) -> Result<OperationRecord, sqlx::Error> {
    let operation = operation(row, "id")?;
    Ok(OperationRecord {
        id: operation.id,
        request_id: RequestId(uuid(row.try_get("request_id")?)?),
        kind: operation.kind,
        filter: operation.filter,
        who: row.try_get("who")?,
        reason: row.try_get("reason")?,
        created: time(row.try_get("created")?)?,
        partitions: unsigned(row.try_get("partitions")?)?,
        finished: unsigned(row.try_get("finished")?)?,
        matched: unsigned(row.try_get("matched")?)?,
        done: unsigned(row.try_get("done")?)?,
        skipped: unsigned(row.try_get("skipped")?)?,
    })
}

fn operation(row: &SqliteRow, id: &str) -> Result<Operation, sqlx::Error> {
    let kind = read_kind(row.try_get("kind")?, row.try_get("args")?);
    Ok(Operation {
        id: OperationId(row.try_get(id)?),
        kind: kind.map_err(unreadable)?,
        filter: json(row.try_get("filter")?)?,
    })
}

/// What is open in these partitions.
pub(crate) async fn open(
    store: &SqliteStore,
    partitions: &[PartitionId],
) -> Result<Vec<PartOfOperation>, StoreError> {
    let query = sqlx::query(sql::OPEN_OPERATIONS).bind(partition_list(partitions));
    store
        .task(async move |inner: Arc<Inner>| {
            let rows = query.fetch_all(&mut *inner.reader().await?).await?;
            let mut open = Vec::new();
            for row in &rows {
                match part(row) {
                    Ok(part) => open.push(part),
                    // Of a later release, or somebody's hand: all others must be read.
                    Err(error) => {
                        tracing::warn!(%error, "an operation cannot be read, and is left to others");
                    }
                }
            }
            Ok(open)
        })
        .await
}

fn part(row: &SqliteRow) -> Result<PartOfOperation, sqlx::Error> {
    let at = |name| {
        let id: Option<i64> = row.try_get(name)?;
        Ok::<_, sqlx::Error>(id.map(|id| ExecutionId(id).seq()))
    };
    Ok(PartOfOperation {
        operation: operation(row, "operation")?,
        partition: partition(row.try_get("partition")?)?,
        progress: OperationProgress {
            upto: at("upto")?,
            cursor: at("cursor")?,
            matched: unsigned(row.try_get("matched")?)?,
            done: unsigned(row.try_get("done")?)?,
            skipped: unsigned(row.try_get("skipped")?)?,
            finished: false,
        },
    })
}
