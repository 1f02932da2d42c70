//! Against a real RabbitMQ; see `support` for what has to run.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic, like tests")]

mod bindings;
mod conformance;
mod dead_letters;
mod direct;
mod faults;
mod forbidden;
mod illegible;
mod refusals;
mod removal;
mod restarts;
mod returns;
mod stuck;
mod support;
mod throughput;
mod tls;
