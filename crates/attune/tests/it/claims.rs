//! Workers of others, who claim over HTTP.

use anyhow::ensure;
use attune_testkit::{Gate, System};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{limited, number, on_both_wirings};

on_both_wirings! {
    claimed_once => embedded_claimed_once, cluster_claimed_once;
}

/// An attempt is claimed once, whoever asks; what is unknown or over is not claimed at all.
async fn claimed_once(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.claimed";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&limited(REF, &gate.run(), 1)).await?;
    let running = api.submit(REF, json!({})).await?;
    let waiting = api.submit(REF, json!({})).await?;
    let inside = gate.next().await?;

    let stranger = Uuid::new_v4();
    let claim = async |items: Value| -> anyhow::Result<Value> {
        let body = json!({
            "worker": stranger, "name": "stranger", "pool": "default", "slots": 4,
            "lease_seconds": 30, "items": items,
        });
        let answer = api
            .post("/api/v1/worker/claims", &body)
            .await?
            .expect(200)?;
        ensure!(answer["lease_expires_in_ms"] == 30_000, "{answer}");
        Ok(answer["claimed"].clone())
    };
    let item = |id: i64, attempt: i64| json!({"execution_id": id, "attempt": attempt});
    // Another worker has it; it has no second attempt; it has no slot; it does not exist.
    let others = json!([
        item(running.id, 1),
        item(running.id, 2),
        item(waiting.id, 0),
        item(waiting.id, 1),
        item(1 << 40, 1),
    ]);
    let claimed = claim(others).await?;
    ensure!(claimed == json!([]), "{claimed}");
    let record = api.execution(running.id).await?;
    ensure!(
        record["status"] == "running" && number(&record, "attempt")? == 1,
        "{record}"
    );
    ensure!(record["worker"] != json!(stranger), "{record}");

    // No worker of ours serves this pool: the stranger's claim is won, and won again.
    let mut elsewhere = limited("it.elsewhere", &gate.run(), 1);
    elsewhere["pool"] = json!("elsewhere");
    if api.apply(&elsewhere).await.is_ok() {
        let submitted = api.submit("it.elsewhere", json!({})).await?;
        for _ in 0..2 {
            let claimed = claim(json!([item(submitted.id, 1)])).await?;
            ensure!(claimed[0]["execution_id"] == submitted.id, "{claimed}");
            ensure!(claimed[0]["cancel_requested"] == false, "{claimed}");
        }
        let record = api.until(submitted.id, "running").await?;
        ensure!(record["worker"] == json!(stranger), "{record}");
        // Given up: its slot is taken back, and the attempts after that have no taker either.
        let retired = api
            .post("/api/v1/worker/retire", &json!({"worker": stranger}))
            .await?;
        ensure!(retired.status == 204, "{retired:?}");
        api.cancel(submitted.id).await?.expect(202)?;
        api.until(submitted.id, "cancelled").await?;
    }
    inside.leave(0).await?;
    gate.next().await?.leave(0).await?;
    api.until(waiting.id, "succeeded").await?;
    ensure!(gate.uninvited().is_empty(), "something ran twice");
    Ok(())
}
