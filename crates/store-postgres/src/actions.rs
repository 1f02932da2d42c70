//! Actions and their policies.

use async_trait::async_trait;
use attune_core::{
    Action, ActionId, ActionPolicy, ActionRef, ActionSpec, PartitionId, PolicyTarget,
};
use attune_store::{ActionStore, Actor, Applied, PolicyChange, StoreError, audit_of_apply};
use sqlx::postgres::{PgPool, PgTransaction};

use crate::failure::{Failure, unreadable};
use crate::partitions::place;
use crate::policies::NewVersion;
use crate::sessions::Purpose;
use crate::time::Time;
use crate::{PostgresStore, audit, sql, text};

/// id, partition, version, spec.
pub(crate) type ActionColumns = (i64, i32, i64, String);

#[async_trait]
impl ActionStore for PostgresStore {
    async fn apply_action(
        &self,
        spec: &ActionSpec,
        partition_count: u16,
        changed_by: &str,
    ) -> Result<Applied, StoreError> {
        let wanted = Wanted::new(spec, partition_count, &changed_by.into());
        let pool = self.db.general();
        let applied = self
            .db
            .run(Purpose::General, async move { apply(&pool, wanted).await });
        let applied = applied.await?;
        applied.ok_or_else(|| StoreError::Conflict("the policy set has changed".to_owned()))
    }

    async fn find_action(&self, action_ref: &ActionRef) -> Result<Option<Action>, StoreError> {
        let refs = vec![action_ref.to_string()];
        let pool = self.db.key();
        self.db
            .run(
                Purpose::Key,
                async move { Ok(by_ref(&pool, refs).await?.pop()) },
            )
            .await
    }

    async fn list_actions(
        &self,
        after: Option<&ActionRef>,
        limit: u32,
    ) -> Result<Vec<Action>, StoreError> {
        let after = after.map_or_else(String::new, ActionRef::to_string);
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let rows: Vec<ActionColumns> = sqlx::query_as(sql::LIST_ACTIONS)
                    .bind(after)
                    .bind(i64::from(limit))
                    .fetch_all(&pool)
                    .await?;
                rows.into_iter().map(action).collect()
            })
            .await
    }

    async fn policy_changes(&self, action: ActionId) -> Result<Vec<PolicyChange>, StoreError> {
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let rows: Vec<(i64, String, String, Time)> = sqlx::query_as(sql::POLICY_CHANGES)
                    .bind(action.0)
                    .fetch_all(&pool)
                    .await?;
                rows.into_iter()
                    .map(|(version, policy, changed_by, Time(changed_at))| {
                        let policy: ActionPolicy = serde_json::from_str(&policy)
                            .map_err(|error| unreadable("policy", error))?;
                        Ok(PolicyChange {
                            version,
                            policy,
                            changed_by,
                            changed_at,
                        })
                    })
                    .collect()
            })
            .await
    }
}

/// The actions with these refs, in no order.
pub(crate) async fn by_ref(pool: &PgPool, refs: Vec<String>) -> Result<Vec<Action>, Failure> {
    if refs.is_empty() {
        return Ok(Vec::new());
    }
    let rows: Vec<ActionColumns> = sqlx::query_as(sql::ACTIONS_BY_REF)
        .bind(refs)
        .fetch_all(pool)
        .await?;
    rows.into_iter().map(action).collect()
}

