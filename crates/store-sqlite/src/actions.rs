//! Actions and their policies.

use std::sync::Arc;

use async_trait::async_trait;
use attune_core::{
    Action, ActionId, ActionPolicy, ActionRef, ActionSpec, PartitionId, PolicyScope,
};
use attune_store::{ActionStore, Actor, Applied, PolicyChange, StoreError, audit_of_apply};
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::error::Failure;
use crate::policies::NewVersion;
use crate::rows::{action, json, partition, text_of, time};
use crate::store::{Inner, SqliteStore};
use crate::{audit, sql};

#[async_trait]
impl ActionStore for SqliteStore {
    async fn apply_action(
        &self,
        spec: &ActionSpec,
        partition_count: u16,
        changed_by: &str,
    ) -> Result<Applied, StoreError> {
        let wanted = Wanted::new(spec, partition_count, &changed_by.into());
        let applied = apply_action(self, wanted).await?;
        applied.ok_or_else(|| StoreError::Conflict("the policy set has changed".to_owned()))
    }

    async fn find_action(&self, action_ref: &ActionRef) -> Result<Option<Action>, StoreError> {
        let action_ref = action_ref.clone();
        self.task(async move |inner: Arc<Inner>| {
            find(&mut *inner.reader().await?, &action_ref).await
        })
        .await
    }

