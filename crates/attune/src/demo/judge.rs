//! Judges a demo from the records of its programs and from what is stored.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use attune_core::{Action, Attempt, ExecutionId, Status};
use attune_history::{Interval, judge_action, percentile};

use super::Accepted;
use super::report::{ActionFigures, Figures};
use crate::parts::Parts;

/// Compares what was accepted with what the programs wrote down and what is stored.
pub(super) async fn judge(
    parts: &Parts,
    actions: &[Action],
    accepted: &[Accepted],
    folder: &Path,
    elapsed: Duration,
) -> anyhow::Result<Figures> {
    let mut figures = Figures {
        executions: accepted.len(),
        succeeded: 0,
        failed: 0,
        lost: 0,
        limit_violations: 0,
        order_violations: 0,
        elapsed_ms: elapsed.as_millis(),
        actions: Vec::new(),
    };
    for (index, action) in actions.iter().enumerate() {
        let of_action: Vec<&Accepted> = accepted
            .iter()
            .filter(|accepted| accepted.action == index)
            .collect();
        let records = read_records(&folder.join(format!("{}.records", action.spec.action_ref)))?;
        let mut intervals = Vec::new();
        let mut waits = Vec::new();
        for accepted in &of_action {
            let stored = parts.store.find_execution(accepted.execution_id).await?;
            let times = records.get(&accepted.execution_id);
            match (stored.map(|stored| stored.status), times) {
                (Some(Status::Succeeded), Some((start, Some(end)))) => {
                    figures.succeeded += 1;
                    intervals.push(Interval {
                        execution_id: accepted.execution_id,
                        // The demo never ends its programs, so each has exactly one attempt.
                        attempt: Attempt(1),
                        accepted_ns: Some(accepted.accepted_ns),
                        start_ns: *start,
                        end_ns: Some(*end),
                    });
                    waits.push((start - accepted.accepted_ns).max(0));
                }
                (Some(Status::Failed | Status::TimedOut | Status::Abandoned), _) => {
                    figures.failed += 1;
                }
                _ => figures.lost += 1,
            }
        }
        let limit = action.spec.policy.concurrency.limit;
        let verdict = judge_action(&intervals, limit);
        figures.limit_violations += verdict.limit_violations;
        figures.order_violations += verdict.order_violations;
        figures.actions.push(ActionFigures {
            action_ref: action.spec.action_ref.to_string(),
            limit: limit.unwrap_or_default(),
            executions: of_action.len(),
            max_concurrent_observed: verdict.max_concurrent_observed,
            order_violations: verdict.order_violations,
            wait_ms_p50: millis(&waits, 0.50),
            wait_ms_p95: millis(&waits, 0.95),
            handoff_ms_p50: millis(&verdict.handoff_ns, 0.50),
            handoff_ms_p99: millis(&verdict.handoff_ns, 0.99),
        });
    }
    Ok(figures)
}

/// A percentile of nanoseconds, in milliseconds to two digits.
fn millis(values: &[i64], quantile: f64) -> f64 {
    let nanoseconds = percentile(values, quantile).unwrap_or(0);
    (nanoseconds as f64 / 10_000.0).round() / 100.0
}

/// The times that the programs of one action wrote down: start, and end if there was one.
fn read_records(path: &Path) -> anyhow::Result<HashMap<ExecutionId, (i64, Option<i64>)>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        // No program of this action has run.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("{}", path.display())),
    };
    let mut records: HashMap<ExecutionId, (i64, Option<i64>)> = HashMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let (kind, id) = (words.next(), words.next());
        // Between them is the attempt: each is expected to be the only one.
        let time = words.nth(1);
        let (Some(kind), Some(id), Some(time)) = (kind, id, time) else {
            anyhow::bail!("a record is cut: {line:?}");
        };
        let (id, time): (ExecutionId, i64) =
            (id.parse().map_err(anyhow::Error::msg)?, time.parse()?);
        match kind {
            "start" => {
                let earlier = records.insert(id, (time, None));
                anyhow::ensure!(earlier.is_none(), "execution {id} was started twice");
            }
            _ => {
                records.get_mut(&id).context("an end without a start")?.1 = Some(time);
            }
        }
    }
    Ok(records)
}
