//! Backup and restore as docs/OPERATIONS.md says: a copy that is made while everything runs, more work, an end, the
//! copy in the place of what was there, the fence, a start.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use attune_history::judge_action;
use attune_testkit::{System, Wiring, wait_for};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::guards::until_no_orphans;
use crate::oracle::Recording;
use crate::support::{all_are, ids, limited, on_both_wirings};

on_both_wirings! {
    drill => embedded_backup_and_restore, cluster_backup_and_restore;
}

const REF: &str = "it.drilled";
const LIMIT: u32 = 2;
/// So much is submitted before the backup, and after it.
const PORTION: usize = 40;

async fn drill(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    let run = Recording::of(system, REF).run(system);
    api.apply(&limited(REF, &run, LIMIT)).await?;
    let before = submit(system, "before").await?;
    until_ended(system, 5).await?;
    let copy = back_up(system).await?;
    let held = ids(&api.executions(REF).await?)?;
    let after = submit(system, "after").await?;
    let ended = ended(system).await?;
    // Some of what the copy has as waiting has run by the end, and so has its report.
    until_ended(system, ended + 10).await?;
    for name in &system.names().await {
        system.kill(name).await?;
    }
    until_no_orphans(system).await?;
    // What ran since the backup is to run again, and is no concern of what is judged below.
    let records = system.folder().join(format!("{REF}.records"));
    std::fs::rename(&records, records.with_extension("before"))?;

    restore(system, &copy).await?;
    let (code, stdout, stderr) = restore_fence(system).await?;
    ensure!(
        code == 0 && stdout.contains("is fenced off"),
        "{code}: {stdout}{stderr}"
    );
    for name in names(system.wiring()) {
        system.start_again(name).await?;
    }
    api.until_ready().await?;

    // What was accepted after the backup is gone, and what a client repeats under its id is accepted anew.
    let again = submit(system, "after").await?;
    let repeated = submit(system, "before").await?;
    ensure!(
        repeated == before,
        "what the copy has is not accepted a second time"
    );
    let (given, again): (BTreeSet<_>, BTreeSet<_>) =
        (held.iter().chain(&after).collect(), again.iter().collect());
    ensure!(given.is_disjoint(&again), "ids were given out twice");
    let jump =
        epoch(**again.first().context("nothing")?) - epoch(*before.first().context("nothing")?);
    ensure!(jump >= 1024, "{jump} epochs");
    // All of the backup ends, and nothing that came after it is there.
    let executions = api.until_idle(REF).await?;
    all_are(&executions, "succeeded")?;
    let there: BTreeSet<i64> = ids(&executions)?.into_iter().collect();
    let expected: BTreeSet<i64> = before
        .iter()
        .chain(again.iter().copied())
        .copied()
        .collect();
    ensure!(there == expected, "{there:?} instead of {expected:?}");
    for id in after.iter().filter(|id| !there.contains(id)) {
        api.get(&format!("/api/v1/executions/{id}"))
            .await?
            .expect(404)?;
    }
    runs_keep_to_the_limit(system, &there)?;
    the_log_is_whole(system).await
}

/// Programs that ran since the restore: of what is there alone, each attempt once, and never more than may.
fn runs_keep_to_the_limit(system: &System, there: &BTreeSet<i64>) -> anyhow::Result<()> {
    let runs = Recording::of(system, REF).intervals()?;
    let ran: BTreeSet<i64> = runs.iter().map(|run| run.execution_id.0).collect();
    ensure!(!ran.is_empty() && ran.is_subset(there), "{ran:?}");
    let verdict = judge_action(&runs, Some(LIMIT));
    let most = verdict.max_concurrent_observed;
    ensure!(verdict.limit_violations == 0, "{most} at once");
    Ok(())
}

