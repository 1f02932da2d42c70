//! Message ports of Attune and the in-process bus.
//!
//! The port promises what a broker can keep, and no more: a confirmed message is delivered at
//! least once, in the order in which one publisher sent it on one topic, and again when it was
//! not acknowledged. Everything else (once, and only by the right owner) is made above it.

pub mod confirm;
mod depth;
pub mod letters;
pub mod memory;
pub mod port;
mod shelf;

// crates/schedules compiles sources of this crate with other primitives in the place of these.
use std::sync;

pub use confirm::{Gone, Patience, Published, publish_until_confirmed};
pub use depth::Depth;
pub use letters::{dead_letter, letter};
pub use memory::{MemoryBus, Room};
pub use port::{
    Bus, BusError, Confirmation, Delivery, DeliveryTag, Outgoing, PublishError, Refusal, Refused,
    Settle, Settler, Subscriber, Subscription, Topic, reply_address,
};
pub use shelf::Shelf;
