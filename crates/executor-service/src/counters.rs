//! What the executor counts, as plain numbers that a metrics layer reads.

use std::sync::atomic::{AtomicU64, Ordering};

use attune_executor::Counter;

/// One number per [`Counter`]; only ever rises.
#[derive(Debug)]
pub struct Counters([AtomicU64; Counter::ALL.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Counters {
    pub(crate) fn add(&self, counter: Counter, times: u64) {
        self.0[counter as usize].fetch_add(times, Ordering::Relaxed);
    }

    /// The number of one counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Ordering::Relaxed)
    }
}
