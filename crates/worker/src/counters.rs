//! What a worker counts.

use std::time::Duration;

use attune_messages::v1::Completion;
use attune_runtime::Label;

attune_runtime::counters! {
    /// What a worker has done since it started, and what it is doing.
    pub struct WorkerCounters {
        /// Sections that it did not take: copies, old ones, and those before which one is missing.
        passed_over: Counter = "worker.sections.passed_over.total",
        /// Messages from owners that it could not read.
        unreadable: Counter = "worker.messages.unreadable.total",
        /// Runs it began.
        runs: Counter = "worker.runs.total",
        /// Runs that have ended and are reported, by status.
        ended: Family = "worker.runs.ended.total",
        /// How long runs took, of those that had begun, by status.
        ran: Timing = "worker.run_seconds",
        /// How long the store took to renew the lease, also where it failed.
        renewals: Timing = "worker.lease.renew_seconds",
        /// Slots that it has.
        slots: Gauge = "worker.slots",
        /// Completions that the bus has confirmed.
        reported: Counter = "worker.completions.reported.total",
        /// Completions that were confirmed and told again, because their owner had not written
        /// them down.
        retold: Counter = "worker.completions.retold.total",
        /// Completions that are kept until their owner has written them down.
        kept: Gauge = "worker.completions.kept",
        /// How often it lost its lease and killed what it ran.
        lease_lost: Counter = "worker.leases.lost.total",
        /// Runs whose outcome is not reported because the worker lost its lease or had no more
        /// time to drain, or because they held no slot any more.
        abandoned: Counter = "worker.runs.abandoned.total",
        /// How often it could start nothing (no room, no processes) and took no more.
        stuck_total: Counter = "worker.stuck.total",
        /// Executions that it gave back because it lacks the key with which their parameters are sealed.
        keyless: Counter = "worker.keyless.total",
        /// Whether it can start nothing right now.
        stuck: Gauge = "worker.stuck",
        /// Slots that are taken right now.
        busy: Gauge = "worker.slots.busy",
        /// Executions that were granted to it and wait for a free slot right now.
        waiting: Gauge = "worker.grants.waiting",
    }
}

impl WorkerCounters {
    /// Counts a run that is to be reported.
    pub(crate) fn count_end(&self, completion: &Completion) {
        let label = [Label::new("status", completion.status.as_str())];
        self.ended.add(1, &label);
        let times = completion.started_at.zip(completion.finished_at);
        if let Some((started, finished)) = times {
            let ran = (finished - started).to_std();
            self.ran.record_as(ran.unwrap_or(Duration::ZERO), &label);
        }
    }
}
