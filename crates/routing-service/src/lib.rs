//! Drives a [`Relay`] on a bus: gives it what arrives, and does what it says.
//!
//! The intake and the completion listener are a [`Driver`] each, with rules of their own. It waits
//! for nothing in its loop: every publish runs beside it and comes back as an answer.

mod convert;
mod driver;

pub use driver::{BusClosed, Driver, Observer};
