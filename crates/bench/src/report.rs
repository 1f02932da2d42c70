//! The figures of one scenario.

use std::collections::HashMap;

use attune_core::{ExecutionId, Status};
use attune_history::{Interval, Runs, judge_action, percentile};
use serde::Serialize;

use crate::load::{Load, SubmitOutcome};
use crate::rows::Row;
use crate::scenario::{Asker, Scenario};
use crate::utilisation::slot_utilisation;

/// What was seen of one scenario, from three sides.
#[derive(Debug)]
pub struct Observed<'a> {
    /// The scenario.
    pub scenario: &'a Scenario,
    /// On what it ran.
    pub wiring: &'a str,
    /// What the client asked for and was told.
    pub load: &'a Load,
    /// What the workers recorded.
    pub runs: &'a Runs,
    /// What the store has.
    pub rows: &'a [Row],
}

/// The figures of one scenario. Serialised, it is the object that `attune bench --json` prints;
/// a figure for which nothing was measured is null.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The scenario's name.
    pub scenario: String,
    /// On what it ran.
    pub wiring: String,
    /// How many executions were accepted.
    pub executions: usize,
    /// Executions that succeeded, over the time from the first request to the last end of a run.
    pub exec_per_s: f64,
    /// Executions that were accepted, over the time from the first request to the last answer.
    pub submit_per_s: f64,
    /// From the request (in an open loop: its scheduled time) to the start of the run.
    pub submit_to_start_ms: Delays,
    /// From the end of a run to the start of the run that takes over its slot, while others wait.
    pub handoff_ms: HandOff,
    /// See [`slot_utilisation`].
    pub slot_utilisation: Option<f64>,
    /// Runs that began out of order.
    pub order_violations: u64,
    /// Runs that began above the limit of their action.
    pub limit_violations: u64,
    /// Accepted executions that did not succeed, or whose run does not have exactly one start
    /// and one end.
    pub lost: u64,
    /// What is not among the figures but must be told: requests that were refused or whose
    /// outcome is unknown, records that do not fit together.
    #[serde(skip)]
    pub problems: Vec<String>,
}

/// Percentiles of a delay, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Delays {
    /// Half of them are shorter.
    pub p50: Option<f64>,
    /// 5 % of them are longer.
    pub p95: Option<f64>,
    /// 1 % of them are longer.
    pub p99: Option<f64>,
}

/// Percentiles of the hand-off of slots, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HandOff {
    /// Half of them are shorter.
    pub p50: Option<f64>,
    /// 1 % of them are longer.
    pub p99: Option<f64>,
}

impl Report {
    /// Computes every figure.
    pub fn of(observed: &Observed<'_>) -> Self {
        let Observed {
            scenario,
            wiring,
            load,
            runs,
            rows,
        } = *observed;
        let accepted: HashMap<ExecutionId, i64> = load
            .accepted()
            .map(|(id, submitted)| (id, submitted.answered_ns))
            .collect();
        let by_execution = by_execution(runs);
        let delays: Vec<i64> = load
            .accepted()
            .filter_map(|(id, submitted)| {
                let first = by_execution
                    .get(&id)?
                    .iter()
                    .map(|run| run.start_ns)
                    .min()?;
                Some(first - submitted.invoked_ns)
            })
            .collect();
        let verdict = judge(scenario, runs, load, &accepted);
        let rates = Rates::of(load, runs, rows);
        Self {
            scenario: scenario.name.to_owned(),
            wiring: wiring.to_owned(),
            executions: accepted.len(),
            exec_per_s: rates.executed,
            submit_per_s: rates.submitted,
            submit_to_start_ms: Delays {
                p50: millis(&delays, 0.50),
                p95: millis(&delays, 0.95),
                p99: millis(&delays, 0.99),
            },
            handoff_ms: HandOff {
                p50: millis(&verdict.handoff_ns, 0.50),
                p99: millis(&verdict.handoff_ns, 0.99),
            },
            slot_utilisation: slot_utilisation(rows, scenario.limit).map(|share| round(share, 4)),
            order_violations: verdict.order_violations,
            limit_violations: verdict.limit_violations,
            lost: lost(accepted.keys(), &by_execution, rows),
            problems: problems(scenario, load, runs),
        }
    }

    /// Whether every promise that was looked at was kept.
    pub fn kept(&self) -> bool {
        self.lost == 0
            && self.order_violations == 0
            && self.limit_violations == 0
            && self.problems.is_empty()
    }
}

/// Executions a second.
struct Rates {
    executed: f64,
    submitted: f64,
}

impl Rates {
    fn of(load: &Load, runs: &Runs, rows: &[Row]) -> Self {
        let begin = load
            .submitted
            .iter()
            .map(|submitted| submitted.invoked_ns)
            .min();
        let last_answer = load
            .accepted()
            .map(|(_, submitted)| submitted.answered_ns)
            .max();
        let last_end = runs
            .by_action
            .values()
            .flatten()
            .filter_map(|run| run.end_ns)
            .max();
        let succeeded = rows
            .iter()
            .filter(|row| row.status == Status::Succeeded)
            .count();
        Self {
            executed: rate(succeeded, begin, last_end),
            submitted: rate(load.accepted().count(), begin, last_answer),
        }
    }
}

