//! What has ended is run again as a new execution that names the old one.

use anyhow::ensure;
use attune_testkit::{Gate, System};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{limited, number, on_both_wirings};

on_both_wirings! {
    again => embedded_resubmitted, cluster_resubmitted;
}

/// It is asked for as the old one was, stands behind who waits, and is accepted once
/// under one key; what has not ended, or never was, is refused.
async fn again(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.again";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&limited(REF, &gate.run(), 1)).await?;
    let body = r#"{"action_ref":"it.again","parameters":{"n":12345678901234567890123},
        "priority":"high","requested_by":"ann","group":"g","labels":{"a":"b"},"timeout_seconds":99}"#;
    let submit = api.send(Method::POST, "/api/v1/executions", &[], body.into());
    let old = number(&submit.await?.expect(201)?, "id")?;
    let running = gate.next().await?;
    // It is so from the moment at which its worker has said it.
    api.until(old, "running").await?;
    let path = format!("/api/v1/executions/{old}/resubmit");
    let resubmit = async |key: &'static str| {
        let headers = [("idempotency-key", key)];
        api.send(Method::POST, &path, &headers, Vec::new()).await
    };
    let refused = resubmit("once").await?.refused(409, "NOT_ENDED")?;
    let message = refused["message"].as_str().unwrap_or_default();
    ensure!(message.contains("running"), "{refused}");
    let waiting = api
        .try_submit(&json!({"action_ref": REF, "priority": "high"}))
        .await?;
    let waiting = number(&waiting.expect(201)?, "id")?;
    running.leave(3).await?;
    let ended = api.until(old, "failed").await?;
    let inside = gate.next().await?;
    ensure!(inside.execution_id == waiting, "{inside:?}");

    let accepted = resubmit("once").await?.expect(201)?;
    let new = number(&accepted, "id")?;
    ensure!(new > waiting && accepted["repeated"] == false, "{accepted}");
    let repeated = resubmit("once").await?.expect(200)?;
    ensure!(repeated["id"] == json!(new), "{repeated}");
    inside.leave(0).await?;
    let inside = gate.next().await?;
    ensure!(inside.execution_id == new, "{inside:?}");
    inside.leave(0).await?;
    let succeeded = api.until(new, "succeeded").await?;
    ensure!(succeeded["requeue_of"] == json!(old), "{succeeded}");
    let asked = [
        "action_ref",
        "parameters",
        "priority",
        "requested_by",
        "group",
        "labels",
        "timeout_seconds",
    ];
    for field in asked {
        ensure!(succeeded[field] == ended[field], "{field}: {succeeded}");
    }
    let missing = format!("/api/v1/executions/{}/resubmit", new + (1 << 20));
    let missing = api.post(&missing, &Value::Null).await?;
    missing.refused(404, "UNKNOWN_EXECUTION")?;
    by_options(system, &mut gate, REF, old).await
}

/// The command line counts first, and names which runs again as which.
async fn by_options(
    system: &System,
    gate: &mut Gate,
    action_ref: &str,
    old: i64,
) -> anyhow::Result<()> {
    let which = ["executions", "resubmit", "--status", "failed"];
    let which = [&which[..], &["--action", action_ref]].concat();
    let counting = [&which[..], &["--dry-run"]].concat();
    let (code, counted, errors) = system.client(&counting).await?;
    let is_one = counted.contains("1 executions would be run again");
    ensure!(code == 0 && is_one, "{code}: {counted}{errors}");
    let (code, said, errors) = system.client(&which).await?;
    let words = format!("execution {old} runs again as ");
    ensure!(code == 0 && said.contains(&words), "{code}: {said}{errors}");
    let visitor = gate.next().await?;
    let id = visitor.execution_id;
    ensure!(said.contains(&id.to_string()), "{said}: {visitor:?}");
    visitor.leave(0).await?;
    system.api.until(id, "succeeded").await?;
    Ok(())
}
