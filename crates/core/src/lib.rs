//! Ids, statuses, policies, limits and errors of Attune: plain data without I/O.
//!
//! Everything here is shared by the services, the adapters and the tools, and
//! none of it reads a clock, a socket or a file.

pub mod action;
pub mod asker;
pub mod auth;
pub mod explain;
pub mod foreign;
pub mod ids;
pub mod input;
pub mod nesting;
pub mod network;
pub mod operation;
pub mod optional;
pub mod outcome;
pub mod pause;
pub mod plain;
pub mod plant;
pub mod policy;
pub mod priority;
pub mod private;
pub mod promise;
pub mod refusal;
pub mod reject;
pub mod resources;
pub mod secret;
pub mod source;
pub mod span;
pub mod stats;
pub mod status;
pub mod strict;
pub mod submission;
pub mod subnet;
pub mod trace;
pub mod twice;

pub use action::{Action, ActionRef, ActionSpec, Builtin, OnWorkerLost, Run, check_pool};
pub use asker::{Asker, WaitBound};
pub use auth::Auth;
pub use explain::Explanation;
pub use ids::{
    ActionId, Attempt, Epoch, ExecutionId, OwnerId, PartitionId, RequestGap, RequestId, Seq,
    WorkerId,
};
pub use network::Network;
pub use operation::{
    Moved, Operation, OperationFilter, OperationId, OperationKind, OperationProgress,
    OperationWords, PartOfOperation,
};
pub use optional::or_null;
pub use outcome::{EndCode, Outcome};
pub use pause::{Hold, PauseMode, PauseTarget, Pauses};
pub use plant::Bug;
pub use policy::{
    ActionPolicy, Behaviour, Demand, DemandRule, Flow, GroupKey, OrderRule, PolicyDocument,
    PolicyScope, PolicySet, PolicyTarget,
};
pub use priority::Priority;
pub use promise::Promise;
pub use refusal::Refusal;
pub use reject::{Reject, RejectCode};
pub use resources::{Cpu, Resources, Size};
pub use secret::{EnvValue, Marks};
/// JSON as it came, unread.
pub use serde_json::value::RawValue;
pub use source::Source;
pub use span::millis;
pub use stats::{LacksKey, QueueStats, QueueTotals};
pub use status::{IllegalMove, Move, Status};
pub use submission::{Submission, read_time};
pub use subnet::Subnet;
pub use trace::{SpanOf, TraceId, TraceParent};
