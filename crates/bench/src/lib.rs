//! The parts of the benchmark that do not depend on how the system under load is started.
//!
//! A [`Scenario`] says what is asked for, and when. [`load`] asks for it through a
//! `CommandClient` and notes the time of each request and of its answer. The workers record
//! where each run begins and ends (`attune_history::Runs`), the store has the final [`Row`]s.
//! From these three views, none of which is the queue's own, [`Report::of`] computes every
//! figure.
//!
//! All times but the rows' are nanoseconds of `CLOCK_MONOTONIC`, so that the records of every
//! process of one machine compare.

pub mod delays;
pub mod doubling;
pub mod load;
pub mod report;
pub mod rows;
pub mod scenario;
pub mod usage;
pub mod utilisation;

pub use delays::Delays;
pub use doubling::Doubling;
pub use load::{Load, LoadOptions, SubmitOutcome, Submitted};
pub use report::{Costs, Observed, Report};
pub use rows::{Row, read_rows};
pub use scenario::{Asker, Pace, Scenario};
pub use usage::{Group, Meter, Usage};
