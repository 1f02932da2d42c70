//! Bulk operations.

use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use attune_core::{
    ExecutionId, OperationFilter, OperationId, OperationKind, OperationWords, PartOfOperation,
    PartitionId, RequestId,
};
use attune_store::{
    Depth, ExecutionLabels, MAX_OPEN_OPERATIONS, NewOperation, OperationRecord, OperationRow,
    OperationStore, StoreError, read_part, read_record, stored_kind, stored_labels,
};
use chrono::{DateTime, Utc};
use futures_util::TryStreamExt as _;
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::error::{Failure, unreadable};
use crate::rows::{list, partition_list, priority, text_of, time, unsigned, uuid};
use crate::store::{Inner, SqliteStore};
use crate::{audit, sql};

#[async_trait]
impl OperationStore for SqliteStore {
    async fn begin_operation(
        &self,
        new: &NewOperation,
    ) -> Result<Option<OperationRecord>, StoreError> {
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
        self.task(async move |inner: Arc<Inner>| {
            let mut reader = inner.reader().await?;
            Ok(listed(&mut reader, id.0..=id.0, 1).await?.pop())
        })
        .await
    }

    async fn list_operations(
        &self,
        before: Option<OperationId>,
        limit: u32,
    ) -> Result<Vec<OperationRecord>, StoreError> {
        let newest = before.map_or(i64::MAX, |id| id.0.saturating_sub(1));
        self.task(async move |inner: Arc<Inner>| {
            let mut reader = inner.reader().await?;
            Ok(listed(&mut reader, i64::MIN..=newest, limit).await?)
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
) -> Result<Option<OperationRecord>, Failure> {
    let (kind, args) = stored_kind(new.kind);
    let id: Option<(i64,)> = sqlx::query_as(sql::ADD_OPERATION)
        .bind(new.request_id.to_string())
        .bind(kind)
        .bind(text_of(&new.filter))
        .bind(args.to_string())
        .bind(new.who.name.clone())
        .bind(new.reason.clone())
        .bind(MAX_OPEN_OPERATIONS)
        .fetch_optional(&mut *connection)
        .await?;
    if let Some((id,)) = id {
        sqlx::query(sql::ADD_OPERATION_PARTS)
            .bind(id)
            .bind(partition_list(&new.partitions))
            .execute(&mut *connection)
            .await?;
        let entry = new.audit(OperationId(id));
        audit::note(connection, &[entry]).await?;
    }
    let id: Option<(i64,)> = match id {
        Some(id) => Some(id),
        None => {
            sqlx::query_as(sql::OPERATION_OF_REQUEST)
                .bind(new.request_id.to_string())
                .fetch_optional(&mut *connection)
                .await?
        }
    };
    let Some((id,)) = id else { return Ok(None) };
    let mut stored = listed(connection, id..=id, 1).await?;
    Ok(Some(stored.pop().ok_or(sqlx::Error::RowNotFound)?))
}

/// Those with numbers in a range, the newest first.
async fn listed(
    connection: &mut SqliteConnection,
    ids: RangeInclusive<i64>,
    limit: u32,
) -> Result<Vec<OperationRecord>, sqlx::Error> {
    let rows = sqlx::query(sql::LIST_OPERATIONS)
        .bind(*ids.start())
        .bind(*ids.end())
        .bind(limit)
        .fetch_all(connection)
        .await?;
    rows.iter().map(|row| read_record(&Columns(row))).collect()
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

/// A row of operations or of their parts.
struct Columns<'a>(&'a SqliteRow);

impl OperationRow for Columns<'_> {
    type Error = sqlx::Error;

    fn text(&self, column: &str) -> Result<Option<&str>, sqlx::Error> {
        self.0.try_get(column)
    }

    fn number(&self, column: &str) -> Result<Option<i64>, sqlx::Error> {
        self.0.try_get(column)
    }

    fn request_id(&self) -> Result<RequestId, sqlx::Error> {
        uuid(self.0.try_get("request_id")?).map(RequestId)
    }

    fn created(&self) -> Result<DateTime<Utc>, sqlx::Error> {
        time(self.0.try_get("created")?)
    }

    fn unreadable(&self, words: String) -> sqlx::Error {
        unreadable(words)
    }
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
            let (mut open, mut unread) = (Vec::new(), Vec::new());
            for row in &rows {
                match read_part(&Columns(row)) {
                    Ok(part) => open.push(part),
                    // Of a later release, or somebody's hand: all others must be read.
                    Err(error) => unread.push(error.to_string()),
                }
            }
            if let Some(errors) = inner.unread.news(unread) {
                tracing::warn!(errors, "operations cannot be read, and are left to others");
            }
            Ok(open)
        })
        .await
}

/// The users and labels of executions.
pub(crate) async fn labels(
    store: &SqliteStore,
    ids: &[ExecutionId],
) -> Result<Vec<ExecutionLabels>, StoreError> {
    let query = sqlx::query(sql::LOAD_LABELS).bind(list(ids));
    let read = |row: &SqliteRow| {
        Ok::<_, sqlx::Error>(ExecutionLabels {
            id: ExecutionId(row.try_get("id")?),
            requested_by: row.try_get("requested_by")?,
            labels: stored_labels(row.try_get("labels")?),
        })
    };
    store
        .task(async move |inner: Arc<Inner>| {
            let rows = query.fetch_all(&mut *inner.reader().await?).await?;
            Ok(rows.iter().map(read).collect::<Result<_, _>>()?)
        })
        .await
}
