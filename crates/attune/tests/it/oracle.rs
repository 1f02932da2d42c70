//! Judges order and limits by what run programs and workers wrote down themselves.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use attune_core::{ActionId, Attempt, ExecutionId};
use attune_history::{Interval, judge_action};
use attune_record::{Record, Recorder, read_dir};
use attune_testkit::{System, wait_for};
use serde_json::{Value, json};

/// The file in which the programs of one action write when they began and ended.
pub(crate) struct Recording {
    file: PathBuf,
}

impl Recording {
    /// A file of its own for an action.
    pub(crate) fn of(system: &System, action_ref: &str) -> Self {
        Self {
            file: system.folder().join(format!("{action_ref}.records")),
        }
    }

    /// The `run` of the action: the program takes the parameter `work_ms`.
    pub(crate) fn run(&self, system: &System) -> Value {
        json!({"program": [system.binary(), "demo-program", self.file]})
    }

    /// What the programs wrote.
    pub(crate) fn intervals(&self) -> anyhow::Result<Vec<Interval>> {
        let text = std::fs::read_to_string(&self.file)
            .with_context(|| format!("{}", self.file.display()))?;
        let mut intervals: Vec<Interval> = Vec::new();
        let mut starts: HashMap<(ExecutionId, Attempt), usize> = HashMap::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let &[kind, id, attempt, time] = words.as_slice() else {
                bail!("a cut record: {line:?}")
            };
            let id = id.parse().map_err(anyhow::Error::msg)?;
            let (attempt, time) = (Attempt(attempt.parse()?), time.parse()?);
            if kind == "start" {
                let twice = starts.insert((id, attempt), intervals.len());
                ensure!(twice.is_none(), "{id} was begun twice in {attempt}");
                intervals.push(Interval {
                    attempt,
                    ..Interval::new(id, time, None)
                });
            } else {
                let start = starts.get(&(id, attempt));
                let start = start.context("an end without a start")?;
                intervals[*start].end_ns = Some(time);
            }
        }
        Ok(intervals)
    }

    /// The same, where those whose end nobody wrote were gone at one of these moments.
    pub(crate) fn ended_by(&self, gone: &[i64]) -> anyhow::Result<Vec<Interval>> {
        let mut intervals = self.intervals()?;
        for run in intervals.iter_mut().filter(|run| run.end_ns.is_none()) {
            run.end_ns = gone.iter().find(|ns| **ns > run.start_ns).copied();
        }
        Ok(intervals)
    }
}

/// Writes runs of an action down for the history checker, as its programs saw them.
pub(crate) fn tell_checker(
    system: &System,
    action_ref: &str,
    runs: &[Interval],
) -> anyhow::Result<()> {
    let recorder = Recorder::create(&system.history(), "programs")?;
    for (run, pid) in runs.iter().zip(1..) {
        let (execution_id, attempt) = (run.execution_id, run.attempt);
        recorder.record(Record::ProgramStart {
            execution_id,
            attempt,
            action_ref: action_ref.to_owned(),
            pid,
            t_ns: run.start_ns,
        });
        if let Some(t_ns) = run.end_ns {
            recorder.record(Record::ProgramEnd {
                execution_id,
                attempt,
                action_ref: action_ref.to_owned(),
                pid,
                t_ns,
            });
        }
    }
    recorder.flush()?;
    Ok(())
}

/// What the workers wrote about an action, once they have written the end of everything they
/// began and at least `expected` runs. They write with a little delay.
pub(crate) async fn worker_intervals(
    folder: &Path,
    action_id: i64,
    expected: usize,
) -> anyhow::Result<Vec<Interval>> {
    wait_for("the records of the workers", async || {
        let intervals = read_workers(folder, ActionId(action_id))?;
        let open = intervals.iter().filter(|run| run.end_ns.is_none()).count();
        let found = intervals.len();
        ensure!(
            found >= expected && open == 0,
            "{found} of {expected} runs, {open} open"
        );
        Ok(intervals)
    })
    .await
}

fn read_workers(folder: &Path, wanted: ActionId) -> anyhow::Result<Vec<Interval>> {
    let mut runs = BTreeMap::new();
    for record in read_dir(folder)? {
        match record? {
            Record::Start {
                execution_id,
                attempt,
                action_id,
                t_ns,
            } if action_id == wanted => {
                let run = Interval::new(execution_id, t_ns, None);
                let twice = runs.insert((execution_id, attempt), run);
                ensure!(
                    twice.is_none(),
                    "{execution_id} was started twice in {attempt}"
                );
            }
            Record::End {
                execution_id,
                attempt,
                action_id,
                t_ns,
                ..
            } if action_id == wanted => {
                let run = runs.get_mut(&(execution_id, attempt));
                run.context("an end without a start")?.end_ns = Some(t_ns);
            }
            _ => {}
        }
    }
    Ok(runs.into_values().collect())
}

/// Checks that no limit was exceeded and no order broken, and that exactly these executions ran.
/// Returns the most that ran at once.
pub(crate) fn judge(runs: &[Interval], limit: u32, expected: &[i64]) -> anyhow::Result<u64> {
    let ran: BTreeSet<i64> = runs.iter().map(|run| run.execution_id.0).collect();
    let expected: BTreeSet<i64> = expected.iter().copied().collect();
    let lost: Vec<_> = expected.difference(&ran).collect();
    let strange: Vec<_> = ran.difference(&expected).collect();
    ensure!(lost.is_empty(), "{} never ran: {lost:?}", lost.len());
    ensure!(
        strange.is_empty(),
        "{} ran that nobody asked for: {strange:?}",
        strange.len()
    );
    let verdict = judge_action(runs, Some(limit));
    ensure!(
        verdict.limit_violations == 0 && verdict.order_violations == 0,
        "limit {limit}: exceeded {} times (up to {}), order broken {} times",
        verdict.limit_violations,
        verdict.max_concurrent_observed,
        verdict.order_violations
    );
    Ok(verdict.max_concurrent_observed)
}
