//! Bulk operations.

use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use attune_core::{
    ExecutionId, OperationFilter, OperationId, OperationKind, OperationProgress, OperationWords,
    PartOfOperation, PartitionId, RequestId,
};
use attune_store::{
    Batch, Depth, ExecutionLabels, MAX_OPEN_OPERATIONS, NewOperation, OperationRecord,
    OperationRow, OperationStore, StoreError, read_part, read_record, stored_kind, stored_labels,
    stored_place, stored_state,
};
use chrono::{DateTime, Utc};
use futures_util::TryStreamExt as _;
use sqlx::Row as _;
use sqlx::postgres::{PgArguments, PgExecutor, PgPool, PgRow};

use crate::bind::Binds;
use crate::db::Db;
use crate::failure::{Failure, unreadable};
use crate::partition_rows::execution_id;
use crate::partitions::priority;
use crate::sessions::Purpose;
use crate::{PostgresStore, audit, sql, text, time};

#[async_trait]
impl OperationStore for PostgresStore {
    async fn begin_operation(
        &self,
        new: &NewOperation,
    ) -> Result<Option<OperationRecord>, StoreError> {
        let mut new = new.clone();
        new.who.name = text::text(&new.who).into_owned();
        new.reason = text::optional(new.reason.as_ref()).map(String::from);
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move { begin(&pool, &new).await })
            .await
    }

    async fn find_operation(&self, id: OperationId) -> Result<Option<OperationRecord>, StoreError> {
        let pool = self.db.general();
        let found = async move { Ok(listed(&pool, id.0..=id.0, 1).await?.pop()) };
        self.db.run(Purpose::General, found).await
    }

    async fn list_operations(
        &self,
        before: Option<OperationId>,
        limit: u32,
    ) -> Result<Vec<OperationRecord>, StoreError> {
        let newest = before.map_or(i64::MAX, |id| id.0.saturating_sub(1));
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                listed(&pool, i64::MIN..=newest, limit).await
            })
            .await
    }

    async fn count_meant(
        &self,
        kind: OperationKind,
        filter: &OperationFilter,
    ) -> Result<u64, StoreError> {
        let filter = filter.clone();
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                count(&pool, kind, &filter).await
            })
            .await
    }

    async fn depth(&self) -> Result<Depth, StoreError> {
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let rows: Vec<(bool, i16, i64)> =
                    sqlx::query_as(sql::DEPTH).fetch_all(&pool).await?;
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

async fn begin(pool: &PgPool, new: &NewOperation) -> Result<Option<OperationRecord>, Failure> {
    let mut transaction = pool.begin().await?;
    let (kind, args) = stored_kind(new.kind);
    let id: Option<i64> = sqlx::query_scalar(sql::ADD_OPERATION)
        .bind(new.request_id.0)
        .bind(kind)
        .bind(filter_text(&new.filter))
        .bind(args.to_string())
        .bind(&new.who.name)
        .bind(new.reason.as_deref())
        .bind(i64::from(MAX_OPEN_OPERATIONS))
        .fetch_optional(&mut *transaction)
        .await?;
    if let Some(id) = id {
        let partitions = new.partitions.iter().map(|it| i32::from(it.0));
        sqlx::query(sql::ADD_OPERATION_PARTS)
            .bind(id)
            .bind(partitions.collect::<Vec<i32>>())
            .execute(&mut *transaction)
            .await?;
        let entry = new.audit(OperationId(id));
        let parameters: PgArguments = audit::parameters(&[entry])?;
        sqlx::query_with(sql::ADD_AUDIT, parameters)
            .execute(&mut *transaction)
            .await?;
    }
    let id: Option<i64> = match id {
        Some(id) => Some(id),
        None => {
            sqlx::query_scalar(sql::OPERATION_OF_REQUEST)
                .bind(new.request_id.0)
                .fetch_optional(&mut *transaction)
                .await?
        }
    };
    let Some(id) = id else {
        transaction.rollback().await?;
        return Ok(None);
    };
    let stored = listed(&mut *transaction, id..=id, 1).await?.pop();
    let stored = stored.ok_or(sqlx::Error::RowNotFound)?;
    transaction.commit().await?;
    Ok(Some(stored))
}

/// Those with numbers in a range, the newest first.
async fn listed(
    executor: impl PgExecutor<'_>,
    ids: RangeInclusive<i64>,
    limit: u32,
) -> Result<Vec<OperationRecord>, Failure> {
    let rows = sqlx::query(sql::LIST_OPERATIONS)
        .bind(*ids.start())
        .bind(*ids.end())
        .bind(i64::from(limit))
        .fetch_all(executor)
        .await?;
    rows.iter().map(|row| read_record(&Columns(row))).collect()
}

async fn count(
    pool: &PgPool,
    kind: OperationKind,
    filter: &OperationFilter,
) -> Result<u64, Failure> {
    let ids: Vec<i64> = filter.ids.iter().map(|id| id.0).collect();
    let mut binds = Binds::default();
    binds.value(kind.includes_running());
    binds.value(filter.action.as_ref().map(|action| action.as_str()));
    binds.value(filter.pack.as_deref());
    binds.value(text::optional(filter.user.as_ref()));
    binds.value(filter.priority.map(|it| i16::from(it.rank())));
    binds.value((!ids.is_empty()).then_some(ids));
    let parameters = binds.finish()?;
    if filter.labels.is_empty() {
        let many: i64 = sqlx::query_scalar_with(sql::COUNT_MEANT, parameters)
            .fetch_one(pool)
            .await?;
        return Ok(many.unsigned_abs());
    }
    let labels_only = OperationFilter {
        user: None,
        ..filter.clone()
    };
    let mut rows = sqlx::query_with(sql::MEANT_LABELS, parameters).fetch(pool);
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

fn filter_text(filter: &OperationFilter) -> String {
    serde_json::to_string(filter).expect("a filter has only text keys")
}

/// A row of operations or of their parts.
struct Columns<'a>(&'a PgRow);

impl OperationRow for Columns<'_> {
    type Error = Failure;

    fn text(&self, column: &str) -> Result<Option<&str>, Failure> {
        Ok(self.0.try_get(column)?)
    }

    fn number(&self, column: &str) -> Result<Option<i64>, Failure> {
        Ok(self.0.try_get(column)?)
    }

    fn request_id(&self) -> Result<RequestId, Failure> {
        Ok(RequestId(self.0.try_get("request_id")?))
    }

    fn created(&self) -> Result<DateTime<Utc>, Failure> {
        Ok(time::time(self.0, "created")?)
    }

    fn unreadable(&self, words: String) -> Failure {
        unreadable("operation", words)
    }
}

