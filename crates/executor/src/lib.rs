//! The executor of Attune: queues, pure core, journal, dispatcher and recovery.
//!
//! One execution's way through this crate: [`intake`](self) or a client brings a command →
//! `inbox` decodes it → `journal` gathers a round → [`PartitionCore::step`] decides, on the
//! [`ActionQueue`]s → `draft` folds the decisions into one batch → the store commits it →
//! `dispatcher` tells workers and askers. `ownership` keeps the leases beside it, sharing the
//! partitions with other executors as `shares` says; `takeover` rebuilds a partition's queues.

pub mod action_queue;
mod counters;
mod detector;
mod dispatcher;
pub mod draft;
pub mod event;
mod executor;
mod inbox;
mod intake;
mod journal;
mod lost_workers;
mod ownership;
mod partition_core;
mod policy_enforcer;
pub mod queue_manager;
mod queue_mending;
mod reconciler;
mod recording;
mod release;
mod requests;
mod shares;
mod sweep;
mod takeover;

// crates/schedules compiles sources of this crate with other primitives in the place of these.
use std::sync;

pub use action_queue::{ActionQueue, QueueLimits};
pub use counters::Counters;
pub use event::{Counter, Dispatch, Effect, Event, ReconcileBounds};
pub use executor::{ExecutorError, ExecutorHandle, ExecutorOptions, start};
pub use partition_core::PartitionCore;
pub use policy_enforcer::limits_of;
pub use queue_manager::{Admission, ExecutionQueueManager, QueueConfig, QueueError};
pub use shares::shares;
