//! Who holds slots, and taking one back.

use attune_core::{ActionRef, Attempt, ExecutionId, Status, WorkerId};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::words;

/// The holders of the slots of an action, by rising id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HolderList {
    /// The action's ref.
    #[schema(value_type = String)]
    pub action_ref: ActionRef,
    /// How many slots it has; `null` is unlimited.
    pub limit: Option<u32>,
    /// The holders.
    pub holders: Vec<Holder>,
    /// What `after` of the next request must be; `null` at the end.
    #[schema(value_type = Option<i64>)]
    pub next: Option<ExecutionId>,
}

/// Who holds a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Holder {
    /// Which execution.
    #[schema(value_type = i64)]
    pub execution_id: ExecutionId,
    /// Which attempt of it.
    #[schema(value_type = i32)]
    pub attempt: Attempt,
    /// `requested` until its worker has said that it runs, then `running`.
    #[schema(value_type = words::Status)]
    pub status: Status,
    /// Since when it holds the slot.
    pub requested_at: Option<DateTime<Utc>>,
    /// For how long that is, in milliseconds.
    pub held_ms: u64,
    /// When its worker began it; `null` until it has said so.
    pub started_at: Option<DateTime<Utc>>,
    /// Whether it shall be ended.
    pub cancel_requested: bool,
    /// Whom it was granted to.
    pub worker: Option<HolderWorker>,
}

/// The worker of a holder, as its lease shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HolderWorker {
    /// Its id.
    #[schema(value_type = Uuid)]
    pub id: WorkerId,
    /// Its name; `null` a day after its lease has ended.
    pub name: Option<String>,
    /// The pool it serves.
    pub pool: Option<String>,
    /// How long ago it gave its last sign of life, in milliseconds.
    pub seen_ago_ms: Option<u64>,
    /// How long its lease still holds, in milliseconds.
    pub lease_remaining_ms: u64,
    /// For how long it is lost, in milliseconds; its slots come back after the grace period.
    pub lost_for_ms: u64,
}

/// An operator takes the slot from an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    /// Why, for the audit log and the execution's record.
    #[schema(min_length = 1, max_length = 256)]
    pub reason: String,
    /// Only if this attempt holds the slot; otherwise whichever does now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i32>)]
    pub attempt: Option<Attempt>,
    /// Who asks; nobody checks it as long as there is no authentication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub who: Option<String>,
}

/// A slot that was taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Released {
    /// The execution that held it.
    #[schema(value_type = i64)]
    pub id: ExecutionId,
    /// The attempt that held it.
    #[schema(value_type = i32)]
    pub attempt: Attempt,
    /// `queued` when it waits for another attempt, `abandoned` or `cancelled` when it has ended.
    #[schema(value_type = words::Status)]
    pub status: Status,
}
