//! What the server answers and what it is asked, as clients see it.
//!
//! The command-line client reads the same types, so the two cannot drift apart.

use std::borrow::Cow;

use attune_core::{
    ActionId, ActionRef, ActionSpec, Attempt, Epoch, ExecutionId, OwnerId, PartitionId, QueueStats,
    RequestId, Status, WorkerId,
};
use attune_store::{AuditEntry, ExecutionRecord};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// The body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorDetail,
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// What programs act on, such as `QUEUE_FULL`.
    pub code: Cow<'static, str>,
    /// What is wrong and what would be right, for people.
    pub message: String,
    /// The field that is wrong, as a path like `parameters.message`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// When trying again may help, in seconds; also in the header `Retry-After`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u32>,
    /// The request id of a submission, by which it can be repeated safely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
}

/// An execution that was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submitted {
    /// Its id.
    pub id: ExecutionId,
    /// Where it stands.
    pub status: Status,
    /// How many wait before it, while it waits.
    #[serde(default)]
    pub position: Option<u64>,
    /// Whether the same request had been accepted before.
    #[serde(default)]
    pub repeated: bool,
    /// The request id under which it was accepted.
    pub request_id: RequestId,
}

/// One item of the answer to a batch, in the place of its submission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum BatchItem {
    /// It was not accepted, or whether it was is unknown (`OUTCOME_UNKNOWN`).
    Refused(ErrorBody),
    /// It was accepted.
    Accepted(Submitted),
}

/// Part of the list of executions, the newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecutionList {
    /// The executions.
    pub executions: Vec<ExecutionRecord>,
    /// What `cursor` of the next request must be; `null` at the end.
    pub next: Option<String>,
}

/// An execution that is being cancelled or was cancelled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancelled {
    /// Which execution.
    pub id: ExecutionId,
    /// `cancelled`, or where it stands until its worker has ended it.
    pub status: Status,
}

/// An operator takes the slot from an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    /// Why, for the audit log and the execution's record.
    pub reason: String,
    /// Only if this attempt holds the slot; otherwise whichever does now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    /// Who asks; nobody checks it as long as there is no authentication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
}

/// A slot that was taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    /// The execution that held it.
    pub id: ExecutionId,
    /// The attempt that held it.
    pub attempt: Attempt,
    /// `queued` when it waits for another attempt, `abandoned` or `cancelled` when it has ended.
    pub status: Status,
}

/// The holders of the slots of an action, by rising id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderList {
    /// The action's ref.
    pub action_ref: ActionRef,
    /// How many slots it has; `null` is unlimited.
    pub limit: Option<u32>,
    /// The holders.
    pub holders: Vec<Holder>,
    /// What `after` of the next request must be; `null` at the end.
    pub next: Option<ExecutionId>,
}

/// Who holds a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Which attempt of it.
    pub attempt: Attempt,
    /// `requested` until a worker claims it, then `running`.
    pub status: Status,
    /// Since when it holds the slot.
    pub requested_at: Option<DateTime<Utc>>,
    /// For how long that is, in milliseconds.
    pub held_ms: u64,
    /// When its worker claimed it.
    pub started_at: Option<DateTime<Utc>>,
    /// Whether it shall be ended.
    pub cancel_requested: bool,
    /// Who runs it; `null` until a worker claims it.
    pub worker: Option<HolderWorker>,
}

/// The worker of a holder, as its lease shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderWorker {
    /// Its id.
    pub id: WorkerId,
    /// Its name; `null` a day after its lease has ended.
    pub name: Option<String>,
    /// The pool it serves.
    pub pool: Option<String>,
    /// How long ago it gave its last sign of life, in milliseconds.
    pub seen_ago_ms: Option<u64>,
    /// How long its lease still holds, in milliseconds.
    pub lease_remaining_ms: u64,
    /// For how long it is lost, in milliseconds; its slots come back after the grace period.
    pub lost_for_ms: u64,
}

/// Who is there: executors, the partitions they own, workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// The executors, by name.
    pub executors: Vec<ExecutorView>,
    /// Every partition, in order.
    pub partitions: Vec<PartitionView>,
    /// Every worker that was seen within a day, by name.
    pub workers: Vec<WorkerView>,
}

/// An executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorView {
    /// Its id, fresh at every start of the process.
    pub id: OwnerId,
    /// Its name.
    pub name: String,
    /// How many partitions it owns.
    pub partitions: u32,
    /// How long the longest of its leases still holds, in milliseconds.
    pub lease_remaining_ms: u64,
}

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionView {
    /// Which.
    pub partition: PartitionId,
    /// Who owns it; `null` when nobody does.
    pub owner: Option<OwnerId>,
    /// The owner's name.
    pub owner_name: Option<String>,
    /// Rises with every change of hands.
    pub epoch: Epoch,
    /// How long the lease still holds, in milliseconds.
    pub lease_remaining_ms: u64,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerView {
    /// Its id, fresh at every start of the process.
    pub id: WorkerId,
    /// Its name.
    pub name: String,
    /// The pool it serves.
    pub pool: String,
    /// How many executions it runs at once.
    pub slots: u32,
    /// Whether its lease holds.
    pub alive: bool,
    /// How long its lease still holds, in milliseconds.
    pub lease_remaining_ms: u64,
    /// How long ago it gave its last sign of life, in milliseconds.
    pub seen_ago_ms: Option<u64>,
}

/// Part of the audit log, the newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditList {
    /// The entries.
    pub entries: Vec<AuditEntry>,
    /// What `before` of the next request must be; `null` at the end.
    pub next: Option<i64>,
}

