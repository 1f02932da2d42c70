//! By what those who wait stand in line: by priority, by age, or by both.

use anyhow::ensure;
use attune_testkit::{Api, Gate, Submitted, System};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{limited, on_both_wirings};

on_both_wirings! {
    ageing => embedded_ageing, cluster_ageing;
    fifo => embedded_fifo, cluster_fifo;
    nonsense => embedded_orders_that_make_no_sense, cluster_orders_that_make_no_sense;
}

async fn submit(api: &Api, action_ref: &str, priority: &str) -> anyhow::Result<Submitted> {
    let body = json!({"action_ref": action_ref, "priority": priority});
    let accepted = api.try_submit(&body).await?.expect(201)?;
    Ok(serde_json::from_value(accepted)?)
}

/// Lets these run one after the other; they must come in this order.
async fn run_in_order(gate: &mut Gate, ids: &[i64]) -> anyhow::Result<()> {
    for id in ids {
        let visitor = gate.next().await?;
        let came = visitor.execution_id;
        ensure!(came == *id, "{came} came instead of {id}, of {ids:?}");
        visitor.leave(0).await?;
    }
    Ok(())
}

/// A low priority that has waited long enough goes before a higher one that came later, and an owner
/// that takes over goes by the same times.
async fn ageing(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.ageing";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let mut spec = limited(REF, &gate.run(), 1);
    spec["policy"]["priority"] = json!({"ageing_seconds": 2});
    api.apply(&spec).await?;
    let first = submit(api, REF, "normal").await?.id;
    let running = gate.next().await?;
    ensure!(running.execution_id == first);
    let low = submit(api, REF, "low").await?.id;
    // A step of ageing passes, and far less than the three that a critical one is ahead.
    let pause = api.submit("core.sleep", json!({"seconds": 2.1})).await?;
    api.until(pause.id, "succeeded").await?;
    let normal = submit(api, REF, "normal").await?;
    ensure!(normal.position == Some(1), "{normal:?}");
    let critical = submit(api, REF, "critical").await?;
    ensure!(critical.position == Some(0), "{critical:?}");
    running.leave(0).await?;
    run_in_order(&mut gate, &[critical.id, low, normal.id]).await
}

/// Without priorities the first comes first; and whoever waits goes by the order as it is now.
async fn fifo(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.fifo";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let mut spec = limited(REF, &gate.run(), 1);
    spec["policy"]["queue"] = json!({"ordering": "fifo"});
    api.apply(&spec).await?;
    let first = submit(api, REF, "normal").await?.id;
    let running = gate.next().await?;
    ensure!(running.execution_id == first);
    let background = submit(api, REF, "background").await?.id;
    let low = submit(api, REF, "low").await?.id;
    let critical = submit(api, REF, "critical").await?;
    ensure!(critical.position == Some(2), "{critical:?}");
    running.leave(0).await?;
    let second = gate.next().await?;
    ensure!(second.execution_id == background);
    spec["policy"]["queue"] = json!({"ordering": "priority"});
    api.apply(&spec).await?;
    second.leave(0).await?;
    run_in_order(&mut gate, &[critical.id, low]).await
}

/// What makes no sense is refused with the path of the field, and the order that there was holds.
async fn nonsense(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.nonsense";
    const FIELD: &str = "policy.priority.ageing_seconds";
    let api = &system.api;
    let gate = Gate::open().await?;
    let mut spec = limited(REF, &gate.run(), 1);
    spec["policy"]["priority"] = json!({"ageing_seconds": 60});
    let applied = api.apply(&spec).await?;
    let wrong = [
        ("ageing_seconds", json!(0), FIELD),
        ("ageing_seconds", json!(2_678_401), FIELD),
        ("ageing_seconds", json!("5"), FIELD),
        ("ageing", json!(5), "ageing"),
    ];
    let mut bodies: Vec<(Value, &str)> = Vec::new();
    for (name, value, said) in wrong {
        let mut body = spec.clone();
        body["policy"]["priority"] = json!({name: value});
        bodies.push((body, said));
    }
    let mut both = spec.clone();
    both["policy"]["queue"] = json!({"ordering": "fifo"});
    bodies.push((both, FIELD));
    let mut unknown = spec.clone();
    unknown["policy"]["queue"] = json!({"ordering": "lifo"});
    bodies.push((unknown, "policy.queue.ordering"));
    let path = format!("/api/v1/actions/{REF}");
    for (body, said) in bodies {
        let text = serde_json::to_vec(&body)?;
        let answer = api.send(Method::PUT, &path, &[], text).await?;
        ensure!(
            matches!(answer.status, 400 | 422),
            "{body}: {} {}",
            answer.status,
            answer.body
        );
        ensure!(
            answer.body.to_string().contains(said),
            "{body}: {}",
            answer.body
        );
    }
    let stored = api.get(&path).await?.expect(200)?;
    ensure!(stored["version"] == applied["version"], "{stored}");
    ensure!(
        stored["spec"]["policy"]["priority"]["ageing_seconds"] == 60,
        "{stored}"
    );
    Ok(())
}
