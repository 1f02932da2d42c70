//! Judges the promises from what processes recorded.
//!
//! [`Runs`] turns records into the [`Interval`]s in which executions ran, and [`judge_action`]
//! judges from those of one action whether its limit held (I2) and its order was kept (I3), and
//! how fast its slots were handed on (I6). It sees only what the runs themselves recorded,
//! nothing of the queue's own view. [`check`](mod@check) judges all promises from all records.

pub mod check;
pub mod judge;
mod percentile;
pub mod runs;

pub use check::{Checker, FinalLine, FinalRow, Findings, Judged, Violation, check};
pub use judge::{Interval, Verdict, judge_action};
pub use percentile::percentile;
pub use runs::Runs;
