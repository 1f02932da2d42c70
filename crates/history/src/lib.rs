//! Records what happened as JSON lines and judges the promises from it.
//!
//! A process that takes part writes what it saw with a [`Recorder`], each process into a file of
//! its own; [`read_dir`] reads all of them back. Times are nanoseconds of `CLOCK_MONOTONIC`
//! ([`now_ns`]), so the records of all processes of one machine, and of one machine only, can be
//! put in order.

pub mod read;
pub mod record;

pub use read::{ReadError, Records, read_dir};
pub use record::{Record, RecordError, Recorder, now_ns};
