//! What decides who may have a slot: the limits of an action, and the order among who waits.

mod front;
mod groups;
mod limits;
mod order;

pub use groups::{Group, Share};
pub(crate) use groups::{Groups, Member, key_in};
pub use limits::{Extra, QueueLimits, limits_of};
pub(crate) use order::Order;
