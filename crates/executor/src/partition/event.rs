//! What happens to a partition, and what follows from it.

use std::sync::Arc;

use attune_core::{
    Action, ActionId, Attempt, ExecutionId, Explanation, Moved, OperationId, OperationProgress,
    Outcome, PartOfOperation, Pauses, PolicySet, Priority, QueueTotals, Reject, RequestId,
    Submission, WaitBound, WorkerId,
};

use attune_dispatch::Key;

use super::Page;
use crate::counters::Counter;
use crate::happened::ActionEvent;
use crate::notice::Notice;
use crate::queue::Millis;
use crate::stored::{
    Audit, Change, End, KnownRequest, NewExecution, Sets, StoredExecution, StoredMeter, StoredSlot,
    StoredWords,
};

/// Something that happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// The partition was taken over: these are its actions and what has gone through their queues.
    Recover {
        /// Its actions.
        actions: Vec<Action>,
        /// The totals of their queues.
        totals: Vec<(ActionId, QueueTotals)>,
        /// What operators hold, and the policies: nothing is granted before they are known.
        sets: Sets,
    },
    /// What was counted for rates, intervals and quotas; comes after `Recover`, in pages, before anything
    /// is granted or accepted.
    RecoverMeters(Vec<StoredMeter>),
    /// Executions that wait or hold a slot, by rising id; comes after `Recover`, in pages.
    RecoverRows(Vec<StoredExecution>),
    /// The definition or policy of an action as it is from now on.
    ActionKnown(Box<Action>),
    /// What operators hold from now on; an earlier set than the one that is known changes nothing.
    Pauses(Arc<Pauses>),
    /// The policy documents that are in force from now on; likewise. It comes before everything else of its
    /// round, and [`Event::Tick`] after it.
    Policies(Arc<PolicySet>),
    /// A client asks for an execution.
    Submit {
        /// What is asked for.
        submit: Submit,
        /// What the store knows of the request.
        known: Option<KnownRequest>,
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
    /// Somebody asks why an execution does not run yet. Nothing changes by it.
    Explain {
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
        command: Box<ForceRelease>,
        /// Who waits for the answer.
        reply_to: Option<Arc<str>>,
    },
    /// A run has ended.
    Completed(Completion),
    /// An attempt cannot be told to any worker: its dispatch can never be sent.
    Undispatchable {
        /// Which execution.
        execution_id: ExecutionId,
        /// Which attempt.
        attempt: Attempt,
        /// Why, for people.
        why: String,
    },
    /// A worker gives back what it was granted: nothing of it has begun there, or ever will.
    Returned {
        /// Which life says it.
        worker: WorkerId,
        /// Everything of the partition that it gives back and that is not settled, with the reasons.
        grants: Vec<(Key, Arc<str>)>,
    },
    /// A worker lacks keys with which parameters are sealed that it was granted, and gives that back: what follows
    /// says so.
    LacksKeys {
        /// Which life says it.
        worker: WorkerId,
        /// Which of its grants need which key.
        grants: Vec<(Key, Arc<str>)>,
    },
    /// Grants that never left: nobody received the message, and it is in no queue.
    Bounced {
        /// For whom they were.
        worker: WorkerId,
        /// Which.
        grants: Vec<Key>,
    },
    /// What runs at a worker, and for how long.
    Started {
        /// Which life says it.
        worker: WorkerId,
        /// What runs, and since when.
        runs: Vec<(Key, Millis)>,
    },
    /// A worker of this pool has room: whoever stands first in line for it may be granted a slot.
    Room {
        /// Which pool.
        pool: Arc<str>,
    },
    /// What the store has in a range of ids: every execution that waits or holds a slot, but for
    /// those that changed while it was read.
    ReconcileRange {
        /// The range begins after this id.
        after: Option<ExecutionId>,
        /// The range ends with this id; without one it has no end.
        last: Option<ExecutionId>,
        /// What is stored there, by rising id.
        rows: Vec<StoredExecution>,
        /// What changed meanwhile, and is not compared.
        changed: Arc<std::collections::HashSet<ExecutionId>>,
    },
    /// Which of those that hold a slot in memory hold one in the store.
    Reconcile {
        /// The rows.
        slots: Vec<StoredSlot>,
        /// What changed while they were read, and is not compared.
        changed: Arc<std::collections::HashSet<ExecutionId>>,
    },
    /// What executions say that are there, and whose action groups them otherwise than when they
    /// were accepted.
    Words(Vec<StoredWords>),
    /// Bulk operations that are open in the store.
    Operations(Vec<PartOfOperation>),
    /// The next executions of one of them, and what they say where that had to be read.
    Page(Page, Vec<StoredWords>),
    /// Time has passed.
    Tick,
}

/// What a client asks to be run.
#[derive(Debug, Clone)]
pub struct Submit {
    /// Names the request.
    pub request_id: RequestId,
    /// What is asked for.
    pub submission: Arc<Submission>,
    /// The digest of its body ([`Submission::digest`]).
    pub digest: i64,
    /// What happens when it is refused.
    pub on_reject: OnReject,
    /// How many executions of whoever asks may wait at once, if that is bounded.
    pub wait_bound: Option<WaitBound>,
}

impl Submit {
    /// A submission under this request id.
    pub fn new(request_id: RequestId, submission: Submission, on_reject: OnReject) -> Self {
        Self {
            request_id,
            digest: submission.digest(),
            submission: Arc::new(submission),
            on_reject,
            wait_bound: None,
        }
    }
}

/// What an owner does with a submission that it must refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnReject {
    /// Answer, and store nothing: someone waits for the answer.
    Answer,
    /// Record it as rejected: its sender was told that the message is safe.
    Record,
}

