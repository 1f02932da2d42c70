//! Leases of workers that do not speak to the store themselves.

use attune_core::WorkerId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
    #[serde(default)]
    pub draining: bool,
}

/// The lease of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    /// When it ends unless it is renewed, in milliseconds from the renewal.
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
