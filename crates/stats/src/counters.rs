//! What a stats persister counts.

attune_runtime::counters! {
    /// What a stats persister has done since it started.
    pub struct StatsCounters {
        /// Snapshots received, duplicates among them; a message that cannot be read counts as one.
        received: Counter = "stats.snapshots.received.total",
        /// Snapshots handed to the store and kept there, unless it held newer ones.
        written: Counter = "stats.snapshots.written.total",
        /// Writes that succeeded.
        writes: Counter = "stats.writes.total",
        /// Snapshots, or whole messages that cannot be read, that cannot be used.
        poisoned: Counter = "stats.snapshots.poisoned.total",
        /// Rounds of the history's upkeep that succeeded.
        maintained: Counter = "stats.upkeep.rounds.total",
    }
}
