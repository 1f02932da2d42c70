//! Checks the models within larger bounds than the tests do, and prints how many states there were.
//! Takes minutes and a few gigabytes.
//!
//! ```text
//! cargo run -p attune-model --example explore              both models
//! cargo run -p attune-model --example explore dispatch     one of them; the other is `ownership`
//! ```

use std::process::ExitCode;

use attune_model::{dispatch, ownership};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(word) = words
        .iter()
        .find(|word| !["dispatch", "ownership"].contains(&word.as_str()))
    {
        eprintln!("explore: there is no model {word:?}; there are dispatch and ownership");
        return ExitCode::from(2);
    }
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    let mut hold = true;
    if wanted("ownership") {
        hold &= explore_ownership();
    }
    if wanted("dispatch") {
        hold &= explore_dispatch();
    }
    if hold {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn explore_ownership() -> bool {
    use ownership::{Bounds, Protocol, Variant, check_all};

    let base = Bounds {
        executions: 3,
        limit: 1,
        epochs: 3,
        unknowns: 1,
        late_commits: false,
        lost_workers: 1,
        max_attempts: 2,
    };
    let two = Bounds { epochs: 2, ..base };
    let cases = [
        (Variant::Full, base),
        (Variant::Full, Bounds { limit: 2, ..two }),
        (
            Variant::Full,
            Bounds {
                lost_workers: 2,
                ..two
            },
        ),
        (Variant::Full, Bounds { unknowns: 2, ..two }),
        (
            Variant::Full,
            Bounds {
                executions: 2,
                epochs: 4,
                unknowns: 2,
                lost_workers: 2,
                ..base
            },
        ),
        (
            Variant::FreshEpoch,
            Bounds {
                late_commits: true,
                ..base
            },
        ),
    ];
    let mut all_hold = true;
    for (variant, bounds) in cases {
        let report = check_all(Protocol { variant, bounds });
        let holds = report.broken.is_empty() && report.never_seen.is_empty();
        all_hold &= holds;
        println!(
            "{variant:?} {bounds:?}: {} states, {} steps, {:.1} s, {}",
            report.states,
            report.steps,
            report.elapsed.as_secs_f64(),
            if holds { "holds" } else { "DOES NOT HOLD" },
        );
        for (name, steps) in report.broken {
            println!("  {name}: {steps:?}");
        }
    }
    all_hold
}

/// More is a matter of time and memory: a million states take some 300 MB.
const MOST_STATES: usize = 6_000_000;

fn explore_dispatch() -> bool {
    use dispatch::{Bounds, Faults, Knowledge, Protocol, Variant, check};

    let base = Bounds {
        executions: 2,
        limit: 1,
        ahead: 0,
        knowledge: Knowledge::Asked,
        faults: Faults::NONE,
    };
    let three = Bounds {
        executions: 3,
        ..base
    };
    let none = Faults::NONE;
    let takeover = Faults {
        takeovers: 1,
        ..none
    };
    let cases = [
        (
            base,
            Faults {
                deaths: 1,
                losses: 1,
                doublings: 1,
                returns: 1,
                ..takeover
            },
        ),
        (
            Bounds { ahead: 2, ..three },
            Faults {
                losses: 1,
                returns: 1,
                ..none
            },
        ),
        (
            Bounds { ahead: 1, ..three },
            Faults {
                returns: 1,
                ..takeover
            },
        ),
        (
            Bounds { ahead: 1, ..base },
            Faults {
                takeovers: 2,
                ..none
            },
        ),
        (
            base,
            Faults {
                takeovers: 2,
                losses: 1,
                ..none
            },
        ),
        (
            Bounds { ahead: 1, ..base },
            Faults {
                losses: 1,
                returns: 1,
                ..takeover
            },
        ),
        (
            Bounds {
                limit: 2,
                ahead: 1,
                ..three
            },
            Faults {
                deaths: 1,
                ..takeover
            },
        ),
    ];
    let asked = cases.map(|(bounds, faults)| Bounds { faults, ..bounds });
    let reported = [
        asked[0],
        Bounds {
            ahead: 1,
            faults: Faults {
                losses: 1,
                ..takeover
            },
            ..base
        },
        Bounds {
            limit: 2,
            ahead: 1,
            faults: takeover,
            ..three
        },
    ];
    let reported = reported.map(|bounds| Bounds {
        knowledge: Knowledge::Reported,
        ..bounds
    });
    let mut all_hold = true;
    for bounds in asked.into_iter().chain(reported) {
        let variant = Variant::Full;
        let verdict = check(Protocol { variant, bounds }, MOST_STATES);
        all_hold &= verdict.holds();
        println!(
            "{bounds:?}: {} states, {:.1} s, {}",
            verdict.states,
            verdict.elapsed.as_secs_f64(),
            if verdict.holds() {
                "holds".to_owned()
            } else {
                format!(
                    "DOES NOT HOLD: {:?}, {} stuck, whole: {}",
                    verdict.breach, verdict.stuck, verdict.whole
                )
            },
        );
        for step in verdict.way {
            println!("  {step:?}");
        }
    }
    all_hold
}
