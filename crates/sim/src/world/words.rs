//! What the parts of a run say to each other, and what is said of a run.

use super::*;
use crate::former::Former;

/// What a run came across, to see that it was not idle.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Seen {
    pub executions: u64,
    pub takeovers: u64,
    pub fence_rejections: u64,
    pub duplicates_dropped: u64,
    /// Ends that were told again because nobody had settled them.
    pub retold: u64,
    pub revokes: u64,
    pub retries: u64,
    /// Events that owners told.
    pub events: u64,
    /// Starts that were counted for a rate or an interval.
    pub counted_starts: u64,
    pub unknown_commits: u64,
    pub syncs: u64,
    /// Grants that nobody received.
    pub bounces: u64,
    /// Killed workers of which the store was told.
    pub over: u64,
    /// Workers that ended their leases in order.
    pub retired: u64,
    /// Grants ahead of a slot.
    pub ahead: u64,
    /// Grants that workers gave back.
    pub returns: u64,
    pub cancelled: u64,
    pub expired: u64,
    pub dropped: u64,
    pub replaced: u64,
    pub abandoned: u64,
    pub mended: u64,
    pub refused_commits: u64,
    pub refused_beside: u64,
    pub refused_dispatches: u64,
    pub dropped_dispatches: u64,
    pub force_released: u64,
    pub unsendable: u64,
    /// How often one message was given back at most.
    pub most_returned: u64,
    /// How often each kind of fault happened.
    pub faults: BTreeMap<&'static str, u64>,
}

impl Seen {
    /// Adds what another run came across.
    pub fn add(&mut self, other: &Self) {
        self.executions += other.executions;
        self.takeovers += other.takeovers;
        self.fence_rejections += other.fence_rejections;
        self.duplicates_dropped += other.duplicates_dropped;
        self.retold += other.retold;
        self.revokes += other.revokes;
        self.retries += other.retries;
        self.events += other.events;
        self.counted_starts += other.counted_starts;
        self.unknown_commits += other.unknown_commits;
        self.syncs += other.syncs;
        self.bounces += other.bounces;
        self.over += other.over;
        self.retired += other.retired;
        self.ahead += other.ahead;
        self.returns += other.returns;
        self.cancelled += other.cancelled;
        self.expired += other.expired;
        self.dropped += other.dropped;
        self.replaced += other.replaced;
        self.abandoned += other.abandoned;
        self.mended += other.mended;
        self.refused_commits += other.refused_commits;
        self.refused_beside += other.refused_beside;
        self.refused_dispatches += other.refused_dispatches;
        self.force_released += other.force_released;
        self.unsendable += other.unsendable;
        self.most_returned = self.most_returned.max(other.most_returned);
        for (kind, count) in &other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
    }
}

/// How a run went.
#[derive(Debug)]
pub struct Outcome {
    /// Decided by every step of the run.
    pub hash: u64,
    /// How many things happened in it: what it cost.
    pub steps: u64,
    /// What it came across.
    pub seen: Seen,
    /// The first violation of each rule.
    pub violations: BTreeMap<crate::oracle::Rule, Violation>,
    /// What happened, when it was to be kept.
    pub lines: Vec<String>,
}

/// A store call.
#[derive(Debug, Clone)]
pub(crate) enum StoreCall {
    /// Of an owner, but a commit.
    Owner(OwnerId, Arc<Call>),
    Commit(Box<Written>),
    RenewWorker(WorkerId),
    WorkerOver(Former),
    /// A worker ends its lease; this had begun there and was not settled.
    RetireWorker(WorkerId, BTreeSet<Key>),
}

/// A batch on its way into the store.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub(crate) number: u64,
    pub(crate) commit: Arc<Commit>,
    pub(crate) places: Vec<(ExecutionId, RequestId, u64)>,
    /// What the oracle says of the decisions.
    pub(crate) found: Vec<(PartitionId, Violation)>,
    /// When it was decided.
    pub(crate) decided: Time,
    /// By how much the clock of its owner was ahead then.
    pub(crate) ahead: Time,
}

/// What the store answers.
#[derive(Debug)]
pub(crate) enum StoreReply {
    /// To an owner.
    Owner(Box<Reply>),
    /// It cannot be reached, or gave up; whether it did anything is unknown.
    Failed,
    WorkerRenewed(bool),
    WorkerIsOver(WorkerId),
    WorkerRetired,
}

/// What a process is told; it waits while the process stands still and dies with it.
pub(crate) enum Word {
    Deliver(Delivery),
    /// As if it had been delivered.
    Bring(Box<Delivered>),
    Reply(u64, StoreReply),
    /// The broker has taken acknowledgements: these refusals can be told.
    Taken(Vec<(Arc<str>, Answer)>),
    /// What came of something that was published.
    Published(PublishId, Published),
    /// Figures of these queues have not reached the broker.
    SnapshotsLost(Vec<ActionId>),
    Unsubscribed(SubscriptionId),
    /// What came of something that a relay published.
    Relayed(attune_routing::CallId, attune_routing::Answer),
    HandedOver(PartitionId),
    /// Look whether there is something to do.
    Wake,
    /// Hand everything over and end.
    Leave,
    Lease,
    /// Look for lives of which the store is to be told.
    Formers,
    /// The broker has closed the connection.
    Cut,
    /// Stop in order, and stay away for so long.
    Stops(Time),
    /// Wait no longer for what is to be done before the lease is ended.
    Hangs,
    /// A worker has a queue again, at the connection with this number.
    Listens(u64),
    /// Whether the broker can be reached has changed.
    Bus,
    /// What an owner says to a life, through this link of it.
    Sections(WorkerId, u64, Arc<Vec<Section<Grant>>>),
    /// What a life says to an owner.
    Reported(Reported),
    /// A life is there.
    Hello(WorkerId),
    /// Look whether there is something to report.
    Reports,
    Report(Key, ActionId, WorkerId, Status),
    /// Look whether ends were settled that were reported.
    Retell,
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
    /// Acknowledgements reach the broker; then what they refuse is told.
    Refuse(Party, Vec<(u64, u64)>, Vec<(Arc<str>, Answer)>),
    /// The broker has not heard of this party for too long.
    Silent(Party),
    /// This owner has a way to the broker again.
    BusIsBack(usize),
    Store(Party, u64, StoreCall, Fate, Time),
    /// A client is answered; whether it was refused.
    Answer(usize, u32, bool),
    Ask(usize),
    /// See whether things go on.
    Watch,
    Restart(Party),
    /// On the way of firings and completions.
    Routing(RoutingEv),
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
