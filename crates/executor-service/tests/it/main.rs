//! Tests of whole executors on the embedded adapters: several of them in one process share one
//! store and one bus.

#![expect(
    clippy::unwrap_used,
    reason = "a test may say by a panic that its set-up failed"
)]

mod calls;
mod lasting;
mod late;
mod lives;
mod lost_workers;
mod member;
mod remote;
mod sharing;
mod sizes;
mod system;
mod takeover;
