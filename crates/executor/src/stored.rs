//! What an owner writes into the store and reads from it.

use std::collections::BTreeMap;
use std::sync::Arc;

use attune_core::policy::{Said, Words};
use attune_core::{
    ActionId, Asker, Attempt, Demand, Epoch, ExecutionId, GroupKey, IllegalMove, Move, Moved,
    OperationId, OperationProgress, Outcome, OwnerId, PartitionId, Pauses, PolicySet, Priority,
    QueueTotals, RawValue, RequestId, Status, Submission, TraceParent, WorkerId,
};

mod leases;

pub use leases::{ObservedLease, StoredExecutor, StoredLease, WorkerEnd};

use crate::partition::Letter;
use crate::queue::Millis;

/// What every partition goes by beside its own rows: sets that are read whole, each with a version.
#[derive(Debug, Clone, Default)]
pub struct Sets {
    /// What operators hold.
    pub pauses: Arc<Pauses>,
    /// The policy documents in force.
    pub policies: Arc<PolicySet>,
}

/// A request that has led to an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownRequest {
    /// Names the request.
    pub request_id: RequestId,
    /// What it led to.
    pub execution_id: ExecutionId,
    /// The digest of its body.
    pub digest: i64,
    /// Where the execution stands.
    pub status: Status,
}

/// An execution that is accepted, or recorded as rejected.
#[derive(Debug, Clone)]
pub struct NewExecution {
    /// Its id.
    pub id: ExecutionId,
    /// Its action.
    pub action_id: ActionId,
    /// The request that led to it.
    pub request_id: RequestId,
    /// The digest of the request's body.
    pub digest: i64,
    /// What was asked for.
    pub submission: Arc<Submission>,
    /// Where it stands.
    pub status: Status,
    /// How often it has held a slot.
    pub attempt: Attempt,
    /// The number of its grant, when it holds a slot.
    pub grant_no: Option<i64>,
    /// What it demands of the limits of its action, where not all demand the same; apart, as most do not.
    pub demand: Option<Box<Demand>>,
    /// Who has asked for it, where it is counted how many of theirs wait.
    pub asker: Option<Asker>,
    /// Whether it shall be ended already: a later one of its round takes its place.
    pub cancel_requested: bool,
    /// Which life of a worker may run it, when it holds a slot or stands ahead of one.
    pub worker: Option<WorkerId>,
}

/// A move of an execution that [`Status::after`] allows; there is no other way to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition(Status);

impl Transition {
    /// The move `by` of an execution that is in `from`.
    ///
    /// # Errors
    /// [`IllegalMove`] when there is no such move.
    pub fn of(from: Status, by: Move) -> Result<Self, IllegalMove> {
        from.after(by).map(Self)
    }

    /// A waiting execution is given a slot.
    pub(crate) fn grant() -> Self {
        Self(
            Status::Queued
                .after(Move::Grant)
                .expect("whoever waits may be granted a slot"),
        )
    }

    /// A slot is taken back; its execution waits again.
    pub(crate) fn revoke() -> Self {
        Self(
            Status::Requested
                .after(Move::Revoke)
                .expect("whoever holds a slot may lose it"),
        )
    }

    /// Somebody who has kept its slot is given the next attempt in it.
    pub(crate) fn next_try() -> Self {
        Self(
            Status::Requested
                .after(Move::Keep)
                .expect("whoever holds a slot may keep it"),
        )
    }

    /// Where it leads.
    pub fn to(self) -> Status {
        self.0
    }
}

/// A change of a stored execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Which execution.
    pub id: ExecutionId,
    /// Where it stands from now on, if that changes.
    pub transition: Option<Transition>,
    /// Its attempt from now on.
    pub attempt: Attempt,
    /// The number of its grant, if it is granted to a worker; whoever stood ahead of its slot keeps its number.
    pub grant_no: Option<i64>,
    /// Whether it shall be ended.
    pub cancel_requested: bool,
    /// What else is written of an execution that is put back.
    pub put_back: Option<Box<PutBack>>,
    /// Which life of a worker may run it, if it is given a slot, or granted ahead of one: then it goes on waiting.
    pub worker: Option<WorkerId>,
    /// Since when it runs, where its worker has said so.
    pub started: Option<Millis>,
}

