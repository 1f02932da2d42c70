//! Reference worker of Attune: claims executions, runs them, reports.
//!
//! [`Worker::start`] puts a lease on itself, receives the executions of its pool, claims as
//! many at a time as it has free slots, runs what it has claimed and reports how it ended.
//!
//! - **The row decides, not the message.** A message may come twice, late, or to two workers;
//!   only the one whose claim of `(execution, attempt)` the store accepts runs it. A delivery is
//!   acknowledged when each of its executions is claimed or dropped, so that a message that
//!   still can change something is never lost, and a long run does not outlive the patience of
//!   the broker.
//! - **A slot is a run.** At most `slots` run at once; claims are made only for free slots.
//! - **No lease, no run.** A worker that cannot renew its lease in time kills what it runs,
//!   whole process groups, reports nothing of it, and comes back under a fresh id. Whoever takes
//!   its slots back decides what happens to them. When the worker itself cannot kill, because
//!   it was killed or stands still, its [`guard`] does. What an action does outside is guarded by the fencing token it is given, `ATTUNE_EXECUTION_ID` and `ATTUNE_ATTEMPT`.
//! - **A completion is sent until it is confirmed**, under the same message id. Completions
//!   gather while one message is under way and travel together.

mod counters;
mod error;
pub mod guard;
mod inbox;
mod lease;
mod options;
mod outbox;
mod reporter;
mod runner;
mod runs;
mod service;
mod told;
mod worker;

// crates/schedules compiles sources of this crate with other primitives in the place of these.
use attune_runtime::clock;
use std::sync;

pub use counters::WorkerCounters;
pub use error::WorkerError;
pub use options::{HttpOptions, WorkerOptions};
pub use runner::run_http;
pub use worker::{Worker, WorkerHandle};
