//! Actions.

use attune_core::{ActionId, ActionRef, ActionSpec, PartitionId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::words;

/// An action as the system keeps it. Lists leave out the spec's `parameters` and `env` unless they
/// are asked for with `include`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActionView {
    /// Its ref.
    #[serde(rename = "ref")]
    #[schema(value_type = String)]
    pub action_ref: ActionRef,
    /// Its number.
    #[schema(value_type = i64)]
    pub id: ActionId,
    /// The partition it belongs to.
    #[schema(value_type = u16)]
    pub partition: PartitionId,
    /// Rises with every change.
    pub version: i64,
    /// What its author wrote, with the defaults filled in.
    #[schema(value_type = words::ActionSpec)]
    pub spec: ActionSpec,
}

impl From<attune_core::Action> for ActionView {
    fn from(action: attune_core::Action) -> Self {
        Self {
            action_ref: action.spec.action_ref.clone(),
            id: action.id,
            partition: action.partition,
            version: action.version,
            spec: action.spec,
        }
    }
}

/// Part of the list of actions, by ref.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActionList {
    /// The actions; fewer than `limit` when more would make the answer too large.
    pub actions: Vec<ActionView>,
    /// What `after` of the next request must be; `null` at the end.
    #[schema(value_type = Option<String>)]
    pub next: Option<ActionRef>,
}

/// Whether a stored change is in force already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum InForce {
    /// The owner of the action's partition has taken it over; of what concerns several, all of them.
    Now,
    /// It is stored; the owner could not be told and takes it over by itself, within
    /// `executor.reconcile.interval_seconds` as long as an executor runs. Nothing is to be repeated.
    Pending,
}

/// The answer to applying an action.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActionApplied {
    /// Whether it did not exist before.
    pub created: bool,
    /// Whether anything changed.
    pub changed: bool,
    /// Whether it is in force already.
    pub applied: InForce,
    /// Why it is not in force yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_reason: Option<String>,
    /// The action as it is now.
    #[serde(flatten)]
    pub action: ActionView,
}
