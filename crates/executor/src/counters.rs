//! What an executor counts.

/// Declares the counters once: what each counts, the variant, and its name among the metrics.
macro_rules! counters {
    ($(#[doc = $doc:literal] $variant:ident = $name:literal),+ $(,)?) => {
        /// What an executor counts.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Counter {
            $(#[doc = $doc] $variant),+
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

            /// What it counts, for people who look at the metrics.
            pub fn help(self) -> &'static str {
                match self {
                    $(Self::$variant => $doc.trim_start()),+
                }
            }
        }
    };
}

counters! {
    /// Executions that were accepted.
    Accepted = "queue.enqueue.total",
    /// Submissions that came again under their request id.
    Repeated = "executor.requests.repeated.total",
    /// Submissions that were refused.
    Rejected = "executor.requests.rejected.total",
    /// Slots that were given.
    Granted = "queue.schedule.total",
    /// Runs that ended and freed their slot.
    Completed = "executor.completions.total",
    /// Ends of runs that held no slot any more.
    StaleCompletion = "executor.completions.stale.total",
    /// Ends of runs that another user of the broker reported than whoever ran them; they changed nothing.
    ForbiddenCompletion = "executor.completions.forbidden.total",
    /// Reports in the name of a worker that another user of the broker sent; they changed nothing.
    ForbiddenReport = "executor.reports.forbidden.total",
    /// Messages whose `reply_to` is no address for answers: nobody was answered.
    NotAnswered = "executor.answers.refused.total",
    /// Executions that were cancelled.
    Cancelled = "executor.cancelled.total",
    /// Executions that waited for longer than their queue allows.
    Expired = "executor.expired.total",
    /// Executions that ended because their queue was full and a later one took their place.
    Dropped = "executor.dropped.total",
    /// Executions that ended because a later one of their group took their place.
    Replaced = "executor.replaced.total",
    /// Slots taken back whose executions wait again.
    Revoked = "executor.revoked.total",
    /// Runs that failed or took too long, and whose executions are tried again.
    Retried = "executor.retried.total",
    /// Executions that ended because their worker was lost.
    Abandoned = "executor.abandoned.total",
    /// Times that a worker was told everything that it holds of a partition, because something may have been lost.
    Synced = "executor.workers.synced.total",
    /// Grants that nobody received, and that were given to others at once.
    Bounced = "executor.grants.bounced.total",
    /// Grants that workers gave back without having begun them.
    Returned = "executor.grants.returned.total",
    /// Executions that ended because their dispatch can never be sent.
    Undispatchable = "executor.undispatchable.total",
    /// Events that were dropped, because too many were on their way to whoever listens.
    EventLost = "executor.events.lost.total",
    /// Dead letters that were stored with a commit.
    LetterKept = "executor.dead_letters.kept.total",
    /// Slots in memory that the store did not know.
    SlotLeakMended = "executor.reconcile.leaked_slots.total",
    /// Slots of the store that were not in memory.
    SlotMissingMended = "executor.reconcile.missing_slots.total",
    /// Executions that waited in memory only.
    WaitingLeakMended = "executor.reconcile.leaked_waiting.total",
    /// Executions that waited in the store only.
    WaitingMissingMended = "executor.reconcile.missing_waiting.total",
    /// Actions of the store that were not in memory.
    UnknownActionMended = "executor.reconcile.unknown_actions.total",
    /// Changes of actions that their owner had not been told of.
    ChangedActionMended = "executor.reconcile.changed_actions.total",
    /// Slots taken back by force.
    ForceReleased = "executor.force_released.total",
    /// Executions that were started out of their order.
    OrderViolation = "executor.violations.order.total",
    /// Times that more slots were held than the limit allows.
    LimitViolation = "executor.violations.limit.total",
    /// Commits refused because the partition has another owner.
    Fenced = "executor.commits.fenced.total",
    /// Commits that the store refused.
    CommitRefused = "executor.commits.refused.total",
    /// Commits whose outcome was not known.
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
