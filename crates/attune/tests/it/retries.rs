//! What is tried again: it gives its slot back, waits for its time, and stands at its place then.

use anyhow::{Context as _, ensure};
use attune_testkit::{Gate, System, Wiring, wait_for};
use chrono::{DateTime, Utc};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{limited, number, on_both_wirings};

on_both_wirings! {
    places => embedded_retry_keeps_its_place, cluster_retry_keeps_its_place;
    kept => embedded_back_off_outlives_its_owner, cluster_back_off_outlives_its_owner;
    same_slot => embedded_try_in_the_same_slot, cluster_try_in_the_same_slot;
    timeouts => embedded_time_outs_are_tried_again, cluster_time_outs_are_tried_again;
    nonsense => embedded_retries_that_make_no_sense, cluster_retries_that_make_no_sense;
}

fn not_before(execution: &Value) -> anyhow::Result<DateTime<Utc>> {
    let text = execution["not_before"].as_str().context("no time")?;
    Ok(text.parse()?)
}

/// Waits until an execution is queued again after this attempt.
async fn until_put_back(system: &System, id: i64, attempt: i64) -> anyhow::Result<Value> {
    wait_for("an execution that waits for its next try", async || {
        let found = system.api.execution(id).await?;
        let is_there = found["status"] == "queued" && found["attempt"] == attempt;
        ensure!(is_there, "{found}");
        Ok(found)
    })
    .await
}

/// Its slot goes to the next at once; when its time has come, it goes before all who came later. Of its
/// tries the last one counts.
async fn places(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.flaky";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let mut spec = limited(REF, &gate.run(), 1);
    let backoff = json!({"initial_ms": 400, "factor": 1, "max_ms": 400, "jitter": 0});
    spec["policy"]["retry"] = json!({"max_attempts": 3, "on": ["failed"], "backoff": backoff});
    api.apply(&spec).await?;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(api.submit(REF, json!({})).await?.id);
    }
    let mut order = Vec::new();
    for (attempt, code) in [(1, 3), (2, 4)] {
        let visitor = gate.next().await?;
        ensure!(visitor.execution_id == ids[0], "{visitor:?} in {ids:?}");
        visitor.leave(code).await?;
        let next = gate.next().await?;
        order.push(next.execution_id);
        let waits = until_put_back(system, ids[0], attempt).await?;
        let error = waits["last_error"].as_str().unwrap_or_default();
        ensure!(error.contains(&code.to_string()), "{waits}");
        // Its time passes while the other runs.
        let due = not_before(&waits)?;
        wait_for("the time of the next try", async || {
            ensure!(Utc::now() > due, "{due} is not over");
            Ok(())
        })
        .await?;
        next.leave(0).await?;
    }
    ensure!(order == ids[1..], "{order:?} in {ids:?}");
    let last = gate.next().await?;
    ensure!(last.execution_id == ids[0]);
    last.leave(5).await?;
    let ended = api.until(ids[0], "failed").await?;
    ensure!(number(&ended, "attempt")? == 3, "{ended}");
    ensure!(ended["exit_code"] == 5, "{ended}");
    let error = ended["last_error"].as_str().unwrap_or_default();
    ensure!(error.contains('4'), "of the try before: {ended}");
    let queue = api.until_queue(REF, json!({"active_count": 0})).await?;
    ensure!(number(&queue, "total_completed")? == 3, "{queue}");
    ensure!(number(&queue, "total_enqueued")? == 3, "{queue}");
    Ok(())
}

/// Who waits for the next try still does when its owner has died, holds no slot meanwhile, and can be
/// cancelled.
async fn kept(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.later";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let mut spec = limited(REF, &gate.run(), 1);
    let backoff = json!({"initial_ms": 3_600_000, "max_ms": 3_600_000});
    spec["policy"]["retry"] = json!({"backoff": backoff});
    api.apply(&spec).await?;
    let id = api.submit(REF, json!({})).await?.id;
    gate.next().await?.leave(1).await?;
    let before = until_put_back(system, id, 1).await?;
    let left = not_before(&before)? - Utc::now();
    ensure!((40..=60).contains(&left.num_minutes()), "{before}");
    let name = match system.wiring() {
        Wiring::Embedded => "standalone",
        Wiring::Cluster => "executor",
    };
    system.kill(name).await?;
    system.start_again(name).await?;
    let other = api.submit(REF, json!({})).await?.id;
    let visitor = gate.next().await?;
    ensure!(visitor.execution_id == other, "{visitor:?}");
    visitor.leave(0).await?;
    api.until(other, "succeeded").await?;
    let after = api.execution(id).await?;
    for field in ["status", "attempt", "not_before", "last_error"] {
        ensure!(after[field] == before[field], "{field}: {after}");
    }
    ensure!(gate.uninvited().is_empty(), "it was tried before its time");
    api.cancel(id).await?.expect(202)?;
    let ended = api.until(id, "cancelled").await?;
    ensure!(ended["last_error"] == before["last_error"], "{ended}");
    Ok(())
}

