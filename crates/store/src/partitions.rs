//! The owner's port: leases, takeover, and the one fenced commit per batch.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use attune_core::{
    Action, ActionId, Asker, Attempt, Demand, Epoch, ExecutionId, OperationId, OperationProgress,
    Outcome, OwnerId, PartOfOperation, PartitionId, Priority, QueueTotals, RequestGap, RequestId,
    Status, Submission, TraceParent, WorkerId,
};
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::value::RawValue;

use crate::audit::NewAudit;
use crate::dead_letters::NewDeadLetter;
use crate::error::StoreError;
use crate::leases::{ExecutorRow, Lease, ObservedLease, TroubleNote};
use crate::meters::{Meter, MeterPage, MeterPlace};
use crate::operations::ExecutionLabels;
use crate::pauses::PauseSet;
use crate::policies::StoredPolicies;
use crate::rows::{ActivePage, ActivePlace, ActiveSlice, ExecutionWords, SlotRow, WorkerEnd};

/// What an owner must know before it decides on a batch of submissions.
#[derive(Debug, Clone, Default)]
pub struct Lookup {
    /// Those of the asked requests that were accepted before.
    pub requests: Vec<KnownRequest>,
    /// Those of the asked actions that exist.
    pub actions: Vec<Action>,
}

/// A request that was accepted lately: within the retention of requests, or not much earlier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownRequest {
    /// The request.
    pub request_id: RequestId,
    /// The execution it led to.
    pub execution_id: ExecutionId,
    /// The digest of its body ([`Submission::digest`]).
    pub digest: i64,
    /// Where the execution stands.
    pub status: Status,
}

/// An execution to be stored for the first time.
#[derive(Debug, Clone)]
pub struct NewExecution {
    /// Its id, which holds its partition and its place in the order.
    pub id: ExecutionId,
    /// Its action.
    pub action_id: ActionId,
    /// The request that led to it.
    pub request_id: RequestId,
    /// The digest of the request's body.
    pub digest: i64,
    /// What the client asked for.
    pub submission: Arc<Submission>,
    /// `Queued`, or `Requested` when a slot was free. Ignored when it ends in the same batch.
    pub status: Status,
    /// 0 when queued, 1 when requested.
    pub attempt: Attempt,
    /// The number of its grant among the grants of its partition, when it was granted.
    pub grant_no: Option<i64>,
    /// The worker that it was granted to, when it was granted. Ignored when it ends in the same batch.
    pub worker: Option<WorkerId>,
    /// What it demands of the limits of its action, where not all demand the same.
    pub demand: Option<Demand>,
    /// Who has asked for it, where it is counted how many of theirs wait.
    pub asker: Option<Asker>,
    /// Whether it shall be ended already: it was given a slot, and a later one of its round takes its place.
    pub cancel_requested: bool,
}

/// A change of an execution that is stored as active. Writing it twice is the same as once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// Which execution.
    pub id: ExecutionId,
    /// `Requested` for a grant, `Queued` for a slot taken back, the stored one (`None`) otherwise; one that names a
    /// worker and is not `Requested` grants ahead of a slot, and its execution waits (`Queued`).
    pub status: Option<Status>,
    /// The attempt it has from now on. A row that already has a higher one is left alone.
    pub attempt: Attempt,
    /// The number of the grant, for a grant.
    pub grant_no: Option<i64>,
    /// The worker that may start the attempt, for a grant: also of the next try in a slot that was kept.
    /// Whoever waits, or keeps its slot, has none, and a mark leaves the stored one.
    pub worker: Option<WorkerId>,
    /// When the attempt began to run, where its worker has said so. Counts in an update without a status
    /// that keeps no slot ([`starts`](Self::starts)), and while the row is `Requested` in just this
    /// attempt: then it is `Running` since this time.
    pub started: Option<DateTime<Utc>>,
    /// Whether its worker shall end it.
    pub cancel_requested: bool,
    /// What else is written of it, if it was put back.
    pub put_back: Option<PutBack>,
}