/// An action as the system keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActionView {
    /// Its ref.
    #[serde(rename = "ref")]
    pub action_ref: ActionRef,
    /// Its number.
    pub id: ActionId,
    /// The partition it belongs to.
    pub partition: PartitionId,
    /// Rises with every change.
    pub version: i64,
    /// What its author wrote, with the defaults filled in.
    pub spec: ActionSpec,
}

impl From<attune_core::Action> for ActionView {
    fn from(action: attune_core::Action) -> Self {
        Self {
            action_ref: action.spec.action_ref.clone(),
            id: action.id,
            partition: action.partition,
            version: action.version,
            spec: action.spec,
        }
    }
}

/// Part of the list of actions, by ref.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActionList {
    /// The actions.
    pub actions: Vec<ActionView>,
    /// What `after` of the next request must be; `null` at the end.
    pub next: Option<ActionRef>,
}

/// Whether a stored change is in force already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InForce {
    /// The owner of the action's partition has taken it over.
    Now,
    /// It is stored; the owner could not be told and takes it over when it reads the action next.
    Pending,
}

/// The answer to applying an action.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActionApplied {
    /// Whether it did not exist before.
    pub created: bool,
    /// Whether anything changed.
    pub changed: bool,
    /// Whether it is in force already.
    pub applied: InForce,
    /// Why it is not in force yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_reason: Option<String>,
    /// The action as it is now.
    #[serde(flatten)]
    pub action: ActionView,
}

/// How a queue is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HealthState {
    /// Nothing to do.
    Healthy,
    /// Fuller or slower than it should be.
    Degraded,
    /// Someone should look at it.
    Unhealthy,
}

/// The verdict on a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueHealth {
    /// The worst of the reasons.
    pub state: HealthState,
    /// Why it is not healthy, for people; empty when it is.
    pub reasons: Vec<String>,
}

/// A queue at one moment: now where the server can look into the memory of the executor that owns
/// it, else when the executor last told its figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueView {
    /// The action's ref.
    pub action_ref: String,
    /// The figures.
    #[serde(flatten)]
    pub stats: QueueStats,
    /// When they were last written to the store; `null` when nothing was ever submitted.
    pub last_updated: Option<DateTime<Utc>>,
    /// The moment that they describe; `null` when nothing is known of the queue.
    #[serde(default)]
    pub as_of: Option<DateTime<Utc>>,
    /// How long ago that was, in milliseconds. The figures of a queue that nothing happens to stay
    /// right while they grow old.
    #[serde(default)]
    pub age_ms: Option<u64>,
    /// How many executions may wait.
    pub max_length: u32,
    /// How long an execution may wait, in seconds.
    pub timeout_seconds: u64,
    /// The verdict.
    pub health: QueueHealth,
}

/// Every queue that ever held something, the longest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueList {
    /// The queues.
    pub queues: Vec<QueueView>,
    /// How many there are in all, when `limit` cut the list.
    pub total: u64,
}

/// One claim that a worker asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimItem {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Which attempt of it, as it was requested.
    pub attempt: Attempt,
}

/// A worker renews its lease and claims executions; with no items it only renews.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    /// The worker: a UUID, fresh at every start of the process.
    pub worker: WorkerId,
    /// Its name for people.
    pub name: String,
    /// The pool it serves.
    pub pool: String,
    /// How many executions it runs at once.
    pub slots: u32,
    /// How long it counts as alive from now on without another renewal.
    pub lease_seconds: u32,
    /// What it wants to run.
    #[serde(default)]
    pub items: Vec<ClaimItem>,
}

/// A claim that was won.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimedItem {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Which attempt of it.
    pub attempt: Attempt,
    /// Whether it was cancelled meanwhile: report it as cancelled, do not run it.
    pub cancel_requested: bool,
}

/// The answer to [`ClaimRequest`]. What was asked for and is not here belongs to someone else or
/// has ended: forget it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// What the worker may run.
    pub claimed: Vec<ClaimedItem>,
    /// When its lease ends unless it is renewed, in milliseconds from the renewal.
    pub lease_expires_in_ms: u64,
}

/// A worker that has nothing left to run gives its lease up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetireRequest {
    /// The worker.
    pub worker: WorkerId,
}
