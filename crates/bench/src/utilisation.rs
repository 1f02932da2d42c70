//! How well slots were used while work was waiting.

use std::collections::BTreeMap;

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

#[cfg(test)]
mod tests {
    use super::*;
    use attune_core::{ExecutionId, Status};

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
}