    async fn list_actions(
        &self,
        after: Option<&ActionRef>,
        limit: u32,
    ) -> Result<Vec<Action>, StoreError> {
        let query = sqlx::query(sql::LIST_ACTIONS)
            .bind(after.map_or_else(String::new, ActionRef::to_string))
            .bind(limit);
        self.task(async move |inner: Arc<Inner>| {
            let rows = query.fetch_all(&mut *inner.reader().await?).await?;
            Ok(rows.iter().map(action).collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn policy_changes(&self, action: ActionId) -> Result<Vec<PolicyChange>, StoreError> {
        let query = sqlx::query(sql::POLICY_CHANGES).bind(action.to_string());
        self.task(async move |inner: Arc<Inner>| {
            let rows = query.fetch_all(&mut *inner.reader().await?).await?;
            Ok(rows.iter().map(policy_change).collect::<Result<_, _>>()?)
        })
        .await
    }
}

/// What an author applies.
pub(crate) struct Wanted {
    spec: ActionSpec,
    partition: PartitionId,
    changed_by: Actor,
    /// The version of the policy set under which it was checked, if it was.
    under: Option<i64>,
}

impl Wanted {
    pub(crate) fn new(spec: &ActionSpec, partition_count: u16, changed_by: &Actor) -> Self {
        Self {
            spec: spec.clone(),
            partition: PartitionId::of(spec.action_ref.as_str(), partition_count),
            changed_by: changed_by.clone(),
            under: None,
        }
    }

    /// Only while this is the version of the policy set.
    pub(crate) fn under(mut self, set_version: i64) -> Self {
        self.under = Some(set_version);
        self
    }
}

/// Applies an action; nothing when the policy set is another one than it was checked under.
pub(crate) async fn apply_action(
    store: &SqliteStore,
    wanted: Wanted,
) -> Result<Option<Applied>, StoreError> {
    store
        .task(async move |inner: Arc<Inner>| {
            inner
                .writer
                .transaction(move |connection| {
                    Box::pin(async move { apply(connection, wanted).await })
                })
                .await
        })
        .await
}

/// Runs in a transaction that began as a write, so nobody changes the action in between.
async fn apply(
    connection: &mut SqliteConnection,
    wanted: Wanted,
) -> Result<Option<Applied>, Failure> {
    if let Some(under) = wanted.under {
        let now = sqlx::query(sql::POLICY_MARK)
            .fetch_one(&mut *connection)
            .await?;
        if now.try_get::<i64, _>("set_version")? != under {
            return Ok(None);
        }
    }
    let found = sqlx::query_as::<_, (i64, i64, i64, String)>(sql::FIND_ACTION)
        .bind(wanted.spec.action_ref.to_string())
        .fetch_optional(&mut *connection)
        .await?;
    let Some((id, place, mut version, stored)) = found else {
        let noted = wanted
            .under
            .map(|_| audit_of_apply(None, &wanted.spec, &wanted.changed_by));
        let created = create(connection, wanted).await?;
        audit::note(connection, noted.as_slice()).await?;
        return Ok(Some(created));
    };
    let spec = wanted.spec;
    // What cannot be read, because somebody has changed it by hand, is mended by being applied again.
    let stored: Option<ActionSpec> = serde_json::from_str(&stored).ok();
    let changed = stored.as_ref() != Some(&spec);
    if changed {
        version = write_spec(connection, ActionId(id), &spec).await?;
        if stored.as_ref().is_none_or(|it| it.policy != spec.policy) {
            keep_policy(connection, ActionId(id), &spec.policy, &wanted.changed_by).await?;
        }
        // What the system applies by itself is asked for by nobody.
        if wanted.under.is_some() {
            let entry = audit_of_apply(stored.as_ref(), &spec, &wanted.changed_by);
            audit::note(connection, &[entry]).await?;
        }
    }
    Ok(Some(Applied {
        action: Action {
            id: ActionId(id),
            partition: partition(place)?,
            version,
            spec,
        },
        created: false,
        changed,
    }))
}

/// Writes another spec of an action; its version from then on.
pub(crate) async fn write_spec(
    connection: &mut SqliteConnection,
    id: ActionId,
    spec: &ActionSpec,
) -> Result<i64, Failure> {
    let (version,) = sqlx::query_as::<_, (i64,)>(sql::UPDATE_ACTION)
        .bind(id.0)
        .bind(text_of(spec))
        .fetch_one(connection)
        .await?;
    Ok(version)
}

async fn create(connection: &mut SqliteConnection, wanted: Wanted) -> Result<Applied, Failure> {
    let spec = wanted.spec;
    let (action_ref, pack) = (spec.action_ref.as_str(), spec.action_ref.pack());
    sqlx::query(sql::ENSURE_PACK)
        .bind(pack.to_owned())
        .execute(&mut *connection)
        .await?;
    let (id,) = sqlx::query_as::<_, (i64,)>(sql::INSERT_ACTION)
        .bind(action_ref.to_owned())
        .bind(pack.to_owned())
        .bind(i64::from(wanted.partition.0))
        .bind(text_of(&spec))
        .fetch_one(&mut *connection)
        .await?;
    let id = ActionId(id);
    keep_policy(connection, id, &spec.policy, &wanted.changed_by).await?;
    Ok(Applied {
        action: Action {
            id,
            partition: wanted.partition,
            version: 1,
            spec,
        },
        created: true,
        changed: true,
    })
}

async fn keep_policy(
    connection: &mut SqliteConnection,
    action: ActionId,
    policy: &ActionPolicy,
    changed_by: &str,
) -> Result<(), Failure> {
    let version = NewVersion {
        scope: PolicyScope::Action,
        target: action.to_string(),
        spec: Some(text_of(policy)),
        who: changed_by.to_owned(),
        set_version: None,
        reason: None,
    };
    version.add(connection).await?;
    Ok(())
}

pub(crate) async fn find(
    connection: &mut SqliteConnection,
    action_ref: &ActionRef,
) -> Result<Option<Action>, Failure> {
    let row = sqlx::query(sql::FIND_ACTION)
        .bind(action_ref.to_string())
        .fetch_optional(connection)
        .await?;
    Ok(row.as_ref().map(action).transpose()?)
}

fn policy_change(row: &SqliteRow) -> Result<PolicyChange, sqlx::Error> {
    Ok(PolicyChange {
        version: row.try_get("version")?,
        policy: json(row.try_get("spec")?)?,
        changed_by: row.try_get("changed_by")?,
        changed_at: time(row.try_get("changed_at")?)?,
    })
}
