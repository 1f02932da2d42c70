//! The figures on histories that are known.

use super::*;
use crate::load::Submitted;
use crate::scenario::Pace;
use attune_core::{ActionId, Attempt, RequestId};
use attune_record::Record;

const MS: i64 = 1_000_000;

/// One execution as the three views see it; times in milliseconds.
struct Life {
    id: i64,
    action: usize,
    /// Asked for, answered.
    asked: (i64, i64),
    /// Begin and end of each run.
    runs: Vec<(i64, i64)>,
    status: Option<Status>,
}

/// An execution that is asked for at 0, answered 1 ms later and runs once.
fn life(id: i64, start: i64, end: i64) -> Life {
    Life {
        id,
        action: 0,
        asked: (0, 1),
        runs: vec![(start, end)],
        status: Some(Status::Succeeded),
    }
}

fn scenario(executions: usize, limit: u32) -> Scenario {
    Scenario {
        name: "spread",
        executions,
        actions: 2,
        limit,
        pace: Pace::Closed {
            in_flight: 1,
            pack: 1,
        },
        policies: false,
    }
}

fn report(lives: &[Life], limit: u32) -> Report {
    let submitted = lives.iter().enumerate().map(|(index, life)| Submitted {
        index,
        request_id: RequestId::fresh(),
        invoked_ns: life.asked.0 * MS,
        answered_ns: life.asked.1 * MS,
        outcome: SubmitOutcome::Accepted(ExecutionId(life.id)),
    });
    let load = Load {
        submitted: submitted.collect(),
    };
    let records = lives.iter().flat_map(|life| {
        let (execution_id, attempt) = (ExecutionId(life.id), Attempt(1));
        let action_id = ActionId(life.action as i64);
        life.runs.iter().flat_map(move |&(start, end)| {
            let start = Record::Start {
                execution_id,
                attempt,
                action_id,
                t_ns: start * MS,
            };
            let status = Some(Status::Succeeded);
            let end = Record::End {
                execution_id,
                attempt,
                action_id,
                status,
                t_ns: end * MS,
            };
            [start, end]
        })
    });
    let rows = lives.iter().filter_map(|life| {
        let (start, end) = *life.runs.first()?;
        Some(Row {
            id: ExecutionId(life.id),
            action: life.action,
            status: life.status?,
            created_us: life.asked.1 * 1000,
            requested_us: Some(start * 1000),
            finished_us: Some(end * 1000),
        })
    });
    let scenario = scenario(lives.len(), limit);
    Report::of(&Observed {
        scenario: &scenario,
        wiring: "embedded",
        load: &load,
        runs: &Runs::of(records),
        rows: &rows.collect::<Vec<_>>(),
    })
}

/// A chain of `count` runs of 10 ms each, 2 ms apart, with limit 1.
fn chain(count: i64) -> Vec<Life> {
    (0..count)
        .map(|n| life(n + 1, 2 + n * 12, 12 + n * 12))
        .collect()
}

#[test]
fn a_chain_has_the_figures_one_expects() {
    let report = report(&chain(100), 1);
    assert!(report.kept(), "{report:?}");
    assert_eq!(report.executions, 100);
    // From 0 to the last end at 1.2 s; the last answer at 1 ms.
    assert_eq!(report.exec_per_s, 83.3);
    assert_eq!(report.submit_per_s, 100_000.0);
    assert_eq!(
        report.handoff_ms,
        HandOff {
            p50: Some(2.0),
            p99: Some(2.0)
        }
    );
    let Delays { p50, p95, p99 } = report.submit_to_start_ms;
    let [p50, p95, p99] = [p50, p95, p99].map(Option::unwrap);
    assert!(
        (590.0..=602.0).contains(&p50) && (1130.0..=1142.0).contains(&p95),
        "{report:?}"
    );
    assert!((1178.0..=1190.0).contains(&p99), "{report:?}");
    // All 100 held 10 of every 12 ms while one waited; the last waits until 1190 ms.
    let utilisation = report.slot_utilisation.unwrap();
    assert!((0.82..0.85).contains(&utilisation), "{utilisation}");
}

