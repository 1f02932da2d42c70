//! The upkeep of the history: room for the days to come, and what is old goes.

use std::sync::Arc;
use std::time::Duration;

use attune_runtime::clock::BootInstant;
use attune_runtime::{Backoff, LogPace, error_chain, in_task};
use attune_store::{ExecutionStore, HistoryRetention};
use chrono::{DateTime, TimeDelta, Utc};
use tokio_util::sync::CancellationToken;

use crate::counters::StatsCounters;

/// The first and the longest wait after a failure. The longest is short beside the days of room
/// that each round makes.
const RETRY_BASE: Duration = Duration::from_millis(500);
const RETRY_CAP: Duration = Duration::from_secs(60);

/// A wall clock that is apart from the clock since the boot by more was set.
const STEP: TimeDelta = TimeDelta::seconds(5);

/// Two clocks at one moment: what is old is judged by the first, and only the second cannot be set.
struct Clocks {
    wall: DateTime<Utc>,
    boot: BootInstant,
}

impl Clocks {
    fn now() -> Self {
        Self {
            wall: Utc::now(),
            boot: BootInstant::now(),
        }
    }

    /// By how much the wall clock was set between the last time and `now`, if it was.
    fn step(&mut self, now: Self) -> Option<TimeDelta> {
        let before = std::mem::replace(self, now);
        let passed = self.boot.saturating_duration_since(before.boot);
        let passed = TimeDelta::from_std(passed).unwrap_or(TimeDelta::MAX);
        let step = (self.wall - before.wall) - passed;
        (step.abs() > STEP).then_some(step)
    }
}

/// Maintains the history now and after every `interval`, until the stop.
pub(crate) async fn maintain<S>(
    store: Arc<S>,
    keep: HistoryRetention,
    interval: Duration,
    counters: Arc<StatsCounters>,
    stop: CancellationToken,
) where
    S: ExecutionStore + ?Sized + 'static,
{
    let mut backoff = Backoff::new(RETRY_BASE, RETRY_CAP);
    let mut log = LogPace::default();
    let mut clocks = Clocks::now();
    loop {
        let maintained = match clocks.step(Clocks::now()) {
            Some(step) => {
                tracing::error!(
                    step_s = step.num_seconds(),
                    "the clock of this machine was set since the last upkeep; nothing is removed \
                     until the next"
                );
                None
            }
            None => {
                let again = Arc::clone(&store);
                Some(in_task(async move { again.maintain_history(keep).await }).await)
            }
        };
        let wait = match maintained {
            None => interval,
            Some(Ok(())) => {
                counters.maintained.add(1);
                backoff.reset();
                log.reset();
                interval
            }
            Some(Err(error)) => {
                if log.is_due() {
                    let (reason, tries) = (error_chain(&error), log.tries());
                    tracing::warn!(
                        reason,
                        tries,
                        "the history cannot be maintained; trying again"
                    );
                }
                backoff.next_delay().min(interval)
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_is_noticed_once() {
        let mut clocks = Clocks::now();
        let (mut wall, mut boot) = (clocks.wall, clocks.boot);
        let hour = Duration::from_secs(3600);
        let mut after = |wall_step: TimeDelta, passed: Duration| {
            (wall, boot) = (wall + wall_step, boot + passed);
            clocks.step(Clocks { wall, boot })
        };
        assert_eq!(after(TimeDelta::zero(), Duration::ZERO), None);
        for step in [TimeDelta::days(40), -TimeDelta::days(40)] {
            assert_eq!(after(step, Duration::ZERO), Some(step));
            assert_eq!(after(TimeDelta::zero(), Duration::ZERO), None);
        }
        // A machine that slept was not set.
        assert_eq!(after(TimeDelta::hours(1), hour), None);
    }
}
