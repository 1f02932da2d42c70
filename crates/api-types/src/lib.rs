//! What the HTTP interface takes and answers, as clients see it: the contract.
//!
//! The server fills these types from what the store, the owners and the workers say, and the
//! command-line client reads them, so the two cannot drift apart; the reference (`/docs`,
//! `docs/openapi.json`) is made from them. A member may be added; none may change its name, its
//! form or its meaning, which the recorded answers in `tests/it/golden` check.

mod actions;
mod audit;
mod cluster;
mod dead_letters;
mod errors;
mod executions;
mod explain;
mod health;
mod holders;
mod keys;
mod operations;
mod pauses;
mod policies;
mod queues;
pub mod words;
mod worker;

pub use actions::{ActionApplied, ActionList, ActionView, InForce};
pub use audit::{AuditCheck, AuditEntry, AuditList};
pub use cluster::{Cluster, ExecutorView, PartitionView, WorkerView};
pub use dead_letters::{DeadLetter, DeadLetterList, RequeueRequest, Requeued, RequeuedExecution};
pub use errors::{ErrorBody, ErrorDetail};
pub use executions::{BatchItem, Cancelled, Execution, ExecutionList, Submitted};
pub use explain::{ExplainState, ExplainView};
pub use health::{ComponentHealth, Liveness, Readiness};
pub use holders::{Holder, HolderList, HolderWorker, ReleaseRequest, Released};
pub use keys::{KeyList, KeyMade, KeyRequest, KeyState, KeyView, RotateRequest};
pub use operations::{
    AdminQueue, ByPriority, OperationFilter, OperationList, OperationName, OperationPreview,
    OperationRequest, OperationState, OperationView, PriorityRequest, Reprioritised,
};
pub use pauses::{PauseApplied, PauseList, PauseRequest, PauseView};
pub use policies::{
    PolicyApplied, PolicyDifference, PolicyField, PolicyList, PolicyProgress, PolicyRequest,
    PolicyResult, PolicyShown, PolicyVersions, PolicyView,
};
pub use queues::{HealthState, QueueHealth, QueueList, QueueView};
pub use worker::{ExchangeRequest, Exchanged, GrantName, Lease, LeaseRequest, RetireRequest};
