//! The program that the demo's executions run. It knows nothing of queues: it writes down when
//! it began, works for the time it is told, and writes down when it ended.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use serde::Deserialize;

/// Arguments of the demo's program.
#[derive(Debug, Args)]
pub(crate) struct DemoProgram {
    /// The file to which it appends its records.
    record: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Parameters {
    /// How long to work, in milliseconds.
    work_ms: u64,
}

/// Runs the program.
pub(crate) fn run(arguments: &DemoProgram) -> anyhow::Result<ExitCode> {
    let began = attune_record::now_ns();
    let id = std::env::var("ATTUNE_EXECUTION_ID").context("ATTUNE_EXECUTION_ID is not set")?;
    let attempt = std::env::var("ATTUNE_ATTEMPT").context("ATTUNE_ATTEMPT is not set")?;
    append(
        &arguments.record,
        &format!("start {id} {attempt} {began}\n"),
    )?;
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let parameters: Parameters = serde_json::from_str(&text).context("the parameters")?;
    std::thread::sleep(Duration::from_millis(parameters.work_ms));
    append(
        &arguments.record,
        &format!("end {id} {attempt} {}\n", attune_record::now_ns()),
    )?;
    // After the record: nobody may be there to read it, when the worker has died.
    println!("{}", serde_json::json!({"worked_ms": parameters.work_ms}));
    Ok(ExitCode::SUCCESS)
}

/// One short write to a file opened for appending: lines of several processes do not mix.
fn append(path: &Path, line: &str) -> anyhow::Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .with_context(|| format!("{} cannot be written", path.display()))?;
    file.write_all(line.as_bytes())?;
    Ok(())
}
