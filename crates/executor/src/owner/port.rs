//! What an owner is told, and what it asks for. Whoever drives it carries the outputs out and
//! brings back what came of them; nothing here says how.

use std::sync::Arc;

use attune_core::{
    Action, ActionId, Epoch, ExecutionId, OwnerId, PartOfOperation, PartitionId, Pauses, PolicySet,
    QueueStats, QueueTotals, Refusal, RequestGap, RequestId, WorkerId,
};

use attune_dispatch::Section;

use super::reports::Reported;
use crate::counters::Counter;
use crate::fact::Decided;
use crate::happened::ActionEvent;
use crate::notice::Notice;
use crate::partition::{Answer, Completion, ForceRelease, Grantee, Submit, Wait};
use crate::queue::Millis;
use crate::round::Commit;
use crate::stored::{
    Body, KnownRequest, LoadedTo, MeterPlace, ObservedLease, Sets, StoredExecution, StoredExecutor,
    StoredLease, StoredMeter, StoredSlot, StoredWords, WorkerEnd,
};

/// Names a message that was delivered, until it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryId(pub u64);

/// Names a subscription to the topics of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionId(pub u64);

/// Names a store call, until it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// Names something that is published, until it is known what came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublishId(pub u64);

/// What an owner is told.
#[derive(Debug)]
pub enum Input {
    /// Messages of subscriptions, in order.
    Delivered(Vec<Delivered>),
    /// The answer to a store call.
    Answered(CallId, Reply),
    /// What came of something that was published.
    Published(PublishId, Published),
    /// What workers say of what they were granted.
    Reported(Vec<Reported>),
    /// These lives have come, hear again, or are about to stop.
    Hello(Vec<WorkerId>),
    /// A subscription has ended; what it had delivered went back.
    Unsubscribed(SubscriptionId),
    /// Somebody handed these partitions over to this owner.
    HandedOver(Vec<PartitionId>),
    /// Snapshots of these queues may have been lost on their way.
    SnapshotsLost(Vec<ActionId>),
    /// Whether the bus can be reached. Until it is told, it can.
    Bus {
        /// Messages could come and go now, as far as is known.
        reachable: bool,
    },
    /// A time has come that [`Owner::wake_at`](super::Owner::wake_at) named.
    Timer,
    /// Hand everything over and end.
    Leave,
}

/// A message that was understood.
#[derive(Debug, Clone)]
pub struct Delivered {
    /// By which it is acknowledged.
    pub id: DeliveryId,
    /// Through which subscription it came.
    pub subscription: SubscriptionId,
    /// Of which partition.
    pub partition: PartitionId,
    /// How many bytes it had.
    pub bytes: usize,
    /// Who waits for answers, in whatever words the driver has for it: they come back as they are.
    pub reply_to: Option<Arc<str>>,
    /// Its items.
    pub work: Work,
}

/// As how many items of a round an answer counts: looking at a long queue takes as long as so many
/// submissions.
const EXPLAINED_AS: usize = 64;

/// The items of a message.
#[derive(Debug, Clone)]
pub enum Work {
    /// Runs that have ended. They are taken before everything else, so that a flood of requests
    /// never delays a release.
    Completions(Vec<Completion>),
    /// Executions that are asked for.
    Submits(Vec<Submit>),
    /// Executions to be ended.
    Cancels(Vec<(RequestId, ExecutionId)>),
    /// Executions of which somebody asks why they do not run yet.
    Explains(Vec<(RequestId, ExecutionId)>),
    /// Slots to be taken back.
    Releases(Vec<ForceRelease>),
    /// Actions that have changed: request and ref.
    Changes(Vec<(RequestId, String)>),
    /// What operators hold has changed.
    Pauses(Vec<RequestId>),
    /// The policy documents have changed.
    Policies(Vec<RequestId>),
    /// There are bulk operations that are new.
    Operations(Vec<RequestId>),
}

