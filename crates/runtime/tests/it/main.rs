//! What needs a process, a socket or a server of its own.
#![expect(
    clippy::unwrap_used,
    reason = "clippy takes helpers of tests for production code"
)]

mod ops;
mod process;
