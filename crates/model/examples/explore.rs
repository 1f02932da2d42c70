//! Checks the protocol within larger bounds than the tests do, and prints how many states there
//! were: `cargo run -p attune-model --example explore`. Takes minutes and a few gigabytes.

use attune_model::ownership::{Bounds, Protocol, Variant, check_all};

fn main() {
    let base = Bounds {
        executions: 3,
        limit: 1,
        epochs: 3,
        unknowns: 1,
        late_commits: false,
        lost_workers: 1,
        max_attempts: 2,
    };
    let cases = [
        (Variant::Full, base),
        (
            Variant::Full,
            Bounds {
                epochs: 2,
                limit: 2,
                ..base
            },
        ),
        (
            Variant::Full,
            Bounds {
                epochs: 2,
                lost_workers: 2,
                ..base
            },
        ),
        (
            Variant::Full,
            Bounds {
                epochs: 2,
                unknowns: 2,
                ..base
            },
        ),
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
    for (variant, bounds) in cases {
        let report = check_all(Protocol { variant, bounds });
        let holds = report.broken.is_empty() && report.never_seen.is_empty();
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
}
