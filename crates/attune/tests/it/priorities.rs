//! Which priority an execution has, by what it asks for and by what it says.

use anyhow::ensure;
use attune_testkit::{Gate, System};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{limited, on_both_wirings};

on_both_wirings! {
    rules => embedded_priority_rules, cluster_priority_rules;
    nonsense => embedded_priorities_that_make_no_sense, cluster_priorities_that_make_no_sense;
}

/// What asks for more than is allowed has the most that is, and what asks for nothing what the first rule
/// says that is for it; it is told so, stored, and waits so.
async fn rules(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.ranked";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let mut spec = limited(REF, &gate.run(), 1);
    spec["policy"]["priority"] = json!({"default": "low", "max": "high", "rules": [
        {"when": {"source": "interactive", "labels.tier": ["gold", "silver"]}, "then": "high"},
        {"when": {"parameters.rows": 0}, "then": "background"},
    ]});
    api.apply(&spec).await?;
    let first = api.submit(REF, json!({})).await?.id;
    let running = gate.next().await?;
    ensure!(running.execution_id == first);
    let mut ids = Vec::new();
    for (says, has) in [
        (json!({"parameters": {"rows": 0}}), "background"),
        (json!({"source": "background"}), "low"),
        (
            json!({"parameters": {"rows": 0}, "priority": "normal"}),
            "normal",
        ),
        (
            json!({"source": "interactive", "labels": {"tier": "gold"}}),
            "high",
        ),
        (json!({"priority": "critical"}), "high"),
    ] {
        let mut body = says.clone();
        body["action_ref"] = json!(REF);
        let accepted = api.try_submit(&body).await?.expect(201)?;
        ensure!(accepted["priority"] == has, "{says}: {accepted}");
        let id = accepted["id"].as_i64().unwrap_or_default();
        let stored = api.execution(id).await?;
        ensure!(stored["priority"] == has, "{says}: {stored}");
        ids.push(id);
    }
    running.leave(0).await?;
    for id in [ids[3], ids[4], ids[2], ids[1], ids[0]] {
        let visitor = gate.next().await?;
        let came = visitor.execution_id;
        ensure!(came == id, "{came} came instead of {id} of {ids:?}");
        visitor.leave(0).await?;
    }
    Ok(())
}

/// What makes no sense is refused with the path of the field, and the policy that there was holds.
async fn nonsense(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.rankless";
    let api = &system.api;
    let gate = Gate::open().await?;
    let spec = limited(REF, &gate.run(), 1);
    let applied = api.apply(&spec).await?;
    let path = format!("/api/v1/actions/{REF}");
    let rule = |when: Value, then: &str| json!({"rules": [{"when": when, "then": then}]});
    for (priority, field) in [
        (
            json!({"default": "high", "max": "low"}),
            "policy.priority.default",
        ),
        (json!({"max": "highest"}), "policy.priority.max"),
        (rule(json!({}), "low"), "policy.priority.rules.0.when"),
        (rule(json!({"usr": "ann"}), "low"), "usr"),
        (rule(json!({"user.role": "dev"}), "low"), "user.role"),
        (
            rule(json!({"user": []}), "low"),
            "policy.priority.rules.0.when",
        ),
        (
            rule(json!({"user": "ann"}), "urgent"),
            "policy.priority.rules",
        ),
        (
            json!({"rules": [{"when": {"user": "ann"}, "then": "low"},
                             {"when": {"user": "ann", "group": "g"}, "then": "high"}]}),
            "policy.priority.rules.1.when",
        ),
    ] {
        let mut body = spec.clone();
        body["policy"]["priority"] = priority;
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
    let unknown = json!({"action_ref": REF, "source": "human"});
    let answer = api.try_submit(&unknown).await?;
    let said = answer.body["error"].to_string();
    ensure!(
        matches!(answer.status, 400 | 422) && said.contains("interactive"),
        "{said}"
    );
    Ok(())
}
