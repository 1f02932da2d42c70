//! Who is there.

use attune_core::{Epoch, OwnerId, PartitionId, WorkerId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Who is there: executors, the partitions they own, workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cluster {
    /// The executors, by name.
    pub executors: Vec<ExecutorView>,
    /// Every partition, in order.
    pub partitions: Vec<PartitionView>,
    /// The workers that were seen within a day, by name; those that live, where there are too many.
    pub workers: Vec<WorkerView>,
    /// How many workers are not shown, because there are too many; absent when all are.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub workers_left_out: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// An executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecutorView {
    /// Its id, fresh at every start of the process.
    #[schema(value_type = Uuid)]
    pub id: OwnerId,
    /// Its name.
    pub name: String,
    /// How many partitions it owns.
    pub partitions: u32,
    /// How long the longest of its leases still holds, in milliseconds.
    pub lease_remaining_ms: u64,
    /// Whether it says that it cannot reach the message broker: its partitions go to executors that
    /// can.
    #[serde(default)]
    pub cut_off: bool,
}

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartitionView {
    /// Which.
    #[schema(value_type = u16)]
    pub partition: PartitionId,
    /// Who owns it; `null` when nobody does.
    #[schema(value_type = Option<Uuid>)]
    pub owner: Option<OwnerId>,
    /// The owner's name.
    pub owner_name: Option<String>,
    /// Rises with every change of hands.
    #[schema(value_type = i64)]
    pub epoch: Epoch,
    /// How long the lease still holds, in milliseconds.
    pub lease_remaining_ms: u64,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerView {
    /// Its id, fresh at every start of the process.
    #[schema(value_type = Uuid)]
    pub id: WorkerId,
    /// Its name.
    pub name: String,
    /// The pool it serves.
    pub pool: String,
    /// How many executions it runs at once.
    pub slots: u32,
    /// Whether its lease holds.
    pub alive: bool,
    /// How long its lease still holds, in milliseconds.
    pub lease_remaining_ms: u64,
    /// How long ago it gave its last sign of life, in milliseconds.
    pub seen_ago_ms: Option<u64>,
}
