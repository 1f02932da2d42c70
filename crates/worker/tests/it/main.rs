//! The worker as a whole, on the in-process bus and a scripted store.

#![expect(
    clippy::unwrap_used,
    reason = "a test may say by a panic that its set-up failed"
)]

mod cancels;
mod claims;
mod clocks;
mod lease;
mod reports;
mod rig;
mod shutdown;
mod stuck;
