//! What operators look at and do: holders, the cluster, taking a slot back by force.

use anyhow::{Context as _, ensure};
use attune_testkit::{Gate, System, Wiring, wait_for};
use serde_json::{Value, json};

use crate::support::{limited, number, on_both_wirings};

on_both_wirings! {
    released => embedded_force_release, cluster_force_release;
    watched => embedded_cluster_view, cluster_cluster_view;
}

async fn attune(system: &System, code: i32, args: &[&str]) -> anyhow::Result<String> {
    let (found, stdout, stderr) = system.client(args).await?;
    ensure!(
        found == code,
        "{args:?} ended with {found}: {stdout}{stderr}"
    );
    Ok(stdout)
}

async fn attune_json(system: &System, args: &[&str]) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&attune(system, 0, args).await?)?)
}

/// A slot that is taken back is used by the same execution again, once; what ran is ended; it is
/// written down who did it and why.
async fn released(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.stuck";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&limited(REF, &gate.run(), 1)).await?;
    let first = api.submit(REF, json!({})).await?;
    let second = api.submit(REF, json!({})).await?;
    let inside = gate.next().await?;
    let holders = ["queues", "holders", REF, "--json"];
    let list = wait_for("the holder", async || {
        let list = attune_json(system, &holders).await?;
        ensure!(list["holders"][0]["status"] == "running", "{list}");
        Ok(list)
    })
    .await?;
    ensure!(
        list["limit"] == 1 && list["holders"].as_array().map(Vec::len) == Some(1),
        "{list}"
    );
    let holder = &list["holders"][0];
    ensure!(
        holder["execution_id"] == first.id && holder["attempt"] == 1,
        "{holder}"
    );
    ensure!(
        number(&holder["worker"], "lease_remaining_ms")? > 0,
        "{holder}"
    );
    ensure!(number(&holder["worker"], "seen_ago_ms")? < 3000, "{holder}");
    let table = attune(system, 0, &["queues", "holders", REF]).await?;
    ensure!(table.contains("1 of 1 slots are held"), "{table}");

    let id = first.id.to_string();
    let release = [
        "executions",
        "release",
        &id,
        "--reason",
        "it hangs",
        "--who",
        "ann",
    ];
    let words = attune(system, 0, &release).await?;
    ensure!(words.contains("waits at its old place"), "{words}");
    inside.gone().await?;
    let again = gate.next().await?;
    ensure!(
        again.execution_id == first.id,
        "it lost its place: {again:?}"
    );
    // The attempt that is over is not released once more.
    let body = json!({"reason": "again", "attempt": 1});
    let path = format!("/api/v1/executions/{id}/release");
    api.post(&path, &body)
        .await?
        .refused(409, "ALREADY_ENDED")?;
    again.leave(0).await?;
    let next = gate.next().await?;
    ensure!(next.execution_id == second.id, "{next:?}");
    next.leave(0).await?;
    api.until(second.id, "succeeded").await?;
    let ended = api.until(first.id, "succeeded").await?;
    ensure!(number(&ended, "attempt")? == 2, "{ended}");
    attune(system, 2, &release).await?;

    let log = api.get("/api/v1/audit-log").await?.expect(200)?;
    let entries = log["entries"].as_array().context("no entries")?;
    let is_release = |it: &&serde_json::Value| it["what"] == "slot.force_release";
    let entries: Vec<_> = entries.iter().filter(is_release).collect();
    ensure!(entries.len() == 1, "{log}");
    let expected = json!({
        "who": "ann", "what": "slot.force_release", "target": id, "reason": "it hangs",
        "after": {"status": "queued"},
    });
    for (name, value) in expected.as_object().context("no object")? {
        ensure!(entries[0][name] == *value, "{name}: {log}");
    }
    ensure!(
        entries[0]["before"]["worker"] == holder["worker"]["id"],
        "{log}"
    );
    ensure!(system.metric("executor_force_released_total").await? == 1.0);
    let totals = json!({"active_count": 0, "queue_length": 0, "total_completed": 2});
    api.until_queue(REF, totals).await?;

    // Where the policy gives no second attempt it ends.
    const ONCE: &str = "it.once";
    let mut spec = limited(ONCE, &gate.run(), 1);
    spec["on_worker_lost"] = json!("fail");
    api.apply(&spec).await?;
    let submitted = api.submit(ONCE, json!({})).await?;
    let inside = gate.next().await?;
    let path = format!("/api/v1/executions/{}/release", submitted.id);
    let body = json!({"reason": "nobody knows it"});
    let answer = api.post(&path, &body).await?.expect(200)?;
    ensure!(answer["status"] == "abandoned", "{answer}");
    inside.gone().await?;
    let ended = api.until(submitted.id, "abandoned").await?;
    let words = ended["error"].as_str().context("no words")?;
    ensure!(words.contains("nobody knows it"), "{words}");
    ensure!(gate.uninvited().is_empty(), "it ran again");
    Ok(())
}

/// Executors, partitions and workers are shown as they are.
async fn watched(system: &System) -> anyhow::Result<()> {
    let (executor, workers): (&str, &[&str]) = match system.wiring() {
        Wiring::Embedded => ("standalone", &["standalone"]),
        Wiring::Cluster => ("executor", &["worker-1", "worker-2"]),
    };
    let cluster = wait_for("all workers", async || {
        let cluster = attune_json(system, &["cluster", "--json"]).await?;
        let found = cluster["workers"].as_array().context("no workers")?;
        let names: Vec<_> = found.iter().filter_map(|it| it["name"].as_str()).collect();
        ensure!(names == workers, "{names:?}");
        Ok(cluster)
    })
    .await?;
    let executors = cluster["executors"].as_array().context("no executors")?;
    ensure!(executors.len() == 1, "{cluster}");
    ensure!(
        executors[0]["name"] == executor && executors[0]["partitions"] == 4,
        "{cluster}"
    );
    for partition in cluster["partitions"].as_array().context("no partitions")? {
        ensure!(partition["owner"] == executors[0]["id"], "{partition}");
        ensure!(number(partition, "epoch")? == 1, "{partition}");
        ensure!(number(partition, "lease_remaining_ms")? > 0, "{partition}");
    }
    for worker in cluster["workers"].as_array().context("no workers")? {
        ensure!(
            worker["alive"] == true && number(worker, "slots")? > 0,
            "{worker}"
        );
    }
    let tables = attune(system, 0, &["cluster"]).await?;
    for word in ["executor", "partition", "worker", "default"] {
        ensure!(tables.contains(word), "{tables}");
    }
    Ok(())
}
