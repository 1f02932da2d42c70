//! The worker as a whole, on the in-process bus, a scripted store and with an owner that a test
//! plays.

#![expect(
    clippy::unwrap_used,
    reason = "a test may say by a panic that its set-up failed"
)]

mod buses;
mod cancels;
mod clocks;
mod grants;
mod lease;
mod owner;
mod repair;
mod reports;
mod rig;
mod shutdown;
mod store;
mod stuck;
