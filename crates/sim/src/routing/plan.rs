//! What goes wrong between clients, workers and the partitions. Drawn from the seed by itself, so
//! that it changes nothing else of a plan.

use crate::plan::{Planned, Time};
use crate::rng::Rng;

/// How many routers of firings there are, and how many listeners for completions of either kind.
pub(crate) const EACH: usize = 2;
/// All of them: those for completions take what workers keep, or what nobody keeps.
pub(crate) const RELAYS: usize = 3 * EACH;

/// The plan of one run.
#[derive(Debug, Clone, Default)]
pub struct RoutingPlan {
    /// How often, out of a thousand, an item waits for others to share its message.
    pub several: u32,
    /// What goes wrong.
    pub faults: Vec<Planned<RoutingFault>>,
}

/// What goes wrong, with whom and for how many milliseconds.
#[derive(Debug, Clone)]
#[expect(
    missing_docs,
    reason = "the variants say what, the fields only to whom and how long"
)]
pub enum RoutingFault {
    /// A relay dies with what it has not acknowledged, and comes back.
    Crash { relay: usize, down: Time },
    /// A relay stands still.
    Pause { relay: usize, pause: Time },
    /// The broker closes the connection of a relay, which builds a new one.
    Cut { relay: usize },
    /// A queue of a partition takes nothing: that of its commands, or of its completions.
    Full {
        partition: u16,
        commands: bool,
        full: Time,
    },
    /// A queue of a partition is gone until somebody declares it.
    Gone { partition: u16, commands: bool },
    /// The dead letters take nothing.
    FullLetters { full: Time },
    /// Messages that are none, among firings or completions.
    Garbage { firings: bool, count: usize },
    /// A firing that is not allowed, in one message with others.
    Bad,
    /// A firing that the bus never carries to its partition.
    TooLarge,
    /// Messages of a newer version.
    Newer { firings: bool, count: usize },
    /// The broker ends, with what is not to outlive it, and starts again.
    Restart,
}

impl RoutingFault {
    /// What kind of a fault it is, in reports.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Crash { .. } => "crash-relay",
            Self::Pause { .. } => "pause-relay",
            Self::Cut { .. } => "cut-relay",
            Self::Full { .. } => "full-partition",
            Self::Gone { .. } => "gone-partition",
            Self::FullLetters { .. } => "full-letters",
            Self::Garbage { .. } => "garbage",
            Self::Bad => "bad-item",
            Self::TooLarge => "too-large-firing",
            Self::Newer { .. } => "newer-version",
            Self::Restart => "restart-broker",
        }
    }
}

impl RoutingPlan {
    /// The plan of a seed, for so many partitions and a run that is healed at this time.
    pub(crate) fn of(seed: u64, partitions: u16, heal_at: Time) -> Self {
        let mut rng = Rng::new(seed ^ 0x5ca1_ab1e_0000_0000);
        let rng = &mut rng;
        let count = rng.pick(&[0, 1, 2, 3, 5]);
        let faults = (0..count).map(|id| Planned {
            at: rng.between(100, heal_at - 200),
            id,
            what: fault(rng, partitions),
        });
        let mut faults: Vec<Planned<RoutingFault>> = faults.collect();
        if rng.chance(300) {
            let (at, id) = (rng.between(100, heal_at - 200), count);
            let what = RoutingFault::Restart;
            faults.push(Planned { at, id, what });
        }
        faults.sort_by_key(|fault| (fault.at, fault.id));
        Self {
            several: rng.pick(&[0, 300, 700]),
            faults,
        }
    }
}

fn fault(rng: &mut Rng, partitions: u16) -> RoutingFault {
    let relay = rng.index(RELAYS);
    let partition = u16::try_from(rng.index(usize::from(partitions))).unwrap_or(0);
    let flag = rng.chance(500);
    match rng.index(12) {
        0 | 1 => RoutingFault::Crash {
            relay,
            down: rng.between(50, 3_000),
        },
        2 => RoutingFault::Pause {
            relay,
            pause: rng.between(500, 6_000),
        },
        3 => RoutingFault::Cut { relay },
        4 | 5 => RoutingFault::Full {
            partition,
            commands: flag,
            full: rng.pick(&[500, 5_000, 40_000]),
        },
        6 => RoutingFault::Gone {
            partition,
            commands: flag,
        },
        7 => RoutingFault::FullLetters {
            full: rng.between(500, 20_000),
        },
        8 => RoutingFault::Garbage {
            firings: flag,
            count: rng.pick(&[1, 3, 20]),
        },
        9 => RoutingFault::Bad,
        10 => RoutingFault::TooLarge,
        _ => RoutingFault::Newer {
            firings: flag,
            count: rng.pick(&[1, 5, 30]),
        },
    }
}
