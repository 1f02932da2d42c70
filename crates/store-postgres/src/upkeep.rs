//! The upkeep: room for the days to come, and what is old goes.

use attune_store::{DeadLetterStore as _, HistoryRetention, StoreError};
use sqlx::postgres::{PgArguments, PgPool};

use crate::bind::Binds;
use crate::db::Db;
use crate::failure::Failure;
use crate::partitions::micros;
use crate::{PostgresStore, sql};

/// How many days after today have a partition of the history. The upkeep runs at least daily;
/// should it not, what ends goes to the default partition.
pub(crate) const HISTORY_DAYS_AHEAD: i32 = 7;

/// How many rows one step of the upkeep removes.
const PRUNE_STEP: i64 = 10_000;

/// How many steps one call of the upkeep takes for one table; the next call goes on.
const PRUNE_STEPS: u32 = 1_000;

/// The first failure of the steps so far.
#[derive(Default)]
struct Steps {
    failed: Option<StoreError>,
}

impl Steps {
    /// Notes how a step went. The others do not depend on it: were they left out, one table that
    /// cannot be cleaned would let all of them grow.
    fn note(&mut self, step: &'static str, result: Result<(), StoreError>) {
        let Err(error) = result else { return };
        tracing::warn!(upkeep.step = step, %error, "a step of the upkeep failed; the others go on");
        self.failed.get_or_insert(error);
    }
}

/// Takes every step, whatever becomes of the others.
pub(crate) async fn maintain(
    store: &PostgresStore,
    keep: HistoryRetention,
) -> Result<(), StoreError> {
    let db = &store.db;
    // A request that is still known must find its execution.
    let history = micros(keep.history.max(keep.requests));
    let audit = micros(keep.records.audit);
    let mut steps = Steps::default();
    steps.note("make days", make_days(db).await);
    for (step, statement, age) in [
        ("requests", sql::PRUNE_REQUESTS, micros(keep.requests)),
        (
            "queue stats",
            sql::PRUNE_STATS_HISTORY,
            micros(keep.records.stats),
        ),
    ] {
        steps.note(step, prune(db, statement, age).await);
    }
    steps.note("history", drop_days(db, history).await);
    for (step, statement, age) in [
        ("default day", sql::PRUNE_DEFAULT_DAY, Some(history)),
        ("policies", sql::PRUNE_POLICIES, Some(audit)),
        ("workers", sql::PRUNE_WORKERS, None),
        ("executors", sql::PRUNE_EXECUTORS, None),
    ] {
        steps.note(step, once(db, statement, age).await);
    }
    steps.note("audit log", prune_audit(db, audit).await);
    let letters = store.prune_dead_letters(keep.records.letters).await;
    steps.note("dead letters", letters.map(|_removed| ()));
    steps.failed.map_or(Ok(()), Err)
}

async fn make_days(db: &Db) -> Result<(), StoreError> {
    let pool = db.general.clone();
    db.run(async move {
        let days = sqlx::query(sql::MAKE_HISTORY_DAYS).bind(HISTORY_DAYS_AHEAD);
        days.execute(&pool).await?;
        Ok(())
    })
    .await
}

/// Removes what is older than `age`, step by step.
async fn prune(db: &Db, statement: &'static str, age: i64) -> Result<(), StoreError> {
    let pool = db.general.clone();
    db.run(async move {
        for _ in 0..PRUNE_STEPS {
            let step = sqlx::query(statement).bind(age).bind(PRUNE_STEP);
            let removed = step.execute(&pool).await?.rows_affected();
            if removed < PRUNE_STEP.unsigned_abs() {
                break;
            }
        }
        Ok(())
    })
    .await
}

/// Drops one day after another that ended longer ago than `age`.
async fn drop_days(db: &Db, age: i64) -> Result<(), StoreError> {
    let pool = db.general.clone();
    db.run(async move {
        for _ in 0..PRUNE_STEPS {
            let step = sqlx::query_scalar(sql::DROP_HISTORY_DAY).bind(age);
            let dropped: bool = step.fetch_one(&pool).await?;
            if !dropped {
                break;
            }
        }
        Ok(())
    })
    .await
}

/// Removes what is old in one statement.
async fn once(db: &Db, statement: &'static str, age: Option<i64>) -> Result<(), StoreError> {
    let mut binds = Binds::default();
    if let Some(age) = age {
        binds.value(age);
    }
    let parameters = binds.finish()?;
    let pool = db.general.clone();
    db.run(async move { execute(&pool, statement, parameters).await })
        .await
}

async fn execute(
    pool: &PgPool,
    statement: &'static str,
    parameters: PgArguments,
) -> Result<(), Failure> {
    sqlx::query_with(statement, parameters)
        .execute(pool)
        .await?;
    Ok(())
}

async fn prune_audit(db: &Db, age: i64) -> Result<(), StoreError> {
    let pool = db.general.clone();
    db.run(async move {
        for _ in 0..PRUNE_STEPS {
            let step = sqlx::query_scalar(sql::PRUNE_AUDIT)
                .bind(age)
                .bind(PRUNE_STEP);
            let removed: i64 = step.fetch_one(&pool).await?;
            if removed < PRUNE_STEP {
                break;
            }
        }
        Ok(())
    })
    .await
}
