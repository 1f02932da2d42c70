//! Finds a short history that still breaks the rule: parts of the plan are taken away for as
//! long as the rest breaks it.

use crate::oracle::Rule;
use crate::plan::{Plan, Planned};
use crate::world::run_until;

/// How much the search may cost: events of all its runs, some seconds in all.
const MAX_STEPS: u64 = 10_000_000;

/// A plan that breaks `rule` and of which, as far as was tried, nothing can be left out.
pub fn shrink(plan: &Plan, rule: Rule) -> Plan {
    let mut best = plan.clone();
    let mut steps = 0;
    let breaks = |plan: &Plan, steps: &mut u64| {
        if *steps >= MAX_STEPS {
            return false;
        }
        let outcome = run_until(plan.clone(), false, Some(rule));
        *steps += outcome.steps;
        outcome.violations.contains_key(&rule)
    };
    loop {
        let before = size(&best);
        less(
            &mut best,
            |plan| &mut plan.faults,
            |plan| breaks(plan, &mut steps),
        );
        less(
            &mut best,
            |plan| &mut plan.ops,
            |plan| breaks(plan, &mut steps),
        );
        less(
            &mut best,
            |plan| &mut plan.routing.faults,
            |plan| breaks(plan, &mut steps),
        );
        for quieter in quieter(&best) {
            if breaks(&quieter, &mut steps) {
                best = quieter;
            }
        }
        if size(&best) == before || steps >= MAX_STEPS {
            return best;
        }
    }
}

fn size(plan: &Plan) -> (usize, usize, usize, u32, usize) {
    let noise = plan.noise;
    let loud =
        noise.refused + noise.unknown + noise.stalled + noise.doubled + noise.lost + noise.late;
    let loud = loud + plan.routing.several;
    let routing = plan.routing.faults.len();
    let more = plan.pools + usize::from(plan.room.is_some());
    (plan.ops.len(), plan.faults.len(), routing, loud, more)
}

/// Takes away halves, quarters, and so on down to single entries of a list.
fn less<T: Clone>(
    best: &mut Plan,
    list: impl Fn(&mut Plan) -> &mut Vec<Planned<T>>,
    mut breaks: impl FnMut(&Plan) -> bool,
) {
    let mut chunk = list(best).len().div_ceil(2);
    while chunk > 0 {
        let mut from = 0;
        while from < list(best).len() {
            let mut tried = best.clone();
            let entries = list(&mut tried);
            let to = (from + chunk).min(entries.len());
            entries.drain(from..to);
            if breaks(&tried) {
                *best = tried;
            } else {
                from += chunk;
            }
        }
        chunk = if chunk == 1 { 0 } else { chunk.div_ceil(2) };
    }
}

/// The same plan with one kind of noise less each.
fn quieter(plan: &Plan) -> Vec<Plan> {
    let without = |change: fn(&mut Plan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        plan
    };
    vec![
        without(|plan| plan.noise.refused = 0),
        without(|plan| plan.noise.unknown = 0),
        without(|plan| plan.noise.stalled = 0),
        without(|plan| plan.noise.doubled = 0),
        without(|plan| plan.noise.lost = 0),
        without(|plan| plan.noise.late = 0),
        without(|plan| plan.owner_skews.fill(0)),
        without(|plan| plan.room = None),
        without(|plan| {
            plan.pools = 1;
            for action in &mut plan.actions {
                action.pool = 0;
            }
        }),
        without(|plan| plan.routing.several = 0),
    ]
}
