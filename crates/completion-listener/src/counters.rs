//! What a listener counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a listener has done since it started. The numbers only rise, and duplicates count.
#[derive(Debug, Default)]
pub struct ListenerCounters {
    received: AtomicU64,
    forwarded: AtomicU64,
    poisoned: AtomicU64,
    mended: AtomicU64,
}

impl ListenerCounters {
    /// Completions received; a message that cannot be read at all counts as one.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Completions that the bus has taken for the owners.
    pub fn forwarded(&self) -> u64 {
        self.forwarded.load(Ordering::Relaxed)
    }

    /// Completions, or whole messages that cannot be read, that went to the dead letters. When
    /// nothing is under way, `received = forwarded + poisoned`.
    pub fn poisoned(&self) -> u64 {
        self.poisoned.load(Ordering::Relaxed)
    }

    /// Completions that were changed so that they can be stored; they are among the forwarded.
    pub fn mended(&self) -> u64 {
        self.mended.load(Ordering::Relaxed)
    }

    pub(crate) fn add_received(&self, count: usize) {
        self.received.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_forwarded(&self, count: usize) {
        self.forwarded.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_poisoned(&self, count: usize) {
        self.poisoned.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_mended(&self, count: usize) {
        self.mended.fetch_add(count as u64, Ordering::Relaxed);
    }
}
