//! What must happen to completions that come twice, late, or for what nobody knows.
//!
//! A scenario that runs inside the process on the embedded wiring, whose bus nobody outside can
//! reach, and from outside on the cluster.

use anyhow::ensure;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{Api, Gate, wait_for};

/// One slot is released once, whatever else arrives, and everything else is counted.
///
/// `publish` sends message ids and bodies, in one go, to where workers report; `stale` is how
/// many completions the owner has seen that fit nothing.
///
/// # Errors
/// When anything else happens; with what did.
pub async fn duplicate_completions(
    api: &Api,
    publish: impl AsyncFnOnce(Vec<(Uuid, Vec<u8>)>) -> anyhow::Result<()>,
    stale: impl AsyncFn() -> anyhow::Result<f64>,
) -> anyhow::Result<()> {
    const REF: &str = "it.duplicates";
    let stale = async |expected: u32| {
        wait_for("the count of stale completions", async || {
            let found = stale().await?;
            ensure!(found == f64::from(expected), "{found}, not {expected}");
            Ok(())
        })
        .await
    };
    let mut gate = Gate::open().await?;
    let spec = json!({"ref": REF, "run": gate.run(), "policy": {"concurrency": {"limit": 1}}});
    let action_id = api.apply(&spec).await?["id"].clone();
    let a = api.submit(REF, json!({})).await?.id;
    let b = api.submit(REF, json!({})).await?.id;
    let c = api.submit(REF, json!({})).await?.id;
    let inside = gate.next().await?;
    ensure!(inside.execution_id == a, "{inside:?}");

    let holders = api.get(&format!("/api/v1/actions/{REF}/holders")).await?;
    let worker = holders.expect(200)?["holders"][0]["worker"]["id"].clone();
    ensure!(worker.is_string(), "a slot without a worker");

    let completion_of = |worker: &Value, id: i64, attempt: i64| {
        let message_id = Uuid::now_v7();
        let message = json!({
            "message_id": message_id, "message_type": "execution.completed", "version": 1,
            "timestamp": "2026-01-01T00:00:00Z",
            "payload": {
                "execution_id": id, "attempt": attempt, "action_id": action_id,
                "status": "succeeded", "result": {"by": "a stranger"}, "worker": worker,
            },
        });
        (message_id, message.to_string().into_bytes())
    };
    let completion = |id: i64, attempt: i64| completion_of(&worker, id, attempt);
    let right = completion(a, 1);
    publish(vec![
        // Nothing of these fits: A was granted to another worker, B waits, A has no second attempt,
        // the last was never there.
        completion_of(&json!(Uuid::new_v4()), a, 1),
        completion(b, 1),
        completion(a, 2),
        completion(a + (1 << 30), 1),
        // This one does, and then no more: the same message, and the same under another id.
        right.clone(),
        right.clone(),
        (Uuid::now_v7(), right.1),
    ])
    .await?;
    let done = api.until(a, "succeeded").await?;
    ensure!(done["result"] == json!({"by": "a stranger"}), "{done}");
    let second = gate.next().await?;
    ensure!(second.execution_id == b, "{second:?}");
    stale(6).await?;

    // Its own worker is told that this is settled: it ends what runs, and has nothing to say.
    inside.gone().await?;
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
    let half = json!({"active_count": 1, "queue_length": 1, "total_completed": 1});
    api.until_queue(REF, half).await?;
    second.leave(0).await?;
    let third = gate.next().await?;
    ensure!(third.execution_id == c, "{third:?}");
    third.leave(0).await?;
    api.until(c, "succeeded").await?;
    let totals: Value = json!({"total_enqueued": 3, "total_completed": 3, "active_count": 0});
    api.until_queue(REF, totals).await?;
    stale(6).await
}
