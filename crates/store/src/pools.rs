//! What the connections of a store do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The connections for one purpose, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolFigures {
    /// What they are for.
    pub pool: &'static str,
    /// Connections that are open.
    pub size: u32,
    /// Those of them that nobody uses.
    pub idle: usize,
    /// Calls that have ended, since the start.
    pub calls: u64,
    /// Those of them that failed.
    pub failed: u64,
    /// How long they took together, the wait for a connection included.
    pub took: Duration,
}

/// Counts the calls for one purpose.
#[derive(Debug, Default)]
pub struct CallCounts {
    calls: AtomicU64,
    failed: AtomicU64,
    micros: AtomicU64,
}

impl CallCounts {
    /// A call has ended.
    pub fn note(&self, took: Duration, succeeded: bool) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.failed
            .fetch_add(u64::from(!succeeded), Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// The figures of a pool that has so many connections.
    pub fn figures(&self, pool: &'static str, size: u32, idle: usize) -> PoolFigures {
        PoolFigures {
            pool,
            size,
            idle,
            calls: self.calls.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            took: Duration::from_micros(self.micros.load(Ordering::Relaxed)),
        }
    }
}