impl Update {
    /// Whether it grants the execution to a worker, with a slot or ahead of one.
    pub fn grants(&self) -> bool {
        self.worker.is_some() || self.status == Some(Status::Requested)
    }

    /// Whether it grants the execution to a worker ahead of its slot.
    pub fn grants_ahead(&self) -> bool {
        self.worker.is_some() && self.status != Some(Status::Requested)
    }

    /// Since when the attempt runs, if this update says so: it is [`started`](Self::started), unless the
    /// update itself gives the slot, takes it back, or keeps it for another attempt.
    pub fn starts(&self) -> Option<DateTime<Utc>> {
        let keeps_slot = self.put_back.as_ref().is_some_and(|back| back.keeps_slot);
        self.started
            .filter(|_| self.status.is_none() && !self.grants() && !keeps_slot)
    }
}

/// What is written of an execution that waits again after it had a slot, or keeps it until its next try;
/// also where the same batch grants it the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutBack {
    /// Until when it waits; in place of what was written before, also when it is nothing.
    pub not_before: Option<DateTime<Utc>>,
    /// How many of its grants never began.
    pub unbegun: u16,
    /// Why its last try ended; what was written before stays without it.
    pub last_error: Option<String>,
    /// Whether it keeps its slot until `not_before`, in an update without a status: it is `Requested`
    /// again, by no worker, and nobody starts it before it is granted its next attempt.
    pub keeps_slot: bool,
}

/// Where an execution stands that waits and was moved by hand. Writing it twice is the same as once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedExecution {
    /// Which execution.
    pub id: ExecutionId,
    /// Its priority from now on.
    pub priority: Priority,
    /// Whether it goes before all others of its action.
    pub front: bool,
}

/// The end of an execution that is stored as active: it moves into the history.
#[derive(Debug, Clone)]
pub struct End {
    /// Which execution.
    pub id: ExecutionId,
    /// How it ended.
    pub outcome: Arc<Outcome>,
    /// How long its last attempt ran, by the clock of its worker; `None` when it never began. Where
    /// nothing was said of its start ([`Update::started`]), it began so long before [`Batch::at`].
    pub ran: Option<Duration>,
}

impl End {
    /// When its last attempt began, as [`ran`](Self::ran) tells, in a batch of this [`Batch::at`].
    pub fn began(&self, at: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let ran = self.ran?;
        let ran = TimeDelta::from_std(ran).unwrap_or(TimeDelta::MAX);
        // Longer than there are times to tell it: whatever it is, the end can be written.
        Some(at.checked_sub_signed(ran).unwrap_or(DateTime::UNIX_EPOCH))
    }
}

/// Everything an owner decided in one round. Each execution appears at most once.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Who writes.
    pub owner: OwnerId,
    /// When it was decided, by the owner's time: what is accepted and what is granted has this
    /// time, so that the store's clock may step.
    pub at: DateTime<Utc>,
    /// The partitions that are written and the epochs in which the writer owns them.
    pub fences: Vec<(PartitionId, Epoch)>,
    /// Accepted executions.
    pub inserts: Vec<NewExecution>,
    /// Accepted executions that ended in the same round; they go straight to the history.
    pub instant: Vec<(NewExecution, Arc<Outcome>)>,
    /// Changes of stored executions.
    pub updates: Vec<Update>,
    /// Executions that stand elsewhere from now on, also where the same batch grants them a slot.
    pub moves: Vec<MovedExecution>,
    /// Ends of stored executions.
    pub ends: Vec<End>,
    /// How far bulk operations are after this batch.
    pub progress: Vec<(PartitionId, OperationId, OperationProgress)>,
    /// Under which version of the policy set partitions decide from now on; an older one than is written
    /// changes nothing.
    pub policies: Vec<(PartitionId, i64)>,
    /// The totals of every queue that changed, as they are after this batch.
    pub totals: Vec<(ActionId, QueueTotals)>,
    /// What was counted for limits.
    pub meters: Vec<Meter>,
    /// What is to be written down for the people who answer for the system.
    pub audit: Vec<NewAudit>,
    /// Submissions that nobody could use, kept as
    /// [`add_dead_letters`](crate::DeadLetterStore::add_dead_letters) keeps them.
    pub letters: Vec<NewDeadLetter>,
}

