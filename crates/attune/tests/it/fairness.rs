//! Slots that are shared between users, labels or groups.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use attune_testkit::{Gate, System, Visitor};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{limited, on_both_wirings};

on_both_wirings! {
    by_users => embedded_shares, cluster_shares;
    in_a_group => embedded_shares_of_a_group, cluster_shares_of_a_group;
    nonsense => embedded_shares_that_make_no_sense, cluster_shares_that_make_no_sense;
}

fn shared(action_ref: &str, gate: &Gate, limit: u32, fairness: Value) -> Value {
    let mut spec = limited(action_ref, &gate.run(), limit);
    spec["policy"]["fairness"] = fairness;
    spec
}

async fn submit(
    system: &System,
    action_ref: &str,
    (user, team): (&str, &str),
) -> anyhow::Result<i64> {
    let body = json!({"action_ref": action_ref, "requested_by": user, "labels": {"team": team}});
    let accepted = system.api.try_submit(&body).await?.expect(201)?;
    accepted["id"].as_i64().context("an id")
}

/// Ends a run; the next one to come must be this one.
async fn hand_on(gate: &mut Gate, visitor: Visitor, to: i64) -> anyhow::Result<Visitor> {
    visitor.leave(0).await?;
    let next = gate.next().await?;
    let came = next.execution_id;
    ensure!(came == to, "{came} came instead of {to}");
    Ok(next)
}

/// Who came first does not get all slots; other weights and other shares hold for who waits.
async fn by_users(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.shares";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&shared(REF, &gate, 2, json!({"by": ["user"]})))
        .await?;
    let mut ann = Vec::new();
    for team in ["x", "y", "x", "x", "y", "x"] {
        ann.push(submit(system, REF, ("ann", team)).await?);
    }
    let mut running = BTreeMap::new();
    for _ in 0..2 {
        let visitor = gate.next().await?;
        running.insert(visitor.execution_id, visitor);
    }
    let mut bob = Vec::new();
    for _ in 0..3 {
        bob.push(submit(system, REF, ("bob", "x")).await?);
    }
    let path = format!("/api/v1/executions/{}/explain", ann[2]);
    let said = api.get(&path).await?.expect(200)?.to_string();
    ensure!(
        said.contains("\"turn") && said.contains("\"turns\""),
        "{said}"
    );
    let one = running.remove(&ann[0]).context("it runs")?;
    let two = running.remove(&ann[1]).context("it runs")?;
    let one = hand_on(&mut gate, one, bob[0]).await?;
    let two = hand_on(&mut gate, two, ann[2]).await?;
    let one = hand_on(&mut gate, one, bob[1]).await?;
    // With ten times the weight two more of hers go before one of Bob's, who holds one.
    let heavy = json!({"by": ["user"], "weights": {"user:ann": 10}});
    api.apply(&shared(REF, &gate, 4, heavy)).await?;
    for _ in 0..2 {
        let visitor = gate.next().await?;
        ensure!([ann[3], ann[4]].contains(&visitor.execution_id));
        running.insert(visitor.execution_id, visitor);
    }
    // By teams all who wait are of one, and in it who came first goes first.
    api.apply(&shared(REF, &gate, 4, json!({"by": ["labels.team"]})))
        .await?;
    let one = hand_on(&mut gate, one, ann[5]).await?;
    let two = hand_on(&mut gate, two, bob[2]).await?;
    for visitor in running.into_values().chain([one, two]) {
        visitor.leave(0).await?;
    }
    for id in ann.into_iter().chain(bob) {
        api.until(id, "succeeded").await?;
    }
    Ok(())
}

/// Where one group is all that is short, it is shared as well.
async fn in_a_group(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.shares-in-group";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let mut spec = shared(REF, &gate, 9, json!({"by": ["user"]}));
    spec["policy"]["concurrency"] =
        json!({"limit": 9, "group_by": ["labels.team"], "group_limit": 1});
    api.apply(&spec).await?;
    let mut ids = Vec::new();
    for user in ["ann", "ann", "ann", "bob", "bob"] {
        ids.push(submit(system, REF, (user, "x")).await?);
    }
    let mut came = Vec::new();
    for _ in &ids {
        let visitor = gate.next().await?;
        came.push(visitor.execution_id);
        visitor.leave(0).await?;
    }
    // The first one counts, though it started when nobody else was there.
    let turns = [0, 3, 1, 4, 2].map(|n: usize| ids[n]);
    ensure!(came == turns, "{came:?} instead of {turns:?}");
    api.until(ids[2], "succeeded").await?;
    Ok(())
}

/// What makes no sense is refused with the path of the field, and the policy that there was holds.
async fn nonsense(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.shareless";
    let api = &system.api;
    let gate = Gate::open().await?;
    let spec = shared(REF, &gate, 2, json!({"by": ["user"]}));
    let applied = api.apply(&spec).await?;
    let path = format!("/api/v1/actions/{REF}");
    for (fairness, field) in [
        (json!({}), "fairness.by"),
        (json!({"by": []}), "fairness.by"),
        (json!({"by": ["user", "user"]}), "fairness.by"),
        (json!({"by": ["group"]}), "fairness.by"),
        (json!({"by": ["source"]}), "fairness.by"),
        (json!({"by": ["usr"]}), "by"),
        (
            json!({"by": ["user"], "default_weight": 0}),
            "fairness.default_weight",
        ),
        (
            json!({"by": ["user"], "weights": {"user:ann": 0}}),
            "fairness.weights.user:ann",
        ),
        (
            json!({"by": ["user"], "weights": {"team:x": 2}}),
            "fairness.weights.team:x",
        ),
        (json!({"by": ["user"], "weight": 2}), "weight"),
    ] {
        let mut body = spec.clone();
        body["policy"]["fairness"] = fairness;
        let text = serde_json::to_vec(&body)?;
        let answer = api.send(Method::PUT, &path, &[], text).await?;
        ensure!(
            matches!(answer.status, 400 | 422),
            "{body}: {} {}",
            answer.status,
            answer.body
        );
        let said = answer.body["error"].to_string();
        ensure!(said.contains(field), "{said}");
    }
    let mut body = spec.clone();
    body["policy"]["queue"] = json!({"ordering": "fifo"});
    let text = serde_json::to_vec(&body)?;
    let answer = api.send(Method::PUT, &path, &[], text).await?;
    ensure!(answer.body["error"].to_string().contains("policy.fairness"));
    let stored = api.get(&path).await?.expect(200)?;
    ensure!(stored["version"] == applied["version"], "{stored}");
    Ok(())
}
