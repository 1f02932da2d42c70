//! What happens in a run from outside: the shape of the system, what clients ask for, which
//! faults come when. Drawn from the seed before the run begins, so that the shrinker can take
//! parts of it away and run the rest again.

mod draw;
mod fault;
mod lasting;
mod plant;

use attune_core::policy::{Events, Ordering, Retry};
use attune_core::{
    ActionPolicy, OnWorkerLost, OperationFilter, OperationKind, OrderRule, PartitionId, PauseMode,
    PauseTarget, Priority,
};

use crate::groups::{Grouping, Ranks};
use crate::overflow::Overflow;
use crate::policies::Documents;
use crate::rates::Starts;
use crate::routing::RoutingPlan;

pub(crate) use draw::outcome;
pub use fault::{Fault, Reads};
pub use plant::Plant;

/// Virtual milliseconds since the run began.
pub type Time = i64;

/// How long an owner's lease holds.
pub(crate) const OWNER_TTL: Time = 3_000;
/// How long a worker's lease holds.
pub(crate) const WORKER_TTL: Time = 3_000;
/// How long before the end of its lease its holder no longer trusts it.
pub(crate) const MARGIN: Time = 500;
/// How long after its lease a worker counts as dead.
pub(crate) const GRACE: Time = 1_000;
/// How often an owner compares its memory with the store.
pub(crate) const RECONCILE_EVERY: Time = 1_000;
/// How long a run may go on after everything is healed, before what has not ended counts as lost.
pub(crate) const PATIENCE: Time = 240_000;

/// An action of the run.
#[derive(Debug, Clone)]
pub struct ActionShape {
    /// Its name decides its partition.
    pub name: String,
    /// Which workers run it.
    pub pool: usize,
    /// How many may hold a slot.
    pub limit: Option<u32>,
    /// How many may wait.
    pub max_length: Option<u32>,
    /// How long one may wait, in seconds.
    pub timeout_seconds: Option<u32>,
    /// By what those who wait stand in line.
    pub order: OrderRule,
    /// By what executions are grouped, and the limit of each group.
    pub grouping: (Grouping, Option<u32>),
    /// What becomes of newcomers for whom there is no room.
    pub overflow: Overflow,
    /// How often they may start, and how many are accepted.
    pub starts: Starts,
    /// Which priorities they have.
    pub ranks: Ranks,
    /// What happens when its worker dies.
    pub on_worker_lost: OnWorkerLost,
    /// How often it may be tried.
    pub max_attempts: u32,
    /// What its policy says of that.
    pub retry: Option<Retry>,
    /// What is told of it.
    pub events: Events,
    /// How many of a thousand runs fail, or take too long; `None` for the usual.
    pub fails: Option<u32>,
    /// The longest run, in milliseconds.
    pub run_ms: Time,
}

/// How unreliable everything is until it is healed; chances are out of a thousand.
#[derive(Debug, Clone, Copy)]
pub struct Noise {
    /// A store call is refused before it does anything.
    pub refused: u32,
    /// A store call does its work, and its answer says that it may not have.
    pub unknown: u32,
    /// A store call hangs for seconds.
    pub stalled: u32,
    /// A published message arrives twice.
    pub doubled: u32,
    /// An answer or a cancellation is lost.
    pub lost: u32,
    /// A completion arrives seconds late.
    pub late: u32,
    /// The longest usual delay of a message or a store call.
    pub delay: Time,
}

impl Noise {
    /// Nothing goes wrong any more.
    pub(crate) fn healed(self) -> Self {
        Self {
            refused: 0,
            unknown: 0,
            stalled: 0,
            doubled: 0,
            lost: 0,
            late: 0,
            delay: self.delay.min(20),
        }
    }
}

