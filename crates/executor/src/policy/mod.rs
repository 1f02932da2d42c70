//! What decides who may have a slot: the limits of an action, and the order among who waits.

mod limits;
mod order;

pub use limits::{QueueLimits, limits_of};
pub(crate) use order::Order;
