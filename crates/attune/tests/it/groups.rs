//! Limits of groups, and executions that take more than one of a limit.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use attune_testkit::{Gate, System, Visitor};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{limited, on_both_wirings};

on_both_wirings! {
    each_host => embedded_groups, cluster_groups;
    dear => embedded_costs, cluster_costs;
    regrouped => embedded_groups_that_change, cluster_groups_that_change;
    nonsense => embedded_groups_that_make_no_sense, cluster_groups_that_make_no_sense;
}

fn grouped(action_ref: &str, gate: &Gate, concurrency: Value) -> Value {
    let mut spec = limited(action_ref, &gate.run(), 1);
    spec["policy"]["concurrency"] = concurrency;
    spec
}

/// Waits for so many runs; gives them by their execution.
async fn visitors(gate: &mut Gate, count: usize) -> anyhow::Result<BTreeMap<i64, Visitor>> {
    let mut all = BTreeMap::new();
    for _ in 0..count {
        let visitor = gate.next().await?;
        all.insert(visitor.execution_id, visitor);
    }
    Ok(all)
}

/// Ends a run; the next one to come must be this one.
async fn hand_on(gate: &mut Gate, visitor: Visitor, to: i64) -> anyhow::Result<Visitor> {
    visitor.leave(0).await?;
    let next = gate.next().await?;
    let came = next.execution_id;
    ensure!(came == to, "{came} came instead of {to}");
    Ok(next)
}

/// One run for each host, three in all: who comes first does not hold up those of other hosts.
async fn each_host(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.each-host";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let concurrency = json!({"limit": 3, "group_by": ["parameters.host"], "group_limit": 1});
    api.apply(&grouped(REF, &gate, concurrency)).await?;
    let mut ids = Vec::new();
    for host in ["a", "a", "b", "a", "c", "d"] {
        ids.push(api.submit(REF, json!({"host": host})).await?.id);
    }
    let mut running = visitors(&mut gate, 3).await?;
    let came: Vec<i64> = running.keys().copied().collect();
    ensure!(came == [ids[0], ids[2], ids[4]], "{came:?} of {ids:?}");
    let mut take = |id: i64| running.remove(&id).context("it runs");
    let d = hand_on(&mut gate, take(ids[2])?, ids[5]).await?;
    let second = hand_on(&mut gate, take(ids[0])?, ids[1]).await?;
    let c = take(ids[4])?;
    // With room in the limit of the action nobody may start: the host is taken.
    c.leave(0).await?;
    d.leave(0).await?;
    api.until(ids[5], "succeeded").await?;
    api.until(ids[4], "succeeded").await?;
    let figures = json!({"queue_length": 1, "active_count": 1});
    api.until_queue(REF, figures).await?;
    hand_on(&mut gate, second, ids[3]).await?.leave(0).await?;
    api.until(ids[3], "succeeded").await?;
    Ok(())
}

/// Who takes more waits for its room and is not overtaken by who takes less.
async fn dear(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.dear";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let cost = json!({"path": "labels.gpus", "max": 4});
    api.apply(&grouped(REF, &gate, json!({"limit": 4, "cost": cost})))
        .await?;
    let mut ids = Vec::new();
    for gpus in ["2", "1", "4", "1"] {
        let body = json!({"action_ref": REF, "labels": {"gpus": gpus}});
        let accepted = api.try_submit(&body).await?.expect(201)?;
        ids.push(accepted["id"].as_i64().context("an id")?);
    }
    let running = visitors(&mut gate, 2).await?;
    for (id, visitor) in running {
        ensure!(id == ids[0] || id == ids[1], "{id} of {ids:?}");
        visitor.leave(0).await?;
    }
    let whole = gate.next().await?;
    ensure!(whole.execution_id == ids[2]);
    hand_on(&mut gate, whole, ids[3]).await?.leave(0).await?;
    // What it takes must be a number that the limits have room for.
    for gpus in ["5", "0", "two"] {
        let body = json!({"action_ref": REF, "labels": {"gpus": gpus}});
        let refused = api.try_submit(&body).await?;
        ensure!(refused.status == 422, "{} {}", refused.status, refused.body);
        let said = refused.body["error"].to_string();
        ensure!(
            said.contains("labels.gpus") && said.contains("1 to 4"),
            "{said}"
        );
    }
    Ok(())
}

