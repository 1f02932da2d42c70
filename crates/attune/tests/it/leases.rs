//! Workers of others: their leases over HTTP, and what they are granted.

use anyhow::ensure;
use attune_testkit::{Gate, System, Wiring, wait_for};
use serde_json::json;
use uuid::Uuid;

use crate::foreign::{Foreign, lease, retire};
use crate::support::{limited, noop, number, on_both_wirings, run, setup};

on_both_wirings! {
    leased => embedded_lease, cluster_lease;
}

const LEASE: &str = "/api/v1/worker/lease";
const POOL: &str = "elsewhere";

/// A lease is renewed as often as its worker likes, until it is given up; and whoever has one and
/// hears nothing keeps nothing.
async fn leased(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    let stranger = Uuid::new_v4();
    let mut asked = lease(stranger, POOL, 4);
    for draining in [false, false, true] {
        asked["draining"] = json!(draining);
        let answer = api.post(LEASE, &asked).await?.expect(200)?;
        ensure!(answer["lease_expires_in_ms"] == 60_000, "{answer}");
    }
    let found = shown(system, stranger).await?;
    ensure!(
        found["pool"] == POOL && found["alive"] == true,
        "not as it said: {found}"
    );
    retire(system, stranger).await?;
    // Given up, said again, and too late.
    retire(system, stranger).await?;
    let over = api.post(LEASE, &asked).await?;
    over.refused(409, "LEASE_EXPIRED")?;

    let gone = api.post("/api/v1/worker/claims", &asked).await?;
    ensure!(gone.status == 404, "{gone:?}");

    // It is registered beside our own workers and nobody tells it anything.
    const REF: &str = "it.leased";
    let deaf = lease(Uuid::new_v4(), "default", 100);
    api.post(LEASE, &deaf).await?.expect(200)?;
    api.apply(&limited(REF, &noop(), 2)).await?;
    let parameters = std::iter::repeat_n(json!({}), 20);
    let accepted = api.submit_batch(REF, parameters).await?;
    let ended = api.until_idle(REF).await?;
    ensure!(ended.len() == accepted.len(), "{ended:?}");
    for execution in &ended {
        let by = &execution["worker"];
        ensure!(
            execution["status"] == "succeeded" && *by != deaf["worker"],
            "{execution}"
        );
    }
    Ok(())
}

/// How the cluster shows a worker.
async fn shown(system: &System, worker: Uuid) -> anyhow::Result<serde_json::Value> {
    let cluster = system.api.get("/api/v1/cluster").await?.expect(200)?;
    let workers = cluster["workers"].as_array().into_iter().flatten();
    let mut found = workers.filter(|found| found["id"] == json!(worker));
    Ok(found.next().cloned().unwrap_or_default())
}

/// It is granted what its pool has, as many as it has slots; what it says of that counts, what it
/// says of others' does not; and what it had when it ended is granted to the next one.
async fn granted(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.elsewhere";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&limited("it.held", &gate.run(), 1)).await?;
    let held = api.submit("it.held", json!({})).await?.id;
    let inside = gate.next().await?;

    let mut spec = limited(REF, &noop(), 4);
    spec["pool"] = json!(POOL);
    api.apply(&spec).await?;
    // Nobody serves the pool: it waits, and holds no slot.
    let first = api.submit(REF, json!({"n": 1})).await?;
    ensure!(first.status == "queued", "{first:?}");
    let second = api.submit(REF, json!({"n": 2})).await?.id;
    let first = first.id;
    let mut stranger = Foreign::join(system, POOL, 1).await?;
    let section = stranger.hears("grants").await?;
    let grant = section["grants"][0].clone();
    ensure!(
        grant["execution_id"] == first && grant["attempt"] == 1,
        "{grant}"
    );
    ensure!(grant["parameters"] == json!({"n": 1}), "{grant}");
    let record = api.execution(first).await?;
    let worker = json!(stranger.worker);
    ensure!(
        record["status"] == "requested" && record["worker"] == worker,
        "{record}"
    );
    // It has one slot.
    let waits = api.execution(second).await?;
    ensure!(waits["status"] == "queued", "{waits}");

    // What others hold is not its own to begin, to give back or to end.
    let key = json!({"execution_id": held, "attempt": 1});
    let mut stolen = key.clone();
    stolen["age_ms"] = json!(1);
    let mut returned = key.clone();
    returned["why"] = json!("it wants to");
    let mine = json!({"execution_id": first, "attempt": 1, "age_ms": 100});
    stranger
        .reports(
            &section,
            json!({"returned": [returned], "started": [stolen, mine]}),
        )
        .await?;
    let mut end = key.clone();
    end["action_id"] = json!(1);
    stranger.ends(&end).await?;
    let record = api.until(first, "running").await?;
    ensure!(!record["started_at"].is_null(), "{record}");
    stranger.ends(&grant).await?;
    let settled = stranger.hears("settled").await?;
    ensure!(settled["worker"] == worker, "{settled}");
    let record = api.until(first, "succeeded").await?;
    ensure!(record["worker"] == worker, "{record}");
    let record = api.execution(held).await?;
    ensure!(
        record["worker"] != worker && number(&record, "attempt")? == 1,
        "{record}"
    );
    inside.leave(0).await?;
    api.until(held, "succeeded").await?;
    ensure!(gate.uninvited().is_empty(), "something ran twice");

    // The next one comes as soon as there is room, and again when its worker has ended.
    let section = stranger.hears("grants").await?;
    ensure!(section["grants"][0]["execution_id"] == second, "{section}");
    stranger.renews(1).await?;
    let record = wait_for("its place in the queue", async || {
        let record = api.execution(second).await?;
        ensure!(record["status"] == "queued", "{record}");
        Ok(record)
    })
    .await?;
    ensure!(record["worker"].is_null(), "{record}");
    let over = stranger.renews(60).await;
    let words = format!("{:#}", over.expect_err("its lease is over"));
    ensure!(words.contains("LEASE_EXPIRED"), "{words}");
    let mut another = Foreign::join(system, POOL, 3).await?;
    let section = another.hears("grants").await?;
    let grant = section["grants"][0].clone();
    ensure!(
        grant["execution_id"] == second && grant["attempt"] == 2,
        "{section}"
    );
    // What is never begun is granted again, under another number.
    let mut back = json!({"why": "not today"});
    for name in ["execution_id", "attempt"] {
        back[name] = grant[name].clone();
    }
    another
        .reports(&section, json!({"returned": [back]}))
        .await?;
    let section = another.hears("grants").await?;
    let grant = section["grants"][0].clone();
    ensure!(
        grant["execution_id"] == second && grant["attempt"] == 3,
        "{section}"
    );
    another.ends(&grant).await?;
    let record = api.until(second, "succeeded").await?;
    ensure!(record["started_at"].is_null(), "{record}");
    another.retires().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_foreign_worker() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster), granted).await
}