/// What is open in these partitions.
pub(crate) async fn open(
    db: &Db,
    partitions: &[PartitionId],
) -> Result<Vec<PartOfOperation>, StoreError> {
    let partitions = partitions.iter().map(|it| i32::from(it.0));
    let query = sqlx::query(sql::OPEN_OPERATIONS).bind(partitions.collect::<Vec<i32>>());
    let (pool, told) = (db.general(), Arc::clone(&db.unread));
    db.run(Purpose::General, async move {
        let rows = query.fetch_all(&pool).await?;
        let (mut open, mut unread) = (Vec::new(), Vec::new());
        for row in &rows {
            match read_part(&Columns(row)) {
                Ok(part) => open.push(part),
                // Of a later release, or somebody's hand: all others must be read.
                Err(Failure::Store(error)) => unread.push(error.to_string()),
                Err(failure) => return Err(failure),
            }
        }
        if let Some(errors) = told.news(unread) {
            tracing::warn!(errors, "operations cannot be read, and are left to others");
        }
        Ok(open)
    })
    .await
}

/// The users and labels of executions.
pub(crate) async fn labels(
    db: &Db,
    ids: &[ExecutionId],
) -> Result<Vec<ExecutionLabels>, StoreError> {
    let ids: Vec<i64> = ids.iter().map(|id| id.0).collect();
    let query = sqlx::query(sql::LOAD_LABELS).bind(ids);
    let read = |row: &PgRow| {
        let labels: Option<&str> = row.try_get("labels")?;
        Ok(ExecutionLabels {
            id: execution_id(row)?,
            requested_by: row.try_get("requested_by")?,
            labels: labels.map(stored_labels).unwrap_or_default(),
        })
    };
    let pool = db.general();
    db.run(Purpose::General, async move {
        let rows = query.fetch_all(&pool).await?;
        rows.iter().map(read).collect()
    })
    .await
}

/// The parameters for how far operations are after a batch.
pub(crate) fn add_progress(
    binds: &mut Binds,
    progress: &[(PartitionId, OperationId, OperationProgress)],
) {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    binds.column(progress, |(_, operation, _)| operation.0);
    binds.column(progress, |(partition, ..)| i32::from(partition.0));
    binds.column(progress, |(of, _, it)| stored_place(*of, it.upto));
    binds.column(progress, |(of, _, it)| stored_place(*of, it.cursor));
    binds.column(progress, |(.., it)| number(it.matched));
    binds.column(progress, |(.., it)| number(it.done));
    binds.column(progress, |(.., it)| number(it.skipped));
    binds.column(progress, |(.., it)| stored_state(it));
}

/// The parameters for where executions stand after a batch that were moved, if any was.
pub(crate) fn moves(batch: &Batch) -> Result<Option<PgArguments>, StoreError> {
    if batch.moves.is_empty() {
        return Ok(None);
    }
    let mut moves = batch.moves.clone();
    moves.sort_unstable_by_key(|moved| moved.id);
    let mut binds = Binds::default();
    binds.column(&moves, |moved| moved.id.0);
    binds.column(&moves, |moved| i16::from(moved.priority.rank()));
    binds.column(&moves, |moved| moved.front);
    binds.finish().map(Some)
}
