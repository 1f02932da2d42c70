//! A life that speaks HTTP alone, played by hand, and asks now one server and now another.

use std::cell::Cell;

use anyhow::{Context as _, ensure};
use attune_testkit::{Api, System, Wiring, wait_for};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::foreign::lease;
use crate::support::{limited, noop, run, setup};

/// What a server answers to a call that renews this lease and says something more.
pub(crate) async fn exchange(server: &Api, mut body: Value, more: Value) -> anyhow::Result<Value> {
    for (name, value) in more.as_object().context("an object")? {
        body[name] = value.clone();
    }
    let answer = server.post("/api/v1/worker/exchange", &body).await?;
    answer.expect(200)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_a_worker_may_ask_any_server() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster).workers(0), asks_in_turns).await
}

/// What it was granted comes once, by whichever server, and an end that it tells one server is
/// settled by another.
async fn asks_in_turns(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.asked";
    system
        .start_with("api-2", &[("api.listen", "127.0.0.1:0")])
        .await?;
    let address = wait_for("the address of the other server", async || {
        let address = system.announced("api-2", "Attune listens on ").await;
        address.context("it is not told")
    })
    .await?;
    let servers = [Api::new(system.api.base())?, Api::new(address)?];
    let (worker, turn) = (Uuid::new_v4(), Cell::new(0));
    let says = async |more: Value| {
        turn.set(turn.get() + 1);
        let server = &servers[turn.get() % 2];
        exchange(server, lease(worker, "default", 1), more).await
    };
    let links = [
        says(json!({"wait_ms": 0})).await?["link"].clone(),
        says(json!({"wait_ms": 0})).await?["link"].clone(),
    ];
    ensure!(links[0] != links[1], "{links:?}");
    // The first section with something under a name, and all copies of it that came before.
    let hears = async |part: &str| {
        wait_for(part, async || {
            let answer = says(json!({"wait_ms": 500})).await?;
            ensure!(links.contains(&answer["link"]), "another link: {answer}");
            let sections = answer["sections"].as_array().context("no sections")?;
            let has = |section: &&Value| section[part].as_array().is_some_and(|it| !it.is_empty());
            sections.iter().find(has).cloned().context("not yet")
        })
        .await
    };
    system.api.apply(&limited(REF, &noop(), 1)).await?;
    let id = system.api.submit(REF, json!({})).await?.id;
    let section = hears("grants").await?;
    let grant = &section["grants"][0];
    ensure!(
        grant["execution_id"] == id && grant["attempt"] == 1,
        "{section}"
    );
    // The other server has the same section, under the same number.
    let copy = hears("grants").await?;
    ensure!(copy == section, "{copy} is not {section}");
    let end = json!({
        "execution_id": id, "attempt": 1, "action_id": grant["action_id"], "status": "succeeded",
    });
    says(json!({"completions": [end]})).await?;
    system.api.until(id, "succeeded").await?;
    let settled = hears("settled").await?;
    ensure!(settled["settled"][0]["execution_id"] == id, "{settled}");
    crate::foreign::retire(system, worker).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_a_life_that_changes_its_pool() -> anyhow::Result<()> {
    run(setup(Wiring::Embedded), changes_its_pool).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_a_life_that_changes_its_pool() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster), changes_its_pool).await
}

/// It is granted what waits for its new pool, and what waits for the old one goes to those who serve that, also
/// when it is over.
async fn changes_its_pool(system: &System) -> anyhow::Result<()> {
    const SLOTS: u32 = 100_000;
    let worker = Uuid::new_v4();
    let says = async |pool: &str, more: Value| {
        exchange(&system.api, lease(worker, pool, SLOTS), more).await
    };
    let hears = async |pool: &str, part: &str| {
        wait_for(part, async || {
            let answer = says(pool, json!({"wait_ms": 500})).await?;
            let sections = answer["sections"].as_array().context("no sections")?;
            let has = |section: &&Value| !section[part].is_null();
            sections.iter().find(has).cloned().context("not yet")
        })
        .await
    };
    // Whoever comes beside others is asked first: so an owner knows it now.
    hears("default", "sync").await?;
    let mut elsewhere = limited("it.elsewhere", &noop(), 1);
    elsewhere["pool"] = json!("elsewhere");
    system.api.apply(&elsewhere).await?;
    let id = system.api.submit("it.elsewhere", json!({})).await?.id;
    let section = hears("elsewhere", "grants").await?;
    let grant = &section["grants"][0];
    ensure!(grant["execution_id"] == id, "{section}");
    let end = json!({
        "execution_id": id, "attempt": grant["attempt"], "action_id": grant["action_id"],
        "status": "succeeded",
    });
    says("elsewhere", json!({"completions": [end]})).await?;
    system.api.until(id, "succeeded").await?;
    crate::foreign::retire(system, worker).await?;
    system.api.apply(&limited("it.usual", &noop(), 5)).await?;
    for _ in 0..5 {
        let id = system.api.submit("it.usual", json!({})).await?.id;
        system.api.until(id, "succeeded").await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_what_never_began_where_a_worker_stopped() -> anyhow::Result<()> {
    run(setup(Wiring::Embedded), retires_with_grants).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_what_never_began_where_a_worker_stopped() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster), retires_with_grants).await
}

/// It goes while it holds two grants, and says that one of them has begun: only that one has had its only try.
async fn retires_with_grants(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.tried_once";
    let mut spec = limited(REF, &noop(), 2);
    spec["pool"] = json!("elsewhere");
    spec["policy"]["retry"] = json!({"max_attempts": 1});
    system.api.apply(&spec).await?;
    let begins = system.api.submit(REF, json!({})).await?.id;
    let waits = system.api.submit(REF, json!({})).await?.id;
    let worker = Uuid::new_v4();
    let mut granted = Vec::new();
    wait_for("two grants", async || {
        let more = json!({"wait_ms": 500});
        let answer = exchange(&system.api, lease(worker, "elsewhere", 2), more).await?;
        let sections = answer["sections"].as_array().context("no sections")?;
        let grants = sections
            .iter()
            .filter_map(|section| section["grants"].as_array());
        granted.extend(grants.flatten().map(|grant| grant["execution_id"].clone()));
        ensure!(granted == [begins, waits], "{granted:?}");
        Ok(())
    })
    .await?;
    let begun = json!([{"execution_id": begins, "attempt": 1}]);
    let body = json!({"worker": worker, "begun": begun});
    let answer = system.api.post("/api/v1/worker/retire", &body).await?;
    ensure!(answer.status == 204, "{answer:?}");
    system.api.until(begins, "abandoned").await?;
    let next = Uuid::new_v4();
    let grant = wait_for("its next grant", async || {
        let more = json!({"wait_ms": 500});
        let answer = exchange(&system.api, lease(next, "elsewhere", 2), more).await?;
        let sections = answer["sections"].as_array().context("no sections")?;
        let mut grants = sections
            .iter()
            .filter_map(|section| section["grants"][0].as_object());
        grants.next().cloned().context("not yet")
    })
    .await?;
    ensure!(
        grant["execution_id"] == waits && grant["attempt"] == 2,
        "{grant:?}"
    );
    let end = json!({
        "execution_id": waits, "attempt": 2, "action_id": grant["action_id"], "status": "succeeded",
    });
    let more = json!({"completions": [end]});
    exchange(&system.api, lease(next, "elsewhere", 2), more).await?;
    system.api.until(waits, "succeeded").await?;
    crate::foreign::retire(system, next).await
}