/// What an operator says who takes a slot back.
#[derive(Debug, Clone)]
pub struct ForceRelease {
    /// Names the command.
    pub request_id: RequestId,
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Which attempt of it; a later one keeps its slot.
    pub attempt: Attempt,
    /// Who asks for it.
    pub who: String,
    /// Why.
    pub reason: String,
    /// Who ran it as far as the asker saw.
    pub worker: Option<WorkerId>,
    /// Nothing of it was begun, says its worker: it waits again, whatever the policy says.
    pub never_begun: bool,
}

/// What a worker says of a run that has ended.
#[derive(Debug, Clone)]
pub struct Completion {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Which attempt of it.
    pub attempt: Attempt,
    /// Its action, as far as the worker knows.
    pub action_id: ActionId,
    /// How it ended.
    pub outcome: Arc<Outcome>,
    /// Which life of a worker has run it.
    pub worker: WorkerId,
    /// The user of the broker who says so, where somebody vouches for it.
    pub user: Option<Arc<str>>,
    /// For how long it ran, as its worker says.
    pub ran: Option<Millis>,
}

/// What an owner answers to one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Names the command.
    pub request_id: RequestId,
    /// What became of it.
    pub outcome: Result<Accepted, Reject>,
    /// Why an execution does not run yet, where that was asked.
    pub explanation: Option<Arc<Explanation>>,
}

/// What became of a command that was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Accepted {
    /// Which execution; absent in the answer to a change of an action.
    pub execution_id: Option<ExecutionId>,
    /// Where it stands.
    pub status: Option<attune_core::Status>,
    /// How many wait before it, while it waits.
    pub position: Option<u64>,
    /// Whether the request had been accepted before.
    pub repeated: bool,
    /// The priority that it has, when it was accepted just now.
    pub priority: Option<Priority>,
}

/// What the reconciler takes for lost or forgotten, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReconcileBounds {
    /// A worker whose lease ended this long ago is dead, and what it ran has been killed. The
    /// owner waits for that before it ends a lease.
    pub worker_grace: Millis,
    /// How often the reconciler looks.
    pub interval: Millis,
}

/// Something that must be done. Stored effects come true in one commit; the others follow it.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Store a new execution.
    Insert(NewExecution),
    /// Change a stored execution.
    Change(Change),
    /// Let one that waits stand elsewhere.
    Move(Moved),
    /// Say how far an operation is.
    Progress {
        /// Which operation.
        operation: OperationId,
        /// How far.
        progress: OperationProgress,
    },
    /// Say that everything is decided under this version of the policy set.
    GoesBy(i64),
    /// Move an execution to the history.
    End(End),
    /// Tell the worker that it may run it.
    Dispatch(Grantee),
    /// Tell the worker to end it.
    CancelRun {
        /// Which life of a worker.
        worker: WorkerId,
        /// Which grant.
        grant: Key,
    },
    /// Tell the worker to give back everything of an action that waits there.
    Recall {
        /// Which life of a worker.
        worker: WorkerId,
        /// Which action.
        action_id: ActionId,
    },
    /// Tell the worker that what became of it is written down.
    Settled {
        /// Which life of a worker.
        worker: WorkerId,
        /// Which grant.
        grant: Key,
    },
    /// Tell the asker.
    Answer {
        /// Who waits for it.
        reply_to: Arc<str>,
        /// What to say.
        answer: Answer,
    },
    /// Keep a submission as a dead letter, in the commit of this round: it cannot even be recorded.
    DeadLetter(Letter),
    /// Write it down, in the commit of this round.
    Audit(Audit),
    /// The queue of this action has changed.
    Touched(ActionId),
    /// Count something.
    Count(Counter),
    /// Count a slot that was given to somebody who has waited for it.
    Granted(Wait),
    /// Tell whoever listens to what happens.
    Event(Box<ActionEvent>),
    /// Tell people.
    Notice(Notice),
    /// What memory knew of an execution has followed the store: nothing is stored, and what was
    /// read before must not be compared with it.
    Mended(ExecutionId),
}

impl Effect {
    /// Whether it is stored beside the executions: memory knows nothing of it.
    pub(crate) fn stands_beside(&self) -> bool {
        matches!(self, Self::DeadLetter(_) | Self::Audit(_))
    }
}

/// How long somebody has waited for the slot that it was given, and with which priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// Its priority.
    pub priority: Priority,
    /// From when it might have had one, its acceptance or the end of its delay, by the owner's time.
    pub waited: Millis,
}

/// An execution that may run.
#[derive(Debug, Clone)]
pub struct Grantee {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Which attempt of it.
    pub attempt: Attempt,
    /// Its action, as it was when the slot was granted.
    pub action: Arc<Action>,
    /// Which life of a worker may run it.
    pub worker: WorkerId,
    /// How many of the action that worker may run at once, where it is granted ahead of its slot.
    pub slots: Option<u32>,
    /// When it was granted, by the owner's time.
    pub at: Millis,
    /// How long it had waited then, as in [`Wait`].
    pub waited: Millis,
}

impl Grantee {
    /// What names its grant.
    pub(crate) fn key(&self) -> attune_dispatch::Key {
        (self.execution_id, self.attempt)
    }
}

/// A submission that nothing can be done with, and why.
#[derive(Debug, Clone)]
pub struct Letter {
    /// Names the request.
    pub request_id: RequestId,
    /// The digest of its body.
    pub digest: i64,
    /// The submission.
    pub submission: Arc<Submission>,
    /// Why.
    pub reject: Reject,
}
