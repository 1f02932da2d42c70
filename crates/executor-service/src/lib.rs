//! The executor of Attune as a service: carries out what its owner of partitions decides.
//!
//! Every decision is made by [`attune_executor::Owner`]; this crate brings it what happens and
//! does what it says. `driver` is the loop; `feed` receives the topics of the partitions; `calls`
//! asks the store; `publisher` tells workers and askers; `records` and `notices` write down what
//! was decided; `convert` stands between the types of the decisions and those of tables and
//! messages. `intake` routes rule firings to the partitions; `progress` shows which loops go on;
//! `refusals` writes down which partitions wait for the store; `figures` and `queue_figures` are what is
//! measured.

mod asker;
mod calls;
mod convert;
mod counters;
mod driver;
mod ends;
mod events;
mod feed;
mod figures;
mod hearing;
mod intake;
mod newer;
mod notices;
mod progress;
mod publisher;
mod queue_figures;
mod records;
mod refusals;
mod sections;
mod service;
mod unsettled;

pub use counters::Counters;
pub use progress::ExecutorProgress;
pub use service::{ExecutorError, ExecutorHandle, ExecutorOptions, start};
