//! What becomes of who comes when a limit is reached, the queue is full, or its user has enough.

use anyhow::{Context as _, ensure};
use attune_testkit::{Gate, System};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{limited, on_both_wirings};

on_both_wirings! {
    dropped => embedded_drops_the_oldest, cluster_drops_the_oldest;
    refused => embedded_refuses_at_the_limit, cluster_refuses_at_the_limit;
    replaced => embedded_replaces_who_waits, cluster_replaces_who_waits;
    latest => embedded_latest_wins, cluster_latest_wins;
    of_user => embedded_limits_users, cluster_limits_users;
    nonsense => embedded_overflow_that_makes_no_sense, cluster_overflow_that_makes_no_sense;
}

fn spec(action_ref: &str, gate: &Gate, set: impl FnOnce(&mut Value)) -> Value {
    let mut spec = limited(action_ref, &gate.run(), 1);
    set(&mut spec["policy"]);
    spec
}

/// The execution must have ended so.
async fn must_be(system: &System, id: i64, status: &str, code: Option<&str>) -> anyhow::Result<()> {
    let ended = system.api.until(id, status).await?;
    ensure!(ended["end_code"].as_str() == code, "{ended}");
    Ok(())
}

/// A full queue takes who comes, and the oldest of the lowest priority ends.
async fn dropped(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.dropped";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let queue = json!({"max_length": 2, "on_full": "drop_oldest"});
    let spec = spec(REF, &gate, |policy| policy["queue"] = queue);
    api.apply(&spec).await?;
    let first = api.submit(REF, json!({})).await?.id;
    let running = gate.next().await?;
    let mut ids = Vec::new();
    for priority in ["high", "normal"] {
        let body = json!({"action_ref": REF, "priority": priority});
        let accepted = api.try_submit(&body).await?.expect(201)?;
        ids.push(accepted["id"].as_i64().context("an id")?);
    }
    let low = json!({"action_ref": REF, "priority": "low"});
    api.try_submit(&low).await?.refused(429, "QUEUE_FULL")?;
    let third = api.submit(REF, json!({})).await?.id;
    must_be(system, ids[1], "cancelled", Some("DROPPED")).await?;
    let figures = json!({"queue_length": 2, "active_count": 1, "total_cancelled": 1});
    api.until_queue(REF, figures).await?;
    running.leave(0).await?;
    must_be(system, first, "succeeded", None).await?;
    for id in [ids[0], third] {
        let next = gate.next().await?;
        ensure!(next.execution_id == id, "{} of {id}", next.execution_id);
        next.leave(0).await?;
    }
    must_be(system, third, "succeeded", None).await?;
    Ok(())
}

/// Nobody waits for a limit of such an action.
async fn refused(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.refused-at-its-limit";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let spec = spec(REF, &gate, |policy| {
        policy["concurrency"]["on_limit"] = json!("reject");
    });
    api.apply(&spec).await?;
    let body = json!({"action_ref": REF});
    let first = api.submit(REF, json!({})).await?.id;
    let running = gate.next().await?;
    let answer = api.try_submit(&body).await?;
    ensure!(answer.retry_after.is_some(), "{}", answer.body);
    answer.refused(429, "LIMIT_REACHED")?;
    running.leave(0).await?;
    must_be(system, first, "succeeded", None).await?;
    let second = api.submit(REF, json!({})).await?.id;
    gate.next().await?.leave(0).await?;
    must_be(system, second, "succeeded", None).await?;
    ensure!(api.executions(REF).await?.len() == 2, "one was stored");
    Ok(())
}

/// Of each host the latest waits, and what is said twice replaces nobody. Whose turn it is and for whom
/// starts are counted makes no difference.
async fn replaced(system: &System) -> anyhow::Result<()> {
    let nothing = json!({});
    replaced_beside(system, "it.replaced", &nothing).await?;
    let users = json!({
        "fairness": {"by": ["user"]},
        "rate_limit": {"max_executions": 1_000, "window_seconds": 1, "by": ["user"]},
    });
    replaced_beside(system, "it.replaced-beside-shares", &users).await
}

