//! What needs a process, a socket or a server of its own.
#![expect(
    clippy::unwrap_used,
    reason = "clippy takes helpers of tests for production code"
)]

#[path = "../../../testkit/src/certificates.rs"]
#[expect(
    unreachable_pub,
    reason = "the testkit offers it to other crates, and this one may not depend on that"
)]
mod certificates;
mod ops;
mod process;
mod tls;
