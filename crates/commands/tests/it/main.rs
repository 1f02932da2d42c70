//! Tests of the command client against scripted owners and brokers.

#![expect(
    clippy::unwrap_used,
    reason = "a test may say by a panic that its set-up failed"
)]

mod answers;
mod calls;
mod packing;
mod support;
