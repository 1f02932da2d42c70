//! What decides who may have a slot: the limits of an action, and the order among who waits; and what
//! tells when somebody may.

pub(crate) mod estimate;
mod few;
mod flows;
mod front;
mod groups;
mod limits;
mod meters;
mod order;
mod quotas;
mod run_model;
mod run_times;
mod users;
mod window;

pub(crate) use flows::Turn;
#[cfg(test)]
pub(crate) use groups::IS_ALONE;
pub use groups::{Group, Share};
pub(crate) use groups::{Groups, Member, key_in};
pub use limits::{Extra, QueueLimits, RateBound, limits_of};
pub(crate) use meters::{Counted, Meters, StartLimit};
pub(crate) use order::Order;
pub use quotas::QuotaClaim;
pub(crate) use quotas::QuotaMeter;
pub(crate) use run_times::{Ran, RunTimes};
pub(crate) use users::Users;
pub use window::Rate;
