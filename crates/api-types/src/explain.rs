//! Why an execution does not run yet.

use attune_core::explain::{Estimate, NoEstimate, OrderKey, Reason};
use attune_core::{Attempt, ExecutionId, Priority, Status};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{PauseView, words};

/// Why an execution does not run yet, as the owner of its queue says it by what it gives slots by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExplainView {
    /// Its id.
    #[schema(value_type = i64)]
    pub id: ExecutionId,
    /// The action's ref.
    pub action_ref: String,
    /// Where it stands.
    #[schema(value_type = words::Status)]
    pub status: Status,
    /// The same for its queue.
    pub state: ExplainState,
    /// How often it has held a slot, the one that it holds among them.
    #[schema(value_type = i32)]
    pub attempt: Attempt,
    /// Its priority.
    #[schema(value_type = words::Priority)]
    pub priority: Priority,
    /// When this was so.
    pub at: DateTime<Utc>,
    /// What it waits for, in words for people.
    pub waits: String,
    /// What keeps it from a slot, all of it: when none of this is left, it has one.
    #[schema(value_type = Vec<words::Reason>)]
    pub waits_for: Vec<Reason>,
    /// What operators hold that covers it.
    pub pauses: Vec<PauseView>,
    /// Before this time it is given no slot, whatever is free.
    pub next_time: Option<DateTime<Utc>>,
    /// It ends as expired when it has no slot by then; `null` of one that has held a slot, or whose queue is
    /// held.
    pub expires_at: Option<DateTime<Utc>>,
    /// How many wait before it in the order of its queue; `null` when it does not wait for a slot.
    pub position: Option<u64>,
    /// So many wait before it that not all of them were looked at: `position` and every `ahead` are about
    /// right.
    pub is_about: bool,
    /// Where it stands in the order of its queue.
    #[schema(value_type = Option<words::OrderKey>)]
    pub order_key: Option<OrderKey>,
    /// When it is given a slot, in words for people; `null` where it waits for none.
    pub starts: Option<String>,
    /// When it is given a slot, as far as can be told.
    #[schema(value_type = Option<words::Estimate>)]
    pub estimate: Option<Estimate>,
    /// Why that cannot be told.
    #[schema(value_type = Option<words::NoEstimate>)]
    pub no_estimate: Option<NoEstimate>,
    /// The version of the policy documents by which its owner decides; 0 before the first, `null` when it has
    /// ended, or its owner is of a release that does not say it.
    pub policy_version: Option<i64>,
    /// Whose limit holds it back: `action`. `null` when none does.
    pub limit_scope: Option<String>,
}

/// Where an execution stands for its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExplainState {
    /// It may not have a slot before a time.
    Delayed,
    /// It waits for a slot.
    Waiting,
    /// It holds a slot.
    HoldsSlot,
    /// It is over.
    Ended,
    /// Something that a later release knows.
    #[serde(other)]
    Other,
}