impl Change {
    /// Whether it grants ahead of a slot.
    pub fn grants_ahead(&self) -> bool {
        let waits = |transition: Transition| transition.to() == Status::Queued;
        self.worker.is_some() && self.transition.is_none_or(waits)
    }

    /// A change of nothing yet.
    pub(crate) fn of(id: ExecutionId, attempt: Attempt) -> Self {
        Self {
            id,
            transition: None,
            attempt,
            grant_no: None,
            cancel_requested: false,
            put_back: None,
            worker: None,
            started: None,
        }
    }
}

/// What is written of who waits again, or keeps its slot until its next try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutBack {
    /// Until when it waits for its time; without one it is eligible at once, whatever a clock shows.
    pub not_before: Option<Millis>,
    /// How many of its grants never began, from now on.
    pub unbegun: u16,
    /// Why its last try ended, if one did; else that is as it was.
    pub last_error: Option<String>,
    /// Whether it keeps its slot until `not_before`.
    pub keeps_slot: bool,
}

/// The end of an execution.
#[derive(Debug, Clone)]
pub struct End {
    /// Which execution.
    pub id: ExecutionId,
    /// How it ended.
    pub outcome: Arc<Outcome>,
    /// For how long it ran, as its worker says.
    pub ran: Option<Millis>,
}

impl End {
    /// The end of an execution that is in `from`.
    ///
    /// # Errors
    /// [`IllegalMove`] when it cannot end so.
    pub fn of(id: ExecutionId, from: Status, outcome: Arc<Outcome>) -> Result<Self, IllegalMove> {
        Transition::of(from, Move::End(outcome.status))?;
        let ran = None;
        Ok(Self { id, outcome, ran })
    }
}

/// Something for the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Audit {
    /// An operator took a slot back.
    ForceRelease {
        /// Names the command.
        request_id: RequestId,
        /// Who did it.
        who: String,
        /// Why.
        reason: String,
        /// Whose slot it was.
        execution_id: ExecutionId,
        /// Which attempt held it.
        attempt: Attempt,
        /// Its action's ref.
        action_ref: String,
        /// Who ran it, as far as the operator saw.
        worker: Option<WorkerId>,
        /// Whether it was to be ended anyway.
        cancel_requested: bool,
        /// Where it stands from now on.
        status: Status,
    },
    /// An operator tried to take a slot back that the attempt did not hold.
    ReleaseRefused {
        /// Names the command.
        request_id: RequestId,
        /// Who tried.
        who: String,
        /// Why.
        reason: String,
        /// Whose slot it was to be.
        execution_id: ExecutionId,
        /// Which attempt was to lose it.
        attempt: Attempt,
    },
    /// The detector found that a promise was broken.
    Violation(Box<crate::detector::Violation>),
}

impl Audit {
    /// The partition that it is about.
    pub(crate) fn partition(&self) -> Option<PartitionId> {
        match self {
            Self::ForceRelease { execution_id, .. } | Self::ReleaseRefused { execution_id, .. } => {
                Some(execution_id.partition())
            }
            Self::Violation(violation) => violation.executions.first().map(|id| id.partition()),
        }
    }
}

/// Names what is counted for a limit: the limit and for whom.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MeterPlace {
    /// For which limit.
    pub limit_id: String,
    /// For whom.
    pub key: GroupKey,
}

/// What was counted for a limit, as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meter {
    /// In which partition.
    pub partition: PartitionId,
    /// For which limit and for whom.
    pub place: MeterPlace,
    /// What was counted.
    pub state: Vec<u8>,
    /// From when on it says nothing any more.
    pub expires_at: Millis,
}

