//! Why an execution does not run yet, and when it may start.

use anyhow::{Context as _, ensure};
use attune_testkit::{Gate, System, Wiring};
use serde_json::{Value, json};

use crate::support::{limited, on_both_wirings, run, setup};

on_both_wirings! {
    each_state => embedded_explain, cluster_explain;
}

async fn explain(system: &System, id: i64) -> anyhow::Result<Value> {
    let path = format!("/api/v1/executions/{id}/explain");
    system.api.get(&path).await?.expect(200)
}

/// What is said of somebody in each state, from its delay to its end; and what is named is what gives it its
/// slot.
async fn each_state(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.explain";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&limited(REF, &gate.run(), 1)).await?;
    let first = api.submit(REF, json!({})).await?.id;
    let later = json!({"action_ref": REF, "not_before": "2126-01-01T00:00:00Z"});
    let later = api.try_submit(&later).await?.expect(201)?;
    let later = later["id"].as_i64().context("an id")?;
    let second = api.submit(REF, json!({})).await?.id;
    let third = api.submit(REF, json!({})).await?.id;
    let mut running = gate.next().await?;

    let said = explain(system, first).await?;
    ensure!(
        said["state"] == "holds_slot" && said["attempt"] == 1,
        "{said}"
    );
    let said = explain(system, later).await?;
    ensure!(
        said["state"] == "delayed" && said["position"].is_null(),
        "{said}"
    );
    ensure!(said["next_time"] == "2126-01-01T00:00:00Z", "{said}");
    ensure!(said["waits_for"][0]["kind"] == "delayed", "{said}");
    for (id, ahead) in [(second, 0), (third, 1)] {
        let said = explain(system, id).await?;
        ensure!(
            said["state"] == "waiting" && said["position"] == ahead,
            "{said}"
        );
        let limit = &said["waits_for"][0];
        ensure!(
            limit["kind"] == "limit" && limit["ahead"] == ahead,
            "{said}"
        );
        ensure!(limit["capacity"] == 1 && limit["used"] == 1, "{said}");
        ensure!(limit["holders"][0]["execution_id"] == first, "{said}");
        ensure!(said["no_estimate"]["kind"] == "few_samples", "{said}");
    }
    words(system, first, third).await?;

    let held = ["queues", "pause", REF, "--who", "ann", "--json"];
    let (code, _, problem) = system.client(&held).await?;
    ensure!(code == 0, "{problem}");
    let said = explain(system, second).await?;
    ensure!(said["waits_for"][0]["kind"] == "paused", "{said}");
    ensure!(said["pauses"][0]["who"] == "ann", "{said}");
    ensure!(said["no_estimate"]["kind"] == "paused", "{said}");
    let (code, _, problem) = system.client(&["queues", "resume", REF]).await?;
    ensure!(code == 0, "{problem}");

    // The release that is named gives the next its slot; five of them are enough to tell more.
    for expected in [second, third] {
        running.leave(0).await?;
        running = gate.next().await?;
        ensure!(running.execution_id == expected, "{running:?}");
    }
    for _ in 0..3 {
        let next = api.submit(REF, json!({})).await?.id;
        running.leave(0).await?;
        running = gate.next().await?;
        ensure!(running.execution_id == next, "{running:?}");
    }
    let last = api.submit(REF, json!({})).await?.id;
    let said = explain(system, last).await?;
    let samples = said["estimate"]["basis"]["samples"].as_u64();
    ensure!(samples == Some(5), "{said}");
    running.leave(0).await?;
    gate.next().await?.leave(0).await?;
    api.until(last, "succeeded").await?;
    let said = explain(system, last).await?;
    ensure!(
        said["state"] == "ended" && said["status"] == "succeeded",
        "{said}"
    );
    let unknown = api.get("/api/v1/executions/4611686018427387904/explain");
    unknown.await?.refused(404, "UNKNOWN_EXECUTION")?;
    let cancelled = api.cancel(later).await?;
    ensure!(cancelled.status == 202, "{}", cancelled.body);
    Ok(())
}

/// The same in words: by itself, and where an execution is shown.
async fn words(system: &System, holder: i64, waits: i64) -> anyhow::Result<()> {
    let (holder, waits) = (holder.to_string(), waits.to_string());
    let (code, text, problem) = system.client(&["explain", &waits]).await?;
    ensure!(code == 0, "{problem}");
    let why = "for a slot: 1 of 1 is taken, 1 waits before it";
    ensure!(text.contains(why) && text.contains(&holder), "{text}");
    let (_, text, _) = system.client(&["explain", &waits, "--json"]).await?;
    let said: Value = serde_json::from_str(&text)?;
    ensure!(said["waits"] == why, "{said}");
    let (_, text, _) = system.client(&["executions", "show", &waits]).await?;
    ensure!(text.contains(&format!("waits        {why}")), "{text}");
    let (code, _, problem) = system.client(&["explain", "4611686018427387904"]).await?;
    ensure!(
        code == 2 && problem.contains("there is no execution"),
        "{problem}"
    );
    Ok(())
}

/// While nobody owns its partition nobody can say what an execution waits for: it is said who should, and
/// what to do. The next owner answers.
async fn without_an_owner(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.explain-later";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&limited(REF, &gate.run(), 1)).await?;
    let running = api.submit(REF, json!({})).await?.id;
    let waits = api.submit(REF, json!({})).await?.id;
    let visitor = gate.next().await?;
    system.halt("executor").await?;
    let path = format!("/api/v1/executions/{waits}/explain");
    let answer = api.get(&path).await?;
    let error = answer.refused(503, "NO_ANSWER")?;
    let message = error["message"].as_str().unwrap_or_default();
    ensure!(message.contains("nobody owns partition"), "{error}");
    ensure!(error["retry_after_seconds"] == 5, "{error}");
    system.start_again("executor").await?;
    api.until_ready().await?;
    let said = explain(system, waits).await?;
    let holder = &said["waits_for"][0]["holders"][0];
    ensure!(holder["execution_id"] == running, "{said}");
    ensure!(
        holder["since"].is_null(),
        "its owner was another one: {said}"
    );
    visitor.leave(0).await?;
    gate.next().await?.leave(0).await?;
    api.until(waits, "succeeded").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_explain_without_an_owner() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster), without_an_owner).await
}