/// So many between two times, in a second; 0 when a time is missing or they are the same.
fn rate(count: usize, begin_ns: Option<i64>, end_ns: Option<i64>) -> f64 {
    match (begin_ns, end_ns) {
        (Some(begin), Some(end)) if end > begin => {
            round(count as f64 * 1e9 / (end - begin) as f64, 1)
        }
        _ => 0.0,
    }
}

/// The judgements on all actions together.
#[derive(Default)]
struct Judged {
    order_violations: u64,
    limit_violations: u64,
    handoff_ns: Vec<i64>,
}

fn judge(
    scenario: &Scenario,
    runs: &Runs,
    load: &Load,
    accepted: &HashMap<ExecutionId, i64>,
) -> Judged {
    let mut judged = Judged::default();
    let askers: HashMap<ExecutionId, Asker> = load
        .accepted()
        .filter_map(|(id, submitted)| Some((id, scenario.asker(submitted.index)?)))
        .collect();
    for runs in runs.by_action.values() {
        let mut runs = runs.clone();
        for run in &mut runs {
            run.accepted_ns = accepted.get(&run.execution_id).copied();
        }
        let verdict = judge_action(&runs, Some(scenario.limit));
        judged.order_violations += if scenario.policies {
            order_of_askers(&runs, &askers, scenario.limit_of_key())
        } else {
            verdict.order_violations
        };
        judged.limit_violations += verdict.limit_violations;
        judged.handoff_ns.extend(verdict.handoff_ns);
    }
    judged
}

/// Runs of an action that began out of order, where others may go first for their priority, their user or
/// their key: the order is that of those who have all three in common.
fn order_of_askers(runs: &[Interval], askers: &HashMap<ExecutionId, Asker>, limit: u32) -> u64 {
    let mut by_asker: HashMap<Option<&Asker>, Vec<Interval>> = HashMap::new();
    for run in runs {
        let asker = askers.get(&run.execution_id);
        by_asker.entry(asker).or_default().push(*run);
    }
    let verdicts = by_asker.values();
    let verdicts = verdicts.map(|runs| judge_action(runs, Some(limit)).order_violations);
    verdicts.sum()
}

/// The runs of each execution.
fn by_execution(runs: &Runs) -> HashMap<ExecutionId, Vec<&Interval>> {
    let mut by_execution: HashMap<_, Vec<_>> = HashMap::new();
    for run in runs.by_action.values().flatten() {
        by_execution.entry(run.execution_id).or_default().push(run);
    }
    by_execution
}

/// How many accepted executions have no good end.
fn lost<'a>(
    accepted: impl Iterator<Item = &'a ExecutionId>,
    by_execution: &HashMap<ExecutionId, Vec<&Interval>>,
    rows: &[Row],
) -> u64 {
    let mut succeeded: HashMap<ExecutionId, usize> = HashMap::new();
    for row in rows.iter().filter(|row| row.status == Status::Succeeded) {
        *succeeded.entry(row.id).or_default() += 1;
    }
    let once = |id: &ExecutionId| {
        let runs = by_execution.get(id).map_or(&[][..], Vec::as_slice);
        matches!(runs, [run] if run.end_ns.is_some())
    };
    let good = |id: &&ExecutionId| succeeded.get(id) == Some(&1) && once(id);
    accepted.filter(|id| !good(id)).count() as u64
}

/// What the client was told that is not an acceptance, and records that are missing.
fn problems(scenario: &Scenario, load: &Load, runs: &Runs) -> Vec<String> {
    let mut problems = Vec::new();
    let mut tell = |what: &str, reasons: Vec<&String>| {
        if let Some(first) = reasons.first() {
            problems.push(format!(
                "{} requests {what}, the first because: {first}",
                reasons.len()
            ));
        }
    };
    let refused = load
        .submitted
        .iter()
        .filter_map(|submitted| match &submitted.outcome {
            SubmitOutcome::Refused(reason) => Some(reason),
            _ => None,
        });
    tell("were refused", refused.collect());
    let undecided = load
        .submitted
        .iter()
        .filter_map(|submitted| match &submitted.outcome {
            SubmitOutcome::Undecided(reason) => Some(reason),
            _ => None,
        });
    tell("have no known outcome", undecided.collect());
    let missing = scenario.executions.saturating_sub(load.submitted.len());
    if missing > 0 {
        problems.push(format!("{missing} requests were not made"));
    }
    if runs.orphan_ends > 0 {
        problems.push(format!(
            "{} runs ended that nobody saw begin",
            runs.orphan_ends
        ));
    }
    problems
}

/// A percentile of nanoseconds, in milliseconds to the microsecond.
fn millis(values_ns: &[i64], quantile: f64) -> Option<f64> {
    percentile(values_ns, quantile).map(|nanos| round(nanos as f64 / 1e6, 3))
}

fn round(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