/// What was counted for a limit, as it is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMeter {
    /// For which limit and for whom.
    pub place: MeterPlace,
    /// What was counted.
    pub state: Vec<u8>,
    /// When that was written, by the store's clock.
    pub written_at: Millis,
}

/// Everything that one round changes: written whole, or not at all.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Who writes.
    pub owner: OwnerId,
    /// When it was decided, by the owner's time: what is accepted and granted has this time.
    pub at: Millis,
    /// The epochs that must still be the writer's.
    pub fences: Vec<(PartitionId, Epoch)>,
    /// Executions that are accepted.
    pub inserts: Vec<NewExecution>,
    /// Executions that are accepted, or recorded as rejected, and have ended in the same round.
    pub instant: Vec<(NewExecution, Arc<Outcome>)>,
    /// Changes of executions that were stored before.
    pub changes: Vec<Change>,
    /// Executions that stand elsewhere from now on.
    pub moves: Vec<Moved>,
    /// Ends of executions that were stored before.
    pub ends: Vec<End>,
    /// How far bulk operations are afterwards.
    pub progress: Vec<(PartitionId, OperationId, OperationProgress)>,
    /// Which version of the policy set partitions go by from now on.
    pub policies: Vec<(PartitionId, i64)>,
    /// The totals of every queue that changes.
    pub totals: Vec<(PartitionId, ActionId, QueueTotals)>,
    /// What was counted for limits.
    pub meters: Vec<Meter>,
    /// What is written down for people.
    pub audit: Vec<Audit>,
    /// Submissions that cannot even be recorded.
    pub letters: Vec<(PartitionId, Letter)>,
}

impl Batch {
    pub(crate) fn new(owner: OwnerId, at: Millis) -> Self {
        Self {
            owner,
            at,
            fences: Vec::new(),
            inserts: Vec::new(),
            instant: Vec::new(),
            changes: Vec::new(),
            moves: Vec::new(),
            ends: Vec::new(),
            progress: Vec::new(),
            policies: Vec::new(),
            totals: Vec::new(),
            meters: Vec::new(),
            audit: Vec::new(),
            letters: Vec::new(),
        }
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.inserts.is_empty()
            && self.instant.is_empty()
            && self.changes.is_empty()
            && self.moves.is_empty()
            && self.ends.is_empty()
            && self.progress.is_empty()
            && self.policies.is_empty()
            && self.meters.is_empty()
            && self.audit.is_empty()
            && self.letters.is_empty()
    }
}

/// The body of an execution that was granted a slot, for its dispatch.
#[derive(Debug, Clone)]
pub struct Body {
    /// Which execution.
    pub id: ExecutionId,
    /// What it is given.
    pub parameters: Box<RawValue>,
    /// How long it may run, when it says so itself.
    pub timeout_seconds: Option<u32>,
    /// Of which trace it is a part.
    pub trace: Option<TraceParent>,
}

/// An execution that waits or holds a slot, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredExecution {
    /// Its id.
    pub id: ExecutionId,
    /// Its action.
    pub action_id: ActionId,
    /// Who goes first.
    pub priority: Priority,
    /// `Queued`, `Requested` or `Running`.
    pub status: Status,
    /// How often it has held a slot.
    pub attempt: Attempt,
    /// The number of its last grant.
    pub grant_no: Option<i64>,
    /// How many of these grants never began.
    pub unbegun: u16,
    /// Whether a try has ended and another was to follow: if it has held a slot, `not_before` says when.
    pub retried: bool,
    /// When it was accepted, by the time of the owner that did so.
    pub created: Millis,
    /// When it may start, or may be tried again.
    pub not_before: Option<Millis>,
    /// Until when it keeps its slot without running, if its try has ended and it does.
    pub kept_until: Option<Millis>,
    /// Whether it shall be ended.
    pub cancel_requested: bool,
    /// Whether it goes before all others of its action.
    pub front: bool,
    /// What it demands of the limits of its action, by the rule of the time when it was accepted.
    pub demand: Option<Demand>,
    /// As for [`NewExecution::asker`].
    pub asker: Option<Asker>,
    /// Which life of a worker may run it, if it holds a slot or stands ahead of one.
    pub worker: Option<WorkerId>,
}