#[test]
fn an_execution_without_a_good_end_is_lost() {
    let mut lives = chain(8);
    lives[1].status = None; // no row
    lives[2].status = Some(Status::Failed);
    lives[3].status = Some(Status::Running);
    lives[4].runs.clear(); // no run (and so no row)
    let again = lives[7].runs[0].1 + 1;
    lives[7].runs.push((again, again + 1)); // two runs
    let report = report(&lives, 1);
    assert_eq!(report.lost, 5);
    assert_eq!(report.executions, 8);
    assert!(!report.kept());
}

#[test]
fn runs_above_the_limit_are_counted() {
    let mut lives = chain(3);
    lives[1].runs[0].0 = lives[0].runs[0].1 - 1; // begins 1 ms too early
    let found = report(&lives, 1);
    assert_eq!((found.limit_violations, found.lost), (1, 0));
    assert!(!found.kept());
    assert_eq!(report(&lives, 2).limit_violations, 0);
}

#[test]
fn each_action_has_its_own_limit() {
    let lives = [
        life(1, 2, 12),
        Life {
            action: 1,
            ..life(2, 3, 12)
        },
    ];
    assert_eq!(report(&lives, 1).limit_violations, 0);
}

#[test]
fn runs_out_of_order_are_counted() {
    let mut lives = chain(4);
    let (second, third) = (lives[1].runs[0], lives[2].runs[0]);
    (lives[1].runs[0], lives[2].runs[0]) = (third, second);
    let report = report(&lives, 1);
    assert_eq!((report.order_violations, report.limit_violations), (1, 0));
    assert!(!report.kept());
}

#[test]
fn what_was_not_accepted_is_told() {
    let submitted = |index, outcome| Submitted {
        index,
        request_id: RequestId::fresh(),
        invoked_ns: 0,
        answered_ns: MS,
        outcome,
    };
    let load = Load {
        submitted: vec![
            submitted(0, SubmitOutcome::Refused("full".to_owned())),
            submitted(1, SubmitOutcome::Undecided("silence".to_owned())),
        ],
    };
    let scenario = scenario(3, 1);
    let report = Report::of(&Observed {
        scenario: &scenario,
        wiring: "embedded",
        load: &load,
        runs: &Runs {
            orphan_ends: 2,
            ..Runs::default()
        },
        rows: &[],
    });
    assert_eq!(
        report.problems,
        [
            "1 requests were refused, the first because: full",
            "1 requests have no known outcome, the first because: silence",
            "1 requests were not made",
            "2 runs ended that nobody saw begin",
        ]
    );
    assert_eq!((report.executions, report.exec_per_s), (0, 0.0));
    assert!(!report.kept());
}

#[test]
fn the_json_object_has_the_documented_names() {
    let report = Report {
        wiring: "postgres-rabbitmq".to_owned(),
        ..report(&chain(2), 1)
    };
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(
        text,
        r#"{"scenario":"spread","wiring":"postgres-rabbitmq","executions":2,"exec_per_s":83.3,"#
            .to_owned()
            + r#""submit_per_s":2000.0,"submit_to_start_ms":{"p50":2.0,"p95":14.0,"p99":14.0},"#
            + r#""handoff_ms":{"p50":2.0,"p99":2.0},"slot_utilisation":0.7692,"#
            + r#""order_violations":0,"limit_violations":0,"lost":0}"#
    );
}

#[test]
fn what_was_not_measured_is_null() {
    let lives = [life(1, 1, 2)];
    let value = serde_json::to_value(report(&lives, 1)).unwrap();
    assert!(
        value["handoff_ms"]["p50"].is_null() && value["slot_utilisation"].is_null(),
        "{value}"
    );
    assert_eq!(value["submit_to_start_ms"]["p50"], 1.0);
}