/// Who keeps its slot begins anew in it before everybody who waits, also when its owner has died meanwhile;
/// one that is cancelled while it waits gives it to the next.
async fn same_slot(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.steps";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let with_backoff = |millis: u32| {
        let mut spec = limited(REF, &gate.run(), 1);
        let backoff = json!({"initial_ms": millis, "factor": 1, "max_ms": millis, "jitter": 0});
        spec["policy"]["retry"] =
            json!({"max_attempts": 3, "on": ["failed"], "backoff": backoff, "hold_slot": true});
        spec
    };
    let (short, long) = (with_backoff(8_000), with_backoff(3_600_000));
    api.apply(&short).await?;
    let first = api.submit(REF, json!({})).await?.id;
    let urgent = json!({"action_ref": REF, "priority": "critical"});
    let inside = gate.next().await?;
    let other = number(&api.try_submit(&urgent).await?.expect(201)?, "id")?;
    inside.leave(3).await?;
    let kept = wait_for("a slot that is kept", async || {
        let found = api.execution(first).await?;
        ensure!(
            found["status"] == "requested" && !found["last_error"].is_null(),
            "{found}"
        );
        Ok(found)
    })
    .await?;
    let due = not_before(&kept)?;
    let said = api
        .get(&format!("/api/v1/executions/{first}/explain"))
        .await?;
    let said = said.expect(200)?;
    ensure!(said["state"] == "holds_slot", "{said}");
    ensure!(said["waits_for"][0]["kind"] == "backoff", "{said}");
    let name = match system.wiring() {
        Wiring::Embedded => "standalone",
        Wiring::Cluster => "executor",
    };
    system.kill(name).await?;
    system.start_again(name).await?;
    let inside = gate.next().await?;
    ensure!(
        inside.execution_id == first && Utc::now() >= due,
        "{inside:?}"
    );
    let again = api.execution(first).await?;
    ensure!(number(&again, "attempt")? == 2, "{again}");
    api.apply(&long).await?;
    inside.leave(4).await?;
    wait_for("a slot that is kept", async || {
        let found = api.execution(first).await?;
        let error = found["last_error"].as_str().unwrap_or_default();
        ensure!(
            error.contains('4') && number(&found, "attempt")? == 2,
            "{found}"
        );
        Ok(())
    })
    .await?;
    let cancelled = api.cancel(first).await?.expect(202)?;
    ensure!(cancelled["status"] == "cancelled", "{cancelled}");
    let inside = gate.next().await?;
    ensure!(inside.execution_id == other, "{inside:?}");
    inside.leave(0).await?;
    api.until(other, "succeeded").await?;
    api.until_queue(REF, json!({"active_count": 0, "queue_length": 0}))
        .await?;
    Ok(())
}

/// A run that took too long is tried again where the policy says so; one that fails is not, then.
async fn timeouts(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    let spec = |name: &str, program: &str| {
        let run = json!({"program": ["/bin/sh", "-c", program]});
        let mut spec = limited(name, &run, 1);
        spec["timeout_seconds"] = json!(1);
        let backoff = json!({"initial_ms": 10});
        spec["policy"]["retry"] =
            json!({"max_attempts": 2, "on": ["timed_out"], "backoff": backoff});
        spec
    };
    api.apply(&spec("it.slow", "exec sleep 60")).await?;
    api.apply(&spec("it.wrong", "exit 9")).await?;
    let slow = api.submit("it.slow", json!({})).await?.id;
    let wrong = api.submit("it.wrong", json!({})).await?.id;
    let wrong = api.until(wrong, "failed").await?;
    ensure!(number(&wrong, "attempt")? == 1, "{wrong}");
    ensure!(wrong["last_error"].is_null(), "{wrong}");
    let slow = api.until(slow, "timed_out").await?;
    ensure!(number(&slow, "attempt")? == 2, "{slow}");
    ensure!(slow["last_error"].is_string(), "{slow}");
    Ok(())
}

/// What makes no sense is refused with the path of the field.
async fn nonsense(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.contradiction";
    let api = &system.api;
    let gate = Gate::open().await?;
    let spec = limited(REF, &gate.run(), 1);
    let path = format!("/api/v1/actions/{REF}");
    let cases = [
        (json!({"max_attempts": 0}), "policy.retry.max_attempts"),
        (json!({"max_attempts": 4}), "`max_attempts`"),
        (json!({"on": ["failed"]}), "`on_worker_lost`"),
        (json!({"on": ["cancelled"]}), "policy.retry.on"),
        (
            json!({"hold_slot": true, "backoff": {"initial_ms": 3_600_001, "max_ms": 3_600_001}}),
            "policy.retry.hold_slot",
        ),
        (
            json!({"backoff": {"initial_ms": 0}}),
            "policy.retry.backoff.initial_ms",
        ),
        (
            json!({"backoff": {"factor": 0.5}}),
            "policy.retry.backoff.factor",
        ),
        (
            json!({"backoff": {"initial_ms": 5000, "max_ms": 4999}}),
            "policy.retry.backoff.max_ms",
        ),
        (
            json!({"backoff": {"jitter": 1.5}}),
            "policy.retry.backoff.jitter",
        ),
        (
            json!({"backoff": {"jitter": "much"}}),
            "policy.retry.backoff.jitter",
        ),
    ];
    for (retry, said) in cases {
        let mut body = spec.clone();
        body["max_attempts"] = json!(3);
        body["on_worker_lost"] = json!("retry");
        body["policy"]["retry"] = retry;
        let text = serde_json::to_vec(&body)?;
        let answer = api.send(Method::PUT, &path, &[], text).await?;
        let words = answer.body.to_string();
        ensure!(
            matches!(answer.status, 400 | 422) && words.contains(said),
            "{body}: {} {words}",
            answer.status
        );
    }
    // What is stored says in the earlier fields what is in force.
    let mut body = spec.clone();
    body["policy"]["retry"] = json!({"max_attempts": 7, "on": ["failed"]});
    let applied = api.apply(&body).await?;
    ensure!(applied["spec"]["max_attempts"] == 7, "{applied}");
    ensure!(applied["spec"]["on_worker_lost"] == "fail", "{applied}");
    Ok(())
}
