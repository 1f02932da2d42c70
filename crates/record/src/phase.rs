//! How far something is that is recorded more than once, how a try ended, and who went for whom.

use attune_core::policy::TryEnd;
use attune_core::{ExecutionId, OrderRule};
use serde::{Deserialize, Serialize};

/// Where a role of a process stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessPhase {
    /// It begins.
    Began,
    /// It is told to stop, and brings what it does to an end.
    Stopping,
    /// It has ended well: nothing that it recorded is lost.
    Ended,
}

/// Where a fault stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultPhase {
    /// It is made. A fault that is over at once, like a kill, has no other phase.
    Begin,
    /// It is made good.
    End,
}

/// How a try ended that is followed by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retried {
    /// How.
    pub end: TryEnd,
    /// When it may be tried again, by the owner's time, in milliseconds since 1970.
    pub not_before: i64,
}

/// How an execution has ended in whose place another one was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GoneBy {
    /// The queue was full.
    Dropped,
    /// The other one is of its group.
    Replaced,
}

/// In whose place another one was accepted, in the same round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gone {
    /// Why.
    pub by: GoneBy,
    /// The other one.
    pub newcomer: ExecutionId,
    /// By what the executions of the action stood in line then.
    pub order: OrderRule,
}
