//! The ownership protocol: what `executor`, `worker` and the store promise each other.
//!
//! What is in it: one action; a store whose steps are atomic; two executors, of which every one may
//! be a stale owner at any time; two workers; commits whose outcome is unknown; leases of workers
//! that end while they live; requests that the broker keeps in order for one receiver at a time.
//! Messages to workers may be late, lost and doubled without bound: a worker may try any attempt at
//! any time, so that they need no place in the state. Completions are kept as a set from which
//! owners take as often as they like.
//!
//! What is not in it: time (whatever may end, may end at any moment), pauses and priorities (one
//! lane is all that order needs), and the broker's own faults beyond what is said above.

mod owner;
mod properties;
mod protocol;
mod state;

use std::time::{Duration, Instant};

use stateright::{Checker, Expectation, HasDiscoveries, Model};

pub use properties::MUST_HOLD;
pub use protocol::{Action, Bounds, Protocol, Variant};

/// What a check has found.
#[derive(Debug)]
pub struct Report {
    /// Different states that were visited.
    pub states: usize,
    /// Steps that were tried.
    pub steps: usize,
    /// How long it took.
    pub elapsed: Duration,
    /// Promises that are broken, each with the steps that lead there.
    pub broken: Vec<(&'static str, Vec<Action>)>,
    /// What should have happened somewhere and did not.
    pub never_seen: Vec<&'static str>,
}

/// Visits every state that the protocol can reach.
pub fn check_all(protocol: Protocol) -> Report {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    run(protocol, threads, HasDiscoveries::AllFailures)
}

/// Stops at the first state that breaks this promise, one of [`MUST_HOLD`]; the steps to it are as
/// few as possible.
pub fn find_breach(protocol: Protocol, promise: &'static str) -> Report {
    run(protocol, 1, HasDiscoveries::AnyOf([promise].into()))
}

fn run(protocol: Protocol, threads: usize, until: HasDiscoveries) -> Report {
    let began = Instant::now();
    let expectations = protocol.properties();
    let checker = protocol
        .checker()
        .threads(threads)
        .finish_when(until)
        .spawn_bfs()
        .join();
    let discoveries = checker.discoveries();
    let named = |expectation: &Expectation| -> Vec<&'static str> {
        expectations
            .iter()
            .filter(|property| property.expectation == *expectation)
            .map(|property| property.name)
            .collect()
    };
    Report {
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        elapsed: began.elapsed(),
        broken: named(&Expectation::Always)
            .into_iter()
            .filter_map(|name| Some((name, discoveries.get(name)?.clone().into_actions())))
            .collect(),
        never_seen: named(&Expectation::Sometimes)
            .into_iter()
            .filter(|name| !discoveries.contains_key(name))
            .collect(),
    }
}
