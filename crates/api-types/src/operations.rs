//! Bulk operations, and what is asked of single executions.

use std::collections::BTreeMap;

use attune_core::{ExecutionId, OperationId, Priority, RequestId, Status};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::words;

/// Which executions an operation is about: those that everything here applies to. At least one member, or
/// `all` by itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OperationFilter {
    /// Those of this action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Those of the actions of this pack: what stands before the first dot of their refs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pack: Option<String>,
    /// Those of this user.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub user: Option<String>,
    /// Those that have all of these labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Those that have this priority when the operation comes to them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<words::Priority>)]
    pub priority: Option<Priority>,
    /// These, at most 1,000.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<i64>)]
    pub ids: Vec<ExecutionId>,
    /// Every execution.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperationName {
    /// Ends everything that waits in whole queues, by action, pack or all.
    Clear,
    /// Ends what waits, and with `include_running` asks what runs to end.
    Cancel,
    /// Gives what waits another priority; it stands there by its age.
    Reprioritise,
    /// Lets what waits go before all others of its action, in the order of acceptance.
    MoveToFront,
    /// Something that this release does not know. It is only told, and cannot be asked for.
    Unknown,
}

/// Reads a kind, and knows none that is only told.
fn that_can_be_asked_for<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<OperationName, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Asked {
        Clear,
        Cancel,
        Reprioritise,
        MoveToFront,
    }
    Ok(match Asked::deserialize(deserializer)? {
        Asked::Clear => OperationName::Clear,
        Asked::Cancel => OperationName::Cancel,
        Asked::Reprioritise => OperationName::Reprioritise,
        Asked::MoveToFront => OperationName::MoveToFront,
    })
}

/// An operator asks for a bulk operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OperationRequest {
    /// What it does.
    #[serde(deserialize_with = "that_can_be_asked_for")]
    pub kind: OperationName,
    /// To which executions.
    pub filter: OperationFilter,
    /// The priority that `reprioritise` gives, and only it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<words::Priority>)]
    pub priority: Option<Priority>,
    /// Whether `cancel`, which alone takes it, asks what runs to end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub include_running: bool,
    /// Why, for the audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub reason: Option<String>,
    /// Who asks; nobody checks it as long as there is no authentication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub who: Option<String>,
    /// Names the request: the same again under it is the same operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<uuid::Uuid>)]
    pub request_id: Option<RequestId>,
}

/// Where an operation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    /// Some partition has not brought it to its end.
    Running,
    /// It is over, and its counts are final.
    Done,
}

/// A bulk operation, and how far it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperationView {
    /// Which one.
    #[schema(value_type = i64)]
    pub id: OperationId,
    /// What it does.
    pub kind: OperationName,
    /// To which executions; empty where its kind is `unknown`.
    pub filter: OperationFilter,
    /// Why its kind is `unknown`: what is stored of it and is of a later release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// The priority that it gives, if it does.
    #[schema(value_type = Option<words::Priority>)]
    pub priority: Option<Priority>,
    /// Whether it asks what runs to end.
    pub include_running: bool,
    /// Who asked.
    pub who: String,
    /// Why.
    pub reason: Option<String>,
    /// When.
    pub created: DateTime<Utc>,
    /// Names the request.
    #[schema(value_type = uuid::Uuid)]
    pub request_id: RequestId,
    /// Where it stands.
    pub state: OperationState,
    /// In how many partitions there can be such executions.
    pub partitions: u32,
    /// In how many of them it is over.
    pub partitions_done: u32,
    /// How many executions it was about were found so far.
    pub matched: u64,
    /// To how many of these it was done; those that were asked to end are among them.
    pub done: u64,
    /// How many of these waited no longer when it came to them, or were so already.
    pub skipped: u64,
}

/// Operations, the newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperationList {
    /// They.
    pub operations: Vec<OperationView>,
    /// The `before` of the next page, if there is one.
    #[schema(value_type = Option<i64>)]
    pub next: Option<OperationId>,
}

/// What an operation would do that began now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperationPreview {
    /// How many executions it would be about.
    pub matched: u64,
}

/// An operator gives one execution another priority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PriorityRequest {
    /// Which.
    #[schema(value_type = words::Priority)]
    pub priority: Priority,
    /// Why, for the audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub reason: Option<String>,
    /// Who asks; nobody checks it as long as there is no authentication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub who: Option<String>,
}

/// An execution that has another priority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reprioritised {
    /// Which one.
    #[schema(value_type = i64)]
    pub id: ExecutionId,
    /// Its priority.
    #[schema(value_type = words::Priority)]
    pub priority: Priority,
    /// Where it stands.
    #[schema(value_type = words::Status)]
    pub status: Status,
    /// The operation that did it.
    #[schema(value_type = i64)]
    pub operation: OperationId,
}

/// How many executions wait with each priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[expect(missing_docs, reason = "the priorities are their names")]
pub struct ByPriority {
    pub critical: u64,
    pub high: u64,
    pub normal: u64,
    pub low: u64,
    pub background: u64,
}

/// All queues together, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AdminQueue {
    /// How many executions wait.
    pub depth: u64,
    /// How many hold a slot.
    pub active: u64,
    /// How many may over all actions; `null` when that is unlimited.
    pub max_concurrent: Option<u32>,
    /// How many wait, by priority.
    pub by_priority: ByPriority,
}
