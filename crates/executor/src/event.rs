//! What happens to a partition, and what follows from it.

use std::sync::Arc;

use attune_core::{
    Action, ActionId, Attempt, ExecutionId, QueueTotals, Reject, RequestId, Submission,
};
use attune_messages::v1::{Answer, Completion, OnReject};
use attune_store::{ActiveRow, End, KnownRequest, NewExecution, SlotRow, Update};

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
    /// A run has ended.
    Completed(Box<Completion>),
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
    /// A slot that nobody claimed for this long is dispatched again.
    pub republish_after: u64,
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
}

impl Counter {
    /// All of them.
    pub const ALL: [Self; 13] = [
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
        }
    }
}
