//! Many executions under limits, judged by the workers' own records.

use anyhow::ensure;
use attune_testkit::System;
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use crate::oracle::{judge, worker_intervals};
use crate::support::{all_are, granted_in_order, ids, limited, noop, number, on_both_wirings};

on_both_wirings! {
    one_by_one => embedded_a_thousand_one_by_one, cluster_a_thousand_one_by_one;
    five_at_once => embedded_a_thousand_five_at_once, cluster_a_thousand_five_at_once;
    fifty_actions => embedded_fifty_actions_at_once, cluster_fifty_actions_at_once;
}

async fn one_by_one(system: &System) -> anyhow::Result<()> {
    let most = batch(system, "it.serial", 1, 1000).await?;
    ensure!(most == 1, "{most} ran at once");
    Ok(())
}

async fn five_at_once(system: &System) -> anyhow::Result<()> {
    // How many really overlap depends on the machine, for they take no time.
    batch(system, "it.five", 5, 1000).await?;
    Ok(())
}

async fn fifty_actions(system: &System) -> anyhow::Result<()> {
    let refs: Vec<(String, u32)> = (0..50)
        .map(|number| (format!("it.many-{number}"), 1 + number % 5))
        .collect();
    try_join_all(
        refs.iter()
            .map(|(action_ref, limit)| batch(system, action_ref, *limit, 20)),
    )
    .await?;
    Ok(())
}

/// Runs a batch that does nothing and judges it. Returns the most that ran at once.
async fn batch(system: &System, action_ref: &str, limit: u32, count: usize) -> anyhow::Result<u64> {
    let api = &system.api;
    let action = api.apply(&limited(action_ref, &noop(), limit)).await?;
    let accepted = api
        .submit_batch(
            action_ref,
            (0..count).map(|number| json!({"number": number})),
        )
        .await?;
    ensure!(
        accepted.is_sorted(),
        "places follow the order of the request"
    );
    let executions: Vec<Value> = api.until_idle(action_ref).await?;
    ensure!(
        ids(&executions)? == accepted,
        "what is stored is not what was accepted"
    );
    all_are(&executions, "succeeded")?;
    granted_in_order(&executions)?;
    let action_id = number(&action, "id")?;
    let runs = worker_intervals(&system.history(), action_id, count).await?;
    let most = judge(&runs, limit, &accepted)?;
    let totals = json!({
        "queue_length": 0, "active_count": 0, "max_concurrent": limit,
        "total_enqueued": count, "total_completed": count,
    });
    api.until_queue(action_ref, totals).await?;
    Ok(most)
}
