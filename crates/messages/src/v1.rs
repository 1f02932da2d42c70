//! Version 1 of every message.

use attune_core::policy::EventKind;
use attune_core::{
    ActionId, Attempt, EndCode, Epoch, ExecutionId, Explanation, OperationId, OwnerId, PartitionId,
    PauseMode, Priority, QueueStats, Reject, RequestId, Status, Submission, WaitBound, WorkerId,
    or_null,
};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::envelope::Message;

macro_rules! message {
    ($name:ident = $kind:literal) => {
        impl Message for $name {
            const TYPE: &'static str = $kind;
            const VERSION: u32 = 1;
        }
    };
}

/// A rule fired: run an action once. Client → intake router.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EnforcementCreated(pub Submission);
message!(EnforcementCreated = "enforcement.created");

/// What an owner does with a submission that it must refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnReject {
    /// Answer, and store nothing: someone waits for the answer.
    #[default]
    Answer,
    /// Record it as rejected: its sender was told that the message is safe.
    Record,
}

/// Accept an execution. API, SDK, router → owner.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Submit {
    /// What is asked for; its request id is required here.
    pub submission: Submission,
    /// What happens when it is refused.
    #[serde(default, deserialize_with = "or_null")]
    pub on_reject: OnReject,
    /// How many executions of whoever asks may wait at once, if that is bounded. An owner of before this field
    /// refuses what has it.
    #[serde(
        default,
        deserialize_with = "or_null",
        skip_serializing_if = "Option::is_none"
    )]
    pub wait_bound: Option<WaitBound>,
}
impl Message for Submit {
    const TYPE: &'static str = "partition.submit";
    // The next release of `scripts/try-upgrade` says it in a new version.
    const VERSION: u32 = if cfg!(attune_next) { 2 } else { 1 };
}

/// End an execution, waiting or running. API → owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cancel {
    /// By which the answer is found.
    pub request_id: RequestId,
    /// Which execution.
    pub execution_id: ExecutionId,
}
message!(Cancel = "partition.cancel");

/// Why does an execution not run yet? Changes nothing. API → owner. An owner of before this message puts it
/// among the dead letters and does not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Explain {
    /// By which the answer is found.
    pub request_id: RequestId,
    /// Which execution.
    pub execution_id: ExecutionId,
}
message!(Explain = "partition.explain");

impl Explain {
    /// How many of them are sent in one message. An owner answers all of a message in one step, and each is
    /// worth 64 submissions.
    pub const MAX_PACK: usize = 16;
    /// How many are read in one message: a release before this sent so many.
    pub const MAX_READ: usize = 64;
}

/// Take the slot from an attempt that will not give it back by itself: its execution waits again
/// or ends, as its action's policy says for a lost worker. API or worker → owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForceRelease {
    /// By which the answer is found.
    pub request_id: RequestId,
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Which attempt of it; a later one keeps its slot.
    pub attempt: Attempt,
    /// Who asks for it, for the audit log.
    pub who: String,
    /// Why, for the audit log and the execution's record.
    pub reason: String,
    /// Who ran it as far as the asker saw, for the audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    /// True when its worker says that nothing of it was begun: it waits again, whatever the policy
    /// says for a lost worker. An owner of before this field cannot read a command that has it.
    #[serde(
        default,
        deserialize_with = "or_null",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub never_begun: bool,
}
message!(ForceRelease = "partition.force_release");

/// The definition or policy of an action has changed: read it again. API → owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActionChanged {
    /// By which the answer is found.
    pub request_id: RequestId,
    /// Which action.
    pub action_ref: String,
}
message!(ActionChanged = "partition.action_changed");

/// What operators hold has changed: read it again. API → owner. An owner of before this message puts
/// it among the dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PausesChanged {
    /// By which the answer is found.
    pub request_id: RequestId,
}
message!(PausesChanged = "partition.pauses_changed");

/// There are bulk operations that are new: read which are open. API → owner. An owner of before this message
/// puts it among the dead letters; the operation waits there until a newer one owns the partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperationsChanged {
    /// By which the answer is found.
    pub request_id: RequestId,
}
message!(OperationsChanged = "partition.operations_changed");

/// The policy documents have changed: read them again. API → owner. An owner of before this message puts it
/// among the dead letters, and goes by none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoliciesChanged {
    /// By which the answer is found.
    pub request_id: RequestId,
    /// The version of the set that is stored, for people: what is read is what counts.
    pub set_version: i64,
}
message!(PoliciesChanged = "partition.policies_changed");

