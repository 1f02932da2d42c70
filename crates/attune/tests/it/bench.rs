//! The benchmark, small: it must find nothing wrong, print what is documented, and leave nothing.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tokio::process::Command;

/// What one scenario prints, in this order.
const FIELDS: [&str; 11] = [
    "scenario",
    "wiring",
    "executions",
    "exec_per_s",
    "submit_per_s",
    "submit_to_start_ms",
    "handoff_ms",
    "slot_utilisation",
    "order_violations",
    "limit_violations",
    "lost",
];

/// Runs the benchmark with its temporary files in `folder`.
async fn bench(
    folder: &Path,
    wiring: &str,
    variables: &[(&str, String)],
) -> anyhow::Result<Vec<String>> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_attune"));
    command
        .args(["bench", "--json", "--executions", "60", "--wiring", wiring])
        .envs(variables.iter().cloned())
        .env("TMPDIR", folder)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(120), command.output())
        .await
        .context("the benchmark did not end")??;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {errors}", output.status);
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn check(lines: &[String], wiring: &str) -> anyhow::Result<()> {
    let mut scenarios = Vec::new();
    for line in lines {
        let value: Value = serde_json::from_str(line).with_context(|| line.clone())?;
        let fields: Vec<_> = FIELDS
            .iter()
            .map(|field| line.find(&format!("\"{field}\":")))
            .collect();
        ensure!(
            fields.iter().all(Option::is_some) && fields.is_sorted(),
            "{line}"
        );
        ensure!(
            value
                .as_object()
                .is_some_and(|object| object.len() == FIELDS.len()),
            "{line}"
        );
        ensure!(
            value["wiring"] == wiring && value["executions"] == 60,
            "{line}"
        );
        for promise in ["order_violations", "limit_violations", "lost"] {
            ensure!(value[promise] == 0, "{line}");
        }
        ensure!(value["exec_per_s"].as_f64() > Some(0.0), "{line}");
        for quantile in ["p50", "p95", "p99"] {
            ensure!(
                value["submit_to_start_ms"][quantile].as_f64() > Some(0.0),
                "{line}"
            );
        }
        if value["scenario"] == "serial" {
            // One after the other: every hand-off was seen.
            ensure!(value["handoff_ms"]["p99"].as_f64() > Some(0.0), "{line}");
        }
        scenarios.push(value["scenario"].clone());
    }
    ensure!(scenarios == ["spread", "serial", "steady"], "{scenarios:?}");
    Ok(())
}

#[tokio::test]
async fn embedded_benchmark() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let lines = bench(folder.path(), "embedded", &[]).await?;
    check(&lines, "embedded")?;
    ensure!(
        std::fs::read_dir(folder.path())?.next().is_none(),
        "files are left behind"
    );
    Ok(())
}

#[tokio::test]
async fn cluster_benchmark() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let servers = [
        (
            "ATTUNE__DATABASE__URL",
            attune_testkit::prepared("ATTUNE_TEST_POSTGRES_URL")?,
        ),
        (
            "ATTUNE__BROKER__URL",
            attune_testkit::prepared("ATTUNE_TEST_AMQP_URL")?,
        ),
    ];
    let lines = bench(folder.path(), "postgres-rabbitmq", &servers).await?;
    check(&lines, "postgres-rabbitmq")?;
    ensure!(
        std::fs::read_dir(folder.path())?.next().is_none(),
        "files are left behind"
    );
    Ok(())
}
