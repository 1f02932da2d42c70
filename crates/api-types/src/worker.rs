//! Leases of workers that do not speak to the store themselves.

use attune_core::{Attempt, ExecutionId, WorkerId, or_null};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

/// A worker says that it lives; the first time it is registered by it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseRequest {
    /// This life of the worker: a UUID, fresh at every start of the process and after every lost lease.
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
    /// It is about to stop: nothing more is granted to it.
    #[serde(default, deserialize_with = "or_null")]
    #[schema(nullable)]
    pub draining: bool,
    /// The user of the broker as whom it publishes what it has to say. Needed where the broker vouches for users
    /// (`broker.require_user_id`): what another user says in its name counts for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub broker_user: Option<String>,
}

/// The lease of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    /// When it ends unless it is renewed, in milliseconds from the renewal.
    pub lease_expires_in_ms: u64,
}

/// What a worker says that speaks HTTP alone. The call renews its lease, as [`LeaseRequest`] does.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExchangeRequest {
    /// This life of the worker: a UUID, fresh at every start of the process and after every lost lease.
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
    /// It is about to stop: nothing more is granted to it.
    #[serde(default, deserialize_with = "or_null")]
    #[schema(nullable)]
    pub draining: bool,
    /// For how long the answer may wait for sections, in milliseconds; a third of the lease at most. Without
    /// it nothing is waited for, and the answer has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 20_000)]
    pub wait_ms: Option<u32>,
    /// Ends of runs: items of `execution.completed`, whose `worker` may be left out.
    #[serde(
        default,
        deserialize_with = "or_null",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schema(value_type = Vec<Object>, nullable, max_items = 1000)]
    pub completions: Vec<Box<RawValue>>,
    /// Items of `worker.report`, each with the `owner` that it is for, 64 of them at most, and whose `worker` is
    /// left out.
    #[serde(
        default,
        deserialize_with = "or_null",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schema(value_type = Vec<Object>, nullable, max_items = 1000)]
    pub reports: Vec<Box<RawValue>>,
}

/// The lease of a worker that speaks HTTP alone, and what it is told.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Exchanged {
    /// When the lease ends unless it is renewed, in milliseconds from the renewal.
    pub lease_expires_in_ms: u64,
    /// By which way the sections come, where some were asked for. When it is not the one of the answer before,
    /// sections may be lost between the two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Uuid>,
    /// The sections that were there, in their order: items of `execution.requested`.
    #[schema(value_type = Vec<Object>)]
    pub sections: Vec<Box<RawValue>>,
}

/// A worker that has nothing left to run gives its lease up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetireRequest {
    /// The worker.
    #[schema(value_type = Uuid)]
    pub worker: WorkerId,
    /// Which of its grants have begun, of those that nobody has settled: the others cost no try. Without it all of
    /// them count as begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<Vec<GrantName>>,
}

/// Names a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantName {
    /// Which execution.
    #[schema(value_type = i64)]
    pub execution_id: ExecutionId,
    /// Which attempt of it.
    #[schema(value_type = i32)]
    pub attempt: Attempt,
}
