//! What a collector counts.

attune_runtime::counters! {
    /// What a collector of dead letters has done since it started.
    pub struct CollectorCounters {
        /// Letters received, duplicates among them.
        received: Counter = "dead_letters.received.total",
        /// Letters that the store has.
        kept: Counter = "dead_letters.kept.total",
    }
}
