//! What happens in a run from outside: the shape of the system, what clients ask for, which
//! faults come when. Drawn from the seed before the run begins, so that the shrinker can take
//! parts of it away and run the rest again.

use attune_core::{OnWorkerLost, PartitionId, Priority, Status};

use crate::rng::Rng;

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
/// After how long a slot that nobody claimed is dispatched again.
pub(crate) const REPUBLISH_AFTER: Time = 2_000;
/// How long a run may go on after everything is healed, before what has not ended counts as lost.
pub(crate) const PATIENCE: Time = 240_000;

/// A bug that is planted to see that it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// The store takes what stale owners write.
    NoFence,
    /// Workers run what they are told to without claiming it.
    NoClaim,
    /// Every completion frees a slot, however often it comes.
    Counter,
    /// Owners acknowledge what they receive before they have stored what follows from it.
    AckFirst,
    /// The broker gives back what was not acknowledged behind what waits.
    RequeueLast,
    /// Owners tell before they have committed.
    TellFirst,
    /// An owner that takes a partition again goes on with what it had received in its last epoch.
    StaleInbox,
    /// An owner writes a round again in the same epoch when its outcome is unknown.
    SameEpoch,
    /// Whoever gives up on a store call drops it: its connection goes back to the pool inside a
    /// transaction, where the next write is confirmed and never committed.
    CancelDb,
}

impl Plant {
    /// All of them, by the names they have on the command line.
    pub const ALL: [(&'static str, Self); 9] = [
        ("no-fence", Self::NoFence),
        ("no-claim", Self::NoClaim),
        ("counter", Self::Counter),
        ("ack-first", Self::AckFirst),
        ("nack-requeue", Self::RequeueLast),
        ("tell-first", Self::TellFirst),
        ("stale-inbox", Self::StaleInbox),
        ("same-epoch", Self::SameEpoch),
        ("cancel-db", Self::CancelDb),
    ];
}

/// An action of the run.
#[derive(Debug, Clone)]
pub struct ActionShape {
    /// Its name decides its partition.
    pub name: String,
    /// How many may hold a slot.
    pub limit: Option<u32>,
    /// How many may wait.
    pub max_length: Option<u32>,
    /// How long one may wait, in seconds.
    pub timeout_seconds: Option<u32>,
    /// What happens when its worker dies.
    pub on_worker_lost: OnWorkerLost,
    /// How often it may be tried.
    pub max_attempts: u32,
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
    /// Changes the limit of an action.
    Limit {
        /// Which action.
        action: usize,
        /// Its new limit.
        limit: Option<u32>,
    },
}

/// What goes wrong, with whom and for how many milliseconds.
#[derive(Debug, Clone)]
#[expect(
    missing_docs,
    reason = "the variants say what, the fields only to whom and how long"
)]
pub enum Fault {
    /// An owner dies and comes back under a fresh id.
    CrashOwner { owner: usize, down: Time },
    /// An owner stands still, longer than its lease as a rule, and then goes on.
    PauseOwner { owner: usize, pause: Time },
    /// An owner neither renews its leases nor looks at the clock.
    BlindOwner { owner: usize, blind: Time },
    /// The others do not see an owner for a while: it hands over what it has, in order.
    HandOver { owner: usize },
    /// An owner is told to stop: it hands everything over and ends.
    StopOwner { owner: usize, down: Time },
    /// The store refuses every commit for good, and does everything else.
    Refuse { refuse: Time },
    /// The next commit of an owner is refused.
    Reload { owner: usize },
    /// The broker closes the connection of an owner, which builds a new one.
    CutOwner { owner: usize },
    /// A worker dies with everything it runs.
    CrashWorker { worker: usize, down: Time },
    /// A worker stands still.
    PauseWorker { worker: usize, pause: Time },
    /// The store refuses everything.
    StoreDown { down: Time },
    /// A completion of long ago arrives again.
    Replay,
}

