//! What is judged when all is over: by the history checker, and by a few plain rules of the
//! rig's own, which share nothing with it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::PoisonError;

use anyhow::{Context as _, ensure};
use attune_core::{Attempt, ExecutionId, Promise};
use attune_history::{Interval, judge_action};
use futures_util::TryStreamExt as _;
use serde_json::{Value, json};
use sqlx::Row as _;
use tokio::process::Command;
use uuid::Uuid;

use super::Options;
use super::nemesis::{Rig, faults};
use super::records::{Runs, read};

/// By how much an execution may seem to start early: clocks of one machine are read one after the
/// other.
const EARLY_NS: i64 = 500_000_000;
/// Of so many faults some are in force everywhere, as operators are told.
const MANY_PAUSES: u64 = 5;

/// What a run has come to.
#[derive(Debug)]
pub struct Report {
    /// The final line.
    pub json: Value,
    /// What was found, for people; the violated promise first in each.
    pub findings: Vec<String>,
    /// Faults with their counts, and figures.
    pub table: String,
}

impl Report {
    /// Whether nothing was violated.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// The queues that must be empty in the end.
pub(crate) fn queues() -> Vec<String> {
    let mut queues = [
        "enforcements",
        "completed",
        "completed.kept",
        "dead-letters",
    ]
    .map(|name| format!("attune.{name}"))
    .to_vec();
    for partition in 0..8 {
        for kind in ["commands", "calls", "control"] {
            queues.push(format!("attune.partition.{partition:02}.{kind}"));
        }
    }
    queues
}

/// How many executions wait or hold a slot.
pub(crate) async fn open(rig: &Rig) -> anyhow::Result<i64> {
    let mut connection = rig.servers.connect().await?;
    let count = sqlx::query_scalar("SELECT count(*) FROM attune.execution_active");
    Ok(count.fetch_one(&mut connection).await?)
}

/// A row as it is in the end.
struct Final {
    id: i64,
    status: String,
}

/// Violations by promise.
#[derive(Default)]
struct Findings {
    counts: BTreeMap<Promise, u64>,
    lines: Vec<String>,
}

impl Findings {
    /// So many violations of a promise, if any.
    fn add(&mut self, promise: Promise, count: usize, what: &str) {
        if count > 0 {
            *self.counts.entry(promise).or_default() += count as u64;
            self.lines.push(format!("{promise}: {count} times: {what}"));
        }
    }
}

/// Judges a run.
pub(crate) async fn check(
    rig: &Rig,
    options: &Options,
    folder: &Path,
    problems: Vec<String>,
) -> anyhow::Result<Report> {
    let mut findings = Findings::default();
    let last = folder.join("final.jsonl");
    let rows = dump(rig, &last, &mut findings).await?;
    let history = folder.join("history");
    let runs = read(&history)?;
    judge_requests(rig, &rows, &mut findings).await?;
    judge_runs(rig, &runs, &mut findings);
    judge_totals(rig, &mut findings).await?;
    judge_times(rig, &rows, &runs, &mut findings);
    let by_checker = ask_checker(options, &history, &last).await?;
    let mut violations = serde_json::Map::new();
    for promise in Promise::ALL {
        let own = findings.counts.get(&promise).copied().unwrap_or_default();
        let checked = by_checker
            .as_ref()
            .map(|(line, _)| line["violations"][promise.name()].as_u64());
        let checked = checked.flatten().unwrap_or_default();
        violations.insert(promise.to_string(), own.max(checked).into());
        if checked > 0 {
            findings
                .lines
                .push(format!("{promise}: {checked} times, says check-history"));
        }
    }
    if let Some((_, text)) = &by_checker
        && findings
            .lines
            .iter()
            .any(|line| line.contains("check-history"))
    {
        findings.lines.push(text.clone());
    }
    // A rule that had nothing to judge has found nothing, and would not have.
    let pauses = faults_by_kind(rig).get("pauses").copied().unwrap_or(0);
    let judged_pauses = by_checker
        .as_ref()
        .and_then(|(line, _)| line["judged"]["pauses"].as_u64());
    if pauses >= MANY_PAUSES && judged_pauses == Some(0) {
        let words = format!("{pauses} faults `pauses`, and check-history judged no pause");
        findings.lines.push(words);
    }
    let changes = faults_by_kind(rig).get("documents").copied().unwrap_or(0);
    let judged_documents = by_checker
        .as_ref()
        .and_then(|(line, _)| line["judged"]["documents"].as_u64());
    if changes >= MANY_PAUSES && judged_documents == Some(0) {
        let words = format!("{changes} faults `documents`, and check-history judged no document");
        findings.lines.push(words);
    }
    // Of no promise's own: a daemon that ends badly is a finding all the same.
    findings.lines.extend(problems);
    let rooms = std::fs::read_dir(folder.join("work"))?.count();
    if rooms > 0 {
        let words = format!(
            "{rooms} folders of runs are left in {}/work",
            folder.display()
        );
        findings.lines.push(words);
    }
    let takeovers = takeovers(rig).await?;
    let figure = |name: &str, own: u64| {
        let checked = by_checker
            .as_ref()
            .and_then(|(line, _)| line[name].as_u64());
        checked.unwrap_or(own)
    };
    let json = json!({
        "faults": rig.fault_count(), "faults_by_kind": faults_by_kind(rig), "executions": rows.len(),
        "takeovers": figure("takeovers", takeovers),
        "fence_rejections": figure("fence_rejections", runs.fenced),
        "duplicates_dropped": figure("duplicates_dropped", runs.stale),
        "violations": violations, "seed": options.seed,
        "programs": runs.programs.values().map(Vec::len).sum::<usize>(),
        "checker": by_checker.is_some(),
    });
    Ok(Report {
        table: table(rig, &rows) + &judged(by_checker.as_ref().map(|(line, _)| line)),
        json,
        findings: findings.lines,
    })
}

/// Writes the final rows down for the checker, and returns them by their request.
async fn dump(
    rig: &Rig,
    path: &Path,
    findings: &mut Findings,
) -> anyhow::Result<HashMap<Uuid, Final>> {
    let mut connection = rig.servers.connect().await?;
    let mut file = BufWriter::new(std::fs::File::create(path)?);
    let mut rows = HashMap::new();
    let (mut ids, mut twice, mut open) = (HashSet::new(), 0, 0);
    let mut stream =
        sqlx::query("SELECT id, action, status, attempt, request_id FROM attune.execution")
            .fetch(&mut connection);
    while let Some(row) = stream.try_next().await? {
        let (id, request_id): (i64, Uuid) = (row.try_get(0)?, row.try_get(4)?);
        let status: String = row.try_get(2)?;
        let line = json!({
            "id": id, "action_id": row.try_get::<i64, _>(1)?, "status": status,
            "attempt": row.try_get::<i32, _>(3)?, "request_id": request_id,
        });
        writeln!(file, "{line}")?;
        twice += usize::from(!ids.insert(id));
        open += usize::from(matches!(
            status.as_str(),
            "queued" | "requested" | "running"
        ));
        twice += usize::from(rows.insert(request_id, Final { id, status }).is_some());
    }
    drop(stream);
    let totals: Vec<(i64, i64, i64, i64, i64)> = sqlx::query_as(
        "SELECT action, enqueued, completed, cancelled, expired FROM attune.queue_totals",
    )
    .fetch_all(&mut connection)
    .await?;
    for (action_id, enqueued, completed, cancelled, expired) in totals {
        let line = json!({
            "action_id": action_id, "enqueued": enqueued, "completed": completed,
            "cancelled": cancelled, "expired": expired,
        });
        writeln!(file, "{line}")?;
    }
    file.flush()?;
    findings.add(
        Promise::I5,
        twice,
        "a second row of the same execution or request",
    );
    findings.add(Promise::I4, open, "an execution is not over in the end");
    Ok(rows)
}

async fn judge_requests(
    rig: &Rig,
    rows: &HashMap<Uuid, Final>,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    give_back(rig, rows).await?;
    let known = rig.shared.ledger.known();
    let is_lost = |(request, id): &(&Uuid, &i64)| {
        rows.get(*request)
            .is_none_or(|row| row.id != **id || row.status == "rejected")
    };
    let lost: Vec<_> = known.accepted.iter().filter(is_lost).collect();
    findings.add(
        Promise::I1,
        lost.len(),
        &format!("accepted and not there: {:?}", first(&lost)),
    );
    let confirmed = known.confirmed.iter();
    let lost: Vec<_> = confirmed
        .filter(|request| !rows.contains_key(request) && !known.given_back.contains(request))
        .collect();
    let what = format!("confirmed by the broker and not there: {:?}", first(&lost));
    findings.add(Promise::I1, lost.len(), &what);
    let refused = known.refused.iter();
    let kept: Vec<_> = refused
        .filter(|request| {
            let row = rows.get(request);
            row.is_some_and(|row| row.status != "rejected")
        })
        .collect();
    let what = format!("refused, and there all the same: {:?}", first(&kept));
    findings.add(Promise::I1, kept.len(), &what);
    let contradictions = known.contradictions.len();
    findings.add(
        Promise::I1,
        contradictions,
        &format!("{:?}", first(&known.contradictions)),
    );
    Ok(())
}

/// Notes which of the firings that the broker has confirmed, and no row shows, lie among the dead
/// letters: what is there can be put back, so it is not lost.
async fn give_back(rig: &Rig, rows: &HashMap<Uuid, Final>) -> anyhow::Result<()> {
    let missing: Vec<Uuid> = {
        let known = rig.shared.ledger.known();
        let missing = known.confirmed.iter();
        missing
            .filter(|request| !rows.contains_key(request))
            .copied()
            .collect()
    };
    let mut connection = rig.servers.connect().await?;
    for request_id in missing {
        let is_there: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM attune.dead_letter
                            WHERE NOT truncated AND position(convert_to($1, 'UTF8') IN body) > 0)",
        )
        .bind(request_id.to_string())
        .fetch_one(&mut connection)
        .await?;
        if is_there {
            rig.shared.ledger.given_back(request_id)?;
        }
    }
    Ok(())
}

