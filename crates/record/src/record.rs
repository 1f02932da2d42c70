//! What can be recorded.

use attune_core::{
    ActionId, Attempt, Demand, Epoch, ExecutionId, OrderRule, PartitionId, PauseMode, Priority,
    RequestId, Status, WorkerId, policy::FlowWeights,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::document::{PolicyChange, PolicyInForce};
use crate::operation::{MovedExecution, Operated, OperationAsked, OperationTold};
use crate::phase::{
    FaultPhase, Gone, GroupedExecution, HandedOn, OfEpoch, ProcessPhase, QuotaInForce, RateInForce,
    Retried, TimeBounds,
};

/// One thing that happened; `t_ns` is [`now_ns`](crate::now_ns) at that moment. On disk it is one JSON object
/// per line, named by `kind`; a kind that this program does not know is read as [`Unknown`](Self::Unknown).
///
/// The owner of a partition records a round of decisions when it is committed, in the order in which it
/// decided. Its records carry the epoch and the number of the round: an epoch has one owner and so one file,
/// and of different epochs the higher is the later. Their `t_ns` is the moment after the commit and before it
/// tells anybody of the round; of a process that was stopped meanwhile that may be much later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Record {
    /// A worker begins a run; taken right before it.
    Start {
        /// Which execution.
        execution_id: ExecutionId,
        /// Which attempt of it.
        attempt: Attempt,
        /// Its action.
        action_id: ActionId,
        /// When.
        t_ns: i64,
    },
    /// A run is over and nothing of it is left; taken right after it.
    End {
        /// Which execution.
        execution_id: ExecutionId,
        /// Which attempt of it.
        attempt: Attempt,
        /// Its action.
        action_id: ActionId,
        /// How it ended; absent when it was killed because its worker could not go on, which nobody is told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<Status>,
        /// When.
        t_ns: i64,
    },
    /// A client is about to submit.
    SubmitInvoke {
        /// By which the answer is found.
        request_id: RequestId,
        /// The action asked for.
        action_ref: String,
        /// The priority asked for.
        #[serde(default)]
        priority: Priority,
        /// Whether it is not to start before a time of its own.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        delayed: bool,
        /// For whom; empty when it names nobody, absent when that is not recorded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        requested_by: Option<String>,
        /// When.
        t_ns: i64,
    },
    /// The broker has confirmed the message of a submission: it is kept, whether its client is answered or not.
    Confirmed {
        /// Which submission.
        request_id: RequestId,
        /// When.
        t_ns: i64,
    },
    /// The API is about to store an action. Without an [`ApplyOk`](Self::ApplyOk) it may have been stored.
    ApplyInvoke {
        /// By which the outcome is found.
        apply_id: Uuid,
        /// The action.
        action_ref: String,
        /// Its limit; `None` is unlimited.
        limit: Option<u32>,
        /// By what its executions stand in line.
        #[serde(default, skip_serializing_if = "OrderRule::is_default")]
        order: OrderRule,
        /// Whether its policy decides which priorities executions have.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        sets_priorities: bool,
        /// Whether it leaves it to policy documents how many may wait; false when that is not recorded.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        inherits_length: bool,
        /// When.
        t_ns: i64,
    },
    /// An action is stored.
    ApplyOk {
        /// Which change of it.
        apply_id: Uuid,
        /// The action.
        action_id: ActionId,
        /// Whether its owner has answered that it goes by it.
        in_force: bool,
        /// When.
        t_ns: i64,
    },
    /// The API is about to hold queues or to resume them. Without a [`PauseOk`](Self::PauseOk) it may be stored.
    PauseInvoke {
        /// By which the outcome is found.
        pause_id: Uuid,
        /// `action`, `pack` or `all`.
        scope: String,
        /// The action's ref or the pack.
        target: String,
        /// How they are to be held; `None` resumes them.
        mode: Option<PauseMode>,
        /// When.
        t_ns: i64,
    },
    /// What operators hold is stored.
    PauseOk {
        /// Which change of it.
        pause_id: Uuid,
        /// Whether all owners concerned have answered that they go by it.
        in_force: bool,
        /// When.
        t_ns: i64,
    },
    /// Policy documents are changed.
    Policies(PolicyChange),
    /// A partition goes by another version of the policy set.
    Policy(PolicyInForce),
    /// A client was told that its submission is accepted.
    SubmitOk {
        /// Which submission.
        request_id: RequestId,
        /// What it became.
        execution_id: ExecutionId,
        /// When.
        t_ns: i64,
    },
    /// A client was told that its submission is refused: nothing of it is stored.
    SubmitFail {
        /// Which submission.
        request_id: RequestId,
        /// The reason given.
        #[serde(alias = "reason")]
        code: String,
        /// When.
        t_ns: i64,
    },
    /// A client does not know what became of its submission: it may have been accepted. Recorded
    /// each time that it asked. A submission without any answer is the same.
    SubmitInfo {
        /// Which submission.
        request_id: RequestId,
        /// When.
        t_ns: i64,
    },
    /// The API knows what becomes of a submission; its client is told, unless it has hung up.
    Answered {
        /// Which submission.
        request_id: RequestId,
        /// The status of the answer. 409 and 5xx tell nothing about what is stored, other
        /// refusals that nothing is stored for this time of asking.
        http_status: u16,
        /// What it became, when it is accepted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        execution_id: Option<ExecutionId>,
        /// The reason, when it is not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
        /// When.
        t_ns: i64,
    },
    /// An owner serves a partition that it has acquired; what it loaded follows as [`Held`](Self::Held).
    Acquired {
        /// Which partition.
        partition: PartitionId,
        /// The epoch that began.
        epoch: Epoch,
        /// The owner's process.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
        /// When.
        t_ns: i64,
    },
    /// An owner forgets a partition.
    Lost(OfEpoch),
    /// A commit of this owner was refused: the partition has another owner by now.
    Fenced(OfEpoch),
    /// An execution is durably accepted.
    Accepted {
        /// Which execution.
        execution_id: ExecutionId,
        /// Its action.
        action_id: ActionId,
        /// Its priority.
        priority: Priority,
        /// The request that led to it.
        request_id: RequestId,
        /// `Queued`; `Requested` when it got a slot at once, which is recorded on its own; or `Rejected`.
        status: Status,
        /// Whether it may not start before a time of its own, so that others may overtake it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        delayed: bool,
        /// When, in milliseconds since 1970 by the clock of its owner: where a wait counts, from then on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<i64>,
        /// What it demands of the limits of its action, where not all demand the same.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        demand: Option<Demand>,
        /// As what the quotas of its action have counted it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        quotas: Vec<QuotaInForce>,
        /// The epoch of its owner.
        epoch: Epoch,
        /// The round, counted by the owner.
        #[serde(default)]
        round: u64,
        /// When.
        t_ns: i64,
    },
    /// An execution that was there demands this from now on: its action groups by something else.
    Grouped(GroupedExecution),
    /// One that waits stands elsewhere, because an operator said so.
    Moved(MovedExecution),
    /// A page of a bulk operation was carried out.
    Operated(Box<Operated>),
    /// The API is asked for a bulk operation.
    OperationAsked(Box<OperationAsked>),
    /// The API says that a bulk operation is over.
    OperationTold(OperationTold),
    /// A new owner found this attempt holding a slot; or the reconciler found it in the store.
    Held {
        /// Which execution.
        execution_id: ExecutionId,
        /// Its action.
        action_id: ActionId,
        /// Which attempt of it.
        attempt: Attempt,
        /// Until when it only keeps its slot, by the owner's time, in milliseconds since 1970.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kept_until: Option<i64>,
        /// Whether it stands ahead of a slot, and holds none yet.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ahead: bool,
        /// The epoch of its owner.
        epoch: Epoch,
        /// The round, counted by the owner.
        #[serde(default)]
        round: u64,
        /// When.
        t_ns: i64,
    },
    /// An execution that was granted ahead of its slot has it from now on.
    HandedOn(HandedOn),
    /// An execution was granted to a worker: it was given a slot, or stands ahead of one.
    Granted {
        /// Which execution.
        execution_id: ExecutionId,
        /// Its action.
        action_id: ActionId,
        /// The attempt that holds the slot.
        attempt: Attempt,
        /// The number of the grant; rises within a partition, over epochs too.
        grant_no: i64,
        /// The limit in force; `None` is unlimited.
        limit: Option<u32>,
        /// The order in force.
        #[serde(default, skip_serializing_if = "OrderRule::is_default")]
        order: OrderRule,
        /// The limit of each group in force.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group_limit: Option<u32>,
        /// The rule in force by which executions demand different things of the limits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        demands: Option<i64>,
        /// How often executions may start, by what is in force.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate: Option<RateInForce>,
        /// How many milliseconds there must be between two starts, likewise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        interval_ms: Option<i64>,
        /// What its flow is worth by what is in force, where slots are shared.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        weights: Option<FlowWeights>,
        /// When it was decided, by the owner's time, in milliseconds since 1970.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<i64>,
        /// The life of a worker that may begin the attempt, and nobody else; absent where it names nobody.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker: Option<WorkerId>,
        /// Whether it was granted ahead of its slot.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ahead: bool,
        /// The epoch of its owner.
        epoch: Epoch,
        /// The round, counted by the owner.
        #[serde(default)]
        round: u64,
        /// When.
        t_ns: i64,
    },
    /// An execution has ended; a slot that it held is free.
    Ended {
        /// Which execution.
        execution_id: ExecutionId,
        /// Its action.
        action_id: ActionId,
        /// The attempt that ended; of one that waited, how many it had.
        attempt: Attempt,
        /// How.
        status: Status,
        /// In whose place another one came, and by which end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gone: Option<Gone>,
        /// The epoch of its owner.
        epoch: Epoch,
        /// The round, counted by the owner.
        #[serde(default)]
        round: u64,
        /// When.
        t_ns: i64,
    },
    /// The slot of an attempt was taken back; the execution waits again at its place.
    Revoked {
        /// Which execution.
        execution_id: ExecutionId,
        /// Its action.
        action_id: ActionId,
        /// The attempt that held it.
        attempt: Attempt,
        /// What ended it, if it was a try that is followed by another.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retried: Option<Retried>,
        /// Whether the owner counts the attempt as one that never began, and never will.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        never_begun: bool,
        /// The epoch of its owner.
        epoch: Epoch,
        /// The round, counted by the owner.
        #[serde(default)]
        round: u64,
        /// When.
        t_ns: i64,
    },
    /// Another limit came into force.
    Limit {
        /// Of which action.
        action_id: ActionId,
        /// The limit; `None` is unlimited.
        limit: Option<u32>,
        /// The limit of each group.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group_limit: Option<u32>,
        /// The rule by which executions demand different things of the limits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        demands: Option<i64>,
        /// How many may wait.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_length: Option<u32>,
        /// The epoch of its owner.
        epoch: Epoch,
        /// The round, counted by the owner.
        #[serde(default)]
        round: u64,
        /// When.
        t_ns: i64,
    },
    /// What the queue of an action counts after a round that changed it.
    Totals {
        /// Of which action.
        action_id: ActionId,
        /// Executions accepted over the queue's life.
        enqueued: u64,
        /// Executions that ran to an end.
        completed: u64,
        /// Executions cancelled.
        cancelled: u64,
        /// Executions that waited too long.
        expired: u64,
        /// Executions that wait.
        waiting: u64,
        /// Executions that hold a slot.
        active: u64,
        /// Whether nothing is granted because no worker of its pool has a free slot.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pool_closed: bool,
        /// Whether nothing is granted because operators hold it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        paused: bool,
        /// Whether nothing is granted until it is known what executions demand that were there before.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        regrouping: bool,
        /// Whether its owner has more to do for it than one step does, and goes on in the next round.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        goes_on: bool,
        /// Until when nobody may start because as many have started lately as may, by the owner's time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate_until: Option<i64>,
        /// The epoch of its owner.
        epoch: Epoch,
        /// The round, counted by the owner.
        #[serde(default)]
        round: u64,
        /// When.
        t_ns: i64,
    },
    /// A completion named an attempt that holds no slot; it was dropped.
    StaleCompletion {
        /// Which execution.
        execution_id: ExecutionId,
        /// Which attempt of it.
        attempt: Attempt,
        /// When.
        t_ns: i64,
    },
    /// A worker has taken an attempt that was granted to it and is about to begin it.
    Taken {
        /// Which execution.
        execution_id: ExecutionId,
        /// Which attempt of it.
        attempt: Attempt,
        /// Who.
        worker: WorkerId,
        /// Its process.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
        /// When.
        t_ns: i64,
    },
    /// A worker has lost its lease and kills what it runs.
    WorkerLost {
        /// Which worker.
        worker: WorkerId,
        /// When.
        t_ns: i64,
    },
    /// A listener has handed a completion over, as the bus has confirmed; it may be handed over again.
    Forwarded {
        /// Which execution.
        execution_id: ExecutionId,
        /// Which attempt of it.
        attempt: Attempt,
        /// How it ended, as its worker says.
        status: Status,
        /// When.
        t_ns: i64,
    },
    /// A listener has put something that is no completion among the dead letters.
    DeadLettered {
        /// Why.
        reason: String,
        /// When.
        t_ns: i64,
    },
    /// The stats persister has written a snapshot of a queue; an older one may be written after it.
    StatsWritten {
        /// Of which action.
        action_id: ActionId,
        /// Its place among the snapshots of the queue, with the owner's epoch as in [`Seq`](attune_core::Seq).
        version: i64,
        /// Executions accepted over the queue's life.
        enqueued: u64,
        /// Executions that ran to an end.
        completed: u64,
        /// Executions cancelled.
        cancelled: u64,
        /// Executions that waited too long.
        expired: u64,
        /// Executions that wait.
        waiting: u64,
        /// Executions that hold a slot.
        active: u64,
        /// When.
        t_ns: i64,
    },
    /// A run program has begun; written by itself, so that nothing of Attune is believed.
    ProgramStart {
        /// Which execution.
        execution_id: ExecutionId,
        /// Which attempt of it.
        attempt: Attempt,
        /// Its action.
        action_ref: String,
        /// Its process.
        pid: u32,
        /// When.
        t_ns: i64,
    },
    /// A run program is about to end; written by itself.
    ProgramEnd {
        /// Which execution.
        execution_id: ExecutionId,
        /// Which attempt of it.
        attempt: Attempt,
        /// Its action.
        action_ref: String,
        /// Its process.
        pid: u32,
        /// When.
        t_ns: i64,
    },
    /// A process is gone, as whoever waited for it saw; the end of a program that was killed.
    ProcessExit {
        /// Which process.
        pid: u32,
        /// What else ended with it: the executions whose programs went down with their worker.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        executions: Vec<ExecutionId>,
        /// When.
        t_ns: i64,
    },
    /// A role of a process begins, is told to stop, or has ended well, all its records written.
    Process {
        /// Which role, as the program calls it.
        role: String,
        /// In which process.
        pid: u32,
        /// Which of these.
        phase: ProcessPhase,
        /// When.
        t_ns: i64,
    },
    /// The times within which promises are kept, as an executor was configured.
    Bounds(TimeBounds),
    /// A fault was made, or made good.
    Fault {
        /// What was done.
        name: String,
        /// To whom.
        target: String,
        /// Whether it begins or is over.
        phase: FaultPhase,
        /// When.
        t_ns: i64,
    },
    /// Something that this program does not know.
    #[serde(other)]
    Unknown,
}
