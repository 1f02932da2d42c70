//! Records what happened as JSON lines.
//!
//! A process that takes part writes what it saw with a [`Recorder`], each process into a file of
//! its own; [`read_dir`] reads all of them back. Times are nanoseconds of `CLOCK_MONOTONIC`
//! ([`now_ns`]), so the records of all processes of one machine, and of one machine only, can be
//! put in order. Judging them is the business of the crate `attune-history`, which no daemon links.

mod committed;
pub mod document;
mod now;
pub mod operation;
pub mod phase;
pub mod read;
pub mod record;
#[cfg(test)]
mod record_tests;
mod recorder;

// crates/schedules compiles sources of this crate with other primitives in the place of these.
use std::{sync, thread};

pub use document::{PolicyChange, PolicyInForce};
pub use now::now_ns;
pub use operation::{MovedExecution, Operated, OperationAsked, OperationTold};
pub use phase::{
    FaultPhase, Gone, GoneBy, GroupedExecution, HandedOn, OfEpoch, ProcessPhase, QuotaInForce,
    RateInForce, Retried, TimeBounds,
};
pub use read::{ReadError, Records, read_dir};
pub use record::Record;
pub use recorder::{RecordError, Recorder};
