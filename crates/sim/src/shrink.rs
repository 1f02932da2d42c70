//! Finds a short history that still breaks the rule: parts of the plan are taken away for as
//! long as the rest breaks it.

use crate::oracle::Rule;
use crate::plan::{Plan, Planned};
use crate::world::run;

/// How many runs the search may cost.
const MAX_RUNS: usize = 3_000;

/// A plan that breaks `rule` and of which, as far as was tried, nothing can be left out.
pub fn shrink(plan: &Plan, rule: Rule) -> Plan {
    let mut best = plan.clone();
    let mut runs = 0;
    let breaks = |plan: &Plan, runs: &mut usize| {
        *runs += 1;
        *runs < MAX_RUNS && run(plan.clone(), false).violations.contains_key(&rule)
    };
    loop {
        let before = size(&best);
        less(
            &mut best,
            |plan| &mut plan.faults,
            |plan| breaks(plan, &mut runs),
        );
        less(
            &mut best,
            |plan| &mut plan.ops,
            |plan| breaks(plan, &mut runs),
        );
        for quieter in quieter(&best) {
            if breaks(&quieter, &mut runs) {
                best = quieter;
            }
        }
        if size(&best) == before || runs >= MAX_RUNS {
            return best;
        }
    }
}

fn size(plan: &Plan) -> (usize, usize, u32) {
    let noise = plan.noise;
    let loud =
        noise.refused + noise.unknown + noise.stalled + noise.doubled + noise.lost + noise.late;
    (plan.ops.len(), plan.faults.len(), loud)
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
    ]
}
