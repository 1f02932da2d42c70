//! What a stats persister counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a stats persister has done since it started. The numbers only rise.
#[derive(Debug, Default)]
pub struct StatsCounters {
    received: AtomicU64,
    written: AtomicU64,
    writes: AtomicU64,
    poisoned: AtomicU64,
    maintained: AtomicU64,
}

impl StatsCounters {
    /// Snapshots received, duplicates among them; a message that cannot be read counts as one.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Snapshots handed to the store and kept there, unless it held newer ones.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Writes that succeeded.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    /// Snapshots, or whole messages that cannot be read, that cannot be used.
    pub fn poisoned(&self) -> u64 {
        self.poisoned.load(Ordering::Relaxed)
    }

    /// Rounds of the history's upkeep that succeeded.
    pub fn maintained(&self) -> u64 {
        self.maintained.load(Ordering::Relaxed)
    }

    pub(crate) fn add_received(&self, count: usize) {
        self.received.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_write(&self, rows: usize) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.written.fetch_add(rows as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_poisoned(&self) {
        self.poisoned.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_maintained(&self) {
        self.maintained.fetch_add(1, Ordering::Relaxed);
    }
}
