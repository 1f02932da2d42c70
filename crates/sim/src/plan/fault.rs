//! What can go wrong.

use super::Time;

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
    /// The broker closes the connection of a worker, which builds a new one; nobody receives what it is told
    /// meanwhile.
    CutWorker { worker: usize },
    /// A worker is told to stop: it gives back what waits, ends its lease and stays away.
    StopWorker { worker: usize, down: Time },
    /// A worker stands still.
    PauseWorker { worker: usize, pause: Time },
    /// The store refuses everything.
    StoreDown { down: Time },
    /// A completion of long ago arrives again.
    Replay,
    /// Somebody says in the name of a worker that what it runs has ended, or has never begun.
    Forge,
    /// The store refuses every commit for minutes, and does everything else.
    RefuseLong { refuse: Time },
    /// The store does not answer what is read for these ends, and does everything else.
    FailReads { reads: Reads, fail: Time },
    /// The broker has no room for a single dispatch to the pool.
    FullPool { pool: usize, full: Time },
    /// All workers of the pool are gone, and the broker keeps a few dispatches to it.
    DeadPool { pool: usize, dead: Time },
    /// The broker does not know where dispatches to the pool go.
    LostRoute { pool: usize, lost: Time },
    /// The next execution that is dispatched for the first time is too large for the bus.
    TooLarge,
    /// The next execution that is dispatched for the first time can never be sent.
    Invalid,
    /// The store's clock is wrong for a while.
    StepStoreClock { by: Time, lasts: Time },
    /// The wall clock of an owner's machine is wrong for a while.
    StepOwnerClock { owner: usize, by: Time, lasts: Time },
    /// An owner has no way to the broker, and every other.
    WithoutBus { owner: usize, lost: Time },
    /// An owner has no way to the store, and every other.
    WithoutStore { owner: usize, lost: Time },
    /// The store cannot read what submissions to the partition of an action need.
    Unreadable { action: usize, lasts: Time },
    /// The store takes no dead letters and no entries of the audit log, nor what is written with them.
    RefuseBeside { refuse: Time },
    /// The lease of the partition of an action cannot be written, which the store says after a while.
    BrokenLease {
        action: usize,
        lasts: Time,
        after: Time,
    },
}

/// What owners read from the store, by what they need it for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reads {
    /// Requests and actions, before a round is decided.
    LookUps,
    /// The queues of a partition that was taken.
    Loads,
    /// What memory is compared with.
    Sweeps,
    /// The bodies of what is dispatched again.
    Bodies,
    /// Who is there, and who owns what.
    Looks,
    /// Everything.
    All,
}

impl Reads {
    /// All of them.
    pub(crate) const ALL: [Self; 6] = [
        Self::LookUps,
        Self::Loads,
        Self::Sweeps,
        Self::Bodies,
        Self::Looks,
        Self::All,
    ];

    fn kind(self) -> &'static str {
        match self {
            Self::LookUps => "fail-look-ups",
            Self::Loads => "fail-loads",
            Self::Sweeps => "fail-sweeps",
            Self::Bodies => "fail-bodies",
            Self::Looks => "fail-looks",
            Self::All => "fail-reads",
        }
    }
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
            Self::CutWorker { .. } => "cut-worker",
            Self::StopWorker { .. } => "stop-worker",
            Self::PauseWorker { .. } => "pause-worker",
            Self::StoreDown { .. } => "store-down",
            Self::Replay => "replay-completion",
            Self::Forge => "forge",
            Self::RefuseLong { .. } => "refuse-for-minutes",
            Self::FailReads { reads, .. } => reads.kind(),
            Self::FullPool { .. } => "full-pool",
            Self::DeadPool { .. } => "dead-pool",
            Self::LostRoute { .. } => "lost-route",
            Self::TooLarge => "too-large",
            Self::Invalid => "invalid",
            Self::StepStoreClock { .. } => "store-clock-step",
            Self::StepOwnerClock { .. } => "owner-clock-step",
            Self::WithoutBus { .. } => "without-bus",
            Self::WithoutStore { .. } => "without-store",
            Self::Unreadable { .. } => "unreadable-row",
            Self::RefuseBeside { .. } => "refuse-beside",
            Self::BrokenLease { .. } => "broken-lease",
        }
    }

    /// How long it lasts, as far as the run must go on after it.
    pub(crate) fn lasts(&self) -> Time {
        match self {
            Self::RefuseLong { refuse: lasts }
            | Self::RefuseBeside { refuse: lasts }
            | Self::FailReads { fail: lasts, .. }
            | Self::FullPool { full: lasts, .. }
            | Self::DeadPool { dead: lasts, .. }
            | Self::LostRoute { lost: lasts, .. }
            | Self::WithoutBus { lost: lasts, .. }
            | Self::WithoutStore { lost: lasts, .. }
            | Self::Unreadable { lasts, .. }
            | Self::BrokenLease { lasts, .. }
            | Self::StepStoreClock { lasts, .. }
            | Self::StepOwnerClock { lasts, .. } => *lasts,
            _ => 0,
        }
    }
}
