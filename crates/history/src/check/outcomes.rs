//! What the store has in the end (I4, I5, I7).
//!
//! *I4.* No row holds a slot.
//!
//! *I5.* A row has the outcome that its owner recorded, of the same attempt; no run belongs to a
//! later attempt than the row. An outcome that only a worker can know (succeeded, failed, ran too
//! long) is the one that the worker of that attempt recorded, or a listener handed over, if either
//! is there.
//!
//! *I7.* The totals of a queue are the numbers of its rows.

use std::collections::{BTreeMap, HashMap};

use attune_core::{ActionId, ExecutionId, QueueTotals, Status};

use super::facts::Facts;
use super::witnesses::would_have_told;
use super::{FinalRow, Promise, Violation, violation};

pub(super) fn judge(
    facts: &Facts,
    rows: Option<&[FinalRow]>,
    totals: &BTreeMap<ActionId, QueueTotals>,
    broken: &mut Vec<Violation>,
) {
    let Some(rows) = rows else { return };
    for row in rows {
        judge_row(facts, row, broken);
    }
    judge_runs(facts, rows, broken);
    judge_totals(rows, totals, broken);
}

fn judge_row(facts: &Facts, row: &FinalRow, broken: &mut Vec<Violation>) {
    let (id, execution) = (row.id, facts.execution(row.id));
    if row.status.holds_slot() {
        let what = format!("execution {id} is {} in the end", row.status);
        let records = execution.and_then(|known| known.accepted);
        broken.push(violation(Promise::I4, what, records));
        return;
    }
    let ended = execution.and_then(|known| known.ended);
    if let Some((attempt, status, record)) = ended
        && (attempt, status) != (row.attempt, row.status)
    {
        let what = format!(
            "execution {id} ended as {status} in attempt {attempt}, and is stored as {} in {}",
            row.status, row.attempt
        );
        broken.push(violation(Promise::I5, what, [record]));
    }
    judge_report(facts, row, broken);
}

fn judge_report(facts: &Facts, row: &FinalRow, broken: &mut Vec<Violation>) {
    let (id, key) = (row.id, (row.id, row.attempt));
    let ended = facts.execution(id).and_then(|known| known.ended);
    if ended.is_some() && would_have_told(facts, key) {
        // That the owner recorded what nobody told is accused already.
        return;
    }
    let by_listener = facts.witnesses.forwarded.get(&key);
    let by_worker = facts.witnesses.ends.get(&key).copied();
    let mut said = by_listener.map(|said| said.status).into_iter();
    let mut said = said.by_ref().chain(by_worker).peekable();
    let first = said.peek().copied();
    let only_workers_know = matches!(
        row.status,
        Status::Succeeded | Status::Failed | Status::TimedOut
    );
    if let Some(first) = first
        && only_workers_know
        && !said.any(|said| said == row.status)
    {
        let what = format!(
            "attempt {} of execution {id} was reported as {first}, and is stored as {}",
            row.attempt, row.status
        );
        let records = by_listener.map(|said| said.record);
        broken.push(violation(Promise::I5, what, records));
    }
}

fn judge_runs(facts: &Facts, rows: &[FinalRow], broken: &mut Vec<Violation>) {
    let stored: HashMap<ExecutionId, &FinalRow> = rows.iter().map(|row| (row.id, row)).collect();
    for start in facts.marks.iter().filter(|mark| !mark.is_end) {
        let (id, attempt) = start.key;
        if let Some(row) = stored.get(&id).filter(|row| row.attempt < attempt) {
            let what = format!(
                "attempt {attempt} of execution {id} ran, but {} is the last that is stored",
                row.attempt
            );
            broken.push(violation(Promise::I5, what, [start.record]));
        }
    }
}

fn judge_totals(
    rows: &[FinalRow],
    totals: &BTreeMap<ActionId, QueueTotals>,
    broken: &mut Vec<Violation>,
) {
    let mut counted: BTreeMap<ActionId, QueueTotals> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.status != Status::Rejected) {
        let counts = counted.entry(row.action_id).or_default();
        counts.enqueued += 1;
        match row.status {
            Status::Cancelled => counts.cancelled += 1,
            Status::Expired => counts.expired += 1,
            status if status.is_terminal() => counts.completed += 1,
            _ => {}
        }
    }
    for (action, told) in totals {
        let rows = counted.get(action).copied().unwrap_or_default();
        if rows != *told {
            let what = format!("action {action} counts {told:?}, but its rows are {rows:?}");
            broken.push(violation(Promise::I7, what, []));
        }
    }
}
