//! `attune check-history`: were the promises kept?

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use attune_core::Promise;
use attune_history::{Checker, FinalLine, Findings, percentile};
use attune_record::{Record, read_dir};
use clap::Args;

const CLIENTS: &str = " (needs the clients' records)";
const FAULTS: &str = " (needs the records of faults)";
const CALM: &str = " (needs half a minute of calm)";

/// How many violations of each promise are shown with their records.
const SHOWN: usize = 3;

#[derive(Debug, Clone, Args)]
#[command(after_help = "Exit codes:
  0  no promise was broken
  1  a promise was broken
  2  the history cannot be read, or there is none")]
pub(crate) struct CheckHistoryArguments {
    /// The folder that was `history.dir` while the system ran, which it is unless given; folders in
    /// it are read as well.
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// What the store has in the end: a JSON line for each execution, with `id`, `action_id`,
    /// `status`, `attempt` and `request_id`, and one for the totals of each queue, with
    /// `action_id`, `enqueued`, `completed`, `cancelled` and `expired`.
    #[arg(long = "final", value_name = "FILE")]
    final_rows: Option<PathBuf>,
    /// Print only the line that ends the report: one JSON object.
    #[arg(long)]
    json: bool,
}

/// Reads, judges and prints; `dir` is what the settings say.
pub(crate) fn run(arguments: &CheckHistoryArguments, dir: Option<&Path>) -> ExitCode {
    match report(arguments, dir) {
        Ok((text, findings)) => {
            print!("{text}");
            ExitCode::from(u8::from(!findings.violations.is_empty()))
        }
        Err(error) => {
            eprintln!("attune: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn report(
    arguments: &CheckHistoryArguments,
    dir: Option<&Path>,
) -> anyhow::Result<(String, Findings)> {
    let dir = arguments.dir.as_deref().or(dir);
    let dir = dir.context("no history to judge: give its folder as DIR, or set history.dir")?;
    let mut checker = Checker::new();
    for record in read_dir(dir)? {
        checker.add(&record?);
    }
    if let Some(file) = &arguments.final_rows {
        for line in read_final(file)? {
            checker.add_final(line);
        }
    }
    let findings = checker.judge();
    ensure!(
        findings.records > 0,
        "there are no records in {}",
        dir.display()
    );
    let mut text = String::new();
    if !arguments.json {
        write_figures(&mut text, &findings)?;
        write_promises(&mut text, &findings, &evidence(dir, &findings)?)?;
    }
    writeln!(text, "{}", findings.summary())?;
    Ok((text, findings))
}

fn read_final(path: &Path) -> anyhow::Result<Vec<FinalLine>> {
    let context = || format!("{} cannot be read", path.display());
    let file = std::fs::File::open(path).with_context(context)?;
    let mut lines = Vec::new();
    for (number, line) in BufReader::new(file).lines().enumerate() {
        let line = line.with_context(context)?;
        if line.is_empty() {
            continue;
        }
        let line = serde_json::from_str(&line)
            .with_context(|| format!("{}, line {}", path.display(), number + 1))?;
        lines.push(line);
    }
    // Rows that are missing would all count as lost.
    ensure!(!lines.is_empty(), "{} is empty", path.display());
    Ok(lines)
}

/// Those violations of which records are shown.
fn shown(
    findings: &Findings,
    promise: Promise,
) -> impl Iterator<Item = &attune_history::Violation> {
    let broken = findings.violations.iter();
    broken
        .filter(move |broken| broken.promise == promise)
        .take(SHOWN)
}

/// The records that are shown, by number. The history is read again, because keeping all of it
/// in memory for these few would take much more.
fn evidence(dir: &Path, findings: &Findings) -> anyhow::Result<BTreeMap<u32, Record>> {
    let shown = Promise::ALL
        .into_iter()
        .flat_map(|promise| shown(findings, promise));
    let mut wanted: Vec<u32> = shown.flat_map(|broken| broken.records.clone()).collect();
    wanted.sort_unstable();
    let mut found = BTreeMap::new();
    if let Some(last) = wanted.last() {
        for (number, record) in (0..=*last).zip(read_dir(dir)?) {
            if wanted.binary_search(&number).is_ok() {
                found.insert(number, record?);
            }
        }
    }
    Ok(found)
}

fn write_figures(text: &mut String, findings: &Findings) -> std::fmt::Result {
    let judged = &findings.judged;
    let figures = [
        ("records", findings.records),
        ("executions", findings.executions),
        ("runs", findings.runs),
        ("runs whose end nobody saw", findings.unended),
        ("slots taken back", findings.revoked),
        ("takeovers", findings.takeovers),
        ("commits refused by the fence", findings.fence_rejections),
        ("completions dropped", findings.duplicates_dropped),
        ("dead letters of listeners", findings.dead_letters),
        ("faults", findings.faults),
    ];
    for (name, figure) in figures {
        writeln!(text, "{figure:>10}  {name}")?;
    }
    // Where nothing was judged, what is needed for it that a system does not record by itself.
    let figures = [
        ("answers of the API judged", judged.answers, ""),
        ("refusals of the API judged", judged.refusals, CLIENTS),
        ("reported ends judged", judged.completions, ""),
        ("confirms of the broker judged", judged.confirms, CLIENTS),
        ("priorities asked for judged", judged.priorities, CLIENTS),
        ("starts judged by limits asked for", judged.limits, CLIENTS),
        ("executions put back judged", judged.retries, ""),
        ("work judged by its owner's rounds", judged.rounds, ""),
        ("work judged by how long it waits", judged.waits, CALM),
        (
            "queues judged by how long slots are free",
            judged.calms,
            CALM,
        ),
        ("written snapshots judged", judged.stats, ""),
        ("attempts of dead workers judged", judged.deaths, ""),
        (
            "partitions judged after the last fault",
            judged.partitions,
            FAULTS,
        ),
    ];
    for (name, figure, needs) in figures {
        let needs = if figure == 0 { needs } else { "" };
        writeln!(text, "{figure:>10}  {name}{needs}")?;
    }
    write_times(
        text,
        "from the death of a worker until its slot was free",
        &findings.slots_freed_ns,
    )?;
    write_times(
        text,
        "a partition was without an owner",
        &findings.unowned_ns,
    )
}

fn write_times(text: &mut String, name: &str, nanos: &[i64]) -> std::fmt::Result {
    let at = |share| percentile(nanos, share).map(|nanos| nanos / 1_000_000);
    if let (Some(p50), Some(p99), Some(max)) = (at(0.5), at(0.99), at(1.0)) {
        let count = nanos.len();
        writeln!(
            text,
            "{count:>10}  times {name}: p50 {p50} ms, p99 {p99} ms, at most {max} ms"
        )?;
    }
    Ok(())
}

/// Whether nothing happened that a promise is about. The others are about every execution.
fn is_unjudged(findings: &Findings, promise: Promise) -> bool {
    let judged = &findings.judged;
    let judged = match promise {
        Promise::I8 => judged.rates,
        Promise::I10 => judged.shares,
        Promise::I11 => judged.operations,
        Promise::I12 => judged.policies + judged.documents,
        _ => return false,
    };
    judged == 0
}

fn write_promises(
    text: &mut String,
    findings: &Findings,
    evidence: &BTreeMap<u32, Record>,
) -> anyhow::Result<()> {
    for promise in Promise::ALL {
        let count = findings.count(promise);
        let verdict = match count {
            0 if is_unjudged(findings, promise) => "not judged: nothing of it happened".to_owned(),
            0 => "kept".to_owned(),
            count => format!("BROKEN {count} times"),
        };
        let name = promise.to_string();
        writeln!(text, "{name:<3} {:<56} {verdict}", promise.words())?;
        for broken in shown(findings, promise) {
            writeln!(text, "    {}", broken.what)?;
            for record in broken.records.iter().filter_map(|n| evidence.get(n)) {
                writeln!(text, "        {}", serde_json::to_string(record)?)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCEPTED: &str = r#"{"kind":"accepted","execution_id":256,"action_id":7,"priority":"normal","request_id":"00000000-0000-0000-0000-000000000001","status":"queued","epoch":1,"t_ns":1}"#;
    const ENDED: &str = r#"{"kind":"ended","execution_id":256,"action_id":7,"attempt":0,"status":"cancelled","epoch":1,"t_ns":2}"#;
    const ROW: &str = r#"{"id":256,"action_id":7,"status":"cancelled","attempt":0,"request_id":"00000000-0000-0000-0000-000000000001"}"#;
    const TOTALS: &str = r#"{"action_id":7,"enqueued":1,"completed":0,"cancelled":1,"expired":0}"#;

    /// The exit code and the report of these lines.
    fn check(history: &[&str], rows: &[&str], json: bool) -> anyhow::Result<(String, bool)> {
        let dir = tempfile::tempdir()?;
        let inner = dir.path().join("run/owner");
        std::fs::create_dir_all(&inner)?;
        let lines = |lines: &[&str]| {
            lines
                .iter()
                .map(|line| format!("{line}\n"))
                .collect::<String>()
        };
        std::fs::write(inner.join("executor.jsonl"), lines(history))?;
        let file = dir.path().join("final");
        std::fs::write(&file, lines(rows))?;
        let arguments = CheckHistoryArguments {
            dir: Some(dir.path().to_owned()),
            final_rows: (!rows.is_empty()).then_some(file),
            json,
        };
        let (text, findings) = report(&arguments, None)?;
        Ok((text, findings.violations.is_empty()))
    }

    #[test]
    fn a_good_history_ends_with_one_line_of_json() {
        for rows in [&[][..], &[ROW, TOTALS]] {
            let (text, good) = check(&[ACCEPTED, ENDED], rows, false).unwrap();
            assert!(good, "{text}");
            assert!(
                text.contains(&format!("I1  {:<56} kept\n", "nothing accepted is lost")),
                "{text}"
            );
            let unjudged = format!("I10 {:<56} not judged", "nobody overtakes out of turn");
            assert!(text.contains(&unjudged), "{text}");
            let needs = "0  refusals of the API judged (needs the clients' records)\n";
            assert!(text.contains(needs), "{text}");
            let last = text.lines().last().unwrap();
            let summary: serde_json::Value = serde_json::from_str(last).unwrap();
            assert_eq!(
                (&summary["executions"], &summary["violations"]["I7"]),
                (&1.into(), &0.into())
            );
            let (only, _) = check(&[ACCEPTED, ENDED], rows, true).unwrap();
            assert_eq!(only, format!("{last}\n"));
        }
    }

    #[test]
    fn a_broken_promise_is_shown_with_its_records() {
        let other = ROW.replace("cancelled", "succeeded");
        let (text, good) = check(&[ACCEPTED, ENDED], &[&other], false).unwrap();
        assert!(!good);
        let shown = format!(
            "I5  {:<56} BROKEN 1 times\n    execution 256 ended as cancelled in attempt 0, and is \
             stored as succeeded in 0\n        {}\n",
            "one outcome per attempt",
            ENDED.replace(r#""epoch":1,"#, r#""epoch":1,"round":0,"#)
        );
        assert!(text.contains(&shown), "{text}");
    }

    #[test]
    fn what_cannot_be_read_is_no_good_history() {
        for (history, rows) in [
            (&["nonsense"][..], &[][..]),
            (&[], &[]),
            (&[ACCEPTED, ENDED], &["nonsense"]),
        ] {
            assert!(check(history, rows, false).is_err());
        }
        let arguments = CheckHistoryArguments {
            dir: Some(PathBuf::from("/nowhere/at/all")),
            final_rows: None,
            json: false,
        };
        assert_eq!(run(&arguments, None), ExitCode::from(2));
    }

    #[test]
    fn without_a_folder_it_judges_that_of_the_settings() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("executor.jsonl");
        std::fs::write(file, format!("{ACCEPTED}\n{ENDED}\n")).unwrap();
        let arguments = CheckHistoryArguments {
            dir: None,
            final_rows: None,
            json: true,
        };
        let (_, findings) = report(&arguments, Some(dir.path())).unwrap();
        assert_eq!(findings.records, 2);
        let error = report(&arguments, None).unwrap_err().to_string();
        assert!(error.contains("history.dir"), "{error}");
    }
}
