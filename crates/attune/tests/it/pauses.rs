//! Queues that operators pause, drain and resume.

use anyhow::{Context as _, ensure};
use attune_core::PartitionId;
use attune_testkit::{Gate, System, Wiring, wait_for};
use serde_json::{Value, json};

use crate::histories::promises_are_kept;
use crate::support::{all_are, granted_in_order, ids, limited, noop, on_both_wirings};

on_both_wirings! {
    paused => embedded_paused, cluster_paused;
    drained => embedded_drained, cluster_drained;
}

async fn attune(system: &System, code: i32, args: &[&str]) -> anyhow::Result<(String, String)> {
    let (found, stdout, stderr) = system.client(args).await?;
    ensure!(
        found == code,
        "{args:?} ended with {found}: {stdout}{stderr}"
    );
    Ok((stdout, stderr))
}

/// Asks for it until it is in force: an executor may just be starting.
async fn queues(system: &System, args: &[&str]) -> anyhow::Result<Value> {
    let args: Vec<&str> = ["queues"].iter().chain(args).copied().collect();
    wait_for("a change that is in force", async || {
        let (text, _) = attune(system, 0, &[&args[..], &["--json"]].concat()).await?;
        let applied: Value = serde_json::from_str(&text)?;
        ensure!(applied["applied"] == "now", "{applied}");
        Ok(applied)
    })
    .await
}

/// An action of the same partition as another, in another pack.
fn neighbour(of: &str, partitions: u16) -> anyhow::Result<String> {
    let home = PartitionId::of(of, partitions);
    let mut names = (0..1000).map(|number| format!("other.n{number}"));
    let found = names.find(|name| PartitionId::of(name, partitions) == home);
    found.context("no neighbour")
}

/// What is paused accepts and starts nothing, also under an owner that takes over; what is resumed
/// goes on in order, and nothing of it is against the promises.
async fn paused(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.paused";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&limited(REF, &gate.run(), 1)).await?;
    let neighbour = neighbour(REF, 4)?;
    api.apply(&limited(&neighbour, &noop(), 1)).await?;
    let first = api.submit(REF, json!({})).await?;
    let running = gate.next().await?;
    let because = ["--reason", "its database moves", "--who", "ann"];
    queues(system, &[&["pause", REF][..], &because].concat()).await?;
    let waiting = [
        api.submit(REF, json!({})).await?,
        api.submit(REF, json!({})).await?,
    ];
    // Who runs goes on.
    running.leave(0).await?;
    api.until(first.id, "succeeded").await?;
    let (text, _) = attune(system, 0, &["queues", REF]).await?;
    ensure!(text.contains("paused by ann"), "{text}");
    ensure!(text.contains("its database moves"), "{text}");
    let queue = api.queue(REF).await?;
    ensure!(queue["pauses"][0]["mode"] == "pause", "{queue}");
    ensure!(queue["health"]["state"] == "healthy", "{queue}");

    system.crash(owner_of(system)).await?;
    api.until_ready().await?;
    // Its partition is served again: what stands beside it runs.
    let beside = api.submit(&neighbour, json!({})).await?;
    api.until(beside.id, "succeeded").await?;
    api.until_queue(REF, json!({"queue_length": 2, "active_count": 0}))
        .await?;
    ensure!(gate.uninvited().is_empty(), "something has started");
    // It is held twice by now, and goes on when nothing holds it.
    queues(system, &["pause", "--all"]).await?;
    let resumed = queues(system, &["resume", REF]).await?;
    ensure!(resumed["also_held_by"][0]["scope"] == "all", "{resumed}");
    let last = api.submit(&neighbour, json!({})).await?;
    ensure!(last.status == "queued", "{last:?}");
    ensure!(gate.uninvited().is_empty(), "something has started");
    queues(system, &["resume", "--all"]).await?;
    api.until(last.id, "succeeded").await?;
    for expected in &waiting {
        let visitor = gate.next().await?;
        ensure!(visitor.execution_id == expected.id, "{visitor:?}");
        visitor.leave(0).await?;
    }
    let mut executions = api.until_idle(REF).await?;
    all_are(&executions, "succeeded")?;
    granted_in_order(&executions)?;
    let expected = [first.id, waiting[0].id, waiting[1].id];
    ensure!(ids(&executions)? == expected, "{executions:?}");
    executions.extend(api.until_idle(&neighbour).await?);
    promises_are_kept(system, &executions).await?;
    Ok(())
}

fn owner_of(system: &System) -> &'static str {
    match system.wiring() {
        Wiring::Embedded => "standalone",
        Wiring::Cluster => "executor",
    }
}

/// What is drained refuses what comes, keeps what waits, and says when nothing runs; each change is
/// written down.
async fn drained(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.drained";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&limited(REF, &gate.run(), 1)).await?;
    let first = api.submit(REF, json!({})).await?;
    let second = api.submit(REF, json!({})).await?;
    let running = gate.next().await?;
    let applied = queues(system, &["drain", "--pack", "it", "--reason", "an upgrade"]).await?;
    ensure!(applied["now"]["mode"] == "drain", "{applied}");
    let body = json!({"action_ref": REF});
    let answer = api.try_submit(&body).await?;
    let error = answer.refused(503, "QUEUE_DRAINING")?;
    ensure!(error["retry_after_seconds"].as_u64() > Some(0), "{error}");
    let (_, problem) = attune(system, 2, &["submit", REF]).await?;
    ensure!(problem.contains("QUEUE_DRAINING"), "{problem}");
    let (text, _) = attune(system, 0, &["queues", REF]).await?;
    ensure!(text.contains("draining by"), "{text}");
    running.leave(0).await?;
    api.until(first.id, "succeeded").await?;
    api.until_queue(REF, json!({"queue_length": 1, "active_count": 0}))
        .await?;
    let (text, _) = attune(system, 0, &["queues", REF]).await?;
    ensure!(text.contains("drained by"), "{text}");
    ensure!(gate.uninvited().is_empty(), "something has started");
    // Other packs go on.
    let other = api.submit("core.noop", json!({})).await?;
    api.until(other.id, "succeeded").await?;

    queues(system, &["resume", "--pack", "it", "--who", "bob"]).await?;
    let visitor = gate.next().await?;
    ensure!(visitor.execution_id == second.id, "{visitor:?}");
    visitor.leave(0).await?;
    api.until(second.id, "succeeded").await?;
    let log = api.get("/api/v1/audit-log?limit=2").await?.expect(200)?;
    let [resume, drain] = [&log["entries"][0], &log["entries"][1]];
    ensure!(
        resume["what"] == "queues.resume" && resume["who"] == "bob",
        "{log}"
    );
    ensure!(
        drain["what"] == "queues.drain" && drain["target"] == "pack it",
        "{log}"
    );
    let (text, _) = attune(system, 0, &["queues", "pauses"]).await?;
    ensure!(text.contains("nothing is held"), "{text}");
    // What there is not cannot be held.
    for wrong in [["pause", "it.nothing"], ["pause", "--pack=nothing"]] {
        let args = [&["queues"][..], &wrong].concat();
        let (_, problem) = attune(system, 2, &args).await?;
        ensure!(problem.contains("there is no"), "{problem}");
    }
    Ok(())
}
