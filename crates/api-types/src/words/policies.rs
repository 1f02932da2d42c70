//! Policy documents in the words of `attune-core`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ActionPolicy, Backoff, OnLimit, Priorities, QueueBounds, TryEnd};

/// A policy document: what an operator says about all actions, a pack, an action or a user. There is one
/// for each target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyDocument {
    /// About what it is.
    pub scope: PolicyScope,
    /// The pack, the action's ref or the user; `*` is every user without a document. Left out for `global`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, min_length = 1, max_length = 256)]
    pub target: Option<String>,
    /// Scope `action`: the policy of the action, as in its file. Scope `user`: `priority.max`, the highest
    /// priority of what the user submits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<ActionPolicy>,
    /// Scopes `global` and `pack`: what actions have that do not say it themselves, field by field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_defaults: Option<ActionDefaults>,
    /// Scope `user`: what rules can ask for as `user.tier`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, min_length = 1, max_length = 256)]
    pub tier: Option<String>,
}

/// About what a policy document is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PolicyScope {
    /// Every action.
    Global,
    /// Every action of a pack.
    Pack,
    /// One action.
    Action,
    /// One user, or every user without a document.
    User,
}

/// What actions have that do not say it themselves. Only behaviour: limits are not inherited.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ActionDefaults {
    /// What becomes of executions that come when a limit is reached.
    #[serde(default, skip_serializing_if = "is_default")]
    pub concurrency: ConcurrencyDefaults,
    /// How many may wait, how long, and in which order.
    #[serde(default, skip_serializing_if = "is_default")]
    pub queue: QueueBounds,
    /// Which priority executions have, and what priorities are worth.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: Priorities,
    /// What is tried again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub retry: RetryDefaults,
}

/// What of `concurrency` is behaviour and no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConcurrencyDefaults {
    /// What becomes of an execution that comes when its limit is reached; every action that inherits it
    /// must have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_limit: Option<OnLimit>,
}

/// What is tried again of actions that do not say it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryDefaults {
    /// How often it may be tried in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_147_483_647_i64)]
    pub max_attempts: Option<u32>,
    /// Which ends of a try are tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<Vec<TryEnd>>,
    /// How long it waits before; an action with a `policy.retry` of its own has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
}

fn is_default<T: PartialEq + Default>(value: &T) -> bool {
    *value == T::default()
}
