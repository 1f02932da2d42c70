//! Actions and their policies.

use async_trait::async_trait;
use attune_core::{Action, ActionId, ActionPolicy, ActionRef, ActionSpec, RequestId};
use chrono::{DateTime, Utc};
use serde_json::json;

use crate::actor::Actor;
use crate::audit::{NewAudit, What};
use crate::error::StoreError;

/// What applying an action did.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// The action as it is now.
    pub action: Action,
    /// Whether it did not exist before.
    pub created: bool,
    /// Whether anything changed.
    pub changed: bool,
}

/// One version of an action's policy.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyChange {
    /// Rises by one with each change.
    pub version: i64,
    /// The policy from then on.
    pub policy: ActionPolicy,
    /// Who changed it.
    pub changed_by: String,
    /// When.
    pub changed_at: DateTime<Utc>,
}

/// What the API asks about actions.
#[async_trait]
pub trait ActionStore: Send + Sync {
    /// Creates the action or changes it to `spec`; its policy is kept as a new version, with
    /// who changed it. `partition_count` fixes the partition of a new action.
    ///
    /// # Errors
    /// When the store fails.
    async fn apply_action(
        &self,
        spec: &ActionSpec,
        partition_count: u16,
        changed_by: &str,
    ) -> Result<Applied, StoreError>;

    /// The action with this ref.
    ///
    /// # Errors
    /// When the store fails.
    async fn find_action(&self, action_ref: &ActionRef) -> Result<Option<Action>, StoreError>;

    /// Up to `limit` actions by ref, after `after`.
    ///
    /// # Errors
    /// When the store fails.
    async fn list_actions(
        &self,
        after: Option<&ActionRef>,
        limit: u32,
    ) -> Result<Vec<Action>, StoreError>;

    /// The versions of an action's policy, the newest first.
    ///
    /// # Errors
    /// When the store fails.
    async fn policy_changes(&self, action: ActionId) -> Result<Vec<PolicyChange>, StoreError>;
}

/// The entry in the audit log for an action that somebody has created or changed. It names the variables of the
/// action and not their values, which may be secrets, and leaves the schema of its parameters out, which may be
/// long; `attune.policy` has every version of the policy.
pub fn audit_of_apply(before: Option<&ActionSpec>, after: &ActionSpec, who: &Actor) -> NewAudit {
    let shown = |spec: &ActionSpec| {
        json!({
            "run": spec.run,
            "pool": spec.pool,
            "env": spec.env.keys().collect::<Vec<_>>(),
            "timeout_seconds": spec.timeout_seconds,
            "policy": spec.policy,
        })
    };
    NewAudit {
        request_id: RequestId::fresh(),
        who: who.clone(),
        what: What::ActionApply,
        target: after.action_ref.to_string(),
        reason: None,
        before: before.map(shown),
        after: Some(shown(after)),
    }
}
