//! What happens to a partition, and what follows from it.

use std::sync::Arc;

use attune_core::{
    Action, ActionId, Attempt, ExecutionId, QueueTotals, Reject, RequestId, Submission,
};
use attune_messages::v1::{Answer, Completion, ForceRelease, OnReject};
use attune_store::{ActiveRow, End, KnownRequest, NewAudit, NewExecution, SlotRow, Update};

/// Something that happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// The partition was taken over: these are its actions and what has gone through their queues.
    Recover {
        /// Its actions.
        actions: Vec<Action>,
        /// The totals of their queues.
        totals: Vec<(ActionId, QueueTotals)>,
    },
    /// Executions that wait or hold a slot, by rising id; comes after `Recover`, in pages.
    RecoverRows(Vec<ActiveRow>),
    /// What the store knows of the requests that follow.
    Known(Vec<KnownRequest>),
    /// The definition or policy of an action as it is from now on.
    ActionKnown(Action),
    /// A client asks for an execution.
    Submit {
        /// Names the request.
        request_id: RequestId,
        /// What is asked for.
        submission: Submission,
        /// What happens when it is refused.
        on_reject: OnReject,
        /// Who waits for the answer.
        reply_to: Option<Arc<str>>,
    },
    /// A client asks to end an execution.
    Cancel {
        /// Names the request.
        request_id: RequestId,
        /// Which execution.
        execution_id: ExecutionId,
        /// Who waits for the answer.
        reply_to: Option<Arc<str>>,
    },
    /// An operator takes the slot from an attempt.
    ForceRelease {
        /// Which attempt, who and why.
        command: ForceRelease,
        /// Who waits for the answer.
        reply_to: Option<Arc<str>>,
    },
    /// A run has ended.
    Completed(Box<Completion>),
    /// Every waiting execution of these actions, of which memory and store have different
    /// numbers; [`Event::Reconcile`] follows.
    ReconcileWaiting {
        /// The actions.
        actions: Vec<ActionId>,
        /// Their waiting executions.
        rows: Vec<ActiveRow>,
    },
    /// Everything that the store shows as holding a slot of this partition, read while nothing
    /// was being decided.
    Reconcile {
        /// The rows.
        slots: Vec<SlotRow>,
        /// What counts as lost or forgotten.
        bounds: ReconcileBounds,
    },
    /// Time has passed.
    Tick,
}

/// What the reconciler takes for lost or forgotten, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReconcileBounds {
    /// A worker whose lease ended this long ago is dead, and what it ran has been killed.
    pub worker_grace: u64,
    /// A slot that nobody claimed for this long is dispatched again; then after twice as long,
    /// four times, and so on: when all workers are busy for long, dispatches are not lost but
    /// waiting, and saying it again every time would only add to what they must read.
    pub republish_after: u64,
    /// How often the reconciler looks.
    pub interval: u64,
}

impl ReconcileBounds {
    /// Whether a slot held for this long without a claim is dispatched again at this look.
    pub fn is_forgotten(&self, held_for: u64) -> bool {
        let doublings = |time: u64| (time / self.republish_after.max(1)).checked_ilog2();
        // Looks are not exactly an interval apart; one too many does no harm, one too few delays.
        let last_look = held_for.saturating_sub(self.interval + self.interval / 4);
        doublings(held_for) != doublings(last_look)
    }
}

/// Something that must be done. Stored effects come true in one commit; the others follow it.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Store a new execution.
    Insert(Box<NewExecution>),
    /// Change a stored execution.
    Update(Update),
    /// Move an execution to the history.
    End(Box<End>),
    /// Tell the workers to run it.
    Dispatch(Dispatch),
    /// Tell the workers again: the first time may have been lost.
    Redispatch(Dispatch),
    /// Tell the workers to end it.
    CancelRun {
        /// Which execution.
        execution_id: ExecutionId,
        /// Which attempt of it.
        attempt: Attempt,
    },
    /// Tell the asker.
    Answer {
        /// Who waits for it.
        reply_to: Arc<str>,
        /// What to say.
        answer: Answer,
    },
    /// Put a submission among the dead letters: it cannot even be recorded.
    DeadLetter {
        /// The submission.
        submission: Box<Submission>,
        /// Why.
        reject: Reject,
    },
    /// Write it down, in the commit of this round.
    Audit(Box<NewAudit>),
    /// The queue of this action has changed.
    Touched(ActionId),
    /// Count something.
    Count(Counter),
}

/// An execution that may run.
#[derive(Debug, Clone)]
pub struct Dispatch {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Which attempt of it.
    pub attempt: Attempt,
    /// Its action, as it was when the slot was granted.
    pub action: Arc<Action>,
}

/// What the executor counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(
    missing_docs,
    reason = "the names say it, and `name` is what people see"
)]
pub enum Counter {
    Accepted,
    Repeated,
    Rejected,
    Granted,
    Completed,
    StaleCompletion,
    Cancelled,
    Expired,
    Revoked,
    Abandoned,
    Redispatched,
    SlotLeakMended,
    SlotMissingMended,
    WaitingLeakMended,
    WaitingMissingMended,
    UnknownActionMended,
    ForceReleased,
    OrderViolation,
    LimitViolation,
}

impl Counter {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::Accepted,
        Self::Repeated,
        Self::Rejected,
        Self::Granted,
        Self::Completed,
        Self::StaleCompletion,
        Self::Cancelled,
        Self::Expired,
        Self::Revoked,
        Self::Abandoned,
        Self::Redispatched,
        Self::SlotLeakMended,
        Self::SlotMissingMended,
        Self::WaitingLeakMended,
        Self::WaitingMissingMended,
        Self::UnknownActionMended,
        Self::ForceReleased,
        Self::OrderViolation,
        Self::LimitViolation,
    ];

    /// Its name among the metrics, without the suffix that counters get.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "queue.enqueue.total",
            Self::Repeated => "executor.requests.repeated.total",
            Self::Rejected => "executor.requests.rejected.total",
            Self::Granted => "queue.schedule.total",
            Self::Completed => "executor.completions.total",
            Self::StaleCompletion => "executor.completions.stale.total",
            Self::Cancelled => "executor.cancelled.total",
            Self::Expired => "executor.expired.total",
            Self::Revoked => "executor.revoked.total",
            Self::Abandoned => "executor.abandoned.total",
            Self::Redispatched => "executor.redispatched.total",
            Self::SlotLeakMended => "executor.reconcile.leaked_slots.total",
            Self::SlotMissingMended => "executor.reconcile.missing_slots.total",
            Self::WaitingLeakMended => "executor.reconcile.leaked_waiting.total",
            Self::WaitingMissingMended => "executor.reconcile.missing_waiting.total",
            Self::UnknownActionMended => "executor.reconcile.unknown_actions.total",
            Self::ForceReleased => "executor.force_released.total",
            Self::OrderViolation => "executor.violations.order.total",
            Self::LimitViolation => "executor.violations.limit.total",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unclaimed_slot_is_dispatched_again_ever_more_rarely() {
        let bounds = ReconcileBounds {
            worker_grace: 0,
            republish_after: 30,
            interval: 10,
        };
        let again: Vec<u64> = (0..=50)
            .map(|n| n * 10)
            .filter(|t| bounds.is_forgotten(*t))
            .collect();
        assert_eq!(again, [30, 40, 60, 70, 120, 130, 240, 250, 480, 490]);
    }
}