impl Batch {
    /// A batch that writes nothing yet, decided now by the clock of this process.
    pub fn new(owner: OwnerId) -> Self {
        Self {
            owner,
            at: Utc::now(),
            fences: Vec::new(),
            inserts: Vec::new(),
            instant: Vec::new(),
            updates: Vec::new(),
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

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.inserts.is_empty()
            && self.instant.is_empty()
            && self.updates.is_empty()
            && self.moves.is_empty()
            && self.ends.is_empty()
            && self.progress.is_empty()
            && self.policies.is_empty()
            && self.meters.is_empty()
            && self.audit.is_empty()
            && self.letters.is_empty()
    }
}

/// What a dispatch needs of an execution that is only in the store.
#[derive(Debug, Clone)]
pub struct GrantedBody {
    /// Which execution.
    pub id: ExecutionId,
    /// Its parameters.
    pub parameters: Box<RawValue>,
    /// Its own run timeout in seconds, if it has one.
    pub timeout_seconds: Option<u32>,
    /// Of which trace it is a part; nothing where what is stored is none.
    pub trace: Option<TraceParent>,
}

/// How many bytes of parameters one call brings at most, but always one body: whoever asks for more
/// asks again.
pub const MAX_BODIES_BYTES: usize = 8 << 20;

/// What a commit tells.
#[derive(Debug, Clone, Default)]
pub struct Committed {
    /// The bodies of the executions that [`Batch::updates`] granted, in any order; not all of them
    /// where they have more than [`MAX_BODIES_BYTES`]. The others can be
    /// [loaded](PartitionStore::load_bodies).
    pub granted: Vec<GrantedBody>,
    /// How many of [`Batch::ends`] found their execution. Fewer than asked happens when the
    /// same batch is written again after its first answer was lost.
    pub ended: u64,
}

/// A batch was not written.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The writer does not own these partitions in these epochs any more; nothing was written.
    #[error("{} partition(s) have another owner", .0.len())]
    Fenced(Vec<PartitionId>),
    /// Anything else. Unless [`StoreError::wrote_nothing`] says that it was not, the batch may have
    /// been written, or may be yet; then writing it again is right only while nothing of it can
    /// have moved on: the first try may come late.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What an owner asks of the store.
#[async_trait]
pub trait PartitionStore: Send + Sync {
    /// Makes the lease rows of a cluster with `count` partitions, once.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when the cluster was made with another number.
    async fn ensure_partitions(&self, count: u16) -> Result<(), StoreError>;

    /// Every partition, in order.
    ///
    /// # Errors
    /// When the store fails.
    async fn leases(&self) -> Result<Vec<Lease>, StoreError>;

    /// Takes those of `partitions` that nobody owns, for `ttl`; their epoch rises by one. One
    /// that the asker owns is taken as well: what it sent in the epoch before finds another one
    /// from then on. One that has an owner or was handed over to another executor is left to it,
    /// whatever the store's clock says; see [`acquire_observed`](Self::acquire_observed).
    ///
    /// # Errors
    /// When the store fails.
    async fn acquire(
        &self,
        owner: OwnerId,
        owner_name: &str,
        partitions: &[PartitionId],
        ttl: Duration,
    ) -> Result<Vec<(PartitionId, Epoch)>, StoreError>;

    /// Takes those of `observed` that have not moved since, for `ttl`, whoever owns them and
    /// whatever the store's clock says; their epoch rises by one. That enough time has passed is
    /// the caller's to judge: see [`ObservedLease`]. One that is free, or the caller's own, needs
    /// no time to pass.
    ///
    /// # Errors
    /// When the store fails.
    async fn acquire_observed(
        &self,
        owner: OwnerId,
        owner_name: &str,
        observed: &[ObservedLease],
        ttl: Duration,
    ) -> Result<Vec<(PartitionId, Epoch)>, StoreError>;