impl Work {
    /// How many items there are. Each answer to a question counts as several: so much work it is.
    pub fn len(&self) -> usize {
        match self {
            Self::Completions(items) => items.len(),
            Self::Submits(items) => items.len(),
            Self::Cancels(items) => items.len(),
            Self::Explains(items) => items.len() * EXPLAINED_AS,
            Self::Releases(items) => items.len(),
            Self::Changes(items) => items.len(),
            Self::Pauses(items) | Self::Policies(items) | Self::Operations(items) => items.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What an owner asks for.
#[derive(Debug)]
pub enum Output {
    /// A store call; its answer is [`Input::Answered`].
    Call(CallId, Call),
    /// Tell one life of a worker; what came of it, by the places of the sections, is [`Input::Published`].
    Dispatch {
        /// By which its outcome is told.
        id: PublishId,
        /// The pool that it serves.
        pool: Arc<str>,
        /// Which life.
        worker: WorkerId,
        /// What it is told, in order.
        sections: Vec<Section<Dispatch>>,
    },
    /// Tell somebody; nobody waits for a confirm.
    Send(Send),
    /// These messages are done with.
    Ack(Vec<DeliveryId>),
    /// Likewise, and requests in them are refused, which their askers are told only when the
    /// broker has taken the acknowledgement: nothing is stored of a refusal, so whoever got the
    /// message again would decide anew, and might accept what the asker believes refused. When
    /// that is not known, nobody is told: who hears nothing asks again.
    Refuse {
        /// The messages.
        deliveries: Vec<DeliveryId>,
        /// The refusals.
        answers: Vec<(Arc<str>, Answer)>,
    },
    /// Receive the topics of a partition from now on, however long that takes to begin.
    Subscribe(SubscriptionId, PartitionId),
    /// Receive no more, and give back what is not acknowledged; [`Input::Unsubscribed`] follows.
    Unsubscribe(SubscriptionId),
    /// Something for whoever checks the promises, that no commit carries.
    Noted(Decided),
    /// What a partition held when it was loaded; its bounds are nothing new.
    Loaded(Decided),
    /// Count something, so many times.
    Count(Counter, u64),
    /// Count how long those have waited who were given slots, each once.
    Waited(Vec<Wait>),
    /// Tell people.
    Notice(Notice),
    /// Everything is given up: the owner has ended.
    Ended,
}

/// An execution on its way to a worker.
#[derive(Debug, Clone)]
pub struct Dispatch {
    /// Which execution, in which attempt, of which action.
    pub grantee: Grantee,
    /// What it is given.
    pub body: Body,
}

/// What is told once: whoever misses it asks again or is told again.
#[derive(Debug)]
pub enum Send {
    /// Answers to askers.
    Answers(Vec<(Arc<str>, Answer)>),
    /// Queues as they are, each with a number that rises with every snapshot of a queue.
    Snapshots(Vec<(i64, QueueStats)>),
    /// What has happened, to whoever listens; what is lost of it is told to nobody again.
    Events(Vec<ActionEvent>),
    /// A partition waits for its next owner.
    HandedOver {
        /// Which partition.
        partition: PartitionId,
        /// The epoch that has ended.
        epoch: Epoch,
        /// Who is to have it.
        to: OwnerId,
    },
}

/// What came of something that was published.
#[derive(Debug, Clone)]
pub enum Published {
    /// Everything was confirmed.
    Confirmed,
    /// These were refused, by their place in what was published; the others were confirmed.
    Refused(Vec<(usize, Refusal)>),
    /// Whether it was kept is unknown.
    Unknown,
}

/// A store call.
#[derive(Debug)]
pub enum Call {
    /// Extend what is held.
    Renew(Vec<(PartitionId, Epoch)>),
    /// Say that this owner is there.
    Announce {
        /// For how long, in milliseconds.
        ttl: Millis,
        /// It cannot reach the bus: nobody should leave partitions to it.
        cut_off: bool,
    },
    /// See who is there and who owns what.
    Look,
    /// Take these, if they are free or this owner's, in a new epoch each.
    Acquire(Vec<PartitionId>),
    /// Take these as they were observed, in a new epoch each.
    TakeOver(Vec<ObservedLease>),
    /// Free these, in favour of somebody.
    GiveUp(Vec<(PartitionId, Epoch)>, Option<OwnerId>),
    /// Go from the list of those who are there.
    Retire,
    /// The actions and totals of a partition, what operators hold and the policy documents.
    LoadQueues {
        /// Which partition.
        partition: PartitionId,
        /// Around which id the store tells a gap.
        around: RequestId,
    },
    /// What was counted for limits in a partition.
    LoadMeters {
        /// In which partition.
        partition: PartitionId,
        /// Where the page before ended.
        after: Option<MeterPlace>,
        /// How many at most.
        limit: u32,
    },
    /// What operators hold, if the set is newer than this version.
    LoadPauses {
        /// The version that is known.
        newer_than: i64,
    },
    /// The policy documents, likewise.
    LoadPolicies {
        /// The version that is known.
        newer_than: i64,
    },
    /// What waits or holds a slot in a partition: as much work as it has rows.
    LoadRows {
        /// In which partition.
        partition: PartitionId,
        /// Where the page before ended.
        after: Option<LoadedTo>,
        /// How many at most.
        limit: u32,
    },
    /// What waits or holds a slot in these partitions, by rising id. Every row in the range counts
    /// for the limit, whatever its partition: a slice is as much work as its limit says.
    ScanRows {
        /// In which partitions.
        partitions: Vec<PartitionId>,
        /// The range begins after this id.
        after: Option<ExecutionId>,
        /// How many rows it has at most.
        limit: u32,
    },
    /// What is known of these requests and actions.
    LookUp {
        /// The requests.
        requests: Vec<RequestId>,
        /// The refs of the actions.
        actions: Vec<String>,
    },
    /// Write a round.
    Commit(Arc<Commit>),
    /// Which of these executions hold a slot.
    LoadSlots(Vec<ExecutionId>),
    /// The bodies of these executions.
    LoadBodies(Vec<ExecutionId>),
    /// What these executions say by which they can be grouped.
    LoadWords(Vec<ExecutionId>),
    /// Which bulk operations are open in these partitions.
    LoadOperations(Vec<PartitionId>),
    /// What these executions say, for an operation.
    LoadOperationWords(Vec<ExecutionId>),
    /// How the leases of the workers stand.
    WorkerEnds,
    /// End the leases of these workers, if their renewals still are what was observed.
    EndWorkers(Vec<(WorkerId, i64)>),
}

impl Call {
    /// Its name, for people.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Renew(_) => "renew the leases",
            Self::Announce { .. } => "say that this executor is there",
            Self::Look => "look at the leases",
            Self::Acquire(_) => "acquire partitions",
            Self::TakeOver(_) => "take partitions over",
            Self::GiveUp(..) => "give up partitions",
            Self::Retire => "retire",
            Self::LoadQueues { .. } => "load the queues of a partition",
            Self::LoadMeters { .. } => "load what was counted in a partition",
            Self::LoadPauses { .. } => "read what operators hold",
            Self::LoadPolicies { .. } => "read the policy documents",
            Self::LoadRows { .. } => "load the executions of a partition",
            Self::LookUp { .. } => "look up requests",
            Self::Commit(_) => "commit a round",
            Self::ScanRows { .. } => "compare what is active",
            Self::LoadSlots(_) => "load the slots",
            Self::LoadBodies(_) => "load bodies",
            Self::LoadWords(_) => "load what executions are grouped by",
            Self::LoadOperations(_) => "read which operations are open",
            Self::LoadOperationWords(_) => "load what an operation must know of executions",
            Self::WorkerEnds => "look at the workers",
            Self::EndWorkers(_) => "end the leases of workers",
        }
    }
}

/// The answer to a store call.
#[derive(Debug)]
pub enum Reply {
    /// It failed.
    Failed(Failure),
    /// These were extended; the others are lost.
    Renewed(Vec<PartitionId>),
    /// It is said.
    Announced,
    /// Who is there, and who owns what.
    Looked(Looked),
    /// These were taken.
    Acquired(Vec<(PartitionId, Epoch)>),
    /// They are free.
    GaveUp,
    /// This owner is no longer on the list.
    Retired,
    /// The actions and totals of a partition, and the sets that it goes by.
    Queues {
        /// Its actions.
        actions: Vec<Action>,
        /// The totals of their queues.
        totals: Vec<(ActionId, QueueTotals)>,
        /// What operators hold, and the policy documents.
        sets: Sets,
        /// Where no request is stored; read after the partition was taken.
        gap: RequestGap,
    },
    /// What was counted for limits in a partition.
    Meters {
        /// A page of it.
        rows: Vec<StoredMeter>,
        /// Where the next page goes on, if there may be more.
        next: Option<MeterPlace>,
    },
    /// What operators hold, if it has changed.
    Pauses(Option<Arc<Pauses>>),
    /// The policy documents, if they have changed.
    Policies(Option<Arc<PolicySet>>),
    /// What waits or holds a slot in a partition.
    Rows {
        /// A page of it; within an action the oldest first.
        rows: Vec<StoredExecution>,
        /// Where the next page goes on, if there may be more.
        next: Option<LoadedTo>,
    },
    /// What waits or holds a slot in a range of ids.
    Slice {
        /// What is there, by rising id.
        rows: Vec<StoredExecution>,
        /// The range ends with this id; without one nothing is stored after its beginning.
        last: Option<ExecutionId>,
    },
    /// What is known.
    Known {
        /// Of the requests.
        requests: Vec<KnownRequest>,
        /// Of the actions.
        actions: Vec<Action>,
    },
    /// The round is written; these are the bodies of what it granted and did not insert.
    Committed(Vec<Body>),
    /// Nothing was written: these have another owner.
    Fenced(Vec<PartitionId>),
    /// Who holds a slot.
    Slots(Vec<StoredSlot>),
    /// Bodies.
    Bodies(Vec<Body>),
    /// What executions say, of as many as one answer holds.
    Words(Vec<StoredWords>),
    /// Bulk operations that are open, by partition and number.
    Operations(Vec<PartOfOperation>),
    /// The leases of the workers.
    WorkerEnds(Vec<WorkerEnd>),
    /// The leases of these workers are over.
    EndedWorkers(Vec<WorkerId>),
}

/// What one look at the leases shows.
#[derive(Debug, Default)]
pub struct Looked {
    /// What the clock of the store shows, in milliseconds since 1970.
    pub store_now: Millis,
    /// What the wall clock of this process showed then.
    pub own_now: Millis,
    /// Everybody on the list of those who are there.
    pub executors: Vec<StoredExecutor>,
    /// Every partition.
    pub leases: Vec<StoredLease>,
}

/// Why a store call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Whether it is sure that nothing was written.
    pub refused: bool,
    /// The error with everything below it, for people.
    pub words: String,
}
