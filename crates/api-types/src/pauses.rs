//! What operators hold.

use attune_core::PauseMode;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{InForce, words};

/// Something that operators hold: nothing is granted from the queues that it covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PauseView {
    /// `action`, `pack` or `all`.
    pub scope: String,
    /// The action's ref or the pack; `null` for all.
    pub target: Option<String>,
    /// How.
    #[schema(value_type = words::PauseMode)]
    pub mode: PauseMode,
    /// Since when.
    pub since: DateTime<Utc>,
    /// Who said so, as far as is known.
    pub who: String,
    /// Why, in the words of who said so.
    pub reason: Option<String>,
}

/// An operator holds queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// How.
    #[schema(value_type = words::PauseMode)]
    pub mode: PauseMode,
    /// Why, for the audit log and everybody who looks at the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub reason: Option<String>,
    /// Who asks; nobody checks it as long as there is no authentication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub who: Option<String>,
}

/// The answer to holding queues or resuming them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PauseApplied {
    /// As it was held before; `null` when it was not.
    pub before: Option<PauseView>,
    /// As it is held now; `null` when it is not.
    pub now: Option<PauseView>,
    /// Other pauses that cover it: it is held as long as one of them is.
    pub also_held_by: Vec<PauseView>,
    /// Whether it is in force in every partition concerned.
    pub applied: InForce,
    /// Why it is not in force everywhere yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_reason: Option<String>,
}

/// Everything that operators hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PauseList {
    /// Rises with every change.
    pub version: i64,
    /// What is held, by scope and target.
    pub pauses: Vec<PauseView>,
}