/// What an owner answers to one command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The command's request id.
    pub request_id: RequestId,
    /// The message that held the command. A partition's commands are decided in their order, so a
    /// refusal of the last copy of a request is its end. Executors of an earlier release leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<Uuid>,
    /// What became of it.
    pub outcome: AnswerOutcome,
}
message!(Answer = "command.answer");

/// What became of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AnswerOutcome {
    /// It was done, and that is durable.
    Accepted(Accepted),
    /// It was refused.
    Rejected(Reject),
}

/// An execution as the answer to a command shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// Which execution; absent in the answer to a change of an action or a pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
    /// Where it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// How many wait before it, while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// Whether the request had been accepted before.
    #[serde(default)]
    pub repeated: bool,
    /// The priority that it has, when it was accepted just now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Why it does not run yet, where that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Box<Explanation>>,
}

/// A run has ended. Worker → completion listener → owner.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Completion {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Which attempt of it, as it was requested.
    pub attempt: Attempt,
    /// Its action.
    pub action_id: ActionId,
    /// `succeeded`, `failed`, `timed_out` or `cancelled`.
    pub status: Status,
    /// What it returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    /// Why it did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Why its worker has ended it or did not begin it, for programs: `OUT_OF_MEMORY`, `TOO_MANY_PROCESSES` or
    /// `SECRET_UNAVAILABLE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<EndCode>,
    /// The exit code of its program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// What its program wrote, cut at the worker's bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// What its program wrote to stderr, cut at the worker's bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// The partition of the execution; where it is given it must be the one in its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<PartitionId>,
    /// Which life of which worker ran it. One without it ends nothing and goes to the dead letters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    /// The user of the broker who reported it. The listener says so, and goes by nothing that a worker writes here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker_user: Option<String>,
    /// When the run began, by the worker's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<DateTime<Utc>>,
    /// When the run ended, by the worker's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<DateTime<Utc>>,
}

/// Completions on their way from the worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExecutionCompleted(pub Completion);
message!(ExecutionCompleted = "execution.completed");

/// Checked completions on their way from the listener to the owner.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SlotRelease(pub Completion);
message!(SlotRelease = "partition.release");

/// A partition waits for its next owner: a hint, so that it need not look. Owner → executors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedOver {
    /// Which partition.
    pub partition: PartitionId,
    /// The epoch that has ended.
    pub epoch: Epoch,
    /// Which executor is to take it.
    pub to: OwnerId,
}
message!(HandedOver = "partition.handed_over");

/// Something that has happened to an action whose policy asks for it to be told. Owner → whoever listens. It
/// is told once, after the commit that made it so, and may be lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionEvent {
    /// What has happened.
    pub kind: EventKind,
    /// When that was decided, by its owner's time.
    pub at: DateTime<Utc>,
    /// Which action.
    pub action_id: ActionId,
    /// The action's ref.
    pub action_ref: String,
    /// Which execution, where it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
    /// Which attempt of it; 0 of one that never held a slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    /// Of `accepted`: how many wait before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// Of `rejected`: which request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// Of `finished`: how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// Of `rejected`: why; of `finished`: the `end_code`, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Of `retried`: when the next try may begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<DateTime<Utc>>,
    /// Of `dropped` and `replaced`: which execution took its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newcomer: Option<ExecutionId>,
    /// Of `limit_changed`: the limit now; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Of `limit_changed`: the limit before; absent where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier_limit: Option<u32>,
    /// Of `paused`: how it is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<PauseMode>,
    /// Of `operation_finished`: which operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationId>,
    /// Of `operation_finished`: to how many executions of the action's partition it was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    /// Of `operation_finished`: to how many nothing was to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<u64>,
}
message!(ActionEvent = "action.event");

impl ActionEvent {
    /// An event that says nothing more than what has happened, when, and to which action.
    pub fn new(
        kind: EventKind,
        at: DateTime<Utc>,
        action_id: ActionId,
        action_ref: String,
    ) -> Self {
        Self {
            kind,
            at,
            action_id,
            action_ref,
            execution_id: None,
            attempt: None,
            position: None,
            request_id: None,
            status: None,
            code: None,
            not_before: None,
            newcomer: None,
            limit: None,
            earlier_limit: None,
            mode: None,
            operation: None,
            done: None,
            skipped: None,
        }
    }
}

/// A queue at one moment. Owner → stats persister.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSnapshot {
    /// Rises with every snapshot of a queue, over changes of its owner too.
    pub version: i64,
    /// The queue at that moment.
    pub stats: QueueStats,
}
message!(QueueSnapshot = "queue.stats");
