//! Bugs that are planted on purpose, to see that they are found.
//!
//! The code of every bug is compiled and checked in every build, and thrown away in all but one: a
//! build with `ATTUNE_PLANTS=1` (`scripts/plants`), where the variable `ATTUNE_PLANT` names the bug
//! of a process. So no feature and no setting of an ordinary program plants anything.

/// A classic bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A worker takes what it is told whatever its number.
    AnySection,
    /// Anybody ends what was granted to another.
    AnyUser,
    /// A takeover forgets who has asked for what waits.
    AskersForgotten,
    /// A worker forgets what it holds once the end was reported.
    EntryForgotten,
    /// An operation that ends who waits has those ended who stand ahead, begun or not.
    EndsAhead,
    /// What was granted ahead to a worker that is lost counts as never begun.
    LostFree,
    /// Who stands behind what came back, and was not told, is told.
    ToldBehind,
    /// A pause or another limit is answered while somebody stands ahead of a slot of what it is about.
    PauseEarly,
    /// A worker runs one more of a lane than has a slot.
    LaneOver,
    /// A worker takes what an owner of an earlier epoch says.
    OldSection,
    /// A worker gives back what waits of an action but for the last.
    PartialReturn,
    /// A worker says once what it gives back, also when it is asked again.
    ReturnOnce,
    /// An owner does not compare when something was lost.
    NoSync,
    /// What came back is granted under the attempt that it had.
    SameAttempt,
    /// A worker forgets an end that its owner has not stored yet.
    SettleFirst,
    /// A worker is taken for dead before its lease is over.
    OverEarly,
    /// A slot is given past those who stand ahead of one.
    PastTheLine,
    /// Who stands ahead of a slot is told before whoever was granted before it.
    ToldAhead,
    /// Commands are acknowledged before they are stored.
    AckFirst,
    /// A database call is dropped in the middle.
    CancelDb,
    /// An owner whose time was led ahead never comes back.
    ClockStaysAhead,
    /// Any completion frees some slot (`running -= 1`).
    Counter,
    /// A full queue drops whoever came last.
    DropNewest,
    /// Who is to keep its slot until it is tried again loses it in memory.
    HoldSlotLetsGo,
    /// What happens is told to whoever listens before it is stored.
    EventEarly,
    /// Why an execution does not run yet is said before what it goes by is stored.
    ExplainEarly,
    /// Slots are shared by how often each has started, whatever it holds.
    FairByStarts,
    /// Whoever takes a partition over publishes the figures of what changes from then on alone.
    FiguresForgotten,
    /// An owner whose leases are over keeps the messages of its partitions.
    KeepMessages,
    /// Who keeps its slot until it is tried again is forgotten, unless something else is to do.
    KeptForgotten,
    /// A takeover does not know what has started lately.
    MeterInMemory,
    /// Priority goes before age, whatever the action says.
    NoAgeing,
    /// An owner that was overtaken still writes.
    NoFence,
    /// A queue that waits for its rate is looked at every ten seconds, and not when there is room again.
    NoWake,
    /// A page of a bulk operation is carried out twice.
    PageTwice,
    /// Whoever takes a partition over does not know what operators hold.
    PauseForgotten,
    /// A changed policy set does not reach every queue of the partition that says to go by it.
    PoliciesLate,
    /// A refused publish is repeated before all else.
    RefusedLoop,
    /// A refused commit costs a new epoch and a reload.
    ReloadStorm,
    /// Whoever takes a partition over does not know what was resumed.
    ResumeForgotten,
    /// A slot that is taken back goes behind what waits.
    Requeue,
    /// A back-off is not waited for.
    RetryAtOnce,
    /// Whoever is replaced waits no longer, and nobody is told that it has ended.
    ReplaceForgetsEnd,
    /// Whoever demands less passes somebody who waits for more of the same limit.
    ScanSkipsCost,
    /// An owner that is cut off from the bus keeps its partitions.
    StayPut,
    /// What cannot be looked up for one partition waits with everything else that came.
    ReadTogether,
    /// A new owner takes requests for new without asking what is stored.
    HeardOfNone,
    /// Everything is compared at once, between rounds.
    StopTheWorld,
    /// A takeover forgets the groups of those who hold a slot.
    UngroupedHolders,
    /// Whoever was accepted by an owner that was ahead waits from the time of the next owner on.
    WaitsAnew,
    /// A call to the store waits for its answer for ever, also where the connection has fallen silent.
    WaitsForEver,
    /// An owner's time follows a clock that steps.
    WallClock,
    /// What stands beside the executions of a round is written with them or not at all.
    WriteTogether,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 53] = [
        Self::AnySection,
        Self::AnyUser,
        Self::AskersForgotten,
        Self::EntryForgotten,
        Self::EndsAhead,
        Self::LostFree,
        Self::ToldBehind,
        Self::PauseEarly,
        Self::LaneOver,
        Self::OldSection,
        Self::PartialReturn,
        Self::ReturnOnce,
        Self::NoSync,
        Self::SameAttempt,
        Self::SettleFirst,
        Self::OverEarly,
        Self::PastTheLine,
        Self::ToldAhead,
        Self::AckFirst,
        Self::CancelDb,
        Self::ClockStaysAhead,
        Self::Counter,
        Self::DropNewest,
        Self::EventEarly,
        Self::ExplainEarly,
        Self::FairByStarts,
        Self::FiguresForgotten,
        Self::HeardOfNone,
        Self::HoldSlotLetsGo,
        Self::KeepMessages,
        Self::KeptForgotten,
        Self::MeterInMemory,
        Self::NoAgeing,
        Self::NoFence,
        Self::NoWake,
        Self::PageTwice,
        Self::PauseForgotten,
        Self::PoliciesLate,
        Self::RefusedLoop,
        Self::ReloadStorm,
        Self::Requeue,
        Self::ReplaceForgetsEnd,
        Self::ResumeForgotten,
        Self::RetryAtOnce,
        Self::ScanSkipsCost,
        Self::StayPut,
        Self::ReadTogether,
        Self::StopTheWorld,
        Self::UngroupedHolders,
        Self::WaitsAnew,
        Self::WaitsForEver,
        Self::WallClock,
        Self::WriteTogether,
    ];

    /// Its name in `scripts/plants` and in `ATTUNE_PLANT`.
    pub fn name(self) -> &'static str {
        match self {
            Self::AnySection => "any-section",
            Self::AnyUser => "any-user",
            Self::AskersForgotten => "askers-forgotten",
            Self::EntryForgotten => "entry-forgotten",
            Self::EndsAhead => "ends-ahead",
            Self::LostFree => "lost-free",
            Self::ToldBehind => "told-behind",
            Self::PauseEarly => "pause-early",
            Self::LaneOver => "lane-over",
            Self::OldSection => "old-section",
            Self::PartialReturn => "partial-return",
            Self::ReturnOnce => "return-once",
            Self::NoSync => "no-sync",
            Self::SameAttempt => "same-attempt",
            Self::SettleFirst => "settle-first",
            Self::OverEarly => "over-early",
            Self::PastTheLine => "past-the-line",
            Self::ToldAhead => "told-ahead",
            Self::AckFirst => "ack-first",
            Self::CancelDb => "cancel-db",
            Self::ClockStaysAhead => "clock-stays-ahead",
            Self::Counter => "counter",
            Self::DropNewest => "drop-newest",
            Self::EventEarly => "event-early",
            Self::ExplainEarly => "explain-early",
            Self::FairByStarts => "fair-by-starts",
            Self::FiguresForgotten => "figures-forgotten",
            Self::HeardOfNone => "heard-of-none",
            Self::HoldSlotLetsGo => "hold-slot-lets-go",
            Self::KeepMessages => "keep-messages",
            Self::KeptForgotten => "kept-forgotten",
            Self::MeterInMemory => "meter-in-memory",
            Self::NoAgeing => "no-ageing",
            Self::NoFence => "no-fence",
            Self::NoWake => "no-wake",
            Self::PageTwice => "page-twice",
            Self::PauseForgotten => "pause-forgotten",
            Self::PoliciesLate => "policies-late",
            Self::RefusedLoop => "refused-loop",
            Self::ReloadStorm => "reload-storm",
            Self::Requeue => "requeue",
            Self::ReplaceForgetsEnd => "replace-forgets-end",
            Self::ResumeForgotten => "resume-forgotten",
            Self::RetryAtOnce => "retry-at-once",
            Self::ScanSkipsCost => "scan-skips-cost",
            Self::StayPut => "stay-put",
            Self::ReadTogether => "read-together",
            Self::StopTheWorld => "stop-the-world",
            Self::UngroupedHolders => "ungrouped-holders",
            Self::WaitsAnew => "waits-anew",
            Self::WaitsForEver => "waits-for-ever",
            Self::WallClock => "wall-clock",
            Self::WriteTogether => "write-together",
        }
    }

    /// Whether this process has it.
    #[cfg(not(attune_plants))]
    #[inline]
    pub const fn is_planted(self) -> bool {
        false
    }

    /// Whether this process has it.
    #[cfg(attune_plants)]
    pub fn is_planted(self) -> bool {
        planted() == Some(self)
    }
}

/// The bug that this process has.
#[cfg(not(attune_plants))]
#[inline]
pub const fn planted() -> Option<Bug> {
    None
}

/// The bug that this process has.
///
/// # Panics
/// When `ATTUNE_PLANT` names none that there is: nothing would be planted.
#[cfg(attune_plants)]
pub fn planted() -> Option<Bug> {
    static PLANTED: std::sync::LazyLock<Option<Bug>> = std::sync::LazyLock::new(|| {
        let name = std::env::var("ATTUNE_PLANT").ok()?;
        let found = Bug::ALL.into_iter().find(|bug| bug.name() == name);
        assert!(
            found.is_some(),
            "ATTUNE_PLANT={name}: there is no such bug to plant"
        );
        found
    });
    *PLANTED
}
