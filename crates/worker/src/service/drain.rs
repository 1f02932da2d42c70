//! Stopping: nothing more is taken, what runs may end or is killed, the rest is reported and
//! settled, and the lease is given back.

use std::time::Duration;

use tokio::time::Instant;

use super::{Phase, Service};
use crate::error::WorkerError;

/// How long killed runs may take to disappear when the worker stops.
const KILLED_GRACE: Duration = Duration::from_secs(5);
/// How long completions may take to be confirmed, and everything to be settled, when the worker
/// stops.
const FLUSH: Duration = Duration::from_secs(10);
/// How long a worker that stops hears owners at least: what they granted before they knew of it
/// is given back, and is not lost with the link.
const LINGER: Duration = Duration::from_secs(1);
/// How long the reporter may take to end, whatever time is left.
const LAST_GRACE: Duration = Duration::from_secs(1);

impl Service {
    pub(super) fn bus_is_closed(&mut self) {
        self.link = None;
        if matches!(self.phase, Phase::Serving) {
            self.pending.bus_closed = true;
            self.begin_to_drain();
        }
    }

    /// What waits is given back, and the lease says so, as of every worker that takes nothing.
    pub(super) fn begin_to_drain(&mut self) {
        tracing::info!(running_count = self.runs.len(), "the worker drains");
        self.shutdown.cancel();
        let now = Instant::now();
        self.pending.linger_until = Some(now + LINGER);
        self.phase = Phase::Draining(now + self.options.drain);
    }

    /// Kills what still runs, or stops waiting for what was killed or is to be settled; `false` to
    /// stop.
    pub(super) fn phase_is_over(&mut self) -> bool {
        match self.phase {
            Phase::Serving | Phase::Draining(_) => {
                let running_count = self.runs.len();
                tracing::warn!(
                    running_count,
                    "the time to drain is over; what runs is killed"
                );
                if let Some(life) = self.life.take() {
                    life.end();
                    self.pending.killed = Some(life);
                }
                self.phase = Phase::Killing(Instant::now() + KILLED_GRACE);
                true
            }
            Phase::Killing(_) => {
                self.phase = Phase::Settling(Instant::now() + FLUSH);
                true
            }
            Phase::Settling(_) => {
                let unsettled_count = self.entries.len() - self.entries.running();
                tracing::warn!(
                    unsettled_count,
                    "what has ended or was given back was not settled in time"
                );
                false
            }
        }
    }

    /// Whether something is left to do.
    pub(super) fn goes_on(&mut self) -> bool {
        match self.phase {
            Phase::Serving => return true,
            Phase::Draining(_) | Phase::Killing(_) if !self.runs.is_empty() => return true,
            Phase::Draining(_) | Phase::Killing(_) => {
                self.phase = Phase::Settling(Instant::now() + FLUSH);
            }
            Phase::Settling(_) => {}
        }
        // What counts as running was killed: nobody is told of it.
        let is_settled = self.entries.len() == self.entries.running();
        self.link.is_some() && (!is_settled || self.pending.linger_until.is_some())
    }

    /// Sends what is left to report and gives the lease back.
    pub(super) async fn finish(mut self) -> Result<(), WorkerError> {
        self.count();
        self.link = None;
        self.outbox.close();
        let until = Instant::now() + LAST_GRACE;
        let until = self.phase.deadline().map_or(until, |at| at.max(until));
        if tokio::time::timeout_at(until, &mut self.reporter)
            .await
            .is_err()
        {
            self.reporter.abort();
            let unreported_count = self.outbox.unconfirmed();
            tracing::error!(
                unreported_count,
                "completions could not be reported in time"
            );
        }
        // Nobody needs it any more, and its guard would mark it.
        self.begun = None;
        // Before the lease: what a run left behind must be gone when others get the slots.
        self.guard.close().await;
        match self.life.or(self.pending.killed) {
            // The lease must outlive what runs under it.
            Some(life) if !self.runs.is_empty() => life.stop_renewing(),
            Some(life) => {
                // What an owner that was away all the time granted and did not settle, as far as it began.
                let begun = self.entries.begun().collect();
                self.leases.retire(&life, begun).await;
            }
            None => {}
        }
        if self.pending.bus_closed {
            Err(WorkerError::BusClosed)
        } else {
            Ok(())
        }
    }
}
