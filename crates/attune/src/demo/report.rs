//! What the demo found, for people and for programs.

use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::Serialize;

/// The figures of one demo.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) executions: usize,
    pub(crate) succeeded: usize,
    pub(crate) failed: usize,
    pub(crate) lost: usize,
    pub(crate) limit_violations: u64,
    pub(crate) order_violations: u64,
    pub(crate) elapsed_ms: u128,
    pub(crate) actions: Vec<ActionFigures>,
}

/// The figures of one action.
#[derive(Debug, Serialize)]
pub(crate) struct ActionFigures {
    #[serde(rename = "ref")]
    pub(crate) action_ref: String,
    pub(crate) limit: u32,
    pub(crate) executions: usize,
    pub(crate) max_concurrent_observed: u64,
    pub(crate) order_violations: u64,
    pub(crate) wait_ms_p50: f64,
    pub(crate) wait_ms_p95: f64,
    pub(crate) handoff_ms_p50: f64,
    pub(crate) handoff_ms_p99: f64,
}

impl Figures {
    /// Whether nothing was lost, no limit exceeded and every order kept.
    pub(crate) fn kept(&self) -> bool {
        self.lost == 0
            && self.failed == 0
            && self.limit_violations == 0
            && self.order_violations == 0
    }
}

/// Prints the table.
pub(crate) fn print(figures: &Figures) {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "action",
        "limit",
        "executions",
        "most at once",
        "order kept",
        "wait\np50 / p95 ms",
        "hand-off\np50 / p99 ms",
    ]);
    for action in &figures.actions {
        let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
        table.add_row([
            Cell::new(&action.action_ref),
            right(action.limit.to_string()),
            right(action.executions.to_string()),
            right(action.max_concurrent_observed.to_string()),
            Cell::new(if action.order_violations == 0 {
                "yes"
            } else {
                "NO"
            }),
            right(format!(
                "{:.0} / {:.0}",
                action.wait_ms_p50, action.wait_ms_p95
            )),
            right(format!(
                "{:.1} / {:.1}",
                action.handoff_ms_p50, action.handoff_ms_p99
            )),
        ]);
    }
    println!("{table}");
    println!(
        "{} executions in {:.1} s: {} succeeded, {} failed, {} lost; {} limit violations, {} order violations",
        figures.executions,
        figures.elapsed_ms as f64 / 1000.0,
        figures.succeeded,
        figures.failed,
        figures.lost,
        figures.limit_violations,
        figures.order_violations,
    );
    println!("(judged from the times that the programs wrote down themselves)");
}
