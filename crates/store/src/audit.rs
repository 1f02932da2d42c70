//! What was done by hand and what the system found wrong with itself: append-only.

use std::time::Duration;

use async_trait::async_trait;
use attune_core::RequestId;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::StoreError;

/// The kinds of entries, as `what` holds them.
pub mod what {
    /// An operator took a slot from an attempt.
    pub const FORCE_RELEASE: &str = "slot.force_release";
    /// An execution was given a slot, or started, before an earlier one.
    pub const ORDER_VIOLATION: &str = "violation.order";
    /// Operators pause queues; the target is `all`, or `pack` or `action` and its name.
    pub const QUEUES_PAUSE: &str = "queues.pause";
    /// Operators drain queues; the target likewise.
    pub const QUEUES_DRAIN: &str = "queues.drain";
    /// Operators resume queues; the target likewise.
    pub const QUEUES_RESUME: &str = "queues.resume";
    /// Operators applied a policy document; the target is `global`, or `pack`, `action` or `user` and a name.
    pub const POLICY_APPLY: &str = "policy.apply";
    /// Operators took a policy document back; the target likewise.
    pub const POLICY_REMOVE: &str = "policy.remove";
    /// Operators asked for a bulk operation; the target is `operation` and its number.
    pub const OPERATION: &str = "executions.operation";
    /// More executions held a slot than the limit allows.
    pub const LIMIT_VIOLATION: &str = "violation.limit";
    /// An operator fenced off what was before a restore of the store.
    pub const RESTORE_FENCE: &str = "cluster.restore_fence";
    /// An operator is about to put a dead letter back; the target is its message id.
    pub const DEAD_LETTER_REQUEUE_BEGUN: &str = "dead_letter.requeue_begun";
    /// An operator put a dead letter back; the target is its message id.
    pub const DEAD_LETTER_REQUEUE: &str = "dead_letter.requeue";
    /// A key was made; the target is its id.
    pub const KEY_CREATE: &str = "key.create";
    /// A key took the place of another; the target is the id of the one before.
    pub const KEY_ROTATE: &str = "key.rotate";
    /// A key was revoked; the target is its id.
    pub const KEY_REVOKE: &str = "key.revoke";
}

/// Something to be written down, in the same commit as the change itself.
#[derive(Debug, Clone, PartialEq)]
pub struct NewAudit {
    /// Names the command; a second entry of the same is not written.
    pub request_id: RequestId,
    /// Who did it, as far as is known.
    pub who: String,
    /// What was done; see [`what`].
    pub what: &'static str,
    /// To what: the id of an execution, the ref of an action.
    pub target: String,
    /// Why, in the words of who did it.
    pub reason: Option<String>,
    /// What it was before.
    pub before: Option<Value>,
    /// What it is from then on.
    pub after: Option<Value>,
}

/// An entry as it is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Rises with every entry, with gaps.
    pub id: i64,
    /// When it was done.
    pub at: DateTime<Utc>,
    /// Who did it, as far as is known.
    pub who: String,
    /// What was done; see [`what`].
    pub what: String,
    /// To what: the id of an execution, the ref of an action.
    pub target: String,
    /// Why, in the words of who did it.
    pub reason: Option<String>,
    /// What it was before.
    pub before: Option<Value>,
    /// What it is from then on.
    pub after: Option<Value>,
    /// Names the command.
    pub request_id: RequestId,
}

/// The violations of one kind that were written down for one action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violations {
    /// The action's ref.
    pub action_ref: String,
    /// [`what::ORDER_VIOLATION`] or [`what::LIMIT_VIOLATION`].
    pub what: String,
    /// How many entries.
    pub entries: u64,
    /// The latest of them.
    pub last_at: DateTime<Utc>,
}

/// What the API asks about the audit log.
#[async_trait]
pub trait AuditStore: Send + Sync {
    /// Up to `limit` entries, the newest first, before the entry with the id `before`.
    ///
    /// # Errors
    /// When the store fails.
    async fn audit_log(
        &self,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, StoreError>;

    /// The violations of order and limit that were written down within the last `within` for
    /// these actions, by action and kind.
    ///
    /// # Errors
    /// When the store fails.
    async fn violations(
        &self,
        within: Duration,
        action_refs: &[String],
    ) -> Result<Vec<Violations>, StoreError>;
}
