//! Records what happened as JSON lines and judges the promises from it.
//!
//! A process that takes part writes what it saw with a [`Recorder`], each process into a file of
//! its own; [`read_dir`] reads all of them back. Times are nanoseconds of `CLOCK_MONOTONIC`
//! ([`now_ns`]), so the records of all processes of one machine, and of one machine only, can be
//! put in order.
//!
//! [`Runs`] turns records into the [`Interval`]s in which executions ran, and [`judge_action`]
//! judges from those of one action whether its limit held (I2) and its order was kept (I3), and
//! how fast its slots were handed on (I6). It sees only what the runs themselves recorded,
//! nothing of the queue's own view.

pub mod check;
pub mod judge;
mod percentile;
pub mod read;
pub mod record;
mod recorder;
pub mod runs;

// crates/schedules compiles sources of this crate with other primitives in the place of these.
use std::{sync, thread};

pub use check::{Checker, FinalLine, FinalRow, Findings, Judged, Promise, Violation, check};
pub use judge::{Interval, Verdict, judge_action};
pub use percentile::percentile;
pub use read::{ReadError, Records, read_dir};
pub use record::{FaultPhase, ProcessPhase, Record, now_ns};
pub use recorder::{RecordError, Recorder};
pub use runs::Runs;
