//! Requests that are repeated.

use anyhow::ensure;
use attune_testkit::{Gate, System};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{all_are, limited, on_both_wirings};

on_both_wirings! {
    repeated => embedded_repeated_requests, cluster_repeated_requests;
}

const PATH: &str = "/api/v1/executions";

/// A request under the same key is the same execution for as long as its body is the same.
async fn repeated(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.repeated";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&limited(REF, &gate.run(), 1)).await?;
    let send = async |key: &str, body: &Value| {
        let headers = [("Idempotency-Key", key)];
        api.send(Method::POST, PATH, &headers, serde_json::to_vec(body)?)
            .await
    };
    let body = json!({"action_ref": REF, "parameters": {"n": 1}});
    let first = send("key-1", &body).await?.expect(201)?;
    ensure!(first["repeated"] == false, "{first}");
    let running = gate.next().await?;

    let again = send("key-1", &body).await?.expect(200)?;
    ensure!(
        again["repeated"] == true && again["id"] == first["id"],
        "{again}"
    );
    let other = json!({"action_ref": REF, "parameters": {"n": 2}});
    let error = send("key-1", &other).await?.refused(409, "CONFLICT")?;
    let words = error["message"].as_str().unwrap_or_default();
    ensure!(
        words.contains(&first["id"].to_string()),
        "it does not name the execution: {error}"
    );
    let second = send("key-2", &body).await?.expect(201)?;
    ensure!(second["id"] != first["id"], "{second}");

    // A batch under one key is repeated item by item, in two requests at once as well.
    let batch = json!([other, other, other]);
    let (one, two) = tokio::try_join!(send("key-3", &batch), send("key-3", &batch))?;
    let (one, two) = (one.expect(200)?, two.expect(200)?);
    for item in 0..3 {
        ensure!(one[item]["id"] == two[item]["id"], "{one} and {two}");
        ensure!(
            one[item]["repeated"] != two[item]["repeated"],
            "{one} and {two}"
        );
    }
    running.leave(0).await?;
    for _ in 0..4 {
        gate.next().await?.leave(0).await?;
    }
    let executions = api.until_idle(REF).await?;
    ensure!(executions.len() == 5, "{} executions", executions.len());
    all_are(&executions, "succeeded")?;
    // Also what has ended long ago is the same.
    let again = send("key-1", &body).await?.expect(200)?;
    ensure!(again["id"] == first["id"], "{again}");
    send("key-1", &other).await?.refused(409, "CONFLICT")?;
    ensure!(
        gate.uninvited().is_empty(),
        "a repeated request has started something"
    );
    Ok(())
}
