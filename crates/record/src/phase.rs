//! How far something is that is recorded more than once, how a try ended, who went for whom, what
//! an execution demands from then on, and what is in force.

use attune_core::policy::TryEnd;
use attune_core::{
    ActionId, Attempt, Demand, Epoch, ExecutionId, GroupKey, OrderRule, PartitionId,
};
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

/// The times within which promises are kept, as an executor was configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeBounds {
    /// How many partitions there are.
    pub partitions: u16,
    /// How long a partition stays with an owner that is gone.
    pub lease_ttl_ms: u64,
    /// How long the slots of a worker stay with it when it is gone,
    pub worker_ttl_ms: u64,
    /// and how long beyond that they are not given to others.
    pub worker_grace_ms: u64,
    /// When.
    pub t_ns: i64,
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

/// How often executions may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateInForce {
    /// How many.
    pub max: u32,
    /// In any stretch of so many milliseconds.
    pub window_ms: i64,
    /// The mark of the rule that says for whom starts are counted; 0 where they are for all together.
    pub mark: i64,
}

/// As what a quota has counted an acceptance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaInForce {
    /// When its window began, in milliseconds since 1970.
    pub window: i64,
    /// When that ends, likewise.
    pub until: i64,
    /// How many may be accepted in it.
    pub max: u32,
    /// As for [`RateInForce::mark`], of acceptances.
    pub mark: i64,
    /// For whom it is counted.
    pub key: GroupKey,
}

/// How a try ended that is followed by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retried {
    /// How.
    pub end: TryEnd,
    /// When it may be tried again, by the owner's time, in milliseconds since 1970.
    pub not_before: i64,
    /// Whether the execution keeps its slot until then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_slot: bool,
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

/// Something that happens to a partition as its owner has it in an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfEpoch {
    /// Which partition.
    pub partition: PartitionId,
    /// In which epoch of it.
    pub epoch: Epoch,
    /// When.
    pub t_ns: i64,
}

/// An execution that has the slot ahead of which it was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedOn {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Its action.
    pub action_id: ActionId,
    /// The attempt that holds it.
    pub attempt: Attempt,
    /// The epoch of its owner.
    pub epoch: Epoch,
    /// The round, counted by the owner.
    #[serde(default)]
    pub round: u64,
    /// When.
    pub t_ns: i64,
}

/// An execution that demands something else from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupedExecution {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Its action.
    pub action_id: ActionId,
    /// What it demands.
    pub demand: Demand,
    /// The epoch of its owner.
    pub epoch: Epoch,
    /// The round, counted by the owner.
    #[serde(default)]
    pub round: u64,
    /// When.
    pub t_ns: i64,
}
