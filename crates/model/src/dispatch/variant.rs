//! The protocol, and what it is without each of its rules.

/// One rule that is left out or done differently; each breaks a promise, or something never ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Nothing: the protocol as it is.
    Full,
    /// W1: a worker takes sections whatever their number, so what is late or doubled counts again.
    TakesAnyNumber,
    /// W1: a worker takes a later section though an earlier one is missing.
    TakesLaterSections,
    /// W1: a worker takes sections of an epoch that is over.
    TakesOldEpochs,
    /// W1: a worker follows a new epoch whose first sync it does not have.
    OpensWithoutSync,
    /// W2, W3: a worker keeps no record of what it lacks or gave back until that is settled.
    ForgetsReturned,
    /// W3: a worker takes a new grant while something that it gave back is not settled.
    TakesBesideReturned,
    /// W4: a worker starts all of a lane at once, whatever the slots.
    StartsWholeLane,
    /// W4, W7: a worker does not look at its deadline before a start.
    StartsAfterDeadline,
    /// W5: a worker gives one execution back from the middle of a lane.
    ReturnsOne,
    /// W6: a worker forgets an end once it is reported, before the owner has settled it.
    ForgetsReported,
    /// W6: a worker reports each end and each return once.
    ReportsOnce,
    /// W6: a report names one return, not all that are not settled.
    ReturnsOneByOne,
    /// W6: a report says what was seen and does not name all that is returned. Only where reports
    /// tell it, [`Knowledge::Reported`](super::Knowledge).
    TellsSeenAlone,
    /// O1: an owner settles before its commit, which may be refused.
    SettlesFirst,
    /// O1: commits do not check the epoch.
    NoFence,
    /// O2: what was given back is granted again with the number of the same attempt.
    SameAttempt,
    /// O3: ahead of its slot is granted though the slots are with several workers.
    SpreadsLane,
    /// O3: a worker is granted something anew before it has seen what was sent before the return.
    GrantsUnseen,
    /// O4: an owner takes an end or a return whoever holds the slot now.
    TakesAnyReport,
    /// O5: an owner sends no sync after a loss.
    NoRepair,
    /// O6: an owner takes back what a worker holds whose life is not known to be over.
    RevokesEarly,
    /// O6: an owner never takes back what the worker of a life that is over held.
    NeverRevokes,
    /// O6: a section that may also have been delivered counts as returned by the broker.
    BelievesEveryBounce,
}

impl Variant {
    /// Whether a life that is over still takes part, because its worker does not look.
    pub(super) fn lives_on(self) -> bool {
        self == Self::StartsAfterDeadline
    }
}
