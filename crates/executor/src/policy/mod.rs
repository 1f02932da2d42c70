//! What decides who may have a slot: the limits of an action, and the order among who waits.

mod groups;
mod limits;
mod order;
mod window;

pub use groups::{Group, Share};
pub(crate) use groups::{Groups, Member};
pub use limits::{Extra, QueueLimits, limits_of};
pub(crate) use order::Order;
pub use window::Rate;
pub(crate) use window::Window;
