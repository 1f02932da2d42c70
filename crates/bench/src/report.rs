//! The figures of one scenario.

use std::collections::{BTreeMap, HashMap};

use attune_core::{ExecutionId, Status};
use attune_history::{Interval, Runs, judge_action};
use serde::Serialize;

use crate::delays::Delays;
use crate::load::{Load, SubmitOutcome};
use crate::rows::Row;
use crate::scenario::{Asker, Scenario};
use crate::usage::Usage;
use crate::utilisation::{slot_utilisation, worker_utilisation};

/// What was seen from outside while a scenario ran.
#[derive(Debug, Clone, Default)]
pub struct Costs {
    /// What the processes have used.
    pub usage: Usage,
    /// Bytes that the database has written ahead, if that is known.
    pub wal_bytes: Option<u64>,
    /// Transactions that the database has seen, if that is known.
    pub transactions: Option<u64>,
    /// Messages that the bus has taken, if that is known.
    pub messages: Option<u64>,
    /// Slots that the queues still held when everything had ended, by their own snapshots.
    pub slots_held: u64,
    /// Completions that workers have sent twice.
    pub sent_twice: u64,
    /// Completions that the completion listener has passed on once more.
    pub passed_on_twice: u64,
}

/// What was seen of one scenario, from three sides, and what it has cost.
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
    /// What it has cost.
    pub costs: &'a Costs,
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
    /// From the first start of a run to the last end, of what succeeded: without the time in which
    /// a load was only asked for.
    pub drain_per_s: f64,
    /// From the request (in an open loop: its scheduled time) to its answer.
    pub submit_ms: Delays,
    /// From the request (in an open loop: its scheduled time) to the start of the run.
    pub submit_to_start_ms: Delays,
    /// From the end of a run to the start of the run that takes over its slot, while others wait.
    pub handoff_ms: Delays,
    /// See [`slot_utilisation`].
    pub slot_utilisation: Option<f64>,
    /// See [`worker_utilisation`]; null when the workers have more slots than are ever needed.
    pub worker_utilisation: Option<f64>,
    /// Runs that began out of order.
    pub order_violations: u64,
    /// Runs that began above the limit of their action.
    pub limit_violations: u64,
    /// Accepted executions that did not succeed, or whose run does not have exactly one start
    /// and one end.
    pub lost: u64,
    /// Slots that were still held, or executions that still waited or ran, when all had ended.
    pub leaked: u64,
    /// Completions that were sent twice and came to the completion listener twice; null where
    /// none were sent twice.
    pub duplicates: Option<u64>,
    /// Seconds of CPU by process, from the first request to the last end.
    pub cpu_s: BTreeMap<String, f64>,
    /// The most resident memory that was seen, in MiB by process.
    pub rss_mb: BTreeMap<String, f64>,
    /// Bytes that PostgreSQL wrote ahead, for each execution.
    pub wal_bytes_per_execution: Option<f64>,
    /// Messages that the bus took, for each execution.
    pub messages_per_execution: Option<f64>,
    /// Transactions that PostgreSQL saw, for each execution; a statement by itself is one.
    pub transactions_per_execution: Option<f64>,
    /// Whether nothing could start before everything was asked for: then delays from the request, and
    /// rates, count that time, but for [`drain_per_s`](Self::drain_per_s).
    #[serde(skip)]
    pub held: bool,
    /// What is not among the figures but must be told: requests that were refused or whose
    /// outcome is unknown, records that do not fit together.
    #[serde(skip)]
    pub problems: Vec<String>,
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
            costs,
        } = *observed;
        let accepted: HashMap<ExecutionId, i64> = load
            .accepted()
            .map(|(id, submitted)| (id, submitted.answered_ns))
            .collect();
        let by_execution = by_execution(runs);
        let answers = load
            .accepted()
            .map(|(_, submitted)| submitted.answered_ns - submitted.invoked_ns);
        let delays = load.accepted().filter_map(|(id, submitted)| {
            let first = by_execution
                .get(&id)?
                .iter()
                .map(|run| run.start_ns)
                .min()?;
            Some(first - submitted.invoked_ns)
        });
        let verdict = judge(scenario, runs, load, &accepted);
        let rates = Rates::of(load, runs, rows);
        Self {
            scenario: scenario.name.to_owned(),
            wiring: wiring.to_owned(),
            executions: accepted.len(),
            exec_per_s: rates.executed,
            submit_per_s: rates.submitted,
            drain_per_s: rates.drained,
            submit_ms: Delays::of(answers),
            submit_to_start_ms: Delays::of(delays),
            handoff_ms: Delays::of(verdict.handoff_ns),
            slot_utilisation: slot_utilisation(rows, scenario.limit).map(|share| round(share, 4)),
            worker_utilisation: of_workers(scenario, runs, &accepted),
            order_violations: verdict.order_violations,
            limit_violations: verdict.limit_violations,
            lost: lost(accepted.keys(), &by_execution, rows),
            leaked: leaked(rows, costs.slots_held),
            duplicates: scenario.doubled.map(|_| costs.passed_on_twice),
            cpu_s: rounded(&costs.usage.cpu_s, 2),
            rss_mb: rounded(&costs.usage.rss_mb, 1),
            wal_bytes_per_execution: per_execution(costs.wal_bytes, accepted.len()),
            messages_per_execution: per_execution(costs.messages, accepted.len()),
            transactions_per_execution: per_execution(costs.transactions, accepted.len()),
            held: scenario.held,
            problems: problems(observed),
        }
    }

    /// Whether every promise that was looked at was kept.
    pub fn kept(&self) -> bool {
        self.faults().is_empty() && self.problems.is_empty()
    }

    /// The promises that were not kept, in words.
    pub fn faults(&self) -> Vec<String> {
        let counted = [
            (self.order_violations, "runs began out of order"),
            (self.limit_violations, "runs began above their limit"),
            (self.lost, "executions were lost"),
            (self.leaked, "slots or executions were left"),
        ];
        let broken = counted.into_iter().filter(|(count, _)| *count > 0);
        broken
            .map(|(count, what)| format!("{count} {what}"))
            .collect()
    }
}

