//! What is recorded of bulk operations.

use attune_core::{
    ActionId, Epoch, ExecutionId, OperationFilter, OperationId, OperationKind, OperationProgress,
    PartitionId, Priority, RequestId,
};
use serde::{Deserialize, Serialize};

/// An execution that waits and stands elsewhere, because an operator said so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedExecution {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Its action.
    pub action_id: ActionId,
    /// Its priority from then on.
    pub priority: Priority,
    /// Whether it goes before all others of its action.
    pub front: bool,
    /// The epoch of its owner.
    pub epoch: Epoch,
    /// The round, counted by the owner.
    #[serde(default)]
    pub round: u64,
    /// When.
    pub t_ns: i64,
}

/// A page of an operation, as the owner of a partition carried it out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operated {
    /// Which operation.
    pub operation: OperationId,
    /// What it does.
    pub what: String,
    /// Where.
    pub partition: PartitionId,
    /// How far it is there from then on.
    pub progress: OperationProgress,
    /// To which executions it was done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<ExecutionId>,
    /// Which it was about, with nothing to be done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<ExecutionId>,
    /// The epoch of its owner.
    pub epoch: Epoch,
    /// The round, counted by the owner.
    #[serde(default)]
    pub round: u64,
    /// When.
    pub t_ns: i64,
}

/// An operation that the API is asked for, before it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationAsked {
    /// Names the request.
    pub request_id: RequestId,
    /// What it does.
    pub what: OperationKind,
    /// To which executions.
    pub filter: OperationFilter,
    /// When.
    pub t_ns: i64,
}

/// What the API says of an operation that is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationTold {
    /// Which operation.
    pub operation: OperationId,
    /// Names the request.
    pub request_id: RequestId,
    /// How many partitions it was about.
    pub partitions: u32,
    /// How many executions it was about were found.
    pub matched: u64,
    /// To how many of these it was done.
    pub done: u64,
    /// When.
    pub t_ns: i64,
}
