//! Workers killed in the middle of a run: what becomes of the run follows the action's policy.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use attune_testkit::{Gate, Setup, System, Wiring, wait_for};
use serde_json::{Value, json};

use crate::support::{all_are, limited, number, on_both_wirings, run, setup};

on_both_wirings! {
    lost => embedded_lost_worker, cluster_lost_worker;
    deadly => embedded_deadly_action, cluster_deadly_action;
}

/// From the death of a worker until its slot is used again: lease 3 s, grace 1 s and a sweep
/// every second (see `Setup`), with time for a machine that has other things to do.
const REUSED_WITHIN: Duration = Duration::from_secs(10);

/// How long a lease lasts, and the grace after it (see `Setup`).
pub(crate) const LEASE: Duration = Duration::from_secs(3);
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// From the death of a worker until its slot is used again where somebody knows that it is dead: a start, two
/// looks and a moment for what it had said, with time for a machine that has other things to do.
const TOLD_WITHIN: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_worker_that_was_killed_is_told_of() -> anyhow::Result<()> {
    run(with_long_leases(Wiring::Embedded), told).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_worker_that_was_killed_is_told_of() -> anyhow::Result<()> {
    run(with_long_leases(Wiring::Cluster), told).await
}

fn with_long_leases(wiring: Wiring) -> Setup {
    let setup = setup(wiring).set("worker.lease.ttl_seconds", "120");
    setup.set("worker.lease.grace_seconds", "60")
}

/// Nobody waits for the lease of a worker of which nothing is left.
async fn told(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&limited("it.told", &gate.run(), 1)).await?;
    let id = api.submit("it.told", json!({})).await?.id;
    let mut visitor = gate.next().await?;
    for attempt in 2..4 {
        let name = worker_of(system, "it.told").await?;
        let killed = Instant::now();
        system.crash(&name).await?;
        visitor.gone().await?;
        visitor = gate.next().await?;
        let took = killed.elapsed();
        ensure!(took < TOLD_WITHIN, "the slot was reused after {took:?}");
        let seen = (visitor.execution_id, visitor.attempt);
        ensure!(seen == (id, attempt), "{visitor:?}");
    }
    visitor.leave(0).await?;
    api.until(id, "succeeded").await?;
    Ok(())
}

/// The process of the worker that holds the only slot of an action.
pub(crate) async fn worker_of(system: &System, action_ref: &str) -> anyhow::Result<String> {
    if system.wiring() == Wiring::Embedded {
        return Ok("standalone".to_owned());
    }
    wait_for("a worker that holds the slot", async || {
        let path = format!("/api/v1/actions/{action_ref}/holders");
        let list = system.api.get(&path).await?.expect(200)?;
        let name = &list["holders"][0]["worker"]["name"];
        Ok(name.as_str().context("no worker yet")?.to_owned())
    })
    .await
}

/// A retry keeps its place; an action that does not want one ends, and the next takes its slot.
async fn lost(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&limited("it.retry", &gate.run(), 1)).await?;
    let ids = [
        api.submit("it.retry", json!({})).await?.id,
        api.submit("it.retry", json!({})).await?.id,
    ];
    let orphan = gate.next().await?;
    ensure!(orphan.execution_id == ids[0], "{orphan:?}");
    let name = worker_of(system, "it.retry").await?;
    system.kill(&name).await?;
    let killed = Instant::now();
    // Its guard ends it, long before anybody else may run.
    orphan.gone().await?;
    let outlived = killed.elapsed();
    ensure!(outlived < LEASE, "it outlived its worker by {outlived:?}");
    system.start_again(&name).await?;
    let again = gate.next().await?;
    ensure!(again.execution_id == ids[0], "it lost its place: {again:?}");
    let took = killed.elapsed();
    ensure!(
        system.wiring() == Wiring::Embedded || took < REUSED_WITHIN,
        "the slot was reused after {took:?}"
    );
    ensure!(gate.uninvited().is_empty(), "the second one has started");
    again.leave(0).await?;
    let next = gate.next().await?;
    ensure!(next.execution_id == ids[1], "{next:?}");
    next.leave(0).await?;
    let retried = api.until(ids[0], "succeeded").await?;
    ensure!(number(&retried, "attempt")? == 2, "{retried}");
    api.until(ids[1], "succeeded").await?;

    let mut spec = limited("it.once", &gate.run(), 1);
    spec["on_worker_lost"] = json!("fail");
    api.apply(&spec).await?;
    let ids = [
        api.submit("it.once", json!({})).await?.id,
        api.submit("it.once", json!({})).await?.id,
    ];
    let orphan = gate.next().await?;
    let name = worker_of(system, "it.once").await?;
    system.crash(&name).await?;
    orphan.gone().await?;
    let next = gate.next().await?;
    ensure!(next.execution_id == ids[1], "{next:?}");
    let abandoned = api.until(ids[0], "abandoned").await?;
    let words = abandoned["error"].as_str().context("no words")?;
    ensure!(words == "its worker was lost in attempt 1", "{words}");
    next.leave(0).await?;
    api.until(ids[1], "succeeded").await?;
    for metric in [
        "executor_violations_order_total",
        "executor_violations_limit_total",
    ] {
        ensure!(system.metric(metric).await? == 0.0, "{metric}");
    }
    Ok(())
}

/// An action that kills every worker that touches it ends when its attempts are used up; what
/// others asked for is done all the same.
async fn deadly(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    let mark = system.folder().join("mark");
    let script = format!(
        "echo $ATTUNE_ATTEMPT > {path}.new; mv {path}.new {path}; sleep 0.5; kill -9 $PPID",
        path = mark.display()
    );
    let mut spec = limited(
        "it.deadly",
        &json!({"program": ["/bin/bash", "-c", script]}),
        1,
    );
    spec["max_attempts"] = json!(2);
    api.apply(&spec).await?;
    let sleep = json!({"program": ["/bin/sleep", "0.2"]});
    api.apply(&limited("it.patient", &sleep, 1)).await?;
    for _ in 0..6 {
        api.submit("it.patient", json!({})).await?;
    }
    // Last, because it takes the API with it where that is in the same process.
    let deadly = api.submit("it.deadly", json!({})).await?;
    for attempt in ["1", "2"] {
        wait_for("the next attempt", async || {
            let text = std::fs::read_to_string(&mark)?;
            ensure!(text.trim() == attempt, "{text}");
            Ok(())
        })
        .await?;
        // It is dead already, or about to be.
        let name = worker_of(system, "it.deadly").await?;
        system.crash(&name).await?;
        api.until_ready().await?;
    }
    let ended = api.until(deadly.id, "abandoned").await?;
    ensure!(number(&ended, "attempt")? == 2, "{ended}");
    let others: Vec<Value> = api.until_idle("it.patient").await?;
    ensure!(others.len() == 6);
    all_are(&others, "succeeded")
}
