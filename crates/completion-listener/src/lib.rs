//! Validates completions and hands them to the owners of their partitions.
//!
//! Workers in any language publish `execution.completed`; those that keep a completion until it is
//! settled do so under the key `execution.completed.kept`. A listener reads both, by the same rules:
//! it decides about each completion, and publishes what is valid as `partition.release` to the
//! control topic of the partition that the execution belongs to. It keeps nothing: several
//! listeners share the messages, and any of them may end at any time.
//!
//! What becomes of each is decided by [`attune_routing::Completions`] and the relay around it: a
//! message is acknowledged last, when everything that came out of it is confirmed, so a completion
//! may be passed on twice; the owner releases the slot of an `(execution, attempt)` once, however
//! often it is told. What cannot be a completion goes to the dead letters, item by item. A partition
//! that takes nothing holds up no other, however long.

mod counters;
mod error;
mod service;

pub use counters::ListenerCounters;
pub use error::ListenerError;
pub use service::{CompletionListener, ListenerHandle, ListenerOptions};
