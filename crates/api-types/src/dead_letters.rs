//! Messages that nobody could use.

use attune_core::{ExecutionId, Status};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::words;

/// A message that nobody could use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadLetter {
    /// Rises with every message that comes for the first time, with gaps.
    pub id: i64,
    /// Names the message.
    pub message_id: Uuid,
    /// Why nobody could use it, the last time it came.
    pub reason: String,
    /// Where it came from, the last time it came: the routing key under which it goes back.
    pub source: String,
    /// How long the message was, in bytes.
    pub bytes: u64,
    /// Whether only its beginning is kept, so that it cannot be put back.
    pub truncated: bool,
    /// How often it has come.
    pub arrivals: u64,
    /// When it came last.
    pub received_at: DateTime<Utc>,
    /// When it was put back, unless it has come again since.
    pub requeued_at: Option<DateTime<Utc>>,
    /// Who put it back.
    pub requeued_by: Option<String>,
    /// Who had sent it, the last time it came: the user of the broker, where it vouches for one. Of a firing
    /// that was read and refused, `requested_by` in its body says it.
    #[serde(default)]
    pub sender: Option<String>,
    /// What is kept of the message; left out of lists unless it is asked for. Bytes that are no
    /// UTF-8 show as U+FFFD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub body: Option<String>,
}

/// Part of the dead letters; those that came last stand first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadLetterList {
    /// The letters.
    pub dead_letters: Vec<DeadLetter>,
    /// What `before` of the next request must be; `null` at the end.
    pub next: Option<i64>,
}

/// An operator puts a dead letter back.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RequeueRequest {
    /// Why, for the audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub reason: Option<String>,
    /// Who asks; nobody checks it as long as there is no authentication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub who: Option<String>,
    /// What `arrivals` of the letter said when it was looked at: if it has come again since, with
    /// perhaps another reason and body, nothing is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub arrivals: Option<u64>,
}

/// A dead letter that was put back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Requeued {
    /// Which letter.
    pub id: i64,
    /// Whether the message was published as it came: always.
    pub published: bool,
    /// Always empty: an earlier release ran the executions of a dispatch again.
    pub executions: Vec<RequeuedExecution>,
}

/// An execution whose dispatch was a dead letter of an earlier release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RequeuedExecution {
    /// Which execution.
    #[schema(value_type = i64)]
    pub requeue_of: ExecutionId,
    /// The execution that runs it again; `null` when it has not ended, or is not kept any more,
    /// so that nothing was to be done.
    #[schema(value_type = Option<i64>)]
    pub id: Option<ExecutionId>,
    /// Where the new one stands, or the old one when there is no new one; `null` when it is not
    /// kept any more.
    #[schema(value_type = Option<words::Status>)]
    pub status: Option<Status>,
}