/// What a client does.
#[derive(Debug, Clone)]
pub enum Op {
    /// Asks for an execution.
    Submit {
        /// Which client; each publishes in order.
        client: usize,
        /// Which action.
        action: usize,
        /// Who goes first.
        priority: Priority,
        /// It may not start before it is this much later.
        delay: Option<Time>,
        /// Whether the client waits for an answer, and asks again until it has one.
        asks: bool,
    },
    /// Asks again with the request id of an earlier submission.
    Repeat {
        /// The id of that operation.
        of: usize,
        /// Whether the body differs from the first.
        differs: bool,
    },
    /// Asks to end an execution.
    Cancel {
        /// The id of the operation that asked for it.
        of: usize,
    },
    /// Asks why an execution does not run yet.
    Explain {
        /// The id of the operation that asked for it.
        of: usize,
    },
    /// Takes the slot back from one of those that hold one then.
    ForceRelease {
        /// From which of them.
        of: usize,
    },
    /// Changes the limit of an action.
    Limit {
        /// Which action.
        action: usize,
        /// Its new limit.
        limit: Option<u32>,
    },
    /// Changes the order of an action.
    Order {
        /// Which action.
        action: usize,
        /// By what those who wait stand in line from then on.
        order: OrderRule,
    },
    /// Holds queues, or resumes them.
    Pause {
        /// Which.
        target: PauseTarget,
        /// How; `None` resumes them.
        mode: Option<PauseMode>,
    },
    /// Stores other policy documents.
    Policies {
        /// All of them.
        documents: Documents,
    },
    /// Says otherwise what becomes of newcomers of an action for whom there is no room.
    Overflow {
        /// Which action.
        action: usize,
        /// What.
        overflow: Overflow,
    },
    /// Does something to all executions of a kind.
    Operate {
        /// What.
        kind: OperationKind,
        /// To which.
        filter: OperationFilter,
    },
    /// Groups the executions of an action otherwise.
    Group {
        /// Which action.
        action: usize,
        /// How, and the limit of each group.
        grouping: (Grouping, Option<u32>),
    },
}

/// Something planned.
#[derive(Debug, Clone)]
pub struct Planned<T> {
    /// When.
    pub at: Time,
    /// By which others refer to it.
    pub id: usize,
    /// What.
    pub what: T,
}

/// A whole run, before chance has its say about delays.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Decides every delay and every loss.
    pub seed: u64,
    /// How many partitions there are.
    pub partitions: u16,
    /// How many pools of workers there are.
    pub pools: usize,
    /// How many items one round of an owner takes.
    pub round_items: usize,
    /// How many executions one step of a partition wakes, ends or grants.
    pub step_items: usize,
    /// How many executions of an action are granted to a worker ahead of their slots at most.
    pub lane_length: usize,
    /// By how much the clock of each owner is wrong.
    pub owner_skews: Vec<Time>,
    /// How many executions each worker runs at once.
    pub worker_slots: Vec<usize>,
    /// The actions.
    pub actions: Vec<ActionShape>,
    /// Until `heal_at`.
    pub noise: Noise,
    /// How many dispatches the broker keeps at once, until `heal_at`.
    pub room: Option<usize>,
    /// Whether submissions say by what they can be grouped.
    pub says_words: bool,
    /// Whether there are policy documents at some time.
    pub says_policies: bool,
    /// What clients do.
    pub ops: Vec<Planned<Op>>,
    /// What goes wrong.
    pub faults: Vec<Planned<Fault>>,
    /// What goes wrong on the way of firings and completions.
    pub routing: RoutingPlan,
    /// Whether the broker says who has sent a message.
    pub vouches: bool,
    /// When everything is made whole.
    pub heal_at: Time,
    /// The bug that is planted.
    pub plant: Option<Plant>,
}

impl Plan {
    /// The pool that a worker belongs to.
    pub(crate) fn pool_of(&self, worker: usize) -> usize {
        worker % self.pools
    }

    /// The partition of an action.
    pub(crate) fn partition_of(&self, action: usize) -> PartitionId {
        PartitionId::of(&self.actions[action].name, self.partitions)
    }
}

/// Writes an order down as somebody would who wants it.
pub(crate) fn set_order(policy: &mut ActionPolicy, order: OrderRule) {
    policy.queue.ordering = (order == OrderRule::Fifo).then_some(Ordering::Fifo);
    policy.priority.ageing_seconds = match order {
        OrderRule::Ageing { step } => Some(step / 1_000),
        _ => None,
    };
}
