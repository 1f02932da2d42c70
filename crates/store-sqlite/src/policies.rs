//! Policy documents.

use std::sync::Arc;

use async_trait::async_trait;
use attune_core::{ActionSpec, PartitionId, PolicyScope, PolicyTarget};
use attune_store::{
    Actor, Applied, DocumentChange, PolicyChanges, PolicyMark, PolicyOutcome, PolicyStore,
    PolicyVersion, StoreError, StoredPolicies,
};
use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::actions::{self, Wanted};
use crate::error::Failure;
use crate::rows::{foreign_json, json, partition, text_of, time};
use crate::store::{Inner, SqliteStore};
use crate::{audit, sql};

#[async_trait]
impl PolicyStore for SqliteStore {
    async fn policy_mark(&self) -> Result<PolicyMark, StoreError> {
        self.task(async move |inner: Arc<Inner>| mark(&mut *inner.reader().await?).await)
            .await
    }

    async fn change_policies(&self, changes: &PolicyChanges) -> Result<PolicyOutcome, StoreError> {
        let changes = changes.clone();
        self.task(async move |inner: Arc<Inner>| {
            inner
                .writer
                .transaction(move |connection| {
                    Box::pin(async move { change(connection, &changes).await })
                })
                .await
        })
        .await
    }

    async fn apply_action_under(
        &self,
        spec: &ActionSpec,
        partition_count: u16,
        changed_by: &Actor,
        set_version: i64,
    ) -> Result<Option<Applied>, StoreError> {
        let wanted = Wanted::new(spec, partition_count, changed_by).under(set_version);
        actions::apply_action(self, wanted).await
    }

