//! What a worker counts.

attune_runtime::counters! {
    /// What a worker has done since it started, and what it is doing.
    pub struct WorkerCounters {
        /// Executions it claimed.
        claims_won: Counter = "worker.claims.won.total",
        /// Executions that could not be claimed: another worker has them, or they have ended.
        claims_lost: Counter = "worker.claims.lost.total",
        /// Executions that were delivered again while it had them, or soon after.
        duplicates: Counter = "worker.duplicates.total",
        /// Runs it began.
        runs: Counter = "worker.runs.total",
        /// Completions that the bus has confirmed.
        reported: Counter = "worker.completions.reported.total",
        /// Completions that were confirmed and told again, because their executions still counted
        /// as running.
        retold: Counter = "worker.completions.retold.total",
        /// Messages with completions that are kept in case they must be told again.
        told: Gauge = "worker.completions.kept",
        /// How often it lost its lease and killed what it ran.
        lease_lost: Counter = "worker.leases.lost.total",
        /// Runs whose outcome is not reported because the worker lost its lease or had no more
        /// time to drain.
        abandoned: Counter = "worker.runs.abandoned.total",
        /// Messages that it could not read and put among the dead letters.
        dead_letters: Counter = "worker.dead_letters.total",
        /// How often it could start nothing (no room, no processes) and took no more.
        stuck_total: Counter = "worker.stuck.total",
        /// Whether it can start nothing right now.
        stuck: Gauge = "worker.stuck",
        /// Slots that are taken right now.
        busy: Gauge = "worker.slots.busy",
    }
}
