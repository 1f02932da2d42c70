//! What the parts of a run say to each other, and what is said of a run.

use super::*;

/// What a run came across, to see that it was not idle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Seen {
    pub executions: u64,
    pub takeovers: u64,
    pub fence_rejections: u64,
    pub duplicates_dropped: u64,
    pub revokes: u64,
    pub unknown_commits: u64,
    pub redispatches: u64,
    pub cancelled: u64,
    pub expired: u64,
    pub abandoned: u64,
    pub mended: u64,
}

impl Seen {
    /// Adds what another run came across.
    pub fn add(&mut self, other: &Self) {
        self.executions += other.executions;
        self.takeovers += other.takeovers;
        self.fence_rejections += other.fence_rejections;
        self.duplicates_dropped += other.duplicates_dropped;
        self.revokes += other.revokes;
        self.unknown_commits += other.unknown_commits;
        self.redispatches += other.redispatches;
        self.cancelled += other.cancelled;
        self.expired += other.expired;
        self.abandoned += other.abandoned;
        self.mended += other.mended;
    }
}

/// How a run went.
#[derive(Debug)]
pub struct Outcome {
    /// Decided by every step of the run.
    pub hash: u64,
    /// What it came across.
    pub seen: Seen,
    /// The first violation of each rule.
    pub violations: BTreeMap<crate::oracle::Rule, Violation>,
    /// What happened, when it was to be kept.
    pub lines: Vec<String>,
}

/// A store call.
#[derive(Debug)]
pub(crate) enum Call {
    Acquire(OwnerId, Vec<PartitionId>),
    Renew(OwnerId, Vec<(PartitionId, Epoch)>),
    GiveUp(OwnerId, Vec<(PartitionId, Epoch)>),
    Load(Vec<PartitionId>),
    LookUp(Vec<RequestId>, Vec<String>),
    Slots(Vec<PartitionId>),
    Commit(Box<Written>),
    RenewWorker(WorkerId),
    Claim(WorkerId, Vec<Key>),
}

/// A batch on its way into the store.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub(crate) number: u64,
    pub(crate) batch: Batch,
    pub(crate) places: Vec<(ExecutionId, RequestId, u64)>,
    /// What the oracle says of the decisions.
    pub(crate) found: Vec<(PartitionId, Violation)>,
}

/// What a new owner loads of a partition.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) actions: Vec<Action>,
    pub(crate) totals: Vec<(ActionId, QueueTotals)>,
    pub(crate) rows: BTreeMap<PartitionId, Vec<ActiveRow>>,
}

/// What the store answers.
#[derive(Debug)]
pub(crate) enum Reply {
    /// It cannot be reached, or gave up; whether it did anything is unknown.
    Failed,
    /// The statement is refused for good.
    Broken,
    Acquired(Vec<(PartitionId, Epoch)>),
    Renewed(Vec<PartitionId>),
    GaveUp,
    Loaded(Box<Loaded>),
    Known(Vec<KnownRequest>, Vec<Action>),
    Slots(Vec<SlotRow>),
    Committed,
    Fenced(Vec<PartitionId>),
    WorkerRenewed(bool),
    Claimed(Vec<Claim>),
}

/// What a process is told; it waits while the process stands still and dies with it.
pub(crate) enum Word {
    Deliver(Delivery),
    Reply(u64, Reply),
    /// Look whether there is something to do.
    Wake,
    /// Try the failed call again.
    Retry,
    Lease,
    Tell(Box<Tell>),
    /// The broker has closed the connection.
    Cut,
    CancelRun(Key),
    Report(Key, ActionId, WorkerId, Status),
}

/// What happens.
pub(crate) enum Ev {
    Op(usize),
    Fault(usize),
    Heal,
    Look,
    To(Party, Word),
    /// What was said to a process that stood still is heard now.
    Resume(Party),
    /// A message reaches the broker; the client is told of it when there is one.
    Arrive(Name, Body, Option<usize>),
    Ack(u64, u64),
    /// The broker has not heard of this party for too long.
    Silent(Party),
    Store(Party, u64, Call, Fate, Time),
    Answer(usize, AnswerOutcome),
    Ask(usize),
    Restart(Party),
    /// The time until which this worker trusted its lease.
    LifeEnds(usize, WorkerId),
    RunEnds(usize, Key, WorkerId, Status),
}

/// What becomes of a store call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    Refused,
    Unknown,
}
