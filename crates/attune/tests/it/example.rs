//! The example by which the order of starts is explained: limit 2, five executions.

use std::collections::VecDeque;

use anyhow::ensure;
use attune_testkit::{Gate, System};
use serde_json::json;

use crate::support::{all_are, granted_in_order, limited, on_both_wirings};

on_both_wirings! {
    example => embedded_example, cluster_example;
}

/// A and B start; C, D and E wait at 0, 1 and 2; each completion starts the next.
async fn example(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.example";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&limited(REF, &gate.run(), 2)).await?;

    let mut inside = VecDeque::new();
    for name in ["A", "B"] {
        let submitted = api.submit(REF, json!({"name": name})).await?;
        ensure!(submitted.status == "requested", "{submitted:?}");
        let visitor = gate.next().await?;
        ensure!(visitor.execution_id == submitted.id, "{visitor:?}");
        inside.push_back(visitor);
    }
    let mut waiting = Vec::new();
    for (position, name) in (0..).zip(["C", "D", "E"]) {
        let submitted = api.submit(REF, json!({"name": name})).await?;
        ensure!(submitted.status == "queued", "{submitted:?}");
        ensure!(submitted.position == Some(position), "{submitted:?}");
        waiting.push(submitted.id);
    }
    let full = json!({
        "queue_length": 3, "active_count": 2, "max_concurrent": 2,
        "total_enqueued": 5, "total_completed": 0,
    });
    api.until_queue(REF, full).await?;

    for next in waiting {
        ensure!(gate.uninvited().is_empty(), "more than two run");
        if let Some(first) = inside.pop_front() {
            first.leave(0).await?;
        }
        let visitor = gate.next().await?;
        ensure!(
            visitor.execution_id == next,
            "{next} is next, not {visitor:?}"
        );
        inside.push_back(visitor);
    }
    for visitor in inside {
        visitor.leave(0).await?;
    }
    let executions = api.until_idle(REF).await?;
    ensure!(executions.len() == 5);
    all_are(&executions, "succeeded")?;
    granted_in_order(&executions)?;
    let empty = json!({
        "queue_length": 0, "active_count": 0, "oldest_enqueued_at": null,
        "total_enqueued": 5, "total_completed": 5,
    });
    api.until_queue(REF, empty).await?;
    Ok(())
}