    /// Writes into the audit log which partitions an executor has taken. It is no part of taking them: they are
    /// its own also where the log takes nothing.
    ///
    /// # Errors
    /// When the store fails.
    async fn note_takeover(
        &self,
        owner: OwnerId,
        owner_name: &str,
        taken: &[(PartitionId, Epoch)],
    ) -> Result<(), StoreError>;

    /// Extends the leases that are still held in these epochs to `ttl` from now and returns them.
    ///
    /// # Errors
    /// When the store fails.
    async fn renew(
        &self,
        owner: OwnerId,
        held: &[(PartitionId, Epoch)],
        ttl: Duration,
    ) -> Result<Vec<PartitionId>, StoreError>;

    /// Gives leases up, so that others can take them at once: `to` before everybody else, if it
    /// names somebody.
    ///
    /// # Errors
    /// When the store fails.
    async fn give_up(
        &self,
        owner: OwnerId,
        held: &[(PartitionId, Epoch)],
        to: Option<OwnerId>,
    ) -> Result<(), StoreError>;

    /// Shows in [`Lease::trouble`] what keeps an owner from its work, where it owns the partition in
    /// the epoch it names. The leases themselves do not move. What was shown ends with its epoch.
    /// Answers where nothing was changed, because somebody else has the lease locked at the moment.
    ///
    /// # Errors
    /// When the store fails.
    async fn note_trouble(
        &self,
        owner: OwnerId,
        notes: &[TroubleNote],
    ) -> Result<Vec<PartitionId>, StoreError>;

    /// Says that an executor is there for `ttl` from now, and returns every one that is there,
    /// itself included, in any order. Unlike the lease of a worker this guards nothing, so one
    /// that was thought dead may come back. `cut_off` is what it says of its way to the bus.
    ///
    /// # Errors
    /// When the store fails.
    async fn renew_executor(
        &self,
        executor: OwnerId,
        name: &str,
        ttl: Duration,
        cut_off: bool,
    ) -> Result<Vec<ExecutorRow>, StoreError>;

    /// Forgets an executor that goes away.
    ///
    /// # Errors
    /// When the store fails.
    async fn retire_executor(&self, executor: OwnerId) -> Result<(), StoreError>;

    /// Every executor whose row is kept, by name. Those that died are kept for a day.
    ///
    /// # Errors
    /// When the store fails.
    async fn executors(&self) -> Result<Vec<ExecutorRow>, StoreError>;

    /// A page of at most `limit` executions of a partition that wait or hold a slot, after the
    /// place where the page before it ended; within an action the oldest first. As much work as it
    /// returns, however many others there are. Executions whose action has no row are left out.
    ///
    /// # Errors
    /// When the store fails.
    async fn load_partition(
        &self,
        partition: PartitionId,
        after: Option<ActivePlace>,
        limit: u32,
    ) -> Result<ActivePage, StoreError>;

    /// What waits or holds a slot in these partitions, among the `limit` rows by rising id after
    /// `after`. Rows of other partitions count for the limit, so a slice is never more work than
    /// the limit says.
    ///
    /// # Errors
    /// When the store fails.
    async fn scan_active(
        &self,
        partitions: &[PartitionId],
        after: Option<ExecutionId>,
        limit: u32,
    ) -> Result<ActiveSlice, StoreError>;

    /// What operators hold; `None` when the version of the set is not above `newer_than`.
    ///
    /// # Errors
    /// When the store fails.
    async fn pauses(&self, newer_than: Option<i64>) -> Result<Option<PauseSet>, StoreError>;

    /// The policy documents in force, but for those of actions; `None` when the version of the set is not above
    /// `newer_than`.
    ///
    /// # Errors
    /// When the store fails.
    async fn policies(&self, newer_than: Option<i64>)
    -> Result<Option<StoredPolicies>, StoreError>;

