//! The upkeep: what is old goes.

use std::time::Duration;

use attune_store::{HistoryRetention, StoreError};

use crate::dead_letters;
use crate::error::Failure;
use crate::sql;
use crate::store::Inner;

/// How many rows one transaction of the upkeep removes: the owner's commits take turns with it.
const PRUNE_CHUNK: u32 = 1_000;

/// How long a worker is shown after its lease ended.
const DEAD_KEPT: Duration = Duration::from_secs(24 * 3600);

/// How long what was counted is kept when it says nothing any more: the owner's clock may be a little
/// behind the store's.
const OVER_KEPT: Duration = Duration::from_secs(3600);

/// Takes every step, whatever becomes of the others: were they left out, one table that cannot be
/// cleaned would let all of them grow.
pub(crate) async fn maintain(inner: &Inner, keep: HistoryRetention) -> Result<(), Failure> {
    let mut failed = None;
    let mut note = |step: &'static str, result: Result<(), Failure>| {
        if let Err(failure) = result {
            let error = StoreError::from(failure);
            tracing::warn!(upkeep.step = step, %error, "a step of the upkeep failed; the others go on");
            failed.get_or_insert(error);
        }
    };
    for (step, statement, age) in [
        ("requests", sql::PRUNE_REQUESTS, keep.requests),
        (
            "history",
            sql::PRUNE_HISTORY,
            keep.history.max(keep.requests),
        ),
        ("queue stats", sql::PRUNE_STATS_HISTORY, keep.records.stats),
        ("audit log", sql::PRUNE_AUDIT, keep.records.audit),
        ("audit chain", sql::PRUNE_AUDIT_CHAIN, keep.records.audit),
        ("policies", sql::PRUNE_POLICIES, keep.records.audit),
        ("operations", sql::PRUNE_OPERATIONS, keep.records.audit),
        ("workers", sql::PRUNE_WORKERS, DEAD_KEPT),
        ("executors", sql::PRUNE_EXECUTORS, DEAD_KEPT),
    ] {
        note(step, prune(inner, statement, age).await);
    }
    note("meters", prune_meters(inner).await);
    let letters = dead_letters::prune(inner, keep.records.letters).await;
    note("dead letters", letters.map(|_removed| ()));
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Removes what was counted and says nothing any more: along the key, a chunk of rows at a time.
async fn prune_meters(inner: &Inner) -> Result<(), Failure> {
    let mut from = (-1_i64, String::new(), String::new());
    loop {
        let (partition, limit, key) = from.clone();
        let next = sqlx::query_as(sql::PRUNE_METERS_TO)
            .bind(partition)
            .bind(limit)
            .bind(key)
            .bind(PRUNE_CHUNK);
        let next: Option<(i64, String, String)> =
            next.fetch_optional(&mut *inner.reader().await?).await?;
        let Some(to) = next else { return Ok(()) };
        let (from_partition, from_limit, from_key) = std::mem::replace(&mut from, to.clone());
        let query = sqlx::query(sql::PRUNE_METERS)
            .bind(OVER_KEPT.as_secs_f64())
            .bind(from_partition)
            .bind(from_limit)
            .bind(from_key)
            .bind(to.0)
            .bind(to.1)
            .bind(to.2);
        inner
            .writer
            .run(move |connection| {
                Box::pin(async move { Ok(query.execute(connection).await?.rows_affected()) })
            })
            .await?;
    }
}

/// Removes what is older than `age`, in chunks.
async fn prune(inner: &Inner, statement: &'static str, age: Duration) -> Result<(), Failure> {
    loop {
        let query = sqlx::query(statement)
            .bind(age.as_secs_f64())
            .bind(PRUNE_CHUNK);
        let removed = inner
            .writer
            .run(move |connection| {
                Box::pin(async move { Ok(query.execute(connection).await?.rows_affected()) })
            })
            .await?;
        if removed < u64::from(PRUNE_CHUNK) {
            return Ok(());
        }
    }
}