fn first<T>(items: &[T]) -> &[T] {
    &items[..items.len().min(5)]
}

/// Limits by what the programs themselves wrote down; starts by what the workers did.
fn judge_runs(rig: &Rig, runs: &Runs, findings: &mut Findings) {
    findings.add(
        Promise::I2,
        runs.double_starts.len(),
        &format!(
            "a worker started an attempt that had started before: {:?}",
            first(&runs.double_starts)
        ),
    );
    let limits = rig.limits.lock().unwrap_or_else(PoisonError::into_inner);
    for (action_ref, programs) in &runs.programs {
        let intervals: Vec<_> = programs
            .iter()
            .map(|program| Interval {
                attempt: Attempt(program.attempt),
                ..Interval::new(
                    ExecutionId(program.execution_id),
                    program.start_ns,
                    program.end_ns,
                )
            })
            .collect();
        let limit = limits.get(action_ref).copied().flatten();
        let verdict = judge_action(&intervals, limit);
        let count = verdict.limit_violations as usize;
        findings.add(
            Promise::I2,
            count,
            &format!(
                "{action_ref}: up to {} programs at once, the limit never was above {limit:?}",
                verdict.max_concurrent_observed
            ),
        );
        let count = verdict.double_starts as usize;
        findings.add(
            Promise::I2,
            count,
            &format!("{action_ref}: a program started twice in an attempt"),
        );
    }
}

