//! Reference worker of Attune: runs the executions that are granted to it, and reports.
//!
//! [`Worker::start`] puts a lease on itself and says hello. From then on the owners of partitions grant
//! executions to it by name; it runs them, as many at a time as it has slots, and reports how they
//! ended.
//!
//! - **A grant names one life.** Nobody claims anything: what an owner has granted to this life
//!   may begin here and nowhere else. What is heard twice, late or out of order begins nothing,
//!   and what was lost is repaired by comparing; see `attune_dispatch`.
//! - **Everything is kept until it is settled**: an end, and a grant that is given back, are
//!   reported until their owner has said that they are written down.
//! - **A slot is a run.** At most `slots` run at once; what waits for one for long is given back.
//! - **No lease, no run.** A worker that cannot renew its lease in time kills what it runs,
//!   whole process groups, reports nothing of it, and comes back under a fresh id. Whoever takes
//!   its slots back decides what happens to them. When the worker itself cannot kill, because
//!   it was killed or stands still, its [`guard`] does. What an action does outside is guarded by the fencing token it is given, `ATTUNE_EXECUTION_ID` and `ATTUNE_ATTEMPT`.
//! - **What a program can do is bounded before it begins**, by a launcher that puts itself where the program
//!   is to be and then becomes it ([`Containment`]).
//! - **A completion is sent until it is confirmed**, under the same message id, and again while
//!   it is not settled. Completions gather while one message is under way and travel together.

mod begun;
mod containment;
mod counters;
mod error;
mod former;
pub mod guard;
mod launch;
mod lease;
mod options;
mod outbox;
mod reporter;
mod run_span;
mod runner;
mod runs;
mod service;
mod worker;

// crates/schedules compiles sources of this crate with other primitives in the place of these.
use attune_runtime::clock;
use std::sync;

pub use containment::{Containment, HostSurvey, SandboxMode, close_to_others};
pub use counters::WorkerCounters;
pub use error::WorkerError;
pub use launch::{Account, launch};
pub use options::{HttpOptions, SecretOptions, WorkerOptions};
pub use runner::run_http;
pub use worker::{Worker, WorkerHandle};
