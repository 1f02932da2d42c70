//! The audit log.

use attune_core::RequestId;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// What was done by hand, or what the system found wrong with itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Rises with every entry, with gaps.
    pub id: i64,
    /// When it was done.
    pub at: DateTime<Utc>,
    /// Who did it, as far as is known.
    pub who: String,
    /// What was done, such as `slot.force_release` or `violation.order`.
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
    #[schema(value_type = Uuid)]
    pub request_id: RequestId,
    /// Whether `who` is the owner of a key (`key`), somebody on the machine whose name is as given (`local`), or
    /// Attune itself (`system`).
    #[serde(default)]
    pub actor_kind: Option<String>,
    /// The public part of the key that was shown.
    #[serde(default)]
    pub key_id: Option<String>,
    /// The address that it came from.
    #[serde(default)]
    pub source_ip: Option<String>,
    /// The way that it came: a request to the API (`http`), a command on the broker (`amqp`), a command that works
    /// on the store itself (`cli`); `process` where nobody has asked.
    #[serde(default)]
    pub via: Option<String>,
}

/// Part of the audit log, the newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditList {
    /// The entries.
    pub entries: Vec<AuditEntry>,
    /// What `before` of the next request must be; `null` at the end.
    pub next: Option<i64>,
}

/// What a look at the whole chain of the audit log has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditCheck {
    /// Whether nothing is wrong.
    pub whole: bool,
    /// What is wrong.
    pub problem: Option<String>,
    /// The link that is not what it was; what follows was not looked at.
    pub broken_at: Option<i64>,
    /// Entries that are as they were written.
    pub entries: u64,
    /// The number of the first link with an entry; those before were removed by age.
    pub first: Option<i64>,
    /// The number of the last link.
    pub head: Option<i64>,
    /// Its hash, in hexadecimal digits.
    pub head_hash: Option<String>,
}
