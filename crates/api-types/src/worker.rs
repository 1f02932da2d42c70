//! Claims of workers that do not speak to the store themselves.

use attune_core::{Attempt, ExecutionId, WorkerId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One claim that a worker asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimItem {
    /// Which execution.
    #[schema(value_type = i64)]
    pub execution_id: ExecutionId,
    /// Which attempt of it, as it was requested.
    #[schema(value_type = i32)]
    pub attempt: Attempt,
}

/// A worker renews its lease and claims executions; with no items it only renews.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    /// The worker: a UUID, fresh at every start of the process.
    #[schema(value_type = Uuid)]
    pub worker: WorkerId,
    /// Its name for people.
    #[schema(min_length = 1, max_length = 256)]
    pub name: String,
    /// The pool it serves.
    #[schema(pattern = "^[a-z0-9_-]{1,64}$")]
    pub pool: String,
    /// How many executions it runs at once.
    #[schema(minimum = 1, maximum = 100_000)]
    pub slots: u32,
    /// How long it counts as alive from now on without another renewal.
    #[schema(minimum = 1, maximum = 300)]
    pub lease_seconds: u32,
    /// What it wants to run.
    #[serde(default)]
    #[schema(max_items = 1000)]
    pub items: Vec<ClaimItem>,
}

/// A claim that was won.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClaimedItem {
    /// Which execution.
    #[schema(value_type = i64)]
    pub execution_id: ExecutionId,
    /// Which attempt of it.
    #[schema(value_type = i32)]
    pub attempt: Attempt,
    /// Whether it was cancelled meanwhile: report it as cancelled, do not run it.
    pub cancel_requested: bool,
}

/// What a worker may run. What it asked for and is not here belongs to someone else or has ended:
/// forget it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Claims {
    /// What the worker may run.
    pub claimed: Vec<ClaimedItem>,
    /// When its lease ends unless it is renewed, in milliseconds from the renewal.
    pub lease_expires_in_ms: u64,
}

/// A worker that has nothing left to run gives its lease up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetireRequest {
    /// The worker.
    #[schema(value_type = Uuid)]
    pub worker: WorkerId,
}
