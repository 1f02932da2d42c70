//! What operators hold.

use std::sync::Arc;

use async_trait::async_trait;
use attune_core::{PauseMode, PauseTarget};
use attune_store::{
    MAX_PAUSES, MAX_RESUMED, Pause, PauseChange, PauseOutcome, PauseSet, PauseStore, StoreError,
};
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::error::Failure;
use crate::rows::time;
use crate::store::{Inner, SqliteStore};
use crate::{audit, sql};

#[async_trait]
impl PauseStore for SqliteStore {
    async fn change_pause(&self, change: &PauseChange) -> Result<PauseOutcome, StoreError> {
        let change = change.clone();
        self.task(async move |inner: Arc<Inner>| {
            inner
                .writer
                .transaction(move |connection| {
                    Box::pin(async move { apply(connection, &change).await })
                })
                .await
        })
        .await
    }
}

/// The set, when it is newer.
pub(crate) async fn load(
    store: &SqliteStore,
    newer_than: Option<i64>,
) -> Result<Option<PauseSet>, StoreError> {
    let query = sqlx::query(sql::LOAD_PAUSES).bind(newer_than.unwrap_or(i64::MIN));
    store
        .task(async move |inner: Arc<Inner>| {
            let rows = query.fetch_all(&mut *inner.reader().await?).await?;
            Ok(set(&rows)?)
        })
        .await
}

fn set(rows: &[SqliteRow]) -> Result<Option<PauseSet>, sqlx::Error> {
    let Some(first) = rows.first() else {
        return Ok(None);
    };
    let mut set = PauseSet {
        version: first.try_get("version")?,
        ..PauseSet::default()
    };
    for row in rows {
        let Some(scope) = row.try_get::<Option<&str>, _>("scope")? else {
            continue;
        };
        let name: &str = row.try_get("target")?;
        let target = match PauseTarget::of(scope, name) {
            Ok(target) => target,
            Err((field, problem)) => {
                // Nobody but somebody's hand writes such a row, and all others must be read.
                tracing::warn!(
                    pause.scope = scope,
                    pause.target = name,
                    field,
                    problem,
                    "a row of the table `pause` names nothing and holds nothing"
                );
                continue;
            }
        };
        match held(target.clone(), row, "at")? {
            Some(pause) => set.held.push(pause),
            None => set.resumed.push((target, time(row.try_get("at")?)?)),
        }
    }
    Ok(Some(set))
}

/// What a row says is held; `None` for one without a mode.
fn held(target: PauseTarget, row: &SqliteRow, at: &str) -> Result<Option<Pause>, sqlx::Error> {
    let Some(mode) = row.try_get::<Option<&str>, _>("mode")? else {
        return Ok(None);
    };
    let mode: PauseMode = mode
        .parse()
        .map_err(|problem: String| sqlx::Error::Decode(problem.into()))?;
    Ok(Some(Pause {
        target,
        mode,
        since: time(row.try_get(at)?)?,
        who: row.try_get("who")?,
        reason: row.try_get("reason")?,
    }))
}

/// Runs in a transaction that began as a write, so nobody changes the set in between.
async fn apply(
    connection: &mut SqliteConnection,
    change: &PauseChange,
) -> Result<PauseOutcome, Failure> {
    let target = &change.target;
    let row = sqlx::query(sql::FIND_PAUSE)
        .bind(target.scope())
        .bind(target.target().to_owned())
        .fetch_one(&mut *connection)
        .await?;
    let before = held(target.clone(), &row, "since")?;
    let (is_there, many): (bool, i64) = (row.try_get("is_there")?, row.try_get("many")?);
    // What is held can be resumed whatever has become of it.
    if !is_there && (change.mode.is_some() || before.is_none()) {
        return Ok(PauseOutcome::NoTarget);
    }
    if change.changes_nothing(before.as_ref()) {
        let after = before.clone();
        return Ok(PauseOutcome::Stored { before, after });
    }
    if change.mode.is_some() && before.is_none() && many.unsigned_abs() >= MAX_PAUSES as u64 {
        return Ok(PauseOutcome::TooMany);
    }
    let after = write(connection, change).await?;
    let entry = change.audit(before.as_ref(), after.as_ref());
    audit::note(connection, &[entry]).await?;
    Ok(PauseOutcome::Stored { before, after })
}

/// What is held of the target from then on.
async fn write(
    connection: &mut SqliteConnection,
    change: &PauseChange,
) -> Result<Option<Pause>, Failure> {
    let (scope, name) = (change.target.scope(), change.target.target().to_owned());
    sqlx::query(sql::RAISE_PAUSES)
        .execute(&mut *connection)
        .await?;
    sqlx::query(sql::FORGET_RESUMED)
        .bind(scope)
        .bind(name.clone())
        .bind(MAX_RESUMED - 1)
        .execute(&mut *connection)
        .await?;
    let Some(mode) = change.mode else {
        for statement in [sql::ADD_RESUMED, sql::REMOVE_PAUSE] {
            sqlx::query(statement)
                .bind(scope)
                .bind(name.clone())
                .execute(&mut *connection)
                .await?;
        }
        return Ok(None);
    };
    let row = sqlx::query(sql::ADD_PAUSE)
        .bind(scope)
        .bind(name)
        .bind(mode.as_str())
        .bind(change.who.name.clone())
        .bind(change.reason.clone())
        .fetch_one(&mut *connection)
        .await?;
    Ok(Some(Pause {
        target: change.target.clone(),
        mode,
        since: time(row.try_get("since")?)?,
        who: change.who.name.clone(),
        reason: change.reason.clone(),
    }))
}
