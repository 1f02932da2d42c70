//! What an executor measures, beside what it counts.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use attune_executor::partition::Wait;
use attune_executor::queue::Millis;
use attune_runtime::{Gauge, Label};

attune_runtime::counters! {
    /// How long what an executor does takes, and how much of it there is at once.
    pub struct ExecutorFigures {
        /// How long executions waited for the slots that they were given, by priority: since their
        /// acceptance, or since their delay was over.
        wait: Timing = "queue.wait_time",
        /// How long the store took to write a round.
        commit: Timing = "executor.commit_seconds",
        /// Executions that a round writes.
        round_items: Sizes = "executor.round_items",
        /// How long it took from the arrival of a run's end at its executor until that was stored and the
        /// slot was given on.
        handoff: Timing = "executor.handoff_seconds",
        /// Messages with grants that are on their way to workers and not confirmed yet.
        dispatches: Gauge = "executor.dispatches.open",
    }
}

/// A message with grants that is on its way, while it lives.
pub(crate) struct Dispatching(Gauge);

impl Drop for Dispatching {
    fn drop(&mut self) {
        self.0.lower();
    }
}

impl ExecutorFigures {
    /// A message with grants is on its way until what this returns is dropped.
    pub(crate) fn dispatch(&self) -> Dispatching {
        self.dispatches.raise();
        Dispatching(self.dispatches.clone())
    }

    /// Counts how long those have waited who were given slots.
    pub(crate) fn waited(&self, waits: &[Wait]) {
        for wait in waits {
            let waited = u64::try_from(wait.waited).unwrap_or(0);
            let label = [Label::new("priority", wait.priority.as_str())];
            self.wait.record_as(Duration::from_millis(waited), &label);
        }
    }
}

/// Since when the leases of an executor count, and how long they hold.
#[derive(Debug)]
pub(crate) struct LeaseTime {
    ttl: Millis,
    /// When the last renewal was asked for that succeeded, by the clock of [`boot_now`](crate::driver::boot_now).
    since: AtomicI64,
}

impl LeaseTime {
    pub(crate) fn new(ttl: Millis) -> Self {
        let since = AtomicI64::new(Millis::MIN / 2);
        Self { ttl, since }
    }

    /// How long they hold, in milliseconds.
    pub(crate) fn ttl(&self) -> Millis {
        self.ttl
    }

    /// All leases were renewed, by a call that was made then.
    pub(crate) fn renewed(&self, sent: Millis) {
        self.since.store(sent, Ordering::Relaxed);
    }

    /// Leases were taken: the first ones, unless others hold still, which are older.
    pub(crate) fn taken(&self, sent: Millis) {
        if self.remaining(sent) <= 0 {
            self.renewed(sent);
        }
    }

    /// How long the oldest of them holds still, in milliseconds; below 0 when it is over.
    pub(crate) fn remaining(&self, now: Millis) -> Millis {
        self.since.load(Ordering::Relaxed) + self.ttl - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_leases_counts_from_the_call_that_renewed_them() {
        let leases = LeaseTime::new(15_000);
        assert!(leases.remaining(0) < 0);
        leases.taken(1_000);
        assert_eq!(leases.remaining(2_000), 14_000);
        leases.taken(3_000);
        assert_eq!(leases.remaining(3_000), 13_000, "the first are older");
        leases.renewed(4_000);
        assert_eq!(leases.remaining(21_000), -2_000);
        leases.taken(30_000);
        assert_eq!(leases.remaining(30_000), 15_000);
    }
}
