//! A standalone that was killed is the only one that may have its file, and need not wait for the
//! leases that it had itself.

use std::time::{Duration, Instant};

use anyhow::ensure;
use attune_testkit::{Gate, System, Wiring};
use serde_json::json;

use crate::support::{all_are, limited, noop, number, run, setup};

/// From readiness until what is new has run. The lease of an owner lasts for 15 s.
const AT_ONCE: Duration = Duration::from_secs(5);
/// The lease of a worker lasts for 60 s. What is waited for is the grace after its end, in which
/// what it ran must be killed.
const GRACE: Duration = Duration::from_secs(5);

/// Killed while one execution runs and one waits behind it: its successor takes all partitions at
/// once, runs what is new, and what was cut off again.
async fn killed(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&limited("it.cut", &gate.run(), 1)).await?;
    // One in every partition.
    let others: Vec<String> = (0..16).map(|number| format!("it.new{number}")).collect();
    for other in &others {
        api.apply(&limited(other, &noop(), 1)).await?;
    }
    let first = api.submit("it.cut", json!({})).await?;
    let second = api.submit("it.cut", json!({})).await?;
    let orphan = gate.next().await?;
    ensure!(orphan.execution_id == first.id, "{orphan:?}");
    system.kill("standalone").await?;
    orphan.gone().await?;
    let started = Instant::now();
    system.start_again("standalone").await?;
    let ready = Instant::now();
    for other in &others {
        let submitted = api.submit(other, json!({})).await?;
        api.until(submitted.id, "succeeded").await?;
    }
    let new = ready.elapsed();
    let again = gate.next().await?;
    let cut = ready.elapsed();
    println!(
        "ready after {:?}; from then on {new:?} until new executions had run in every partition, \
         {cut:?} until the one that was cut off began again",
        ready - started
    );
    ensure!(new < AT_ONCE, "new executions took {new:?}");
    ensure!(cut < GRACE + AT_ONCE, "the slot came back after {cut:?}");
    ensure!(
        (again.execution_id, again.attempt) == (first.id, 2),
        "it lost its place: {again:?}"
    );
    again.leave(0).await?;
    gate.next().await?.leave(0).await?;
    let executions = api.until_idle("it.cut").await?;
    all_are(&executions, "succeeded")?;
    ensure!(number(&executions[1], "id")? == second.id, "{executions:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_takeover_at_once() -> anyhow::Result<()> {
    // As long as they are for everybody.
    let usual = setup(Wiring::Embedded)
        .set("executor.lease.ttl_seconds", "")
        .set("worker.lease.ttl_seconds", "")
        .set("worker.lease.grace_seconds", "");
    run(usual, killed).await
}
