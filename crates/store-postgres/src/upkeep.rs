//! The upkeep: room for the days to come, and what is old goes.

use attune_store::{DeadLetterStore as _, HistoryRetention, StoreError};
use chrono::{TimeDelta, Utc};
use sqlx::postgres::{PgArguments, PgPool};

use crate::bind::Binds;
use crate::db::Db;
use crate::failure::Failure;
use crate::partitions::micros;
use crate::sessions::Purpose;
use crate::time::Time;
use crate::{PostgresStore, sql};

/// A table that is kept by the day, and how many days after today have a partition. The upkeep runs at
/// least daily; should it not, rows go to the default partition. A commit locks every partition of
/// the requests, so those have few.
#[derive(Debug, Clone, Copy)]
struct ByDay {
    table: &'static str,
    days_ahead: i32,
}

/// Which execution a request led to.
const REQUESTS: ByDay = ByDay {
    table: "request",
    days_ahead: 3,
};
/// What has ended.
const HISTORY: ByDay = ByDay {
    table: "execution_history",
    days_ahead: 7,
};

/// Clocks that differ by more count as different.
const CLOCKS_DIFFER: TimeDelta = TimeDelta::seconds(5);

/// How many rows one step of the upkeep removes.
const PRUNE_STEP: i64 = 10_000;

/// How many steps one call of the upkeep takes for one table; the next call goes on.
const PRUNE_STEPS: u32 = 1_000;

/// How long what was counted is kept when it says nothing any more, in microseconds: the owners' clocks may
/// be a little behind this one.
const OVER_KEPT: i64 = 3_600_000_000;

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
    let requests = micros(keep.requests);
    let audit = micros(keep.records.audit);
    let mut steps = Steps::default();
    for table in [REQUESTS, HISTORY] {
        steps.note("days to come", days_to_come(db, table).await);
    }
    if let Err(error) = clocks_agree(db).await {
        steps.note("the time", Err(error));
        return steps.failed.map_or(Ok(()), Err);
    }
    steps.note("requests", drop_days(db, REQUESTS, requests).await);
    let minutes = prune(db, sql::PRUNE_STATS_HISTORY, micros(keep.records.stats));
    steps.note("queue stats", minutes.await);
    let counts = prune(db, sql::PRUNE_METERS, OVER_KEPT).await;
    steps.note("meters", counts);
    steps.note("history", drop_days(db, HISTORY, history).await);
    for (step, statement, age) in [
        (
            "requests of no day",
            sql::PRUNE_DEFAULT_REQUESTS,
            Some(requests),
        ),
        (
            "history of no day",
            sql::PRUNE_DEFAULT_HISTORY,
            Some(history),
        ),
        ("policies", sql::PRUNE_POLICIES, Some(audit)),
        ("operations", sql::PRUNE_OPERATIONS, Some(audit)),
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

/// Whether this machine and the server have the same time. By a clock that was set everything may
/// look old, and what is removed is gone.
async fn clocks_agree(db: &Db) -> Result<(), StoreError> {
    let pool = db.general();
    let (before, theirs, after) = db
        .run(Purpose::General, async move {
            let before = Utc::now();
            let Time(theirs) = sqlx::query_scalar(sql::NOW).fetch_one(&pool).await?;
            Ok((before, theirs, Utc::now()))
        })
        .await?;
    if before - CLOCKS_DIFFER <= theirs && theirs <= after + CLOCKS_DIFFER {
        return Ok(());
    }
    Err(StoreError::Conflict(format!(
        "nothing old is removed while the clocks differ: PostgreSQL's shows {theirs}, this machine's \
         {after}; set right the one that is wrong"
    )))
}

async fn days_to_come(db: &Db, of: ByDay) -> Result<(), StoreError> {
    let pool = db.general();
    db.run(Purpose::General, async move { make(&pool, of).await })
        .await
}

/// Makes the partitions of today and of the days to come, for every table that has them.
pub(crate) async fn make_days(pool: &PgPool) -> Result<(), Failure> {
    make(pool, REQUESTS).await?;
    make(pool, HISTORY).await
}

async fn make(pool: &PgPool, ByDay { table, days_ahead }: ByDay) -> Result<(), Failure> {
    let days = sqlx::query(sql::MAKE_DAYS).bind(table).bind(days_ahead);
    days.execute(pool).await?;
    Ok(())
}

/// Removes what is older than `age`, step by step.
async fn prune(db: &Db, statement: &'static str, age: i64) -> Result<(), StoreError> {
    let pool = db.general();
    db.run(Purpose::General, async move {
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
async fn drop_days(db: &Db, from: ByDay, age: i64) -> Result<(), StoreError> {
    let pool = db.general();
    db.run(Purpose::General, async move {
        for _ in 0..PRUNE_STEPS {
            let step = sqlx::query_scalar(sql::DROP_DAY).bind(from.table).bind(age);
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
    let pool = db.general();
    db.run(Purpose::General, async move {
        execute(&pool, statement, parameters).await
    })
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
    let pool = db.general();
    db.run(Purpose::General, async move {
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
