//! Validates completions and hands them to the owners of their partitions.
//!
//! Workers in any language publish `execution.completed`. A listener reads these messages,
//! decides about each completion, and publishes what is valid as `partition.release` to the
//! control topic of the partition that the execution belongs to. It keeps nothing: several
//! listeners share the messages, and any of them may end at any time.
//!
//! - **A completion is never lost**: a message is acknowledged last, when everything that came
//!   out of it is confirmed. So a completion may be passed on twice; the owner releases the slot
//!   of an `(execution, attempt)` once, however often it is told.
//! - **A completion is never refused for what it carries.** Output with NUL characters, a result
//!   that cannot be stored: they are mended, and the error text says so. A refused completion
//!   would keep its slot until somebody looks; see [`ListenerCounters::mended`].
//! - **What cannot be a completion goes to the dead letters**, item by item: the others of its
//!   message are passed on.
//! - **What is ready travels together**, grouped by partition. Nothing waits to become more:
//!   while messages are under way, others gather.
//!
//! - **What a newer program wrote waits**, and what belongs to a partition that this listener does
//!   not know of: neither is poison.
//! - **A partition that takes nothing holds up no other**, however long.
//!
//! The order of completions has no meaning. The bounds: deliveries in memory by the prefetch and
//! in bytes, publishes under way by a small constant. All decisions are in [`forward`], without
//! I/O.

mod counters;
mod decide;
mod error;
pub mod forward;
mod mend;
mod read;
mod service;

pub use counters::ListenerCounters;
pub use error::ListenerError;
pub use service::{CompletionListener, ListenerHandle, ListenerOptions};
