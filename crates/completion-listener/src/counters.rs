//! What a listener counts.

attune_runtime::counters! {
    /// What a listener has done since it started; duplicates count.
    pub struct ListenerCounters {
        /// Completions received; a message that cannot be read at all counts as one.
        received: Counter = "completion_listener.received.total",
        /// Completions that the bus has taken for the owners.
        forwarded: Counter = "completion_listener.forwarded.total",
        /// Completions, or whole messages that cannot be read, that went to the dead letters.
        /// When nothing is under way, `received = forwarded + poisoned`.
        poisoned: Counter = "completion_listener.poisoned.total",
        /// Completions that were changed so that they can be stored; they are among the forwarded.
        mended: Counter = "completion_listener.mended.total",
    }
}