/// Who waits and who runs is in the groups of the policy as it is now.
async fn regrouped(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.regrouped";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let by = |path: &str| json!({"group_by": [path], "group_limit": 1});
    api.apply(&grouped(REF, &gate, by("user"))).await?;
    let mut ids = Vec::new();
    for (user, host) in [("ann", "a"), ("ann", "b"), ("ann", "a"), ("bob", "b")] {
        let body = json!({"action_ref": REF, "requested_by": user, "parameters": {"host": host}});
        let accepted = api.try_submit(&body).await?.expect(201)?;
        ids.push(accepted["id"].as_i64().context("an id")?);
    }
    let mut running = visitors(&mut gate, 2).await?;
    ensure!(running.contains_key(&ids[0]) && running.contains_key(&ids[3]));
    // Host a is taken by the first, b by the last: nobody may start, though ann may have one more.
    api.apply(&grouped(REF, &gate, by("parameters.host")))
        .await?;
    let last = running.remove(&ids[3]).context("it runs")?;
    let second = hand_on(&mut gate, last, ids[1]).await?;
    let first = running.remove(&ids[0]).context("it runs")?;
    let third = hand_on(&mut gate, first, ids[2]).await?;
    second.leave(0).await?;
    third.leave(0).await?;
    api.until(ids[2], "succeeded").await?;
    Ok(())
}

/// What makes no sense is refused with the path of the field, and the policy that there was holds.
async fn nonsense(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.groupless";
    let api = &system.api;
    let gate = Gate::open().await?;
    let mut spec = grouped(REF, &gate, json!({"limit": 2}));
    spec["parameters"] = json!({"type": "object", "properties": {"host": {"type": "string"}}});
    let applied = api.apply(&spec).await?;
    let path = format!("/api/v1/actions/{REF}");
    for (concurrency, field) in [
        (json!({"group_by": ["user"]}), "group_by"),
        (json!({"group_limit": 1}), "group_by"),
        (json!({"group_by": [], "group_limit": 1}), "group_by"),
        (json!({"group_by": ["usr"], "group_limit": 1}), "group_by"),
        (
            json!({"group_by": ["source"], "group_limit": 1}),
            "group_by",
        ),
        (json!({"group_by": "user", "group_limit": 1}), "group_by"),
        (
            json!({"group_by": ["parameters.port"], "group_limit": 1}),
            "group_by",
        ),
        (
            json!({"limit": 1, "group_by": ["user"], "group_limit": 2}),
            "group_limit",
        ),
        (
            json!({"group_by": ["user"], "group_limit": 0}),
            "group_limit",
        ),
        (json!({"cost": {"path": "labels.c", "max": 2}}), "cost"),
        (json!({"limit": 2, "cost": {"path": "labels.c"}}), "max"),
        (
            json!({"limit": 2, "cost": {"path": "labels.c", "max": 3}}),
            "cost.max",
        ),
        (
            json!({"limit": 2, "cost": {"path": "c", "max": 1}}),
            "cost.path",
        ),
    ] {
        let mut body = spec.clone();
        body["policy"]["concurrency"] = concurrency;
        let text = serde_json::to_vec(&body)?;
        let answer = api.send(Method::PUT, &path, &[], text).await?;
        ensure!(
            matches!(answer.status, 400 | 422),
            "{body}: {} {}",
            answer.status,
            answer.body
        );
        let said = answer.body["error"].to_string();
        ensure!(said.contains(field), "{body}: {said}");
    }
    let stored = api.get(&path).await?.expect(200)?;
    ensure!(stored["version"] == applied["version"], "{stored}");
    Ok(())
}
