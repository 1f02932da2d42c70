//! The contract: recorded answers keep their form, and the reference describes what the core takes.

#![expect(
    clippy::unwrap_used,
    reason = "a test says by a panic that its set-up failed"
)]

mod golden;
mod pages;
mod words;
