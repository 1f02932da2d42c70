//! What people should read in the log. The decisions have no log of their own: whoever carries
//! them out writes these down.

use attune_core::{ActionId, Attempt, Epoch, ExecutionId, OwnerId, PartitionId, Status, WorkerId};

use crate::detector::Violation;
use crate::owner::Failure;
use crate::queue::Millis;

/// Something worth a line in the log.
#[derive(Debug, Clone)]
pub enum Notice {
    /// Partitions are served from now on.
    TakenOver {
        /// Which, and in which epoch.
        partition: PartitionId,
        /// In which epoch.
        epoch: Epoch,
        /// How long loading took.
        elapsed_ms: Millis,
    },
    /// A user of the broker has said something in the name of a worker that speaks as another one.
    Forbidden {
        /// In whose name.
        worker: WorkerId,
        /// Who.
        user: String,
    },
    /// Partitions have another owner.
    Lost(Vec<PartitionId>),
    /// A partition is handed over.
    HandOver {
        /// Which partition.
        partition: PartitionId,
        /// To whom.
        to: Option<OwnerId>,
    },
    /// A partition is handed over before everything was confirmed.
    HandOverUnconfirmed(PartitionId),
    /// A commit was refused because these have another owner.
    Fenced(Vec<PartitionId>),
    /// The store refuses what was decided about these; it is written again later.
    CommitRefused {
        /// About which partitions.
        partitions: Vec<PartitionId>,
        /// Why.
        failure: Failure,
        /// When it is tried again, in milliseconds from now.
        again_in: Millis,
    },
    /// Whether what was decided about these is stored is unknown; they are loaded again.
    CommitUnknown {
        /// About which partitions.
        partitions: Vec<PartitionId>,
        /// Why.
        failure: Failure,
    },
    /// A store call failed; it is made again later.
    StoreFailed {
        /// What was asked.
        call: &'static str,
        /// Why it failed.
        failure: Failure,
    },
    /// The places of an epoch are used up.
    EpochUsedUp(PartitionId),
    /// The leases were not renewed in time; nothing is decided until they are.
    Untrusted,
    /// That lasted until others may have taken the partitions over: their messages have gone back.
    GaveBack,
    /// The bus cannot be reached, and others can reach it: the partitions are handed over to them.
    CutOff,
    /// The bus can be reached again; partitions come back.
    BusIsBack,
    /// The clock of the store has moved by itself; the owner does not follow it.
    ClockDrift {
        /// By how much, in milliseconds.
        by: Millis,
    },
    /// The clock of the store and that of this process differ, and nobody knows which is right:
    /// what is decided goes by the earlier one until they agree.
    ClocksDiffer {
        /// By how much the store's is ahead, in milliseconds.
        by: Millis,
    },
    /// The two clocks agree at last. If the time has moved, every partition is loaded again.
    ClocksAgree {
        /// By how much the time by which is decided has moved, in milliseconds.
        by: Millis,
    },
    /// Memory and store differ on a slot.
    SlotDiffers {
        /// Whose slot.
        execution_id: ExecutionId,
        /// Which attempt.
        attempt: Attempt,
        /// The action's ref.
        action_ref: String,
        /// What is done about it.
        what: &'static str,
    },
    /// Memory and store differ on who waits.
    WaitingDiffers {
        /// Which execution.
        execution_id: ExecutionId,
        /// The action's ref.
        action_ref: String,
        /// What is done about it.
        what: &'static str,
    },
    /// The store has executions of an action that was not known.
    ActionWasUnknown {
        /// The action's ref.
        action_ref: String,
    },
    /// An action was changed, and nobody had said so.
    ActionHadChanged {
        /// The action's ref.
        action_ref: String,
    },
    /// The store has executions of an action that does not exist.
    ActionMissing {
        /// Which action.
        action_id: ActionId,
    },
    /// The lease of a worker has ended; its slot is taken back.
    WorkerLost {
        /// Whose slot.
        execution_id: ExecutionId,
        /// Which attempt.
        attempt: Attempt,
        /// Which worker.
        worker: Option<WorkerId>,
    },
    /// An operator took a slot back.
    ForceReleased {
        /// Whose slot.
        execution_id: ExecutionId,
        /// Which attempt.
        attempt: Attempt,
        /// The action's ref.
        action_ref: String,
        /// Where the execution stands from now on.
        status: Status,
    },
    /// A promise was broken.
    Violation(Box<Violation>),
    /// A submission that cannot even be recorded is kept as a dead letter.
    LetterKept {
        /// The ref that was asked for.
        action_ref: String,
        /// Why it became a dead letter.
        reason: String,
    },
}