impl Fault {
    /// What kind of a fault it is, in reports.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::CrashOwner { .. } => "crash-owner",
            Self::PauseOwner { .. } => "pause-owner",
            Self::BlindOwner { .. } => "blind-owner",
            Self::HandOver { .. } => "hand-over",
            Self::StopOwner { .. } => "stop-owner",
            Self::Refuse { .. } => "refuse-commits",
            Self::Reload { .. } => "refuse-one-commit",
            Self::CutOwner { .. } => "cut-owner",
            Self::CrashWorker { .. } => "crash-worker",
            Self::PauseWorker { .. } => "pause-worker",
            Self::StoreDown { .. } => "store-down",
            Self::Replay => "replay-completion",
        }
    }
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
    /// What clients do.
    pub ops: Vec<Planned<Op>>,
    /// What goes wrong.
    pub faults: Vec<Planned<Fault>>,
    /// When everything is made whole.
    pub heal_at: Time,
    /// The bug that is planted.
    pub plant: Option<Plant>,
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64, plant: Option<Plant>) -> Self {
        let mut rng = Rng::new(seed);
        let rng = &mut rng;
        let partitions = rng.pick(&[1, 1, 2, 3]);
        let span = rng.between(5_000, 25_000);
        let actions: Vec<ActionShape> = (0..rng.between(1, 3)).map(|n| action(n, rng)).collect();
        let owners = rng.pick(&[2, 2, 3]);
        let workers = rng.between(2, 4);
        let mut ops = Vec::new();
        let submits = usize::try_from(rng.between(16, 48)).unwrap_or(16);
        // Some runs come in a burst, so that queues are long; others drip.
        let rush = rng.pick(&[span, span, span / 4, 200]);
        for id in 0..submits {
            let what = Op::Submit {
                client: rng.index(3),
                action: rng.index(actions.len()),
                priority: if rng.chance(600) {
                    Priority::Normal
                } else {
                    rng.pick(&Priority::ALL)
                },
                delay: rng.chance(100).then(|| rng.between(1, 6_000)),
                asks: rng.chance(700),
            };
            let at = rng.between(0, rush);
            ops.push(Planned { at, id, what });
        }
        for id in submits..submits + rng.index(10) {
            let of = rng.index(submits);
            let what = match rng.index(5) {
                0 | 1 => Op::Repeat {
                    of,
                    differs: rng.chance(300),
                },
                2 | 3 => Op::Cancel { of },
                _ => Op::Limit {
                    action: rng.index(actions.len()),
                    limit: limit(rng),
                },
            };
            let at = rng.between(100, span);
            ops.push(Planned { at, id, what });
        }
        ops.sort_by_key(|op| (op.at, op.id));
        let mut faults: Vec<Planned<Fault>> = (0..rng.index(9))
            .map(|id| Planned {
                at: rng.between(200, span),
                id,
                what: fault(rng, owners, usize::try_from(workers).unwrap_or(2)),
            })
            .collect();
        faults.sort_by_key(|fault| (fault.at, fault.id));
        Self {
            seed,
            partitions,
            owner_skews: (0..owners).map(|_| rng.between(-200, 200)).collect(),
            worker_slots: (0..workers).map(|_| 1 + rng.index(3)).collect(),
            actions,
            noise: noise(rng),
            room: rng.chance(200).then(|| 1 + rng.index(8)),
            ops,
            faults,
            heal_at: span + rng.between(500, 6_000),
            plant,
        }
    }

    /// The partition of an action.
    pub(crate) fn partition_of(&self, action: usize) -> PartitionId {
        PartitionId::of(&self.actions[action].name, self.partitions)
    }
}

fn limit(rng: &mut Rng) -> Option<u32> {
    rng.pick(&[Some(1), Some(1), Some(2), Some(3), Some(5), None])
}

fn action(n: i64, rng: &mut Rng) -> ActionShape {
    ActionShape {
        name: format!("sim.a{n}"),
        limit: limit(rng),
        max_length: rng.chance(150).then_some(5),
        timeout_seconds: rng.chance(150).then_some(8),
        on_worker_lost: if rng.chance(200) {
            OnWorkerLost::Fail
        } else {
            OnWorkerLost::Retry
        },
        max_attempts: u32::try_from(rng.between(2, 5)).unwrap_or(3),
        run_ms: rng.pick(&[10, 300, 300, 1_000, 3_000]),
    }
}

fn noise(rng: &mut Rng) -> Noise {
    // A fifth of the runs have faults only, so that they are not drowned in noise.
    let loud = u32::from(!rng.chance(200));
    let mut up_to = |most: i64| u32::try_from(rng.between(0, most)).unwrap_or(0) * loud;
    Noise {
        refused: up_to(40),
        unknown: up_to(60),
        stalled: up_to(15),
        doubled: up_to(120),
        lost: up_to(150),
        late: up_to(60),
        delay: i64::from(rng.pick(&[2_u8, 10, 40, 150])),
    }
}

fn fault(rng: &mut Rng, owners: usize, workers: usize) -> Fault {
    let owner = rng.index(owners);
    let worker = rng.index(workers);
    match rng.index(16) {
        0 | 1 => Fault::CrashOwner {
            owner,
            down: rng.between(100, 5_000),
        },
        2 | 3 => Fault::PauseOwner {
            owner,
            pause: rng.between(500, 9_000),
        },
        4 | 12 => Fault::BlindOwner {
            owner,
            blind: rng.between(3_000, 9_000),
        },
        5 | 13 => Fault::HandOver { owner },
        14 => Fault::StopOwner {
            owner,
            down: rng.between(1_000, 12_000),
        },
        15 => Fault::Refuse {
            refuse: rng.between(500, 20_000),
        },
        6 => Fault::Reload { owner },
        7 => Fault::CutOwner { owner },
        8 => Fault::CrashWorker {
            worker,
            down: rng.between(100, 4_000),
        },
        9 => Fault::PauseWorker {
            worker,
            pause: rng.between(500, 8_000),
        },
        10 => Fault::StoreDown {
            down: rng.between(100, 3_000),
        },
        _ => Fault::Replay,
    }
}

/// How a run of user code ends, by chance.
pub(crate) fn outcome(rng: &mut Rng) -> Status {
    match rng.index(20) {
        0 => Status::Failed,
        1 => Status::TimedOut,
        _ => Status::Succeeded,
    }
}
