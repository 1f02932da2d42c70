//! How runs end, and what is kept of them.

use anyhow::{Context as _, ensure};
use attune_testkit::{Gate, System};
use serde_json::{Value, json};

use crate::support::{limited, on_both_wirings};

on_both_wirings! {
    ends => embedded_ends_of_runs, cluster_ends_of_runs;
    timeout => embedded_run_timeout, cluster_run_timeout;
}

fn bash(script: &str) -> Value {
    json!({"program": ["/bin/bash", "-c", script]})
}

/// What a program writes and how it exits is what is stored.
async fn ends(system: &System) -> anyhow::Result<()> {
    let failed = ended(
        system,
        "it.fails",
        bash("echo before; echo 'no luck' >&2; exit 7"),
        json!({}),
        "failed",
    );
    let missing = json!({"program": ["/nonexistent/program"]});
    let missing = ended(system, "it.missing", missing, json!({}), "failed");
    let script = r#"
        [[ "$(cat)" == "$(cat "$ATTUNE_PARAMETERS_FILE")" ]] || exit 1
        echo "{\"id\": $ATTUNE_EXECUTION_ID, \"attempt\": $ATTUNE_ATTEMPT, \"ref\": \"$ATTUNE_ACTION\"}"
    "#;
    let json = ended(
        system,
        "it.json",
        bash(script),
        json!({"a": [1, 2]}),
        "succeeded",
    );
    let text = ended(
        system,
        "it.text",
        bash("echo plain words"),
        json!({}),
        "succeeded",
    );
    let (failed, missing, json, text) = tokio::try_join!(failed, missing, json, text)?;

    ensure!(failed["exit_code"] == 7, "{failed}");
    ensure!(
        failed["stderr"] == "no luck\n" && failed["stdout"] == "before\n",
        "{failed}"
    );
    ensure!(
        failed["error"]
            .as_str()
            .is_some_and(|error| error.contains("code 7")),
        "{failed}"
    );
    let error = missing["error"].as_str().context("no error")?;
    ensure!(
        error.contains("/nonexistent/program") && missing["exit_code"].is_null(),
        "{missing}"
    );
    let expected = json!({"id": json["id"], "attempt": 1, "ref": "it.json"});
    ensure!(
        json["result"] == expected && json["exit_code"] == 0,
        "{json}"
    );
    ensure!(text["result"] == "plain words", "{text}");

    // A failure holds no slot, and the built-in pack is there on every wiring.
    let echoed = system
        .api
        .submit("core.echo", json!({"message": "hi"}))
        .await?;
    let echoed = system.api.until(echoed.id, "succeeded").await?;
    ensure!(echoed["result"] == json!({"message": "hi"}), "{echoed}");
    let failed = system
        .api
        .submit("core.fail", json!({"message": "on purpose"}))
        .await?;
    let failed = system.api.until(failed.id, "failed").await?;
    ensure!(
        failed["error"]
            .as_str()
            .is_some_and(|it| it.contains("on purpose")),
        "{failed}"
    );
    Ok(())
}

/// Runs an action twice at limit 1: the second shows that the first has given its slot back.
async fn ended(
    system: &System,
    action_ref: &str,
    run: Value,
    parameters: Value,
    status: &str,
) -> anyhow::Result<Value> {
    let api = &system.api;
    api.apply(&limited(action_ref, &run, 1)).await?;
    let first = api.submit(action_ref, parameters.clone()).await?;
    let second = api.submit(action_ref, parameters).await?;
    let end = api.until(first.id, status).await?;
    api.until(second.id, status).await?;
    Ok(end)
}

/// A program that takes too long is ended with everything it started.
async fn timeout(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.slow";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let mut spec = limited(REF, &gate.run_with_child(), 1);
    spec["timeout_seconds"] = json!(1);
    api.apply(&spec).await?;
    let first = api.submit(REF, json!({})).await?;
    let second = api.submit(REF, json!({})).await?;
    let inside = gate.next().await?;
    ensure!(inside.execution_id == first.id, "{inside:?}");
    inside.gone().await?;
    let first = api.until(first.id, "timed_out").await?;
    ensure!(
        first["error"]
            .as_str()
            .is_some_and(|error| error.contains("1 s")),
        "{first}"
    );
    let next = gate.next().await?;
    ensure!(next.execution_id == second.id, "{next:?}");
    next.leave(0).await?;
    api.until(second.id, "succeeded").await?;
    let totals = json!({"total_enqueued": 2, "total_completed": 2, "active_count": 0});
    api.until_queue(REF, totals).await?;
    Ok(())
}
