//! The bounds of a queue, and changing them while it is used.

use anyhow::{Context as _, ensure};
use attune_testkit::{Gate, System};
use serde_json::{Value, json};

use crate::support::{all_are, limited, number, on_both_wirings};

on_both_wirings! {
    full => embedded_queue_full, cluster_queue_full;
    timeout => embedded_queue_timeout, cluster_queue_timeout;
    raised_limit => embedded_raised_limit, cluster_raised_limit;
}

/// A queue takes what it may hold; the next is refused, and nothing of it is stored.
async fn full(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.full";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let mut spec = limited(REF, &gate.run(), 1);
    spec["policy"]["queue"] = json!({"max_length": 3});
    api.apply(&spec).await?;

    for _ in 0..4 {
        api.submit(REF, json!({})).await?;
    }
    let running = gate.next().await?;
    let request = json!({"action_ref": REF});
    let answer = api.try_submit(&request).await?;
    let retry_after = answer
        .retry_after
        .clone()
        .context("Retry-After is missing")?;
    ensure!(retry_after.parse::<u32>()? >= 1, "{retry_after}");
    let error = answer.refused(429, "QUEUE_FULL")?;
    ensure!(error["message"] == "Queue full (max length: 3)", "{error}");
    ensure!(
        error["retry_after_seconds"].as_u64() == retry_after.parse().ok(),
        "{error}"
    );
    ensure!(
        api.executions(REF).await?.len() == 4,
        "something was stored"
    );

    // In a batch each stands for itself.
    let answer = api
        .try_submit(&json!([request, request]))
        .await?
        .expect(200)?;
    let codes = [&answer[0], &answer[1]].map(|item| item["error"]["code"].clone());
    ensure!(codes == ["QUEUE_FULL", "QUEUE_FULL"], "{answer}");

    // With room there is room again.
    running.leave(0).await?;
    let running = gate.next().await?;
    let submitted = api.submit(REF, json!({})).await?;
    ensure!(submitted.position == Some(2), "{submitted:?}");
    running.leave(0).await?;
    for _ in 0..3 {
        gate.next().await?.leave(0).await?;
    }
    all_are(&api.until_idle(REF).await?, "succeeded")?;
    let totals = json!({"total_enqueued": 5, "total_completed": 5, "queue_length": 0});
    api.until_queue(REF, totals).await?;
    Ok(())
}

/// Who waited too long expires; who runs or waits behind is not touched.
async fn timeout(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.timeout";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let mut spec = limited(REF, &gate.run(), 1);
    spec["policy"]["queue"] = json!({"timeout_seconds": 1});
    api.apply(&spec).await?;

    let first = api.submit(REF, json!({})).await?;
    let running = gate.next().await?;
    let late = [
        api.submit(REF, json!({})).await?,
        api.submit(REF, json!({})).await?,
    ];
    for late in &late {
        let expired = api.until(late.id, "expired").await?;
        ensure!(
            expired["started_at"].is_null() && expired["attempt"] == 0,
            "{expired}"
        );
        ensure!(
            !expired["error"].is_null(),
            "it does not say why: {expired}"
        );
    }
    ensure!(api.execution(first.id).await?["status"] == "running");
    ensure!(gate.uninvited().is_empty(), "what expired has started");
    running.leave(0).await?;
    api.until(first.id, "succeeded").await?;
    let next = api.submit(REF, json!({})).await?;
    gate.next().await?.leave(0).await?;
    api.until(next.id, "succeeded").await?;
    let totals = json!({
        "queue_length": 0, "active_count": 0, "total_enqueued": 4, "total_completed": 2,
        "total_expired": 2, "total_cancelled": 0,
    });
    api.until_queue(REF, totals).await?;
    Ok(())
}

/// A raised limit starts those who wait at once; a lowered one ends nobody.
async fn raised_limit(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.live";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let first = api.apply(&limited(REF, &gate.run(), 1)).await?;
    let mut ids = Vec::new();
    for _ in 0..6 {
        ids.push(api.submit(REF, json!({})).await?.id);
    }
    let mut inside = vec![gate.next().await?];
    api.until_queue(REF, json!({"active_count": 1, "queue_length": 5}))
        .await?;

    let second = api.apply(&limited(REF, &gate.run(), 4)).await?;
    ensure!(number(&second, "version")? > number(&first, "version")?);
    for _ in 0..3 {
        inside.push(gate.next().await?);
    }
    let mut started: Vec<i64> = inside.iter().map(|visitor| visitor.execution_id).collect();
    started.sort_unstable();
    ensure!(started == ids[..4], "{started:?} of {ids:?}");
    let raised = json!({"active_count": 4, "queue_length": 2, "max_concurrent": 4});
    api.until_queue(REF, raised).await?;

    api.apply(&limited(REF, &gate.run(), 2)).await?;
    let lowered = json!({"active_count": 4, "queue_length": 2, "max_concurrent": 2});
    api.until_queue(REF, lowered).await?;
    // Two places are given up before the next is taken.
    let last = inside.split_off(2);
    for visitor in inside {
        visitor.leave(0).await?;
    }
    api.until_queue(REF, json!({"active_count": 2, "queue_length": 2}))
        .await?;
    ensure!(
        gate.uninvited().is_empty(),
        "more than the lowered limit run"
    );
    for visitor in last {
        visitor.leave(0).await?;
    }
    for _ in 0..2 {
        gate.next().await?.leave(0).await?;
    }
    let executions: Vec<Value> = api.until_idle(REF).await?;
    ensure!(executions.len() == 6);
    all_are(&executions, "succeeded")
}
