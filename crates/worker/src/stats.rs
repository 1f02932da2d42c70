//! What a worker counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only its worker changes.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Its value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: usize) {
        self.0.store(value as u64, Ordering::Relaxed);
    }
}

/// What a worker has done since it started, and what it is doing.
#[derive(Debug, Default)]
pub struct WorkerStats {
    /// Executions it claimed.
    pub claims_won: Counter,
    /// Executions that could not be claimed: another worker has them, or they have ended.
    pub claims_lost: Counter,
    /// Executions that were delivered again while it had them, or soon after.
    pub duplicates: Counter,
    /// Runs it began.
    pub runs: Counter,
    /// Completions that the bus has confirmed.
    pub reported: Counter,
    /// How often it lost its lease and killed what it ran.
    pub lease_lost: Counter,
    /// Runs whose outcome is not reported because the worker lost its lease or had no more time
    /// to drain.
    pub abandoned: Counter,
    /// Messages that it could not read and put among the dead letters.
    pub dead_letters: Counter,
    /// Slots that are taken right now.
    pub busy: Counter,
}
