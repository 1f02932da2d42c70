//! Actions and their policies.

use std::sync::Arc;

use async_trait::async_trait;
use attune_core::{Action, ActionId, ActionPolicy, ActionRef, ActionSpec, PartitionId};
use attune_store::{ActionStore, Applied, PolicyChange, StoreError};
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::error::Failure;
use crate::rows::{action, json, partition, text_of, time};
use crate::sql;
use crate::store::{Inner, SqliteStore};

#[async_trait]
impl ActionStore for SqliteStore {
    async fn apply_action(
        &self,
        spec: &ActionSpec,
        partition_count: u16,
        changed_by: &str,
    ) -> Result<Applied, StoreError> {
        let (spec, changed_by) = (spec.clone(), changed_by.to_owned());
        self.task(async move |inner: Arc<Inner>| {
            inner
                .writer
                .transaction(move |connection| {
                    Box::pin(
                        async move { apply(connection, spec, partition_count, &changed_by).await },
                    )
                })
                .await
        })
        .await
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

/// Runs in a transaction that began as a write, so nobody changes the action in between.
async fn apply(
    connection: &mut SqliteConnection,
    spec: ActionSpec,
    partition_count: u16,
    changed_by: &str,
) -> Result<Applied, Failure> {
    let found = sqlx::query_as::<_, (i64, i64, i64, String)>(sql::FIND_ACTION)
        .bind(spec.action_ref.to_string())
        .fetch_optional(&mut *connection)
        .await?;
    let Some((id, place, mut version, stored)) = found else {
        return create(connection, spec, partition_count, changed_by).await;
    };
    // What cannot be read, because somebody has changed it by hand, is mended by being applied again.
    let stored: Option<ActionSpec> = serde_json::from_str(&stored).ok();
    let changed = stored.as_ref() != Some(&spec);
    if changed {
        (version,) = sqlx::query_as(sql::UPDATE_ACTION)
            .bind(id)
            .bind(text_of(&spec))
            .fetch_one(&mut *connection)
            .await?;
        if stored.is_none_or(|stored| stored.policy != spec.policy) {
            keep_policy(connection, ActionId(id), &spec.policy, changed_by).await?;
        }
    }
    Ok(Applied {
        action: Action {
            id: ActionId(id),
            partition: partition(place)?,
            version,
            spec,
        },
        created: false,
        changed,
    })
}

async fn create(
    connection: &mut SqliteConnection,
    spec: ActionSpec,
    partition_count: u16,
    changed_by: &str,
) -> Result<Applied, Failure> {
    let (action_ref, pack) = (spec.action_ref.as_str(), spec.action_ref.pack());
    let partition = PartitionId::of(action_ref, partition_count);
    sqlx::query(sql::ENSURE_PACK)
        .bind(pack.to_owned())
        .execute(&mut *connection)
        .await?;
    let (id,) = sqlx::query_as::<_, (i64,)>(sql::INSERT_ACTION)
        .bind(action_ref.to_owned())
        .bind(pack.to_owned())
        .bind(i64::from(partition.0))
        .bind(text_of(&spec))
        .fetch_one(&mut *connection)
        .await?;
    let id = ActionId(id);
    keep_policy(connection, id, &spec.policy, changed_by).await?;
    Ok(Applied {
        action: Action {
            id,
            partition,
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
    sqlx::query(sql::INSERT_POLICY)
        .bind(action.to_string())
        .bind(text_of(policy))
        .bind(changed_by.to_owned())
        .execute(connection)
        .await?;
    Ok(())
}

async fn find(
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
