//! The way of commands: submissions, cancels and releases to the owners of their partitions, and the
//! owners' answers.

mod client;

// crates/schedules compiles the sources of `client` with other primitives in the place of these.
use std::sync;

pub use client::{ClientError, ClientOptions, CommandClient};