    async fn policy_versions(
        &self,
        target: &PolicyTarget,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<PolicyVersion>, StoreError> {
        let target = target.clone();
        self.task(async move |inner: Arc<Inner>| {
            let reader = &mut *inner.reader().await?;
            let Some(name) = stored_name(reader, &target).await? else {
                return Ok(Vec::new());
            };
            let rows = sqlx::query(sql::POLICY_VERSIONS)
                .bind(target.scope().as_str())
                .bind(name)
                .bind(before.unwrap_or(i64::MAX))
                .bind(limit)
                .fetch_all(reader)
                .await?;
            let rows = rows.iter();
            Ok(rows
                .map(|row| version_of(&target, row))
                .collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn policy_progress(&self) -> Result<Vec<(PartitionId, i64)>, StoreError> {
        self.task(async move |inner: Arc<Inner>| {
            let rows = sqlx::query(sql::POLICY_PROGRESS)
                .fetch_all(&mut *inner.reader().await?)
                .await?;
            let rows = rows.iter();
            let rows = rows.map(|row| {
                Ok::<_, sqlx::Error>((
                    partition(row.try_get("partition")?)?,
                    row.try_get("set_version")?,
                ))
            });
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }
}

/// The set, when it is newer.
pub(crate) async fn load(
    store: &SqliteStore,
    newer_than: Option<i64>,
) -> Result<Option<StoredPolicies>, StoreError> {
    let query = sqlx::query(sql::LOAD_POLICIES).bind(newer_than.unwrap_or(i64::MIN));
    store
        .task(async move |inner: Arc<Inner>| {
            let rows = query.fetch_all(&mut *inner.reader().await?).await?;
            Ok(set(&rows)?)
        })
        .await
}

fn set(rows: &[SqliteRow]) -> Result<Option<StoredPolicies>, sqlx::Error> {
    let Some(first) = rows.first() else {
        return Ok(None);
    };
    let mut set = StoredPolicies {
        version: first.try_get("of_set")?,
        documents: Vec::new(),
    };
    for row in rows {
        let Some(scope) = row.try_get::<Option<&str>, _>("scope")? else {
            continue;
        };
        let name: &str = row.try_get("target")?;
        let scope: Result<PolicyScope, String> = scope.parse();
        let scope = scope.map_err(|problem| sqlx::Error::Decode(problem.into()))?;
        match PolicyTarget::of(scope, name) {
            Ok(target) => set.documents.push(version_of(&target, row)?),
            // Nobody but somebody's hand writes such a row, and all others must be read.
            Err(problem) => tracing::warn!(
                policy.target = name,
                error.message = %problem,
                "a row of the table `policy` is about nothing"
            ),
        }
    }
    Ok(Some(set))
}

fn version_of(target: &PolicyTarget, row: &SqliteRow) -> Result<PolicyVersion, sqlx::Error> {
    let removed: bool = row.try_get("removed")?;
    let document = foreign_json(row.try_get("spec")?);
    Ok(PolicyVersion {
        target: target.clone(),
        version: row.try_get("version")?,
        set_version: row.try_get("set_version")?,
        document: (!removed).then_some(document),
        who: row.try_get("changed_by")?,
        at: time(row.try_get("changed_at")?)?,
        reason: row.try_get("reason")?,
    })
}

async fn mark(connection: &mut SqliteConnection) -> Result<PolicyMark, Failure> {
    let row = sqlx::query(sql::POLICY_MARK).fetch_one(connection).await?;
    Ok(PolicyMark {
        set_version: row.try_get("set_version")?,
        actions: row.try_get("actions")?,
    })
}

/// As what a target is stored: an action by its number. Nothing when there is no such action.
async fn stored_name(
    connection: &mut SqliteConnection,
    target: &PolicyTarget,
) -> Result<Option<String>, Failure> {
    match target {
        PolicyTarget::Action(action_ref) => {
            let action = actions::find(connection, action_ref).await?;
            Ok(action.map(|action| action.id.to_string()))
        }
        other => Ok(Some(other.name().to_owned())),
    }
}

/// The next version of what is said about a target.
pub(crate) struct NewVersion {
    pub(crate) scope: PolicyScope,
    /// As it is stored.
    pub(crate) target: String,
    /// As JSON; nothing when it is taken back.
    pub(crate) spec: Option<String>,
    pub(crate) who: String,
    pub(crate) set_version: Option<i64>,
    pub(crate) reason: Option<String>,
}

impl NewVersion {
    /// Stores it; its number, and when.
    pub(crate) async fn add(
        self,
        connection: &mut SqliteConnection,
    ) -> Result<(i64, DateTime<Utc>), Failure> {
        let removed = self.spec.is_none();
        let row = sqlx::query(sql::INSERT_POLICY)
            .bind(self.scope.as_str())
            .bind(self.target)
            .bind(self.spec.unwrap_or_else(|| "{}".to_owned()))
            .bind(self.who)
            .bind(self.set_version)
            .bind(self.reason)
            .bind(removed)
            .fetch_one(connection)
            .await?;
        Ok((row.try_get("version")?, time(row.try_get("changed_at")?)?))
    }
}

/// Runs in a transaction that began as a write, so nobody changes the set in between.
async fn change(
    connection: &mut SqliteConnection,
    changes: &PolicyChanges,
) -> Result<PolicyOutcome, Failure> {
    if mark(&mut *connection).await? != changes.mark {
        return Ok(PolicyOutcome::Stale);
    }
    let raised = sqlx::query(sql::RAISE_POLICIES)
        .fetch_one(&mut *connection)
        .await?;
    let set_version: i64 = raised.try_get("version")?;
    let (mut versions, mut entries) = (Vec::new(), Vec::new());
    for (target, change) in &changes.documents {
        let Some(name) = stored_name(&mut *connection, target).await? else {
            let words = format!("{target} was removed while its policy was changed");
            return Err(Failure::Store(StoreError::Conflict(words)));
        };
        let before = newest(&mut *connection, target.scope(), &name).await?;
        let after = match change {
            DocumentChange::Document(document) => Some(document.clone()),
            DocumentChange::Action(spec) => {
                if let Some(action) = actions::find(&mut *connection, &spec.action_ref).await? {
                    actions::write_spec(&mut *connection, action.id, spec).await?;
                }
                Some(serde_json::json!(spec.policy))
            }
            DocumentChange::Removed => None,
        };
        let new = NewVersion {
            scope: target.scope(),
            target: name,
            spec: after.as_ref().map(text_of),
            who: changes.who.name.clone(),
            set_version: Some(set_version),
            reason: changes.reason.clone(),
        };
        let (version, at) = new.add(&mut *connection).await?;
        entries.push(changes.audit((target, change), before, after.clone()));
        versions.push(PolicyVersion {
            target: target.clone(),
            version,
            set_version: Some(set_version),
            document: after,
            who: changes.who.name.clone(),
            at,
            reason: changes.reason.clone(),
        });
    }
    audit::note(connection, &entries).await?;
    Ok(PolicyOutcome::Stored {
        set_version,
        versions,
    })
}

async fn newest(
    connection: &mut SqliteConnection,
    scope: PolicyScope,
    name: &str,
) -> Result<Option<Value>, Failure> {
    let row = sqlx::query(sql::NEWEST_POLICY)
        .bind(scope.as_str())
        .bind(name.to_owned())
        .fetch_optional(connection)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let spec: Option<&str> = row.try_get("spec")?;
    Ok(spec.map(json).transpose()?)
}
