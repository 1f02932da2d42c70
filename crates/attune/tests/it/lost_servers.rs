//! PostgreSQL and RabbitMQ lost in the middle of a batch.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use attune_testkit::{Setup, System, Wiring, wait_for};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::oracle::{Recording, judge, worker_intervals};
use crate::support::{all_are, ids, limited, number, run, setup};

/// Actions and their limits.
const ACTIONS: [(&str, u32); 2] = [("it.one", 1), ("it.four", 4)];

fn proxied() -> Setup {
    setup(Wiring::Cluster).proxied()
}

/// Everything is submitted, then `fault` happens while it runs. Answers what was accepted.
async fn batch(
    system: &System,
    runs: &[Value],
    parameters: Value,
    count: usize,
    fault: impl AsyncFnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Vec<(i64, Vec<i64>)>> {
    let api = &system.api;
    let mut accepted = Vec::new();
    for ((action_ref, limit), run) in ACTIONS.iter().zip(runs) {
        let action = api.apply(&limited(action_ref, run, *limit)).await?;
        let each = std::iter::repeat_n(parameters.clone(), count);
        accepted.push((
            number(&action, "id")?,
            api.submit_batch(action_ref, each).await?,
        ));
    }
    wait_for("the first that have ended", async || {
        for (action_ref, _) in ACTIONS {
            let path = format!("/api/v1/executions?action={action_ref}&status=succeeded&limit=1");
            let page = api.get(&path).await?.expect(200)?;
            ensure!(page["executions"] != json!([]), "none of {action_ref}");
        }
        Ok(())
    })
    .await?;
    fault().await?;
    api.until_ready().await?;
    for ((action_ref, _), (_, accepted)) in ACTIONS.iter().zip(&accepted) {
        let executions = api.until_idle(action_ref).await?;
        ensure!(
            ids(&executions)? == *accepted,
            "{action_ref}: not what was accepted"
        );
        all_are(&executions, "succeeded")?;
    }
    Ok(accepted)
}

/// Cuts both servers off for so long; the API must say that it is not ready.
async fn outage(system: &System, length: Duration) -> anyhow::Result<()> {
    let (database, broker) = system.proxies()?;
    let began = Instant::now();
    database.cut();
    broker.cut();
    let answer = wait_for("unreadiness", async || {
        let answer = system.api.get("/readyz").await?;
        ensure!(answer.status == 503, "{answer:?}");
        Ok(answer)
    })
    .await?;
    ensure!(answer.body["ready"] == false, "{answer:?}");
    wait_for("the end of the outage", async || {
        ensure!(began.elapsed() >= length, "it goes on");
        Ok(())
    })
    .await?;
    broker.restore();
    database.restore();
    Ok(())
}

/// An outage shorter than the leases: nobody loses anything, every execution runs once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_short_outage() -> anyhow::Result<()> {
    let leases = proxied()
        .set("executor.lease.ttl_seconds", "20")
        .set("worker.lease.ttl_seconds", "20");
    run(leases, async |system| {
        let recordings = ACTIONS.map(|(action_ref, _)| Recording::of(system, action_ref));
        let programs: Vec<Value> = recordings.iter().map(|it| it.run(system)).collect();
        let fault = async || outage(system, Duration::from_secs(3)).await;
        let accepted = batch(system, &programs, json!({"work_ms": 20}), 60, fault).await?;
        for ((limit, recording), (_, accepted)) in ACTIONS
            .map(|(_, limit)| limit)
            .iter()
            .zip(&recordings)
            .zip(&accepted)
        {
            let runs = recording.intervals()?;
            ensure!(
                runs.len() == accepted.len(),
                "{} runs of {}",
                runs.len(),
                accepted.len()
            );
            judge(&runs, *limit, accepted)?;
        }
        Ok(())
    })
    .await
}

/// An outage longer than the leases: workers kill what they run, owners and workers begin anew,
/// and still everything succeeds in order and within the limits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_long_outage() -> anyhow::Result<()> {
    run(proxied(), async |system| {
        let sleep = json!({"builtin": "sleep"});
        let runs = [sleep.clone(), sleep];
        let fault = async || outage(system, Duration::from_secs(7)).await;
        let accepted = batch(system, &runs, json!({"seconds": 0.1}), 30, fault).await?;
        for ((action_ref, limit), (action_id, accepted)) in ACTIONS.iter().zip(&accepted) {
            let runs = worker_intervals(&system.history(), *action_id, accepted.len()).await?;
            judge(&runs, *limit, accepted).context(*action_ref)?;
        }
        Ok(())
    })
    .await
}