/// An action of its row.
pub(crate) fn action((id, partition, version, spec): ActionColumns) -> Result<Action, Failure> {
    Ok(Action {
        id: ActionId(id),
        partition: place(partition),
        version,
        spec: serde_json::from_str(&spec)
            .map_err(|error| unreadable(&format!("action (id {id})"), error))?,
    })
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
            changed_by: Actor {
                name: text::text(changed_by).into_owned(),
                ..changed_by.clone()
            },
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
pub(crate) async fn apply(pool: &PgPool, wanted: Wanted) -> Result<Option<Applied>, Failure> {
    let mut transaction = pool.begin().await?;
    let set_version: i64 = sqlx::query_scalar(sql::SHARE_POLICIES)
        .fetch_one(&mut *transaction)
        .await?;
    if wanted.under.is_some_and(|under| under != set_version) {
        return Ok(None);
    }
    let mut found = lock(&mut transaction, &wanted.spec.action_ref).await?;
    if found.is_none() {
        if let Some(created) = create(&mut transaction, &wanted).await? {
            note(&mut transaction, None, &wanted).await?;
            transaction.commit().await?;
            return Ok(Some(created));
        }
        // Somebody else was faster, and has committed by now.
        found = lock(&mut transaction, &wanted.spec.action_ref).await?;
    }
    let Some((id, partition, version, stored)) = found else {
        return Err(Failure::Store(StoreError::Conflict(format!(
            "action {} was removed while it was applied",
            wanted.spec.action_ref
        ))));
    };
    // What cannot be read, because somebody has changed it by hand, is mended by being applied again.
    let stored: Option<ActionSpec> = serde_json::from_str(&stored).ok();
    let changed = stored.as_ref() != Some(&wanted.spec);
    let mut action = Action {
        id: ActionId(id),
        partition: place(partition),
        version,
        spec: wanted.spec.clone(),
    };
    if changed {
        action.version = sqlx::query_scalar(sql::CHANGE_ACTION)
            .bind(action.id.0)
            .bind(to_json(&wanted.spec))
            .fetch_one(&mut *transaction)
            .await?;
        if stored
            .as_ref()
            .is_none_or(|it| it.policy != wanted.spec.policy)
        {
            add_policy(&mut transaction, &wanted).await?;
        }
        note(&mut transaction, stored.as_ref(), &wanted).await?;
    }
    transaction.commit().await?;
    Ok(Some(Applied {
        action,
        created: false,
        changed,
    }))
}

/// Writes down that somebody has applied it. What the system applies by itself is asked for by nobody.
async fn note(
    transaction: &mut PgTransaction<'_>,
    before: Option<&ActionSpec>,
    wanted: &Wanted,
) -> Result<(), Failure> {
    if wanted.under.is_none() {
        return Ok(());
    }
    let entry = audit_of_apply(before, &wanted.spec, &wanted.changed_by);
    sqlx::query_with(sql::ADD_AUDIT, audit::parameters(&[entry])?)
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

/// Creates the action; nothing when it exists by now.
async fn create(
    transaction: &mut PgTransaction<'_>,
    wanted: &Wanted,
) -> Result<Option<Applied>, Failure> {
    let pack = wanted.spec.action_ref.pack();
    sqlx::query(sql::MAKE_PACK)
        .bind(pack)
        .execute(&mut **transaction)
        .await?;
    let id: Option<i64> = sqlx::query_scalar(sql::MAKE_ACTION)
        .bind(wanted.spec.action_ref.as_str())
        .bind(pack)
        .bind(i32::from(wanted.partition.0))
        .bind(to_json(&wanted.spec))
        .fetch_optional(&mut **transaction)
        .await?;
    let Some(id) = id else { return Ok(None) };
    add_policy(transaction, wanted).await?;
    Ok(Some(Applied {
        action: Action {
            id: ActionId(id),
            partition: wanted.partition,
            version: 1,
            spec: wanted.spec.clone(),
        },
        created: true,
        changed: true,
    }))
}

pub(crate) async fn lock(
    transaction: &mut PgTransaction<'_>,
    action_ref: &ActionRef,
) -> Result<Option<ActionColumns>, Failure> {
    let row = sqlx::query_as(sql::LOCK_ACTION)
        .bind(action_ref.as_str())
        .fetch_optional(&mut **transaction)
        .await?;
    Ok(row)
}

async fn add_policy(transaction: &mut PgTransaction<'_>, wanted: &Wanted) -> Result<(), Failure> {
    let target = PolicyTarget::Action(wanted.spec.action_ref.clone());
    let version = NewVersion {
        target: &target,
        spec: Some(to_json(&wanted.spec.policy)),
        who: &wanted.changed_by,
        set_version: None,
        reason: None,
    };
    version.add(transaction).await?;
    Ok(())
}

pub(crate) fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("specs and policies have only string keys")
}
