//! What an owner has decided, in order, for whoever checks the promises.
//!
//! A partition keeps a log of its decisions while somebody wants one. The log goes with the
//! commit of its round: what is never committed is never a fact.

use attune_core::policy::{FlowWeights, TryEnd};
use attune_core::{
    ActionId, Asker, Attempt, Demand, EndCode, Epoch, ExecutionId, Hold, Moved, OperationId,
    OperationProgress, OrderRule, PartitionId, Priority, RejectCode, RequestId, Status, WorkerId,
};

use crate::policy::{QueueLimits, QuotaClaim, Rate, RateBound};
use crate::queue::Millis;

/// One decision, or one thing that a decision rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// The partition is served in a new epoch.
    Acquired {
        /// Which partition.
        partition: PartitionId,
    },
    /// Everything is decided under this version of the policy set from now on.
    Policies {
        /// The version.
        set_version: i64,
    },
    /// The queue of an action has these bounds from now on.
    Bounds {
        /// Which action.
        action_id: ActionId,
        /// Its bounds.
        limits: QueueLimits,
    },
    /// An execution was found to hold a slot.
    Held {
        /// Which execution.
        execution_id: ExecutionId,
        /// Its action.
        action_id: ActionId,
        /// The attempt that holds it.
        attempt: Attempt,
        /// Until when it keeps it without running, if its try has ended and it does.
        kept_until: Option<Millis>,
        /// Whether it stands ahead of a slot, and holds none yet.
        ahead: bool,
    },
    /// An execution was accepted, or recorded as rejected.
    Accepted {
        /// Which execution.
        execution_id: ExecutionId,
        /// Its action.
        action_id: ActionId,
        /// Its priority.
        priority: Priority,
        /// The request that led to it.
        request_id: RequestId,
        /// Where it stands.
        status: Status,
        /// When it may start, if that was later than its acceptance.
        not_before: Option<Millis>,
        /// When it was accepted.
        at: Millis,
        /// What it demands of the limits of its action, where not all demand the same.
        demand: Option<Demand>,
        /// As what the quotas of its action have counted it.
        quotas: Vec<QuotaClaim>,
        /// Who has asked for it, where it is counted how many of theirs wait.
        asker: Option<Asker>,
    },
    /// An execution that was there demands this from now on, because its action groups by something else.
    Grouped {
        /// Which execution.
        execution_id: ExecutionId,
        /// Its action.
        action_id: ActionId,
        /// What it demands.
        demand: Demand,
    },
    /// A request was refused; it may be accepted when it comes again, behind later ones.
    Refused {
        /// Which request.
        request_id: RequestId,
        /// Of which action, if there is one.
        action_id: Option<ActionId>,
        /// Why.
        code: RejectCode,
    },
    /// Somebody who holds a slot is asked to end.
    Asked {
        /// Who.
        execution_id: ExecutionId,
        /// Its action.
        action_id: ActionId,
        /// The attempt that holds it.
        attempt: Attempt,
        /// Who takes its place, if that is why: it is accepted next.
        newcomer: Option<ExecutionId>,
    },
    /// An execution was granted to a worker: it was given a slot, or stands ahead of one.
    Granted {
        /// Which execution.
        execution_id: ExecutionId,
        /// Its action.
        action_id: ActionId,
        /// The attempt that holds it.
        attempt: Attempt,
        /// The number of the grant, rising within a partition.
        grant_no: i64,
        /// The limit of the action at that moment.
        limit: Option<u32>,
        /// The order of the action at that moment.
        order: OrderRule,
        /// The limit of its group at that moment.
        group_limit: Option<u32>,
        /// The rule at that moment by which executions demand different things of the limits.
        demands: Option<i64>,
        /// How often executions may start, at that moment.
        rate: Option<RateBound>,
        /// How often they may one after the other, likewise.
        interval: Option<Rate>,
        /// What its flow is worth at that moment, where slots are shared.
        weights: Option<FlowWeights>,
        /// That moment.
        at: Millis,
        /// Which life of a worker may run it.
        worker: WorkerId,
        /// Whether it was granted ahead of its slot, to a worker that has all of its action: it begins when another
        /// one has ended there.
        ahead: bool,
    },
    /// An execution that was granted ahead of its slot has it from now on.
    HandedOn {
        /// Which execution.
        execution_id: ExecutionId,
        /// Its action.
        action_id: ActionId,
        /// The attempt that holds it.
        attempt: Attempt,
    },
    /// An execution ended.
    Ended {
        /// Which execution.
        execution_id: ExecutionId,
        /// Its action.
        action_id: ActionId,
        /// Its last attempt.
        attempt: Attempt,
        /// Its last status.
        status: Status,
        /// Why it was not run to its end, where that has a name.
        code: Option<EndCode>,
        /// Who takes its place, if that is why: it is accepted next; and the order of the action then.
        newcomer: Option<(ExecutionId, OrderRule)>,
    },
    /// A slot was taken back; its execution waits again.
    Revoked {
        /// Which execution.
        execution_id: ExecutionId,
        /// Its action.
        action_id: ActionId,
        /// The attempt that held it.
        attempt: Attempt,
        /// Until when it waits for its next try, if it has kept its slot for that.
        until: Option<Millis>,
        /// Whether the attempt never began, and never will.
        never_begun: bool,
    },
    /// A try ended, and there is another: its execution waits for its time first. Its slot is free, or it keeps
    /// it.
    Retried {
        /// Which execution.
        execution_id: ExecutionId,
        /// Its action.
        action_id: ActionId,
        /// The attempt that ended.
        attempt: Attempt,
        /// How it ended.
        end: TryEnd,
        /// When it may be tried again.
        not_before: Millis,
        /// Whether it keeps its slot until then.
        keeps_slot: bool,
    },
    /// The next try in a kept slot never began: its execution keeps the slot on, and is tried again.
    KeptOn {
        /// Which execution.
        execution_id: ExecutionId,
        /// Its action.
        action_id: ActionId,
        /// The attempt that never began.
        attempt: Attempt,
        /// From when on the next one may begin.
        until: Millis,
    },
    /// One that waits stands elsewhere from now on, because an operator said so.
    Moved(Moved),
    /// A page of a bulk operation was carried out, or one has begun.
    Operated {
        /// Which operation.
        operation: OperationId,
        /// What it does.
        kind: &'static str,
        /// How far it is from now on.
        progress: OperationProgress,
        /// To which executions it was done.
        done: Vec<ExecutionId>,
        /// Which it was about, with nothing to be done.
        skipped: Vec<ExecutionId>,
    },
    /// The end of a run was reported, and there was nothing to end.
    Stale {
        /// Which execution.
        execution_id: ExecutionId,
        /// Which attempt.
        attempt: Attempt,
    },
    /// An action stands in line for a worker of its pool from now on, and nothing is granted to it; or it has its
    /// turn.
    Line {
        /// Which action.
        action_id: ActionId,
        /// Whether it stands there.
        stands: bool,
    },
    /// Operators hold a queue in another way from now on.
    Paused {
        /// Which action.
        action_id: ActionId,
        /// How.
        hold: Hold,
    },
    /// The partition is not served any more.
    Lost,
    /// A commit was refused, because the partition has another owner.
    Fenced,
    /// A queue as it is at the end of a round that changed it.
    Totals {
        /// Its counts.
        stats: attune_core::QueueStats,
        /// Whether nothing is granted because no worker of its pool has room, or others stand before it in
        /// line for one.
        pool_closed: bool,
        /// Whether nothing is granted because operators hold it.
        paused: bool,
        /// Whether nothing is granted until it is known what executions demand that were there before.
        regrouping: bool,
        /// Whether its owner has more to do for it than one step does, and goes on in the next round.
        goes_on: bool,
        /// Until when nobody may start because as many have started lately as may, or the queue rests.
        rate_until: Option<Millis>,
    },
}

/// What one partition decided in one round.
#[derive(Debug, Clone)]
pub struct Decided {
    /// Which partition.
    pub partition: PartitionId,
    /// In which epoch.
    pub epoch: Epoch,
    /// Rises with every part of the log of a partition in an epoch; 0 for what no commit carries.
    pub number: u64,
    /// In order.
    pub facts: Vec<Fact>,
    /// Whether it has more to do than one step does, and will go on with it in the next.
    pub goes_on: bool,
}
