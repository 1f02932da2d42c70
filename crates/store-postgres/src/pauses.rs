//! What operators hold.

use async_trait::async_trait;
use attune_core::PauseTarget;
use attune_store::{
    MAX_PAUSES, MAX_RESUMED, Pause, PauseChange, PauseOutcome, PauseSet, PauseStore, StoreError,
};
use sqlx::postgres::{PgArguments, PgPool, PgTransaction};

use crate::db::Db;
use crate::failure::{Failure, unreadable};
use crate::sessions::Purpose;
use crate::time::Time;
use crate::{PostgresStore, audit, sql, text};

/// version, scope, target, mode, time, who, reason; all but the first may be missing.
type SetColumns = (
    i64,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<Time>,
    Option<String>,
    Option<String>,
);

/// mode, since, who, reason, whether the target is there, how many are held.
type HeldColumns = (
    Option<String>,
    Option<Time>,
    Option<String>,
    Option<String>,
    bool,
    i64,
);

#[async_trait]
impl PauseStore for PostgresStore {
    async fn change_pause(&self, change: &PauseChange) -> Result<PauseOutcome, StoreError> {
        let mut change = change.clone();
        change.who.name = text::text(&change.who).into_owned();
        change.reason = text::optional(change.reason.as_ref()).map(String::from);
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move { apply(&pool, &change).await })
            .await
    }
}

/// The set, when it is newer.
pub(crate) async fn load(db: &Db, newer_than: Option<i64>) -> Result<Option<PauseSet>, StoreError> {
    let query = sqlx::query_as(sql::LOAD_PAUSES).bind(newer_than.unwrap_or(i64::MIN));
    let pool = db.general();
    db.run(Purpose::General, async move {
        set(query.fetch_all(&pool).await?)
    })
    .await
}

fn set(rows: Vec<SetColumns>) -> Result<Option<PauseSet>, Failure> {
    let Some(version) = rows.first().map(|row| row.0) else {
        return Ok(None);
    };
    let mut set = PauseSet {
        version,
        ..PauseSet::default()
    };
    for (_, scope, target, mode, at, who, reason) in rows {
        let (Some(scope), Some(name), Some(Time(at))) = (scope, target, at) else {
            continue;
        };
        let target = match PauseTarget::of(&scope, &name) {
            Ok(target) => target,
            Err((field, problem)) => {
                // Nobody but somebody's hand writes such a row, and all others must be read.
                tracing::warn!(
                    pause.scope = scope,
                    pause.target = name,
                    field,
                    problem,
                    "a row of `attune.pause` names nothing and holds nothing"
                );
                continue;
            }
        };
        match mode {
            Some(mode) => set.held.push(pause(target, &mode, at, who, reason)?),
            None => set.resumed.push((target, at)),
        }
    }
    Ok(Some(set))
}

fn pause(
    target: PauseTarget,
    mode: &str,
    since: chrono::DateTime<chrono::Utc>,
    who: Option<String>,
    reason: Option<String>,
) -> Result<Pause, Failure> {
    Ok(Pause {
        target,
        mode: mode
            .parse()
            .map_err(|error: String| unreadable("pause", error))?,
        since,
        who: who.unwrap_or_default(),
        reason,
    })
}

async fn apply(pool: &PgPool, change: &PauseChange) -> Result<PauseOutcome, Failure> {
    let target = &change.target;
    let mut transaction = pool.begin().await?;
    sqlx::query(sql::RAISE_PAUSES)
        .execute(&mut *transaction)
        .await?;
    let (mode, since, who, reason, is_there, many): HeldColumns = sqlx::query_as(sql::FIND_PAUSE)
        .bind(target.scope())
        .bind(target.target())
        .fetch_one(&mut *transaction)
        .await?;
    let before = match (mode, since) {
        (Some(mode), Some(Time(since))) => Some(pause(target.clone(), &mode, since, who, reason)?),
        _ => None,
    };
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
    let after = write(&mut transaction, change).await?;
    let entry = change.audit(before.as_ref(), after.as_ref());
    let parameters: PgArguments = audit::parameters(&[entry])?;
    sqlx::query_with(sql::ADD_AUDIT, parameters)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(PauseOutcome::Stored { before, after })
}

/// What is held of the target from then on.
async fn write(
    transaction: &mut PgTransaction<'_>,
    change: &PauseChange,
) -> Result<Option<Pause>, Failure> {
    let target = &change.target;
    let Some(mode) = change.mode else {
        sqlx::query(sql::REMOVE_PAUSE)
            .bind(target.scope())
            .bind(target.target())
            .bind(i64::from(MAX_RESUMED))
            .execute(&mut **transaction)
            .await?;
        return Ok(None);
    };
    let Time(since) = sqlx::query_scalar(sql::ADD_PAUSE)
        .bind(target.scope())
        .bind(target.target())
        .bind(mode.as_str())
        .bind(&change.who.name)
        .bind(change.reason.as_deref())
        .fetch_one(&mut **transaction)
        .await?;
    Ok(Some(Pause {
        target: target.clone(),
        mode,
        since,
        who: change.who.name.clone(),
        reason: change.reason.clone(),
    }))
}
