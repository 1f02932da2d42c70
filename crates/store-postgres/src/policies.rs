//! Policy documents.

use async_trait::async_trait;
use attune_core::{ActionSpec, PartitionId, PolicyTarget};
use attune_store::{
    Actor, Applied, Batch, DocumentChange, PolicyChanges, PolicyMark, PolicyOutcome, PolicyStore,
    PolicyVersion, StoreError, StoredPolicies,
};
use chrono::{DateTime, Utc};
use sqlx::postgres::{PgArguments, PgPool, PgTransaction};

use crate::actions::{self, Wanted, to_json};
use crate::bind::Binds;
use crate::db::Db;
use crate::failure::{Failure, unreadable};
use crate::partitions::place;
use crate::sessions::Purpose;
use crate::time::Time;
use crate::{PostgresStore, audit, sql, text};

/// version of the set, scope, target, version, version of the set with which it was stored, what, who, when,
/// why; all but the first may be missing.
type SetColumns = (
    i64,
    Option<String>,
    Option<String>,
    Option<i64>,
    Option<i64>,
    Option<String>,
    Option<String>,
    Option<Time>,
    Option<String>,
);

/// version, version of the set, what, who, when, why, whether it was taken back.
type VersionColumns = (i64, Option<i64>, String, String, Time, Option<String>, bool);

#[async_trait]
impl PolicyStore for PostgresStore {
    async fn policy_mark(&self) -> Result<PolicyMark, StoreError> {
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let (set_version, actions) =
                    sqlx::query_as(sql::POLICY_MARK).fetch_one(&pool).await?;
                Ok(PolicyMark {
                    set_version,
                    actions,
                })
            })
            .await
    }

    async fn change_policies(&self, changes: &PolicyChanges) -> Result<PolicyOutcome, StoreError> {
        let mut changes = changes.clone();
        changes.who.name = text::text(&changes.who).into_owned();
        changes.reason = text::optional(changes.reason.as_ref()).map(String::from);
        let pool = self.db.general();
        self.db
            .run(
                Purpose::General,
                async move { change(&pool, &changes).await },
            )
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
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                actions::apply(&pool, wanted).await
            })
            .await
    }

    async fn policy_versions(
        &self,
        target: &PolicyTarget,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<PolicyVersion>, StoreError> {
        let (pool, target) = (self.db.general(), target.clone());
        self.db
            .run(Purpose::General, async move {
                let rows: Vec<VersionColumns> = sqlx::query_as(sql::POLICY_VERSIONS)
                    .bind(target.scope().as_str())
                    .bind(target.name())
                    .bind(before.unwrap_or(i64::MAX))
                    .bind(i64::from(limit))
                    .fetch_all(&pool)
                    .await?;
                let rows = rows.into_iter();
                Ok(rows.map(|columns| version_of(&target, columns)).collect())
            })
            .await
    }

    async fn policy_progress(&self) -> Result<Vec<(PartitionId, i64)>, StoreError> {
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let rows: Vec<(i32, i64)> = sqlx::query_as(sql::POLICY_PROGRESS)
                    .fetch_all(&pool)
                    .await?;
                let rows = rows.into_iter();
                Ok(rows
                    .map(|(partition, version)| (place(partition), version))
                    .collect())
            })
            .await
    }
}

/// The set, when it is newer.
pub(crate) async fn load(
    db: &Db,
    newer_than: Option<i64>,
) -> Result<Option<StoredPolicies>, StoreError> {
    let query = sqlx::query_as(sql::LOAD_POLICIES).bind(newer_than.unwrap_or(i64::MIN));
    let pool = db.general();
    db.run(Purpose::General, async move {
        set(query.fetch_all(&pool).await?)
    })
    .await
}

fn set(rows: Vec<SetColumns>) -> Result<Option<StoredPolicies>, Failure> {
    let Some(version) = rows.first().map(|row| row.0) else {
        return Ok(None);
    };
    let mut set = StoredPolicies {
        version,
        documents: Vec::new(),
    };
    for (_, scope, name, version, set_version, spec, who, at, reason) in rows {
        let (Some(scope), Some(name), Some(version), Some(spec), Some(at)) =
            (scope, name, version, spec, at)
        else {
            continue;
        };
        let scope = scope.parse();
        let target = scope.map_err(|problem: String| unreadable("policy", problem))?;
        let target = match PolicyTarget::of(target, &name) {
            Ok(target) => target,
            Err(problem) => {
                // Nobody but somebody's hand writes such a row, and all others must be read.
                tracing::warn!(
                    policy.target = name,
                    error.message = %problem,
                    "a row of `attune.policy` is about nothing"
                );
                continue;
            }
        };
        let who = who.unwrap_or_default();
        let columns = (version, set_version, spec, who, at, reason, false);
        set.documents.push(version_of(&target, columns));
    }
    Ok(Some(set))
}

