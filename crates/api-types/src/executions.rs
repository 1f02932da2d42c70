//! Executions.

use std::collections::BTreeMap;

use attune_core::{ActionId, Attempt, ExecutionId, Priority, RequestId, Status, WorkerId};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::errors::ErrorBody;
use crate::words;

/// Everything that is known about an execution. Lists leave out `parameters`, `result`, `stdout`
/// and `stderr` unless they are asked for with `include`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Execution {
    /// Its id.
    #[schema(value_type = i64)]
    pub id: ExecutionId,
    /// Its action.
    #[schema(value_type = i64)]
    pub action_id: ActionId,
    /// The action's ref.
    pub action_ref: String,
    /// Where it stands.
    #[schema(value_type = words::Status)]
    pub status: Status,
    /// Its priority.
    #[schema(value_type = words::Priority)]
    pub priority: Priority,
    /// How often it was granted a slot.
    #[schema(value_type = i32)]
    pub attempt: Attempt,
    /// The number of its latest grant among the grants of its partition.
    pub grant_no: Option<i64>,
    /// The request that led to it.
    #[schema(value_type = Uuid)]
    pub request_id: RequestId,
    /// The rule firing that asked for it.
    pub enforcement_id: Option<String>,
    /// The user for whom it runs.
    pub requested_by: Option<String>,
    /// The key to list it by, which policies can go by.
    pub group: Option<String>,
    /// Marks that policies and bulk operations can go by.
    pub labels: BTreeMap<String, String>,
    /// What it is given; left out of lists.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "present"
    )]
    pub parameters: Option<Value>,
    /// It does not start before this time.
    pub not_before: Option<DateTime<Utc>>,
    /// Its own run timeout, in seconds.
    pub timeout_seconds: Option<u32>,
    /// Whether it shall be ended.
    pub cancel_requested: bool,
    /// Who runs or ran it.
    #[schema(value_type = Option<Uuid>)]
    pub worker: Option<WorkerId>,
    /// When it was accepted.
    pub created: DateTime<Utc>,
    /// When it was last given a slot.
    pub requested_at: Option<DateTime<Utc>>,
    /// When its worker began it.
    pub started_at: Option<DateTime<Utc>>,
    /// When its end was recorded.
    pub finished_at: Option<DateTime<Utc>>,
    /// What it returned, any JSON; `null` before its end, left out of lists.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "present"
    )]
    #[schema(value_type = Option<Value>)]
    pub result: Option<Option<Value>>,
    /// Why it was not run to its end, for programs: `DROPPED`, `REPLACED`, `EXPIRED`, `OUT_OF_MEMORY`, `TOO_MANY_PROCESSES`,
    /// `SECRET_UNAVAILABLE`, or why it was refused, such as `QUEUE_FULL`.
    #[serde(default)]
    pub end_code: Option<String>,
    /// Why it did not succeed.
    pub error: Option<String>,
    /// The exit code of its program.
    pub exit_code: Option<i32>,
    /// What its program wrote; left out of lists.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "present"
    )]
    #[schema(value_type = Option<String>)]
    pub stdout: Option<Option<String>>,
    /// What its program wrote to stderr; left out of lists.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "present"
    )]
    #[schema(value_type = Option<String>)]
    pub stderr: Option<Option<String>>,
    /// The ended execution that it runs again, after a resubmission or when a dead letter was put back.
    #[serde(default)]
    #[schema(value_type = Option<i64>)]
    pub requeue_of: Option<ExecutionId>,
    /// Why its last try ended that was followed by another.
    #[serde(default)]
    pub last_error: Option<String>,
    /// The id of the trace that it is a part of, as 32 hexadecimal digits; left out where its request named none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

/// Keeps apart what is `null` and what is not there.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// Part of the list of executions, the newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExecutionList {
    /// The executions; fewer than `limit` when more would make the answer too large.
    pub executions: Vec<Execution>,
    /// What `cursor` of the next request must be; `null` at the end.
    pub next: Option<String>,
}

/// An execution that was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Submitted {
    /// Its id.
    #[schema(value_type = i64)]
    pub id: ExecutionId,
    /// Where it stands.
    #[schema(value_type = words::Status)]
    pub status: Status,
    /// How many wait before it, while it waits.
    #[serde(default)]
    pub position: Option<u64>,
    /// Whether the same request had been accepted before.
    #[serde(default)]
    pub repeated: bool,
    /// The priority that it has: the one that was asked for, unless the policy of its action allows less,
    /// or says which one it has when none is asked for. Not of a request that had been accepted before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<words::Priority>, nullable = false)]
    pub priority: Option<Priority>,
    /// The request id under which it was accepted.
    #[schema(value_type = Uuid)]
    pub request_id: RequestId,
}

/// One item of the answer to a batch, in the place of its submission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum BatchItem {
    /// It was not accepted, or whether it was is unknown (`OUTCOME_UNKNOWN`).
    Refused(ErrorBody),
    /// It was accepted.
    Accepted(Submitted),
}

/// An execution that is being cancelled or was cancelled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cancelled {
    /// Which execution.
    #[schema(value_type = i64)]
    pub id: ExecutionId,
    /// `cancelled`, or where it stands until its worker has ended it.
    #[schema(value_type = words::Status)]
    pub status: Status,
}
