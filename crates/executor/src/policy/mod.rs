//! What decides who may have a slot: the limits of an action, and the order among who waits; and what
//! tells when somebody may.

pub(crate) mod estimate;
mod front;
mod groups;
mod limits;
mod order;
mod run_times;
mod users;

pub use groups::{Group, Share};
pub(crate) use groups::{Groups, Member, key_in};
pub use limits::{Extra, QueueLimits, limits_of};
pub(crate) use order::Order;
pub(crate) use run_times::RunTimes;
pub(crate) use users::Users;