async fn replaced_beside(
    system: &System,
    action_ref: &str,
    policies: &Value,
) -> anyhow::Result<()> {
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let concurrency = json!({"limit": 1, "group_by": ["parameters.host"], "group_limit": 1,
        "on_limit": "replace_waiting"});
    let spec = spec(action_ref, &gate, |policy| {
        policy["concurrency"] = concurrency;
        for (field, value) in policies.as_object().into_iter().flatten() {
            policy[field] = value.clone();
        }
    });
    api.apply(&spec).await?;
    let mut ids = Vec::new();
    for (host, user) in [("a", "ann"), ("a", "bob"), ("b", "cid"), ("a", "dan")] {
        let body = json!({"action_ref": action_ref, "parameters": {"host": host},
            "requested_by": user});
        let accepted = api.try_submit(&body).await?.expect(201)?;
        ids.push(accepted["id"].as_i64().context("an id")?);
    }
    must_be(system, ids[1], "cancelled", Some("REPLACED")).await?;
    let key = [("idempotency-key", action_ref)];
    let body = json!({"action_ref": action_ref, "parameters": {"host": "b"}});
    let body = serde_json::to_vec(&body)?;
    let mut again = Vec::new();
    for _ in 0..2 {
        let path = "/api/v1/executions";
        let answer = api.send(Method::POST, path, &key, body.clone()).await?;
        again.push(answer.body["id"].as_i64().context("an id")?);
    }
    ensure!(again[0] == again[1], "{again:?}");
    must_be(system, ids[2], "cancelled", Some("REPLACED")).await?;
    for id in [ids[0], ids[3], again[0]] {
        let next = gate.next().await?;
        ensure!(next.execution_id == id, "{} of {id}", next.execution_id);
        next.leave(0).await?;
    }
    must_be(system, again[0], "succeeded", None).await?;
    Ok(())
}

/// The latest wins: who runs is asked to end, who waits is replaced.
async fn latest(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.latest";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let spec = spec(REF, &gate, |policy| {
        policy["concurrency"]["on_limit"] = json!("cancel_running");
    });
    api.apply(&spec).await?;
    let first = api.submit(REF, json!({})).await?.id;
    let running = gate.next().await?;
    let second = api.submit(REF, json!({})).await?.id;
    // It has the slot when it is free, and not before.
    must_be(system, first, "cancelled", None).await?;
    drop(running);
    let running = gate.next().await?;
    ensure!(running.execution_id == second);
    let third = api.submit(REF, json!({})).await?.id;
    must_be(system, second, "cancelled", None).await?;
    drop(running);
    let running = gate.next().await?;
    ensure!(running.execution_id == third);
    running.leave(0).await?;
    must_be(system, third, "succeeded", None).await?;
    Ok(())
}

/// One user has so many and no more; others, and who names none, are not concerned.
async fn of_user(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.of-user";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let spec = spec(REF, &gate, |policy| policy["per_user_limit"] = json!(2));
    api.apply(&spec).await?;
    let of = |user: &str| json!({"action_ref": REF, "requested_by": user});
    for user in ["ann", "ann", "bob"] {
        api.try_submit(&of(user)).await?.expect(201)?;
    }
    let answer = api.try_submit(&of("ann")).await?;
    ensure!(answer.retry_after.is_some(), "{}", answer.body);
    let error = answer.refused(429, "USER_LIMIT_REACHED")?;
    let said = error["message"].as_str().unwrap_or_default();
    ensure!(said.contains("`ann`") && said.contains('2'), "{said}");
    let running = gate.next().await?;
    let first = running.execution_id;
    running.leave(0).await?;
    api.until(first, "succeeded").await?;
    api.try_submit(&of("ann")).await?.expect(201)?;
    for _ in 0..2 {
        api.submit(REF, json!({})).await?;
    }
    for _ in 0..5 {
        gate.next().await?.leave(0).await?;
    }
    let figures = json!({"queue_length": 0, "active_count": 0, "total_completed": 6});
    api.until_queue(REF, figures).await?;
    Ok(())
}

/// What makes no sense is refused with the path of the field, and the policy that there was holds.
async fn nonsense(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.overflowless";
    let api = &system.api;
    let gate = Gate::open().await?;
    let spec = spec(REF, &gate, |_| {});
    let applied = api.apply(&spec).await?;
    let path = format!("/api/v1/actions/{REF}");
    for (policy, field) in [
        (json!({"concurrency": {"on_limit": "reject"}}), "on_limit"),
        (
            json!({"concurrency": {"limit": 1, "on_limit": "drop"}}),
            "on_limit",
        ),
        (json!({"queue": {"on_full": "drop_newest"}}), "on_full"),
        (
            json!({"concurrency": {"limit": 1, "on_limit": "replace_waiting"},
                "queue": {"on_full": "drop_oldest"}}),
            "on_full",
        ),
        (json!({"per_user_limit": 0}), "per_user_limit"),
        (json!({"per_user_limit": "many"}), "per_user_limit"),
    ] {
        let mut body = spec.clone();
        body["policy"] = policy;
        let text = serde_json::to_vec(&body)?;
        let answer = api.send(Method::PUT, &path, &[], text).await?;
        let is_refused = matches!(answer.status, 400 | 422);
        ensure!(is_refused, "{body}: {} {}", answer.status, answer.body);
        let said = answer.body["error"].to_string();
        ensure!(said.contains(field), "{body}: {said}");
    }
    let stored = api.get(&path).await?.expect(200)?;
    ensure!(stored["version"] == applied["version"], "{stored}");
    Ok(())
}
