//! Persists the snapshots of Attune's queues, and keeps the history of executions small.
//!
//! Owners of partitions publish a versioned snapshot of each queue that has changed. The
//! persister keeps the newest of each action in the store, where people look with SQL and the
//! API answers from.
//!
//! - **On every change, but not for every change.** A change is written at once when nothing was
//!   written lately; changes within `min_interval` of a write share the next one.
//! - **Acknowledged last.** What cannot be written yet stays with the bus as well. While the
//!   store is away the newest snapshot of each action is kept in memory, as far as the prefetch
//!   reaches, and written when the store is back.
//! - **Duplicates and old snapshots change nothing**: the version decides, here and in the store,
//!   so that several persisters may run at once.
//! - **Nothing depends on it.** When it is down, figures grow old; no execution waits for it.

mod counters;
mod error;
mod maintenance;
mod merge;
mod persister;
mod service;
mod stock;

pub use counters::StatsCounters;
pub use error::StatsError;
pub use service::{StatsHandle, StatsOptions, StatsPersister};
