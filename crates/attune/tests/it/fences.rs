//! `attune restore-fence`: refused while somebody is there, and no harm when nobody is.

use anyhow::{Context as _, ensure};
use attune_testkit::{Gate, System, Wiring};
use serde_json::json;

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
        code == 0 && said.contains("what was before is fenced off"),
        "{code}: {said}"
    );
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
