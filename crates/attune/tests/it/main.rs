//! Attune end to end: real processes of the binary, real programs, on both wirings.
//!
//! A scenario is written once and runs twice, as `embedded_…` in one process and as `cluster_…`
//! in a process for each role on PostgreSQL and RabbitMQ; what concerns servers runs on a cluster
//! alone. Order and limits are judged by the times that run programs or workers wrote down.

mod askers;
mod bad_input;
mod batches;
mod bench;
mod calls;
mod cancelling;
mod client;
mod clocks;
mod completions;
mod containment;
mod dead_letters;
mod deaf;
mod descriptors;
mod drills;
mod events;
mod example;
mod executors;
mod explain;
mod fairness;
mod fences;
mod fetches;
mod first_use;
mod foreign;
mod groups;
mod guards;
mod histories;
mod identities;
mod keys;
mod lasting;
mod late_servers;
mod leases;
mod logs;
mod lost_servers;
mod lost_workers;
mod memory;
mod messages;
mod monitoring;
mod operations;
mod operators;
mod oracle;
mod orders;
mod overflow;
mod pauses;
mod policies;
mod priorities;
mod prometheus;
mod python;
mod python_kills;
mod queues;
mod rates;
mod requests;
mod restarts;
mod resubmits;
mod retries;
mod runs;
mod stranger;
mod support;
mod takeovers;
mod tls;
mod tours;
mod upgrades;