/// What the totals say against what is there.
async fn judge_totals(rig: &Rig, findings: &mut Findings) -> anyhow::Result<()> {
    let mut connection = rig.servers.connect().await?;
    let rows: Vec<(i64, i64, i64, i64)> = sqlx::query_as(
        "SELECT t.action, t.enqueued, t.completed + t.cancelled + t.expired,
                (SELECT count(*) FROM attune.execution e
                 WHERE e.action = t.action AND e.status <> 'rejected')
         FROM attune.queue_totals t
         WHERE t.enqueued <> t.completed + t.cancelled + t.expired
            OR t.enqueued <> (SELECT count(*) FROM attune.execution e
                              WHERE e.action = t.action AND e.status <> 'rejected')",
    )
    .fetch_all(&mut connection)
    .await?;
    let what = format!("(action, enqueued, ended, rows) = {:?}", first(&rows));
    findings.add(Promise::I7, rows.len(), &what);
    Ok(())
}

/// Nothing waits as long as it may while clocks go right, and nothing starts before its time.
fn judge_times(rig: &Rig, rows: &HashMap<Uuid, Final>, runs: &Runs, findings: &mut Findings) {
    let expired = rows.values().filter(|row| row.status == "expired");
    findings.add(
        Promise::I1,
        expired.count(),
        "an execution expired long before its time",
    );
    let known = rig.shared.ledger.known();
    let due: HashMap<i64, i64> = known
        .delayed
        .iter()
        .filter_map(|(request_id, due)| Some((rows.get(request_id)?.id, *due)))
        .collect();
    let programs = runs.programs.values().flatten();
    let early = programs.filter(|program| {
        due.get(&program.execution_id)
            .is_some_and(|due| program.start_ns < due - EARLY_NS)
    });
    findings.add(
        Promise::I3,
        early.count(),
        "an execution started before the time that it was not to start before",
    );
}

