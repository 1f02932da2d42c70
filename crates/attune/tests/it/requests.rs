//! Requests that are repeated.

use anyhow::ensure;
use attune_core::RequestId;
use attune_testkit::{Gate, System, wait_for};
use reqwest::Method;
use serde_json::{Value, json};

use crate::dead_letters::{attune, keep, list};
use crate::stranger::envelope;
use crate::support::{all_are, limited, number, on_both_wirings};

on_both_wirings! {
    repeated => embedded_repeated_requests, cluster_repeated_requests;
    refused => embedded_recorded_refusals, cluster_recorded_refusals;
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

/// A firing that is refused is recorded under its request id, and stays refused however it comes
/// again: it is no execution that was accepted, and leaves no second row and no letter.
async fn refused(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.refused";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let mut spec = limited(REF, &gate.run(), 1);
    spec["policy"]["queue"] = json!({"max_length": 1});
    api.apply(&spec).await?;
    let running = api.submit(REF, json!({})).await?.id;
    let inside = gate.next().await?;
    let waiting = api.submit(REF, json!({})).await?.id;

    // A letter that is put back is a firing on both wirings.
    let name = RequestId::fresh().to_string();
    let key = RequestId::from_key(&name).of_item(0).to_string();
    let firing = json!({"action_ref": REF, "request_id": key, "parameters": {"n": 1}});
    let source = "enforcement.created";
    keep(system, source, &envelope(source, 1, &firing)).await?;
    let letter = number(&list(system, source).await?[0], "id")?.to_string();
    wait_for("the letter to be put back", async || {
        attune(system, 0, &["dead-letters", "requeue", &letter]).await
    })
    .await?;
    let id = wait_for("the record of the refusal", async || {
        let executions = api.executions(REF).await?;
        let record = executions.iter().find(|it| it["status"] == "rejected");
        number(record.unwrap_or(&Value::Null), "id")
    })
    .await?;

    let again = || api.try_submit(&firing);
    let stays_refused = async || {
        let error = again().await?.refused(409, "ALREADY_REJECTED")?;
        let words = error["message"].as_str().unwrap_or_default();
        ensure!(
            words.contains(&format!("`attune executions show {id}`")),
            "{error}"
        );
        ensure!(error["retry_after_seconds"].is_null(), "{error}");
        let args = ["submit", REF, "-p", "n=1", "--key", &key];
        let words = attune(system, 2, &args).await?;
        ensure!(words.contains("ALREADY_REJECTED"), "{words}");
        Ok(())
    };
    stays_refused().await?;
    // Also when there is room again.
    inside.leave(0).await?;
    gate.next().await?.leave(0).await?;
    api.until(waiting, "succeeded").await?;
    stays_refused().await?;
    let file = system.folder().join("lines");
    let line = json!({"action_ref": REF, "parameters": {"n": 1}});
    std::fs::write(&file, line.to_string())?;
    let file = file.to_string_lossy();
    let args = ["submit", "--json", "--key", &name, "--file", &file];
    let (code, stdout, stderr) = system.client(&args).await?;
    let report: Value = serde_json::from_str(&stdout)?;
    ensure!(code == 2 && report["refused"] == 1, "{stdout}{stderr}");

    let shown = attune(system, 0, &["executions", "show", &id.to_string()]).await?;
    ensure!(shown.contains("Queue full (max length: 1)"), "{shown}");
    let executions = api.until_idle(REF).await?;
    let found = executions.iter().map(|it| it["id"].as_i64());
    ensure!(found.eq([running, waiting, id].map(Some)), "{executions:?}");
    ensure!(list(system, source).await?.len() == 1, "a letter came");
    ensure!(gate.uninvited().is_empty(), "a refused request has run");
    Ok(())
}