/// Executions a second.
struct Rates {
    executed: f64,
    submitted: f64,
    drained: f64,
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
        let all = || runs.by_action.values().flatten();
        let first_start = all().map(|run| run.start_ns).min();
        let last_end = all().filter_map(|run| run.end_ns).max();
        let succeeded = rows
            .iter()
            .filter(|row| row.status == Status::Succeeded)
            .count();
        Self {
            executed: rate(succeeded, begin, last_end),
            submitted: rate(load.accepted().count(), begin, last_answer),
            drained: rate(succeeded, first_start, last_end),
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

/// How well the workers' slots were used, where there are no more than are needed.
fn of_workers(
    scenario: &Scenario,
    runs: &Runs,
    accepted: &HashMap<ExecutionId, i64>,
) -> Option<f64> {
    let slots = scenario.slots?;
    let runs: Vec<Interval> = runs.by_action.values().flatten().copied().collect();
    worker_utilisation(&runs, accepted, slots).map(|share| round(share, 4))
}

/// Executions that have not ended, and slots that are held by nobody among them.
fn leaked(rows: &[Row], slots_held: u64) -> u64 {
    let count = |of: fn(Status) -> bool| rows.iter().filter(|row| of(row.status)).count() as u64;
    let open = count(|status| !status.is_terminal());
    let holders = count(|status| matches!(status, Status::Requested | Status::Running));
    open + slots_held.saturating_sub(holders)
}

fn per_execution(count: Option<u64>, executions: usize) -> Option<f64> {
    let count = count.filter(|_| executions > 0)?;
    Some(round(count as f64 / executions as f64, 2))
}

fn rounded(values: &BTreeMap<String, f64>, digits: i32) -> BTreeMap<String, f64> {
    let values = values.iter();
    values
        .map(|(name, value)| (name.clone(), round(*value, digits)))
        .collect()
}

/// What the client was told that is not an acceptance, records that are missing, and duplicates
/// that nobody received.
fn problems(observed: &Observed<'_>) -> Vec<String> {
    let Observed {
        scenario,
        load,
        runs,
        costs,
        ..
    } = *observed;
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
    if let Some(every) = scenario.doubled {
        let wanted = load.accepted().count() as u64 / every.max(1);
        let (sent, passed_on) = (costs.sent_twice, costs.passed_on_twice);
        if sent < wanted || passed_on < sent {
            problems.push(format!(
                "{wanted} completions were to be sent twice, {sent} were, and {passed_on} came to \
                 the completion listener twice"
            ));
        }
    }
    problems
}

fn round(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
