//! How well slots were used while work was waiting.

use std::collections::{BTreeMap, HashMap};

use attune_core::ExecutionId;
use attune_history::Interval;

use crate::rows::Row;

/// The share of slot time that was held while work was waiting, from 0 to 1.
///
/// For each action, by the store's times: *waiting* is the time in which at least one accepted
/// execution had no slot yet (from `created` to `requested_at`). A slot is *held* from
/// `requested_at`, which commits with the grant, to `finished_at`, which commits with the
/// release. The utilisation of the action is the slot time held during waiting, over its limit
/// times the length of waiting. The result is the mean over actions, weighted by their
/// executions; actions for which nothing ever waited have none. `None` when that is all of them.
///
/// A store may read its clock again between the release and the grant of one commit; what that
/// makes overlap counts once. Whether limits held is judged from the runs, not from here.
pub fn slot_utilisation(rows: &[Row], limit: u32) -> Option<f64> {
    let mut by_action: BTreeMap<usize, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        by_action.entry(row.action).or_default().push(row);
    }
    let (mut weights, mut sum) = (0.0, 0.0);
    for rows in by_action.values() {
        if let Some(utilisation) = of_action(rows, limit) {
            weights += rows.len() as f64;
            sum += utilisation * rows.len() as f64;
        }
    }
    (weights > 0.0).then(|| sum / weights)
}

/// Sweeps over the moments at which something changed.
fn of_action(rows: &[&Row], limit: u32) -> Option<f64> {
    let last = rows
        .iter()
        .filter_map(|row| row.finished_us.or(row.requested_us))
        .max()?;
    // (when, change of waiting, change of held)
    let mut changes = Vec::with_capacity(rows.len() * 3);
    for row in rows {
        let left = row.requested_us.or(row.finished_us).unwrap_or(last);
        changes.push((row.created_us, 1, 0));
        changes.push((left, -1, 0));
        if let Some(requested) = row.requested_us {
            changes.push((requested, 0, 1));
            changes.push((row.finished_us.unwrap_or(last), 0, -1));
        }
    }
    changes.sort_unstable();
    let (mut waiting, mut held) = (0_i64, 0_i64);
    let (mut waited_us, mut held_us) = (0_i64, 0_i64);
    let mut before = changes.first()?.0;
    for (when, waits, holds) in changes {
        if waiting > 0 {
            waited_us += when - before;
            held_us += held.min(i64::from(limit)) * (when - before);
        }
        before = when;
        waiting += waits;
        held += holds;
    }
    (waited_us > 0).then(|| held_us as f64 / (f64::from(limit) * waited_us as f64))
}

