//! What the processes recorded is judged by `attune check-history`.

use anyhow::{Context as _, ensure};
use attune_testkit::{System, wait_for};
use serde_json::Value;

/// Judges the system's history, with these as the rows that the store has in the end, and
/// returns the summary. Processes write their records with a little delay.
pub(crate) async fn promises_are_kept(
    system: &System,
    executions: &[Value],
) -> anyhow::Result<Value> {
    let (dir, file) = (system.history(), system.folder().join("final"));
    let lines: Vec<String> = executions.iter().map(Value::to_string).collect();
    std::fs::write(&file, lines.join("\n"))?;
    let (dir, file) = (dir.to_string_lossy(), file.to_string_lossy());
    let summary = wait_for("a good history", async || {
        let check = ["check-history", &dir, "--final", &file];
        let (code, text, problems) = system.client(&check).await?;
        ensure!(code == 0, "exit code {code}\n{text}\n{problems}");
        let last = text.lines().last().context("no summary")?;
        Ok(serde_json::from_str::<Value>(last)?)
    })
    .await?;
    let judged = usize::try_from(summary["executions"].as_u64().context("no number")?)?;
    ensure!(
        judged == executions.len(),
        "{judged} of {} executions were judged",
        executions.len()
    );
    let takeovers = &summary["takeovers"];
    ensure!(takeovers.as_u64() > Some(0), "{takeovers} takeovers");
    Ok(summary)
}
