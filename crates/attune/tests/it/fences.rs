//! `attune restore-fence`: refused while somebody is there, and no harm when nobody is.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use attune_store::Store as _;
use attune_store_sqlite::{SqliteOptions, SqliteStore};
use attune_testkit::{Gate, System, Wiring};
use serde_json::json;
use tokio::process::Command;

use crate::support::{limited, number, on_both_wirings};

on_both_wirings! {
    fenced => embedded_restore_fence, cluster_restore_fence;
}

/// Fences off everybody who may have been there; the exit code and what it said.
async fn fence(system: &System) -> anyhow::Result<(i32, String)> {
    let mut args = vec!["restore-fence", "--who", "ann"];
    if system.wiring() == Wiring::Embedded {
        args.splice(0..0, ["--set", "wiring=embedded"]);
    }
    let (code, stdout, stderr) = system.command(&args).await?;
    Ok((code, stdout + &stderr))
}

/// The part of an execution's id that its owner's epoch decides.
fn epoch(id: i64) -> i64 {
    id >> 40
}

async fn fenced(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.fenced";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&limited(REF, &gate.run(), 1)).await?;
    let before = api.submit(REF, json!({})).await?.id;
    let running = gate.next().await?;

    let (code, said) = fence(system).await?;
    let why = match system.wiring() {
        Wiring::Embedded => "is in use by another Attune process",
        Wiring::Cluster => "is running: stop every daemon first",
    };
    ensure!(code == 1 && said.contains(why), "{code}: {said}");
    ensure!(!said.contains("is fenced off"), "{said}");
    // Nothing was done to what runs, nor written down.
    running.leave(0).await?;
    let ended = api.until(before, "succeeded").await?;
    ensure!(number(&ended, "attempt")? == 1, "{ended}");
    let log = api.get("/api/v1/audit-log").await?.expect(200)?;
    ensure!(!log.to_string().contains("restore_fence"), "{log}");

    let names = system.names().await;
    for name in &names {
        system.halt(name).await?;
    }
    let (code, said) = fence(system).await?;
    ensure!(
        code == 0 && said.contains("what was before is fenced off in "),
        "{code}: {said}"
    );
    let place = match system.wiring() {
        Wiring::Embedded => "/attune.db; ",
        Wiring::Cluster => "in postgres://",
    };
    ensure!(said.contains(place), "{said}");
    for name in &names {
        system.start_again(name).await?;
    }
    api.until_ready().await?;
    let after = attune_testkit::wait_for("acceptance", async || {
        let submitted = api.try_submit(&json!({"action_ref": REF})).await?;
        number(&submitted.expect(201)?, "id")
    })
    .await?;
    // Ids of before cannot come again.
    let jump = epoch(after) - epoch(before);
    ensure!(jump >= 1024, "{before} and {after}: {jump} epochs");
    gate.next().await?.leave(0).await?;
    api.until(after, "succeeded").await?;
    let log = api.get("/api/v1/audit-log").await?.expect(200)?;
    let entries = log["entries"].as_array().context("no entries")?;
    let fences: Vec<_> = entries
        .iter()
        .filter(|entry| entry["what"] == "cluster.restore_fence")
        .collect();
    ensure!(fences.len() == 1 && fences[0]["who"] == "ann", "{log}");
    Ok(())
}

/// `attune restore-fence` on what a folder has; the exit code and what it said.
async fn fence_in(folder: &Path) -> anyhow::Result<(i32, String)> {
    let data = format!("data_dir={}", folder.display());
    let output = Command::new(env!("CARGO_BIN_EXE_attune"))
        .args(["--set", "wiring=embedded", "--set", &data, "restore-fence"])
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .await?;
    let said = [output.stdout, output.stderr].concat();
    let code = output.status.code().context("it was killed")?;
    Ok((code, String::from_utf8(said)?))
}

#[tokio::test]
async fn a_restore_fence_makes_no_database() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let (data, file) = (folder.path().join("data"), folder.path().join("attune.db"));
    let (code, said) = fence_in(&data).await?;
    let missing = format!("there is no database at {}/attune.db", data.display());
    ensure!(code == 1 && said.contains(&missing), "{code}: {said}");
    ensure!(said.contains("with `--set data_dir=FOLDER`"), "{said}");
    ensure!(!data.exists(), "it made a folder");

    // What is empty was not restored either.
    std::fs::write(&file, "")?;
    let (code, said) = fence_in(folder.path()).await?;
    ensure!(
        code == 1 && said.contains("there is no database at"),
        "{code}: {said}"
    );
    ensure!(std::fs::metadata(&file)?.len() == 0, "it wrote to the file");

    // A database without the schema: the command that mends it is for the same one.
    std::fs::remove_file(&file)?;
    let store = SqliteStore::open(SqliteOptions::new(&file)).await?;
    store.close().await;
    let (code, said) = fence_in(folder.path()).await?;
    let hint = format!(
        "run `attune --set wiring=embedded --set data_dir={} migrate` first",
        folder.path().display()
    );
    ensure!(code == 1 && said.contains(&hint), "{code}: {said}");
    Ok(())
}
