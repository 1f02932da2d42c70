//! The program that executions of the rig run. It knows nothing of queues: it writes down when it
//! began, works for the time it is told, and writes down when it ended.

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::notes::Notes;

/// Runs the program; its records go into a file of its action in this folder.
///
/// # Errors
/// When it is not run by a worker, or cannot write.
pub fn program(history: &Path) -> anyhow::Result<()> {
    let variable = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
    let action_ref = variable("ATTUNE_ACTION")?;
    let execution_id: i64 = variable("ATTUNE_EXECUTION_ID")?.parse()?;
    let attempt: i32 = variable("ATTUNE_ATTEMPT")?.parse()?;
    let notes = Notes::open(history, &format!("program-{action_ref}"))?;
    let record = json!({
        "execution_id": execution_id, "attempt": attempt, "action_ref": action_ref,
        "pid": std::process::id(),
    });
    notes.add("program_start", record.clone())?;
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let parameters: Value = serde_json::from_str(&text).context("the parameters")?;
    let work_ms = parameters["work_ms"].as_u64().context("no work_ms")?;
    std::thread::sleep(Duration::from_millis(work_ms));
    notes.add("program_end", record)?;
    Ok(())
}