/// How often each kind of fault was begun.
fn faults_by_kind(rig: &Rig) -> BTreeMap<&'static str, u64> {
    let counts = rig.counts.lock();
    counts.unwrap_or_else(PoisonError::into_inner).clone()
}

/// How often a partition changed hands.
async fn takeovers(rig: &Rig) -> anyhow::Result<u64> {
    let mut connection = rig.servers.connect().await?;
    let sum = "SELECT sum(greatest(epoch - 1, 0))::bigint FROM attune.partition_lease";
    let sum: i64 = sqlx::query_scalar(sum).fetch_one(&mut connection).await?;
    Ok(sum.unsigned_abs())
}

/// What `attune check-history` says: its final line and all of it. Nothing where the binary does
/// not have it.
async fn ask_checker(
    options: &Options,
    history: &Path,
    last: &Path,
) -> anyhow::Result<Option<(Value, String)>> {
    let mut help = Command::new(&options.binary);
    if !help
        .args(["check-history", "--help"])
        .output()
        .await?
        .status
        .success()
    {
        return Ok(None);
    }
    let mut command = Command::new(&options.binary);
    command
        .arg("check-history")
        .arg(history)
        .arg("--final")
        .arg(last);
    let output = command.output().await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let code = output.status.code().context("the checker was killed")?;
    ensure!(
        matches!(code, 0 | 1),
        "the checker fails: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let line = text.lines().last().context("the checker says nothing")?;
    let line: Value = serde_json::from_str(line).context("the checker's final line")?;
    let counts = Promise::ALL
        .iter()
        .filter_map(|promise| line["violations"][promise.name()].as_u64());
    ensure!(
        (counts.sum::<u64>() == 0) == (code == 0),
        "the checker contradicts itself: {text}"
    );
    Ok(Some((line, text)))
}

/// How much the checker had to judge, and how long things took.
fn judged(line: Option<&Value>) -> String {
    let keys = ["judged", "slots_freed_ms", "unowned_ms"];
    let figure = |key: &&str| Some(format!("{key} {}\n", line?.get(key)?));
    keys.iter().filter_map(figure).collect()
}

/// Faults with their counts, and figures.
fn table(rig: &Rig, rows: &HashMap<Uuid, Final>) -> String {
    let counts = rig.counts.lock().unwrap_or_else(PoisonError::into_inner);
    let mut table = String::new();
    for fault in faults() {
        if let Some(count) = counts.get(fault.name) {
            table += &format!(
                "{count:>5}  {:<18} {}; {}\n",
                fault.name, fault.how, fault.heal
            );
        }
    }
    let known = rig.shared.ledger.known();
    let mut statuses: BTreeMap<&str, u64> = BTreeMap::new();
    for row in rows.values() {
        *statuses.entry(&row.status).or_default() += 1;
    }
    let answers: BTreeMap<_, _> = known.answers.iter().collect();
    table += &format!(
        "asked for {} · told accepted {} · confirmed by the broker {}, of which dead letters {}\nanswers {answers:?}\n\
         executions {} {statuses:?}\n",
        known.asked,
        known.accepted.len(),
        known.confirmed.len(),
        known.given_back.len(),
        rows.len(),
    );
    table
}
