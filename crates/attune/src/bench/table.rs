//! The figures for people.

use attune_bench::Report;
use comfy_table::{Cell, CellAlignment, Table, presets};

/// How many columns a terminal has at least.
const WIDTH: usize = 100;

/// All scenarios in two tables, how quick they were and what that took, and how to read them.
pub(super) fn render(reports: &[Report]) -> String {
    let used: String = reports.iter().map(used).collect();
    format!(
        "{}\n{}\n\
         (slots used: the share of slot time held while work was waiting; workers used: the share of\n\
         the workers' slots in which something ran meanwhile; order and limits are judged from the\n\
         workers' own records)\n{used}",
        speed(reports),
        cost(reports),
    )
}

fn table<const N: usize>(heading: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(heading);
    table
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

fn speed(reports: &[Report]) -> Table {
    // Where all waited until all was asked for, the time until then says nothing of the executions.
    let held = reports.iter().all(|report| report.held);
    let mut table = table([
        "scenario",
        "executions",
        if held { "drained/s" } else { "exec/s" },
        "submit/s",
        "submit to start\np50 / p95 / p99 ms",
        "hand-off\np50 / p99 ms",
    ]);
    for report in reports {
        let (start, handoff) = (report.submit_to_start_ms, report.handoff_ms);
        let moved = if held {
            report.drain_per_s
        } else {
            report.exec_per_s
        };
        table.add_row([
            Cell::new(&report.scenario),
            right(report.executions.to_string()),
            right(format!("{moved:.0}")),
            right(format!("{:.0}", report.submit_per_s)),
            right(format!(
                "{} / {} / {}",
                ms(start.p50),
                ms(start.p95),
                ms(start.p99)
            )),
            right(format!("{} / {}", ms(handoff.p50), ms(handoff.p99))),
        ]);
    }
    table
}

fn cost(reports: &[Report]) -> Table {
    let mut table = table([
        "scenario",
        "wiring",
        "slots\nused",
        "workers\nused",
        "violations\norder / limit",
        "lost /\nleft",
        "WAL bytes\neach",
        "messages\neach",
    ]);
    for report in reports {
        table.add_row([
            Cell::new(&report.scenario),
            Cell::new(&report.wiring),
            right(share(report.slot_utilisation)),
            right(share(report.worker_utilisation)),
            right(format!(
                "{} / {}",
                report.order_violations, report.limit_violations
            )),
            right(format!("{} / {}", report.lost, report.leaked)),
            right(each(report.wal_bytes_per_execution)),
            right(each(report.messages_per_execution)),
        ]);
    }
    table
}

/// What its processes have used, in as many lines as that takes.
fn used(report: &Report) -> String {
    let of = |(name, cpu_s): (&String, &f64)| {
        let rss_mb = report.rss_mb.get(name).copied().unwrap_or_default();
        format!("{name} {cpu_s:.1} s {rss_mb:.0} MiB")
    };
    let used: Vec<_> = report.cpu_s.iter().map(of).collect();
    let used = used.join(",\n");
    let (mut text, mut line) = (
        String::new(),
        format!("{}: CPU and memory:", report.scenario),
    );
    for one in used.lines() {
        if line.len() + 1 + one.len() > WIDTH {
            text += &line;
            text += "\n";
            line = String::from(" ");
        }
        line += " ";
        line += one;
    }
    text + &line + "\n"
}

fn share(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

fn each(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |each| format!("{each:.1}"))
}

/// What is quicker than a tenth of a millisecond, as a hand-off in a lane is, with three places.
fn ms(value: Option<f64>) -> String {
    let places = |value: f64| if value < 0.1 { 3 } else { 1 };
    value.map_or("-".to_owned(), |value| format!("{value:.*}", places(value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use attune_bench::Delays;

    fn report() -> Report {
        Report {
            scenario: "steady".to_owned(),
            wiring: "embedded".to_owned(),
            executions: 4000,
            exec_per_s: 199.96,
            submit_per_s: 200.04,
            drain_per_s: 201.0,
            submit_ms: Delays::none(),
            submit_to_start_ms: Delays {
                p50: Some(1.24),
                p95: Some(2.0),
                p99: None,
                max: None,
            },
            handoff_ms: Delays::none(),
            slot_utilisation: None,
            worker_utilisation: Some(0.987),
            order_violations: 0,
            limit_violations: 3,
            lost: 0,
            leaked: 2,
            duplicates: None,
            cpu_s: [("standalone".to_owned(), 3.21)].into(),
            rss_mb: [("standalone".to_owned(), 48.4)].into(),
            wal_bytes_per_execution: None,
            messages_per_execution: Some(2.04),
            transactions_per_execution: None,
            held: false,
            problems: Vec::new(),
        }
    }

    #[test]
    fn what_was_not_measured_is_a_dash() {
        let text = render(&[report()]);
        for part in [
            "steady",
            "200",
            "1.2 / 2.0 / -",
            "- / -",
            "0 / 3",
            "0 / 2",
            "98.7 %",
            "2.0",
            "standalone 3.2 s 48 MiB",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn what_is_held_is_told_by_how_it_drains() {
        assert!(!render(&[report()]).contains("drained/s"));
        let held = Report {
            held: true,
            drain_per_s: 24_903.4,
            ..report()
        };
        let text = render(&[held]);
        assert!(
            text.contains("drained/s") && text.contains(" 24903 "),
            "{text}"
        );
        assert!(!text.contains("exec/s"), "{text}");
    }

    #[test]
    fn everything_fits_a_terminal() {
        let slow = Delays {
            p50: Some(100_045.9),
            p95: Some(100_066.3),
            p99: Some(100_086.8),
            max: None,
        };
        let processes = [
            "api",
            "completion-listener",
            "executor-1",
            "executor-2",
            "postgresql",
        ];
        let processes = processes
            .into_iter()
            .chain(["rabbitmq", "stats", "worker-1", "worker-2"]);
        let large = Report {
            scenario: "duplicates".to_owned(),
            wiring: "postgres-rabbitmq".to_owned(),
            executions: 1_000_000,
            submit_to_start_ms: slow,
            handoff_ms: slow,
            slot_utilisation: Some(1.0),
            wal_bytes_per_execution: Some(12_345.6),
            cpu_s: processes.map(|name| (name.to_owned(), 123.4)).collect(),
            ..report()
        };
        let text = render(&[large]);
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(WIDTH), "{widest:?}\n{text}");
    }
}
