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
        ("policies", sql::PRUNE_POLICIES, keep.records.audit),
        ("meters", sql::PRUNE_METERS, OVER_KEPT),
        ("operations", sql::PRUNE_OPERATIONS, keep.records.audit),
        ("workers", sql::PRUNE_WORKERS, DEAD_KEPT),
        ("executors", sql::PRUNE_EXECUTORS, DEAD_KEPT),
    ] {
        note(step, prune(inner, statement, age).await);
    }
    let letters = dead_letters::prune(inner, keep.records.letters).await;
    note("dead letters", letters.map(|_removed| ()));
    failed.map_or(Ok(()), |error| Err(error.into()))
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