impl StoredExecution {
    /// Whether it is granted to a worker: it holds a slot, or stands ahead of one.
    pub(crate) fn is_granted(&self) -> bool {
        self.status.holds_slot() || self.worker.is_some()
    }

    /// The number of its grant, if it stands ahead of a slot.
    pub(crate) fn ahead(&self) -> Option<i64> {
        let stands_ahead = !self.status.holds_slot() && self.worker.is_some();
        stands_ahead.then(|| self.grant_no.unwrap_or_default())
    }
}

/// What an execution says by which it can be grouped.
#[derive(Debug, Clone)]
pub struct StoredWords {
    /// Its id.
    pub id: ExecutionId,
    /// The user for whom it runs.
    pub requested_by: Option<String>,
    /// Its own group.
    pub group: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// What it is given.
    pub parameters: Box<RawValue>,
}

impl StoredWords {
    /// The same, for rules.
    pub(crate) fn words(&self) -> Words<'_> {
        Words::from(Said {
            user: self.requested_by.as_deref(),
            // It is not stored, and nothing is grouped by it.
            source: None,
            group: self.group.as_deref(),
            labels: &self.labels,
            parameters: &self.parameters,
        })
    }
}

/// Where a page of what a partition has ended; the next one goes on after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadedTo {
    /// The action of the last row.
    pub action_id: ActionId,
    /// When it was accepted, in microseconds since 1970.
    pub created: i64,
    /// Its id.
    pub id: ExecutionId,
}

/// An execution that is granted to a worker, as it is stored; times in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSlot {
    /// Its id.
    pub id: ExecutionId,
    /// Its action.
    pub action_id: ActionId,
    /// Its priority, for when it must wait again.
    pub priority: Priority,
    /// When it was accepted, by the time of the owner that did so.
    pub created: Millis,
    /// The attempt that holds it.
    pub attempt: Attempt,
    /// As for [`StoredExecution::grant_no`].
    pub grant_no: Option<i64>,
    /// How many grants of its execution never began.
    pub unbegun: u16,
    /// `Requested` or `Running`, or `Queued` where it stands ahead of a slot.
    pub status: Status,
    /// Who runs it.
    pub worker: Option<WorkerId>,
    /// Whether the lease of that worker is over.
    pub worker_over: bool,
    /// Whether it is known that the attempt never began there, and never will.
    pub never_begun: bool,
    /// When the slot was granted, likewise.
    pub requested_at: Millis,
    /// For how long it has been running, by the store's clock.
    pub running_for: Option<Millis>,
    /// As for [`StoredExecution::kept_until`].
    pub kept_until: Option<Millis>,
    /// Whether it shall be ended.
    pub cancel_requested: bool,
    /// As for [`StoredExecution::front`].
    pub front: bool,
    /// As for [`StoredExecution::demand`].
    pub demand: Option<Demand>,
    /// As for [`NewExecution::asker`].
    pub asker: Option<Asker>,
}

impl StoredSlot {
    /// The execution without what only holders have.
    pub(crate) fn execution(&self) -> StoredExecution {
        StoredExecution {
            id: self.id,
            action_id: self.action_id,
            priority: self.priority,
            status: self.status,
            attempt: self.attempt,
            grant_no: self.grant_no,
            unbegun: self.unbegun,
            retried: false,
            created: self.created,
            not_before: None,
            kept_until: self.kept_until,
            cancel_requested: self.cancel_requested,
            front: self.front,
            demand: self.demand,
            asker: self.asker,
            worker: self.worker,
        }
    }
}
