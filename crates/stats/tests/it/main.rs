//! The stats persister on the in-process bus and a store that does what the tests say.

#![expect(
    clippy::unwrap_used,
    reason = "a test may say by a panic that its set-up failed"
)]

mod faults;
mod support;
mod upkeep;
mod writing;
