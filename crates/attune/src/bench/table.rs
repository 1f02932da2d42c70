//! The figures for people.

use attune_bench::Report;
use comfy_table::{Cell, CellAlignment, Table, presets};

/// All scenarios in one table, and how to read it.
pub(super) fn render(reports: &[Report]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "scenario",
        "wiring",
        "executions",
        "exec/s",
        "submit/s",
        "submit to start\np50 / p95 / p99 ms",
        "hand-off\np50 / p99 ms",
        "slots used",
        "workers used",
        "violations\norder / limit",
        "lost / left",
        "WAL bytes\neach",
        "messages\neach",
    ]);
    for report in reports {
        let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
        let (start, handoff) = (report.submit_to_start_ms, report.handoff_ms);
        table.add_row([
            Cell::new(&report.scenario),
            Cell::new(&report.wiring),
            right(report.executions.to_string()),
            right(format!("{:.0}", report.exec_per_s)),
            right(format!("{:.0}", report.submit_per_s)),
            right(format!(
                "{} / {} / {}",
                ms(start.p50),
                ms(start.p95),
                ms(start.p99)
            )),
            right(format!("{} / {}", ms(handoff.p50), ms(handoff.p99))),
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
    let used: String = reports.iter().map(used).collect();
    format!(
        "{table}\n(order and limits are judged from the workers' own records; slots used: the \
         share of slot time held while work was waiting; workers used: the share of the workers' \
         slots in which something ran meanwhile)\n{used}"
    )
}

/// What its processes have used, in a line.
fn used(report: &Report) -> String {
    let of = |(name, cpu_s): (&String, &f64)| {
        let rss_mb = report.rss_mb.get(name).copied().unwrap_or_default();
        format!("{name} {cpu_s:.1} s {rss_mb:.0} MiB")
    };
    let used: Vec<_> = report.cpu_s.iter().map(of).collect();
    format!("{}: CPU and memory: {}\n", report.scenario, used.join(", "))
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

    #[test]
    fn what_was_not_measured_is_a_dash() {
        let report = Report {
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
            problems: Vec::new(),
        };
        let text = render(&[report]);
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
}
