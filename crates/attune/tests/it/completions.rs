//! Completions that come twice, late, or for what nobody knows.

use anyhow::ensure;
use attune_bus::{Bus as _, Outgoing, Topic};
use attune_testkit::{Gate, System, Wiring, wait_for};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::stranger::{connect, envelope};
use crate::support::{limited, number, run, setup};

/// One slot is released once, whatever else arrives, and everything else is counted.
async fn duplicates(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.duplicates";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let action = api.apply(&limited(REF, &gate.run(), 1)).await?;
    let a = api.submit(REF, json!({})).await?.id;
    let b = api.submit(REF, json!({})).await?.id;
    let c = api.submit(REF, json!({})).await?.id;
    let inside = gate.next().await?;
    ensure!(inside.execution_id == a, "{inside:?}");

    let action_id = number(&action, "id")?;
    let completion = |id: i64, attempt: i64| {
        envelope(
            "execution.completed",
            1,
            &json!({
                "execution_id": id, "attempt": attempt, "action_id": action_id,
                "status": "succeeded", "result": {"by": "a stranger"},
            }),
        )
    };
    let message = |body: Vec<u8>| Outgoing::new(Topic::Completed, Uuid::now_v7(), body);
    let right = message(completion(a, 1));
    let bus = connect(system).await?;
    bus.publish(vec![
        // Nothing of these fits: B waits, A has no second attempt, the last was never there.
        message(completion(b, 1)),
        message(completion(a, 2)),
        message(completion(a + (1 << 30), 1)),
        // This one does, and then no more: the same message, and the same under another id.
        right.clone(),
        right.clone(),
        message(right.body.to_vec()),
    ])
    .await?;
    let done = api.until(a, "succeeded").await?;
    ensure!(done["result"] == json!({"by": "a stranger"}), "{done}");
    let second = gate.next().await?;
    ensure!(second.execution_id == b, "{second:?}");
    stale(system, 5).await?;

    // What its own worker has to say comes too late.
    inside.leave(7).await?;
    stale(system, 6).await?;
    let record = api.execution(a).await?;
    ensure!(
        record["result"] == done["result"] && record["exit_code"].is_null(),
        "{record}"
    );
    ensure!(
        gate.uninvited().is_empty(),
        "a duplicate has released a second slot"
    );
    ensure!(
        api.execution(c).await?["status"] == "queued",
        "C has not had its turn"
    );
    api.until_queue(
        REF,
        json!({"active_count": 1, "queue_length": 1, "total_completed": 1}),
    )
    .await?;
    second.leave(0).await?;
    let third = gate.next().await?;
    ensure!(third.execution_id == c, "{third:?}");
    third.leave(0).await?;
    api.until(c, "succeeded").await?;
    let totals: Value = json!({"total_enqueued": 3, "total_completed": 3, "active_count": 0});
    api.until_queue(REF, totals).await?;
    Ok(())
}

/// Waits until the owner has seen so many completions that fit nothing.
async fn stale(system: &System, count: u32) -> anyhow::Result<()> {
    wait_for("the count of stale completions", async || {
        let found = system.metric("executor_completions_stale_total").await?;
        ensure!(found >= f64::from(count), "{found} of {count}");
        ensure!(found <= f64::from(count), "{found} instead of {count}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_duplicate_completions() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster), duplicates).await
}