/// The share of the workers' slots in which something ran while work was waiting, from 0 to 1.
///
/// By the workers' and the client's own times: work is *waiting* while an execution that the client
/// knows to be accepted has not begun to run. What counts is the time between the first start and
/// the last end in which work was waiting; the result is the time that runs took in it, over
/// `slots` times its length. `None` when nothing ever waited.
pub fn worker_utilisation(
    runs: &[Interval],
    accepted: &HashMap<ExecutionId, i64>,
    slots: usize,
) -> Option<f64> {
    let first = runs.iter().map(|run| run.start_ns).min()?;
    let last = runs.iter().map(|run| run.end_ns.unwrap_or(i64::MIN)).max();
    let last = last.filter(|last| *last > first)?;
    let mut begun: HashMap<ExecutionId, i64> = HashMap::new();
    // (when, change of waiting, change of running)
    let mut changes = Vec::with_capacity(2 * (runs.len() + accepted.len()));
    for run in runs {
        let begin = begun.entry(run.execution_id).or_insert(run.start_ns);
        *begin = run.start_ns.min(*begin);
        changes.push((run.start_ns, 0, 1));
        changes.push((run.end_ns.unwrap_or(last).max(run.start_ns), 0, -1));
    }
    for (id, accepted_ns) in accepted {
        let begin = begun.get(id).copied().unwrap_or(last);
        if *accepted_ns < begin {
            changes.push((*accepted_ns, 1, 0));
            changes.push((begin, -1, 0));
        }
    }
    changes.sort_unstable();
    let (mut waiting, mut running) = (0_i64, 0_i64);
    let (mut waited_ns, mut busy_ns) = (0.0, 0.0);
    let mut before = first;
    for (when, waits, runs) in changes {
        let when_ns = when.clamp(first, last);
        if waiting > 0 {
            waited_ns += (when_ns - before) as f64;
            busy_ns += running as f64 * (when_ns - before) as f64;
        }
        before = when_ns;
        waiting += waits;
        running += runs;
    }
    (waited_ns > 0.0 && slots > 0).then(|| busy_ns / (slots as f64 * waited_ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use attune_core::Status;

    fn row(action: usize, created: i64, requested: i64, finished: i64) -> Row {
        Row {
            id: ExecutionId(created),
            action,
            status: Status::Succeeded,
            created_us: created,
            requested_us: Some(requested),
            finished_us: Some(finished),
        }
    }

    fn check(rows: &[Row], limit: u32, expected: Option<f64>) {
        let found = slot_utilisation(rows, limit);
        match (found, expected) {
            (Some(found), Some(expected)) => assert!((found - expected).abs() < 1e-9, "{found}"),
            _ => assert_eq!(found, expected),
        }
    }

    #[test]
    fn slots_that_change_hands_at_once_are_fully_used() {
        check(
            &[row(0, 0, 0, 10), row(0, 1, 10, 20), row(0, 2, 20, 30)],
            1,
            Some(1.0),
        );
    }

    #[test]
    fn a_slot_that_stands_empty_while_work_waits_counts() {
        // Waiting from 1 to 20; the slot is held from 1 to 10.
        check(&[row(0, 0, 0, 10), row(0, 1, 20, 30)], 1, Some(9.0 / 19.0));
        // One of two slots is never used.
        check(&[row(0, 0, 0, 10), row(0, 0, 10, 20)], 2, Some(0.5));
    }

    #[test]
    fn slots_that_seem_to_overlap_count_once() {
        check(&[row(0, 0, 0, 12), row(0, 1, 10, 20)], 1, Some(1.0));
    }

    #[test]
    fn without_waiting_there_is_nothing_to_use() {
        check(&[row(0, 0, 0, 10), row(0, 20, 20, 30)], 1, None);
        check(&[], 1, None);
    }

    #[test]
    fn actions_weigh_as_much_as_they_have_executions() {
        let rows = [
            // Fully used, three executions.
            row(0, 0, 0, 10),
            row(0, 0, 10, 20),
            row(0, 0, 20, 30),
            // Never used while waiting, one execution.
            row(1, 0, 10, 20),
            // Nothing waited.
            row(2, 0, 0, 5),
        ];
        check(&rows, 1, Some(0.75));
    }

    #[test]
    fn what_has_not_ended_holds_its_slot() {
        let held = Row {
            finished_us: None,
            ..row(0, 0, 0, 0)
        };
        let waiting = Row {
            requested_us: None,
            finished_us: None,
            ..row(0, 0, 0, 0)
        };
        check(&[held, waiting, row(0, 0, 10, 10)], 1, Some(1.0));
    }

    /// Runs as (accepted, start, end), and what the workers' slots were used for.
    fn busy(runs: &[(i64, i64, i64)], slots: usize) -> Option<f64> {
        let id = |n: usize| ExecutionId(n as i64 + 1);
        let accepted = runs.iter().enumerate().map(|(n, run)| (id(n), run.0));
        let intervals = runs.iter().enumerate();
        let intervals: Vec<_> = intervals
            .map(|(n, run)| Interval::new(id(n), run.1, Some(run.2)))
            .collect();
        worker_utilisation(&intervals, &accepted.collect(), slots)
    }

    #[test]
    fn workers_are_busy_as_long_as_runs_take() {
        // Waiting from 0 to 22, of which the workers know from 2 on: 18 of 20 are work.
        let chain = [(0, 2, 11), (0, 12, 21), (0, 22, 31)];
        assert_eq!(busy(&chain, 1), Some(18.0 / 20.0));
        assert_eq!(busy(&chain, 2), Some(9.0 / 20.0));
        // The end, when nothing waits any more, does not count, however little runs then.
        let tail = [(0, 0, 10), (0, 0, 10), (0, 10, 1000)];
        assert_eq!(busy(&tail, 2), Some(1.0));
    }

    #[test]
    fn a_gap_in_which_nothing_waits_does_not_count() {
        let runs = [(0, 0, 10), (0, 10, 20), (500, 500, 510), (500, 510, 520)];
        assert_eq!(busy(&runs, 1), Some(1.0));
        assert_eq!(busy(&[(5, 0, 10), (20, 20, 30)], 1), None);
        assert_eq!(busy(&[], 1), None);
    }
}
