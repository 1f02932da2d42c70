//! What is told of an action to whoever listens (`policy.events`), after the commit that made it so. Nobody
//! waits for it, and what is lost of it is lost: the tables are the truth.

use attune_core::policy::EventKind;
use attune_core::{
    ActionId, Attempt, EndCode, ExecutionId, OperationId, PauseMode, RejectCode, RequestId, Status,
};

use crate::queue::Millis;

/// Something that has happened to an action or one of its executions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionEvent {
    /// When it was decided.
    pub at: Millis,
    /// Which action.
    pub action_id: ActionId,
    /// The action's ref.
    pub action_ref: String,
    /// What has happened.
    pub what: Happened,
}

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// An execution was accepted.
    Accepted {
        /// Which execution.
        execution_id: ExecutionId,
        /// How many wait before it.
        position: u64,
    },
    /// A submission was refused.
    Rejected {
        /// Which request.
        request_id: RequestId,
        /// Why.
        code: RejectCode,
    },
    /// An execution was given a slot.
    Started {
        /// Which execution.
        execution_id: ExecutionId,
        /// In which attempt.
        attempt: Attempt,
    },
    /// An execution has ended.
    Finished {
        /// Which execution.
        execution_id: ExecutionId,
        /// Its last attempt.
        attempt: Attempt,
        /// How.
        status: Status,
        /// Why it was not run to its end, where that has a name.
        code: Option<EndCode>,
    },
    /// A try has ended, and there is another.
    Retried {
        /// Which execution.
        execution_id: ExecutionId,
        /// The attempt that ended.
        attempt: Attempt,
        /// When the next may begin.
        not_before: Millis,
    },
    /// An execution has ended because the queue was full.
    Dropped {
        /// Which execution.
        execution_id: ExecutionId,
        /// Its last attempt.
        attempt: Attempt,
        /// Which one took its place.
        newcomer: ExecutionId,
    },
    /// An execution has ended because a later one of its group took its place.
    Replaced {
        /// Which execution.
        execution_id: ExecutionId,
        /// Its last attempt.
        attempt: Attempt,
        /// Which one took its place.
        newcomer: ExecutionId,
    },
    /// The limit of the action is another one.
    LimitChanged {
        /// The limit before.
        earlier: Option<u32>,
        /// The limit now.
        limit: Option<u32>,
    },
    /// Operators hold the queue.
    Paused {
        /// How.
        mode: PauseMode,
    },
    /// Nobody holds it any more.
    Resumed,
    /// A bulk operation is over in the partition of the action.
    OperationFinished {
        /// Which operation.
        operation: OperationId,
        /// To how many executions of the partition something was done.
        done: u64,
        /// To how many nothing was to be done.
        skipped: u64,
    },
}

impl Happened {
    /// By what name it is asked for.
    #[must_use]
    pub fn kind(self) -> EventKind {
        match self {
            Self::Accepted { .. } => EventKind::Accepted,
            Self::Rejected { .. } => EventKind::Rejected,
            Self::Started { .. } => EventKind::Started,
            Self::Finished { .. } => EventKind::Finished,
            Self::Retried { .. } => EventKind::Retried,
            Self::Dropped { .. } => EventKind::Dropped,
            Self::Replaced { .. } => EventKind::Replaced,
            Self::LimitChanged { .. } => EventKind::LimitChanged,
            Self::Paused { .. } => EventKind::Paused,
            Self::Resumed => EventKind::Resumed,
            Self::OperationFinished { .. } => EventKind::OperationFinished,
        }
    }

    /// The execution that it is about, and its attempt.
    #[must_use]
    pub fn execution(self) -> Option<(ExecutionId, Attempt)> {
        match self {
            Self::Accepted { execution_id, .. } => Some((execution_id, Attempt(0))),
            Self::Started {
                execution_id,
                attempt,
            }
            | Self::Finished {
                execution_id,
                attempt,
                ..
            }
            | Self::Retried {
                execution_id,
                attempt,
                ..
            }
            | Self::Dropped {
                execution_id,
                attempt,
                ..
            }
            | Self::Replaced {
                execution_id,
                attempt,
                ..
            } => Some((execution_id, attempt)),
            _ => None,
        }
    }
}