    /// The bulk operations that are open in these partitions, by partition and number. One of a kind that
    /// this program does not know is left to others.
    ///
    /// # Errors
    /// When the store fails.
    async fn open_operations(
        &self,
        partitions: &[PartitionId],
    ) -> Result<Vec<PartOfOperation>, StoreError>;

    /// The totals of every queue of these partitions.
    ///
    /// # Errors
    /// When the store fails.
    async fn load_totals(
        &self,
        partitions: &[PartitionId],
    ) -> Result<Vec<(ActionId, QueueTotals)>, StoreError>;

    /// A page of at most `limit` rows of what was counted in a partition, after the place where the page
    /// before it ended.
    ///
    /// # Errors
    /// When the store fails.
    async fn load_meters(
        &self,
        partition: PartitionId,
        after: Option<MeterPlace>,
        limit: u32,
    ) -> Result<MeterPage, StoreError>;

    /// The actions of these partitions.
    ///
    /// # Errors
    /// When the store fails.
    async fn load_actions(&self, partitions: &[PartitionId]) -> Result<Vec<Action>, StoreError>;

    /// Those of `ids` that hold a slot.
    ///
    /// # Errors
    /// When the store fails.
    async fn load_slots(&self, ids: &[ExecutionId]) -> Result<Vec<SlotRow>, StoreError>;

    /// The leases of the workers: of all that nobody has ended, and of those that ended within the
    /// last hour.
    ///
    /// # Errors
    /// When the store fails.
    async fn worker_ends(&self) -> Result<Vec<WorkerEnd>, StoreError>;

    /// Ends the leases of those workers whose [`WorkerEnd::renewals`] are still what was observed,
    /// and returns which of the asked ones are over: these, those that had ended before, and those
    /// without a row. From then on they cannot renew, so their slots can be taken back.
    ///
    /// # Errors
    /// When the store fails.
    async fn end_workers(&self, observed: &[(WorkerId, i64)]) -> Result<Vec<WorkerId>, StoreError>;

    /// What the store's clock shows.
    ///
    /// # Errors
    /// When the store fails.
    async fn now(&self) -> Result<DateTime<Utc>, StoreError>;

    /// The bodies of those of `ids` that wait or hold a slot, to dispatch them again: in the order
    /// of their ids, the first and as many more as have [`MAX_BODIES_BYTES`] together. So when there
    /// is an answer, what lies behind its last body may be there and has to be asked for again.
    ///
    /// # Errors
    /// When the store fails.
    async fn load_bodies(&self, ids: &[ExecutionId]) -> Result<Vec<GrantedBody>, StoreError>;

    /// What those of `ids` that wait or hold a slot say: as many as
    /// [`load_bodies`](Self::load_bodies) would bring, likewise.
    ///
    /// # Errors
    /// When the store fails.
    async fn load_words(&self, ids: &[ExecutionId]) -> Result<Vec<ExecutionWords>, StoreError>;

    /// The users and labels of those of `ids` that wait or hold a slot, in the order of their ids: all of
    /// them, because that is at most 16 KiB for each.
    ///
    /// # Errors
    /// When the store fails.
    async fn load_labels(&self, ids: &[ExecutionId]) -> Result<Vec<ExecutionLabels>, StoreError>;

    /// What is known of these requests and actions.
    ///
    /// # Errors
    /// When the store fails.
    async fn look_up(
        &self,
        requests: &[RequestId],
        action_refs: &[String],
    ) -> Result<Lookup, StoreError>;

    /// The requests that are stored next to `around`: the last before it, and the first that is it or comes
    /// after it. Both are of one moment.
    ///
    /// # Errors
    /// When the store fails.
    async fn request_gap(&self, around: RequestId) -> Result<RequestGap, StoreError>;

    /// Writes a batch if every fence holds, all of it or nothing.
    ///
    /// # Errors
    /// [`CommitError::Fenced`] when a fence does not hold; see [`CommitError`].
    async fn commit(&self, batch: &Batch) -> Result<Committed, CommitError>;
}