/// The audit log goes on where the backup had ended, and says who has fenced.
async fn the_log_is_whole(system: &System) -> anyhow::Result<()> {
    let (code, said, problems) = system.client(&["audit", "verify"]).await?;
    ensure!(code == 0, "{code}: {said}{problems}");
    let log = system
        .api
        .get("/api/v1/audit-log?limit=100")
        .await?
        .expect(200)?;
    let entries = log["entries"].as_array().context("no entries")?;
    let fence = entries
        .iter()
        .find(|entry| entry["what"] == "cluster.restore_fence");
    let fence = fence.context("no entry of the fence")?;
    ensure!(
        fence["via"] == "cli" && fence["actor_kind"] == "local",
        "{fence}"
    );
    for what in ["config.start", "partition.takeover"] {
        ensure!(
            entries.iter().any(|entry| entry["what"] == what),
            "no {what}: {log}"
        );
    }
    Ok(())
}

/// A portion under ids of its own: what comes again under the same ids is the same.
async fn submit(system: &System, name: &str) -> anyhow::Result<Vec<i64>> {
    let body: Vec<Value> = (0..PORTION)
        .map(|number| json!({"action_ref": REF, "parameters": {"work_ms": 50 + number * 5 % 100}}))
        .collect();
    let body = serde_json::to_vec(&body)?;
    wait_for("acceptance", async || {
        let headers = [("Idempotency-Key", name)];
        let answer = system
            .api
            .send(Method::POST, "/api/v1/executions", &headers, body.clone())
            .await?
            .expect(200)?;
        ids(answer.as_array().context("no list")?)
    })
    .await
}

async fn ended(system: &System) -> anyhow::Result<usize> {
    let executions = system.api.executions(REF).await?;
    Ok(executions
        .iter()
        .filter(|it| it["status"] == "succeeded")
        .count())
}

async fn until_ended(system: &System, least: usize) -> anyhow::Result<()> {
    wait_for("ends", async || {
        let ended = ended(system).await?;
        ensure!(ended >= least, "{ended} of {least} have ended");
        Ok(())
    })
    .await
}

/// The part of an execution's id that its owner's epoch decides.
fn epoch(id: i64) -> i64 {
    id >> 40
}

/// The processes, in any order.
fn names(wiring: Wiring) -> &'static [&'static str] {
    match wiring {
        Wiring::Embedded => &["standalone"],
        Wiring::Cluster => &[
            "executor",
            "completion-listener",
            "stats",
            "api",
            "worker-1",
            "worker-2",
        ],
    }
}

/// A copy while everything runs.
async fn back_up(system: &System) -> anyhow::Result<PathBuf> {
    let file = system.folder().join("backup");
    match system.wiring() {
        Wiring::Embedded => {
            let (code, stdout, stderr) =
                system.command(&["backup", &file.to_string_lossy()]).await?;
            ensure!(
                code == 0 && stdout.contains("is copied to"),
                "{code}: {stdout}{stderr}"
            );
            let mode = std::fs::metadata(&file)?.permissions().mode();
            ensure!(mode & 0o777 == 0o600, "{mode:o}");
        }
        Wiring::Cluster => {
            let url = system.database()?.url();
            tool(
                "pg_dump",
                &["-Fc", "-d", url, "-f", &file.to_string_lossy()],
            )
            .await?;
        }
    }
    Ok(file)
}

/// The copy in the place of what was there.
async fn restore(system: &System, copy: &Path) -> anyhow::Result<()> {
    match system.wiring() {
        Wiring::Embedded => {
            let file = system.folder().join("data/attune.db");
            for log in ["data/attune.db-wal", "data/attune.db-shm"] {
                std::fs::remove_file(system.folder().join(log)).ok();
            }
            std::fs::copy(copy, file)?;
        }
        Wiring::Cluster => {
            let url = system.database()?.url();
            let copy = copy.to_string_lossy();
            tool("pg_restore", &["--clean", "--if-exists", "-d", url, &copy]).await?;
        }
    }
    Ok(())
}

async fn restore_fence(system: &System) -> anyhow::Result<(i32, String, String)> {
    match system.wiring() {
        Wiring::Embedded => {
            system
                .command(&["--set", "wiring=embedded", "restore-fence"])
                .await
        }
        Wiring::Cluster => system.command(&["restore-fence"]).await,
    }
}

/// A tool of PostgreSQL.
async fn tool(name: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(name)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .await
        .with_context(|| format!("{name} cannot be started"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{name} ended with {}: {said}",
        output.status
    );
    Ok(())
}
