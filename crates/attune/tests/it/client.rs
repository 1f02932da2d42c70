//! The client commands against a running system, as a person or a script uses them.

use anyhow::{Context as _, ensure};
use attune_testkit::{System, Wiring};
use serde_json::{Value, json};

use crate::support::{run, setup};

/// Runs a client command, expects this exit code and answers what it printed.
async fn attune(system: &System, code: i32, args: &[&str]) -> anyhow::Result<(String, String)> {
    let (found, stdout, stderr) = system.client(args).await?;
    ensure!(
        found == code,
        "{args:?} ended with {found}, not {code}: {stdout}{stderr}"
    );
    Ok((stdout, stderr))
}

async fn attune_json(system: &System, code: i32, args: &[&str]) -> anyhow::Result<Value> {
    let (stdout, _) = attune(system, code, args).await?;
    serde_json::from_str(&stdout).with_context(|| format!("{args:?} printed {stdout:?}"))
}

const FILE: &str = "\
ref: it.file
description: Fails when it is told to.
run:
  program: [/bin/bash, -c, 'echo \"$ATTUNE_ACTION\"; echo oh >&2; exit ${CODE:-0}']
policy:
  concurrency: {limit: 2}
  queue: {max_length: 100, timeout_seconds: 60}
---
ref: it.fails
run: {program: [/bin/bash, -c, 'echo oh >&2; exit 4']}
";

async fn commands(system: &System) -> anyhow::Result<()> {
    let file = system.folder().join("actions.yaml");
    std::fs::write(&file, FILE)?;
    let file = file.to_str().context("a path without UTF-8")?;
    let (table, _) = attune(system, 0, &["action", "apply", file]).await?;
    ensure!(
        table.contains("it.file") && table.contains("created"),
        "{table}"
    );
    let (table, _) = attune(system, 0, &["action", "apply", file]).await?;
    ensure!(table.contains("unchanged"), "{table}");

    let echo = ["submit", "core.echo", "-p", "message=hi", "--wait"];
    let (result, _) = attune(system, 0, &echo).await?;
    let result: Value = serde_json::from_str(&result)?;
    ensure!(result == json!({"message": "hi"}), "{result}");
    let (result, _) = attune(system, 0, &["submit", "it.file", "--wait"]).await?;
    ensure!(result.trim() == "it.file", "{result}");
    let (_, words) = attune(system, 1, &["submit", "it.fails", "--wait"]).await?;
    ensure!(
        words.contains("failed") && words.contains("exit code 4"),
        "{words}"
    );
    ensure!(words.contains("oh"), "its stderr is missing: {words}");
    let (_, words) = attune(system, 2, &["submit", "it.nobody-knows"]).await?;
    ensure!(words.contains("it.nobody-knows"), "{words}");

    let list = ["executions", "list", "--action", "it.fails", "--json"];
    let list = attune_json(system, 0, &list).await?;
    let executions = list["executions"].as_array().context("no list")?;
    ensure!(
        executions.len() == 1 && executions[0]["status"] == "failed",
        "{list}"
    );
    let id = executions[0]["id"].to_string();
    let (shown, _) = attune(system, 0, &["executions", "show", &id]).await?;
    ensure!(shown.contains("failed") && shown.contains("oh"), "{shown}");
    attune(system, 2, &["executions", "cancel", &id]).await?;

    let queues = ["queues", "--json"];
    system
        .api
        .until_queue("it.file", json!({"total_completed": 1}))
        .await?;
    let queues = attune_json(system, 0, &queues).await?;
    let queues = queues["queues"].as_array().context("no queues")?;
    let queue = queues.iter().find(|queue| queue["action_ref"] == "it.file");
    let queue = queue.context("it.file has no queue")?;
    ensure!(
        queue["total_completed"] == 1 && queue["max_concurrent"] == 2,
        "{queue}"
    );
    let (table, _) = attune(system, 0, &["queues"]).await?;
    ensure!(table.contains("it.fails"), "{table}");
    batch(system).await?;
    // Nobody listens there.
    let nowhere = [
        "queues",
        "--url",
        "http://127.0.0.1:9",
        "--connect-timeout",
        "0",
    ];
    attune(system, 3, &nowhere).await?;
    Ok(())
}

/// Every line of a file is an execution, however often the file is sent under one key.
async fn batch(system: &System) -> anyhow::Result<()> {
    let file = system.folder().join("batch.jsonl");
    let lines: String = (0..250)
        .map(|number| {
            let line = json!({"action_ref": "core.noop", "parameters": {"number": number}});
            format!("{line}\n")
        })
        .collect();
    std::fs::write(&file, lines)?;
    let file = file.to_str().context("a path without UTF-8")?;
    for _ in 0..2 {
        attune(
            system,
            0,
            &["submit", "--file", file, "--key", "a batch", "--json"],
        )
        .await?;
    }
    let executions = system.api.until_idle("core.noop").await?;
    ensure!(executions.len() == 250, "{} executions", executions.len());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_client_commands() -> anyhow::Result<()> {
    run(setup(Wiring::Embedded), commands).await
}
