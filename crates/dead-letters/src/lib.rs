//! Keeps dead letters in the store, and says how one is put back.
//!
//! Whoever cannot use a message puts it among the dead letters of the bus, with the reason. That
//! queue is bounded; nobody looks into it, and when it is full, whoever needs it is told so. So a
//! [`Collector`] moves what arrives there into the store, where it is listed and shown, and pruned with the history.
//!
//! - A letter is acknowledged last, when the store has it. It may come twice: one message has one
//!   row, by its id.
//! - What is no message at all keeps only its beginning.
//! - While the store takes nothing, letters stay where they are, on the bus.
//!
//! [`put_back`] decides what putting a letter back means; it does nothing itself.

mod collector;
mod counters;
mod put_back;
mod row;

pub use collector::{Collector, CollectorError, CollectorHandle, CollectorOptions};
pub use counters::CollectorCounters;
pub use put_back::put_back;
pub use row::{GARBAGE_BYTES, row};
