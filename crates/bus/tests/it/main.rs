//! Tests of what is built on the port.

#![expect(
    clippy::unwrap_used,
    reason = "a test may say by a panic that its set-up failed"
)]

mod confirm;
