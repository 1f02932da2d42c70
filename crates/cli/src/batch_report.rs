//! What `attune submit --file` says in the end.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::batch_plan::Fate;
use super::http::said;
use super::lines::Line;
use super::render::{Column, table};
use super::{Exit, Output};

/// How many lines that failed are told one by one; `--json` has them all.
const PROBLEMS_SHOWN: usize = 20;

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    lines: u64,
    accepted: u64,
    repeated: u64,
    refused: u64,
    unknown: u64,
}

impl Counts {
    fn add(&mut self, fate: Option<&Fate>) {
        self.lines += 1;
        match fate {
            Some(Fate::Accepted(submitted)) => {
                self.accepted += 1;
                self.repeated += u64::from(submitted.repeated);
            }
            Some(Fate::Refused(_)) => self.refused += 1,
            Some(Fate::Unknown(_)) | None => self.unknown += 1,
        }
    }

    fn exit(self) -> Exit {
        if self.unknown > 0 {
            Exit::Unknown
        } else if self.refused > 0 {
            Exit::Refused
        } else {
            Exit::Done
        }
    }
}

/// The summary: per action for people, per line for programs.
pub(super) fn report(
    lines: &[Line],
    fates: &[Option<Fate>],
    elapsed: Duration,
    json: bool,
) -> Output {
    let mut all = Counts::default();
    let mut by_action: BTreeMap<&str, Counts> = BTreeMap::new();
    for (line, fate) in lines.iter().zip(fates) {
        all.add(fate.as_ref());
        by_action
            .entry(&line.submission.action_ref)
            .or_default()
            .add(fate.as_ref());
    }
    let output = if json {
        Output::json(&document(lines, fates, all, elapsed))
    } else {
        Output::text(summary(&by_action, all, elapsed))
    };
    output.with(all.exit(), problems(lines, fates))
}

fn summary(by_action: &BTreeMap<&str, Counts>, all: Counts, elapsed: Duration) -> String {
    let row = |name: &str, counts: &Counts| {
        let Counts {
            lines,
            accepted,
            repeated,
            refused,
            unknown,
        } = *counts;
        let figures = [lines, accepted, repeated, refused, unknown];
        std::iter::once(name.to_owned())
            .chain(figures.map(|it| it.to_string()))
            .collect()
    };
    let mut rows: Vec<Vec<String>> = by_action
        .iter()
        .map(|(name, counts)| row(name, counts))
        .collect();
    if rows.len() > 1 {
        rows.push(row("all", &all));
    }
    let columns = [
        Column::Words("action"),
        Column::Figures("lines"),
        Column::Figures("accepted"),
        Column::Figures("of these before"),
        Column::Figures("refused"),
        Column::Figures("unknown"),
    ];
    let seconds = elapsed.as_secs_f64();
    let rate = all.accepted as f64 / seconds.max(0.001);
    format!(
        "{}\n\n{} accepted in {seconds:.1} s, {rate:.0} a second",
        table(&columns, rows),
        all.accepted
    )
}

fn document(lines: &[Line], fates: &[Option<Fate>], all: Counts, elapsed: Duration) -> Value {
    let results: Vec<Value> = lines
        .iter()
        .zip(fates)
        .map(|(line, fate)| match fate {
            Some(Fate::Accepted(submitted)) => json!({
                "line": line.number,
                "id": submitted.id,
                "status": submitted.status,
                "repeated": submitted.repeated,
                "request_id": submitted.request_id,
            }),
            Some(Fate::Refused(detail) | Fate::Unknown(detail)) => json!({
                "line": line.number,
                "error": detail,
                "request_id": line.submission.request_id,
            }),
            None => json!({"line": line.number, "request_id": line.submission.request_id}),
        })
        .collect();
    json!({
        "lines": all.lines,
        "accepted": all.accepted,
        "repeated": all.repeated,
        "refused": all.refused,
        "unknown": all.unknown,
        "elapsed_ms": attune_core::millis(elapsed),
        "results": results,
    })
}

fn problems(lines: &[Line], fates: &[Option<Fate>]) -> Vec<String> {
    let mut failed = lines
        .iter()
        .zip(fates)
        .filter_map(|(line, fate)| match fate {
            Some(Fate::Refused(detail)) => Some(format!("line {}: {}", line.number, said(detail))),
            Some(Fate::Unknown(detail)) => Some(format!(
                "line {}: whether it was accepted is unknown: {}",
                line.number,
                said(detail)
            )),
            Some(Fate::Accepted(_)) | None => None,
        });
    let mut shown: Vec<String> = failed.by_ref().take(PROBLEMS_SHOWN).collect();
    let more = failed.count();
    if more > 0 {
        shown.push(format!("and {more} more lines"));
    }
    shown
}
