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
        "violations\norder / limit",
        "lost",
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
            right(
                report
                    .slot_utilisation
                    .map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0)),
            ),
            right(format!(
                "{} / {}",
                report.order_violations, report.limit_violations
            )),
            right(report.lost.to_string()),
        ]);
    }
    format!(
        "{table}\n(order and limits are judged from the workers' own records; slots used: the \
         share of slot time held while work was waiting)"
    )
}

fn ms(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.1}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use attune_bench::{Delays, HandOff};

    #[test]
    fn what_was_not_measured_is_a_dash() {
        let report = Report {
            scenario: "steady".to_owned(),
            wiring: "embedded".to_owned(),
            executions: 4000,
            exec_per_s: 199.96,
            submit_per_s: 200.04,
            submit_to_start_ms: Delays {
                p50: Some(1.24),
                p95: Some(2.0),
                p99: None,
            },
            handoff_ms: HandOff {
                p50: None,
                p99: None,
            },
            slot_utilisation: None,
            order_violations: 0,
            limit_violations: 3,
            lost: 0,
            problems: Vec::new(),
        };
        let text = render(&[report]);
        for part in ["steady", "200", "1.2 / 2.0 / -", "- / -", "0 / 3"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }
}