fn version_of(target: &PolicyTarget, columns: VersionColumns) -> PolicyVersion {
    let (version, set_version, spec, who, Time(at), reason, removed) = columns;
    let document = text::value(spec);
    PolicyVersion {
        target: target.clone(),
        version,
        set_version,
        document: (!removed).then_some(document),
        who,
        at,
        reason,
    }
}

/// The next version of what is said about a target.
pub(crate) struct NewVersion<'a> {
    pub(crate) target: &'a PolicyTarget,
    /// As JSON; nothing when it is taken back.
    pub(crate) spec: Option<String>,
    pub(crate) who: &'a str,
    pub(crate) set_version: Option<i64>,
    pub(crate) reason: Option<&'a str>,
}

impl NewVersion<'_> {
    /// Stores it; its number, and when.
    pub(crate) async fn add(
        self,
        transaction: &mut PgTransaction<'_>,
    ) -> Result<(i64, DateTime<Utc>), Failure> {
        let removed = self.spec.is_none();
        let (version, Time(at)) = sqlx::query_as(sql::ADD_POLICY)
            .bind(self.target.scope().as_str())
            .bind(self.target.name())
            .bind(self.spec.unwrap_or_else(|| "{}".to_owned()))
            .bind(self.who)
            .bind(self.set_version)
            .bind(self.reason)
            .bind(removed)
            .fetch_one(&mut **transaction)
            .await?;
        Ok((version, at))
    }
}

async fn change(pool: &PgPool, changes: &PolicyChanges) -> Result<PolicyOutcome, Failure> {
    let mut transaction = pool.begin().await?;
    let set_version: i64 = sqlx::query_scalar(sql::RAISE_POLICIES)
        .fetch_one(&mut *transaction)
        .await?;
    let (_, actions): (i64, i64) = sqlx::query_as(sql::POLICY_MARK)
        .fetch_one(&mut *transaction)
        .await?;
    let now = PolicyMark {
        set_version: set_version - 1,
        actions,
    };
    if now != changes.mark {
        return Ok(PolicyOutcome::Stale);
    }
    let (mut versions, mut entries) = (Vec::new(), Vec::new());
    for (target, change) in &changes.documents {
        let before: Option<Option<String>> = sqlx::query_scalar(sql::NEWEST_POLICY)
            .bind(target.scope().as_str())
            .bind(target.name())
            .fetch_optional(&mut *transaction)
            .await?;
        let before = before.flatten().map(text::value);
        let after = match change {
            DocumentChange::Document(document) => Some(document.clone()),
            DocumentChange::Action(spec) => {
                change_action(&mut transaction, spec).await?;
                Some(serde_json::json!(spec.policy))
            }
            DocumentChange::Removed => None,
        };
        let new = NewVersion {
            target,
            spec: after.as_ref().map(to_json),
            who: &changes.who,
            set_version: Some(set_version),
            reason: changes.reason.as_deref(),
        };
        let (version, at) = new.add(&mut transaction).await?;
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
    let parameters: PgArguments = audit::parameters(&entries)?;
    sqlx::query_with(sql::ADD_AUDIT, parameters)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(PolicyOutcome::Stored {
        set_version,
        versions,
    })
}

async fn change_action(
    transaction: &mut PgTransaction<'_>,
    spec: &ActionSpec,
) -> Result<(), Failure> {
    let Some((id, ..)) = actions::lock(transaction, &spec.action_ref).await? else {
        return Err(Failure::Store(StoreError::Conflict(format!(
            "action {} was removed while its policy was changed",
            spec.action_ref
        ))));
    };
    sqlx::query(sql::CHANGE_ACTION)
        .bind(id)
        .bind(to_json(spec))
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

/// The parameters for the versions by which partitions decide after a batch, if any is new.
pub(crate) fn progress(batch: &Batch) -> Result<Option<PgArguments>, StoreError> {
    if batch.policies.is_empty() {
        return Ok(None);
    }
    let mut policies = batch.policies.clone();
    policies.sort_unstable();
    let mut binds = Binds::default();
    binds.column(&policies, |(partition, _)| i32::from(partition.0));
    binds.column(&policies, |(_, version)| *version);
    binds.finish().map(Some)
}
