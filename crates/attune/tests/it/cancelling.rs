//! Cancelling what waits and what runs.

use std::collections::VecDeque;

use anyhow::ensure;
use attune_testkit::{Gate, System};
use serde_json::json;

use crate::support::{limited, on_both_wirings};

on_both_wirings! {
    waiting => embedded_cancel_waiting, cluster_cancel_waiting;
    running => embedded_cancel_running, cluster_cancel_running;
}

/// Of ten that wait those at 2, 5 and 8 are cancelled; the others keep their order.
async fn waiting(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.cancel";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&limited(REF, &gate.run(), 1)).await?;
    api.submit(REF, json!({})).await?;
    let mut inside = gate.next().await?;
    let mut ids = Vec::new();
    for position in 0..10 {
        let submitted = api.submit(REF, json!({})).await?;
        ensure!(submitted.position == Some(position), "{submitted:?}");
        ids.push(submitted.id);
    }
    for position in [2, 5, 8] {
        let answer = api.cancel(ids[position]).await?.expect(202)?;
        ensure!(answer["status"] == "cancelled", "{answer}");
        let again = api.cancel(ids[position]).await?;
        again.refused(409, "ALREADY_ENDED")?;
    }
    api.until_queue(REF, json!({"queue_length": 7, "total_cancelled": 3}))
        .await?;
    let after = api.submit(REF, json!({})).await?;
    ensure!(after.position == Some(7), "{after:?}");

    let kept = [0, 1, 3, 4, 6, 7, 9].map(|position: usize| ids[position]);
    let mut order: VecDeque<i64> = kept.into();
    order.push_back(after.id);
    for expected in order {
        inside.leave(0).await?;
        inside = gate.next().await?;
        ensure!(
            inside.execution_id == expected,
            "{expected} is next, not {inside:?}"
        );
    }
    inside.leave(0).await?;
    let executions = api.until_idle(REF).await?;
    let cancelled = executions
        .iter()
        .filter(|execution| execution["status"] == "cancelled");
    let cancelled: Vec<_> = cancelled.map(|execution| execution["id"].clone()).collect();
    ensure!(
        cancelled == [2, 5, 8].map(|position: usize| json!(ids[position])),
        "{cancelled:?}"
    );
    let totals = json!({
        "queue_length": 0, "active_count": 0, "total_enqueued": 12, "total_completed": 9,
        "total_cancelled": 3,
    });
    api.until_queue(REF, totals).await?;
    Ok(())
}

/// A program that is cancelled is gone with everything it started, and frees its slot.
async fn running(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.cancel-running";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&limited(REF, &gate.run_with_child(), 1)).await?;
    let first = api.submit(REF, json!({})).await?;
    let second = api.submit(REF, json!({})).await?;
    let inside = gate.next().await?;
    ensure!(inside.execution_id == first.id, "{inside:?}");

    let answer = api.cancel(first.id).await?;
    answer.expect(202)?;
    inside.gone().await?;
    let cancelled = api.until(first.id, "cancelled").await?;
    ensure!(cancelled["cancel_requested"] == true, "{cancelled}");
    let next = gate.next().await?;
    ensure!(next.execution_id == second.id, "{next:?}");
    next.leave(0).await?;
    api.until(second.id, "succeeded").await?;
    let again = api.cancel(first.id).await?;
    again.refused(409, "ALREADY_ENDED")?;
    api.cancel(1 << 40)
        .await?
        .refused(404, "UNKNOWN_EXECUTION")?;
    Ok(())
}
