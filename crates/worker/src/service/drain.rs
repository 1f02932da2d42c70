//! Stopping: nothing more is taken, what runs may end or is killed, the rest is reported, and the
//! lease is given back.

use std::time::Duration;

use tokio::time::Instant;

use super::{Phase, Service};
use crate::error::WorkerError;

/// How long killed runs may take to disappear when the worker stops.
const KILLED_GRACE: Duration = Duration::from_secs(5);
/// How long completions may take to be confirmed when the worker stops.
const FLUSH: Duration = Duration::from_secs(10);

impl Service {
    pub(super) fn bus_is_closed(&mut self) {
        self.cancels = None;
        self.requested = None;
        if matches!(self.phase, Phase::Serving) {
            self.pending.bus_closed = true;
            self.begin_to_drain();
        }
    }

    pub(super) fn begin_to_drain(&mut self) {
        tracing::info!(running_count = self.runs.len(), "the worker drains");
        self.shutdown.cancel();
        // Dropping the subscriber gives back what is not claimed.
        self.requested = None;
        self.inbox.give_up_waiting();
        self.phase = Phase::Draining(Instant::now() + self.options.drain);
    }

    /// Kills what still runs, or stops waiting for what was killed; `false` to stop.
    pub(super) fn phase_is_over(&mut self) -> bool {
        if matches!(self.phase, Phase::Killing(..)) {
            return false;
        }
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

    /// Sends what is left to report and gives the lease back.
    pub(super) async fn finish(mut self) -> Result<(), WorkerError> {
        self.cancels = None;
        self.outbox.close();
        if tokio::time::timeout(FLUSH, &mut self.reporter)
            .await
            .is_err()
        {
            self.reporter.abort();
            let unreported_count = self.outbox.held();
            tracing::error!(
                unreported_count,
                "completions could not be reported in time"
            );
        }
        // Before the lease: what a run left behind must be gone when others get the slots.
        self.guard.close().await;
        match self.life.or(self.pending.killed) {
            // The lease must outlive what runs under it.
            Some(life) if !self.runs.is_empty() => life.stop_renewing(),
            Some(life) => self.leases.retire(&life).await,
            None => {}
        }
        if self.pending.bus_closed {
            Err(WorkerError::BusClosed)
        } else {
            Ok(())
        }
    }
}
