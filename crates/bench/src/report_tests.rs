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
        ..Scenario::spread()
    }
}

fn report(lives: &[Life], limit: u32) -> Report {
    report_of(&scenario(lives.len(), limit), lives, &Costs::default())
}

fn report_of(scenario: &Scenario, lives: &[Life], costs: &Costs) -> Report {
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
    Report::of(&Observed {
        scenario,
        wiring: "embedded",
        load: &load,
        runs: &Runs::of(records),
        rows: &rows.collect::<Vec<_>>(),
        costs,
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
    let handoff = report.handoff_ms;
    assert_eq!((handoff.p50, handoff.p99), (Some(2.0), Some(2.0)));
    assert_eq!(report.submit_ms.max, Some(1.0));
    // From the first start at 2 ms to the last end at 1.2 s.
    assert_eq!(report.drain_per_s, 83.5);
    let Delays { p50, p95, p99, .. } = report.submit_to_start_ms;
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
        costs: &Costs::default(),
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
    let costs = Costs {
        usage: Usage {
            cpu_s: [("postgresql".to_owned(), 1.2345)].into(),
            rss_mb: [("postgresql".to_owned(), 45.67)].into(),
        },
        wal_bytes: Some(1001),
        messages: Some(5),
        transactions: Some(3),
        ..Costs::default()
    };
    let report = Report {
        wiring: "postgres-rabbitmq".to_owned(),
        ..report_of(&scenario(2, 1), &chain(2), &costs)
    };
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(
        text,
        r#"{"scenario":"spread","wiring":"postgres-rabbitmq","executions":2,"exec_per_s":83.3,"#
            .to_owned()
            + r#""submit_per_s":2000.0,"drain_per_s":90.9,"#
            + r#""submit_ms":{"p50":1.0,"p95":1.0,"p99":1.0,"max":1.0},"#
            + r#""submit_to_start_ms":{"p50":2.0,"p95":14.0,"p99":14.0,"max":14.0},"#
            + r#""handoff_ms":{"p50":2.0,"p95":2.0,"p99":2.0,"max":2.0},"#
            + r#""slot_utilisation":0.7692,"worker_utilisation":null,"#
            + r#""order_violations":0,"limit_violations":0,"lost":0,"leaked":0,"duplicates":null,"#
            + r#""cpu_s":{"postgresql":1.23},"rss_mb":{"postgresql":45.7},"#
            + r#""wal_bytes_per_execution":500.5,"messages_per_execution":2.5,"#
            + r#""transactions_per_execution":1.5}"#
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

#[test]
fn what_is_left_after_the_end_is_a_fault() {
    let mut lives = chain(4);
    lives[1].status = Some(Status::Running);
    lives[2].status = Some(Status::Queued);
    let costs = |slots_held| Costs {
        slots_held,
        ..Costs::default()
    };
    // The slot of the one that runs is its own; a second one is nobody's.
    for (slots_held, leaked) in [(0, 2), (1, 2), (2, 3)] {
        let report = report_of(&scenario(4, 1), &lives, &costs(slots_held));
        assert_eq!(report.leaked, leaked);
    }
    let report = report_of(&scenario(4, 1), &chain(4), &costs(1));
    assert_eq!(report.faults(), ["1 slots or executions were left"]);
    assert!(!report.kept());
}

#[test]
fn duplicates_that_came_to_nobody_are_told() {
    let scenario = Scenario {
        doubled: Some(2),
        ..scenario(4, 1)
    };
    let costs = |sent_twice, passed_on_twice| Costs {
        sent_twice,
        passed_on_twice,
        ..Costs::default()
    };
    let good = report_of(&scenario, &chain(4), &costs(2, 2));
    assert!(good.kept() && good.duplicates == Some(2), "{good:?}");
    for (sent, passed_on) in [(0, 0), (1, 1), (2, 1)] {
        let report = report_of(&scenario, &chain(4), &costs(sent, passed_on));
        assert!(!report.kept(), "{sent} {passed_on}");
        assert_eq!(report.duplicates, Some(passed_on));
    }
    assert_eq!(report(&chain(4), 1).duplicates, None);
}

#[test]
fn workers_are_looked_at_where_their_slots_are_counted() {
    let scenario = Scenario {
        slots: Some(1),
        ..scenario(10, 1)
    };
    let found = report_of(&scenario, &chain(10), &Costs::default());
    // 9 runs of 10 ms while others wait, 2 ms apart.
    assert_eq!(found.worker_utilisation, Some(0.8333));
    assert_eq!(report(&chain(10), 1).worker_utilisation, None);
}
