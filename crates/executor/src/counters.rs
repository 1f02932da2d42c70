//! What an executor counts.

/// Declares the counters once: the variant and its name among the metrics.
macro_rules! counters {
    ($($variant:ident = $name:literal),+ $(,)?) => {
        /// What an executor counts.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[expect(missing_docs, reason = "the names say it, and `name` is what people see")]
        pub enum Counter {
            $($variant),+
        }

        impl Counter {
            /// All of them.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Its name among the metrics.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }
    };
}

counters! {
    Accepted = "queue.enqueue.total",
    Repeated = "executor.requests.repeated.total",
    Rejected = "executor.requests.rejected.total",
    Granted = "queue.schedule.total",
    Completed = "executor.completions.total",
    StaleCompletion = "executor.completions.stale.total",
    Cancelled = "executor.cancelled.total",
    Expired = "executor.expired.total",
    Revoked = "executor.revoked.total",
    Abandoned = "executor.abandoned.total",
    Redispatched = "executor.redispatched.total",
    Undispatchable = "executor.undispatchable.total",
    DispatchDropped = "executor.dispatches.dropped.total",
    LetterKept = "executor.dead_letters.kept.total",
    SlotLeakMended = "executor.reconcile.leaked_slots.total",
    SlotMissingMended = "executor.reconcile.missing_slots.total",
    WaitingLeakMended = "executor.reconcile.leaked_waiting.total",
    WaitingMissingMended = "executor.reconcile.missing_waiting.total",
    UnknownActionMended = "executor.reconcile.unknown_actions.total",
    ForceReleased = "executor.force_released.total",
    OrderViolation = "executor.violations.order.total",
    LimitViolation = "executor.violations.limit.total",
    Fenced = "executor.commits.fenced.total",
    CommitRefused = "executor.commits.refused.total",
    CommitUnknown = "executor.commits.unknown.total",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_a_name_of_its_own() {
        let names: std::collections::HashSet<&str> =
            Counter::ALL.iter().map(|counter| counter.name()).collect();
        assert_eq!(names.len(), Counter::ALL.len());
    }
}
