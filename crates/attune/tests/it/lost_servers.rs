//! PostgreSQL and RabbitMQ lost in the middle of a batch.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use attune_testkit::{Gate, Proxy, Setup, System, Wiring, wait_for};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::oracle::{Recording, judge, worker_intervals};
use crate::support::{all_are, ids, limited, number, run, setup};

/// Actions and their limits.
const ONE: (&str, u32) = ("it.one", 1);
const FOUR: (&str, u32) = ("it.four", 4);

fn proxied() -> Setup {
    setup(Wiring::Cluster).proxied()
}

/// Cuts servers off for so long; the API must say that it is not ready.
async fn outage(system: &System, servers: &[&Proxy], length: Duration) -> anyhow::Result<()> {
    let began = Instant::now();
    for server in servers {
        server.cut();
    }
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
    for server in servers {
        server.restore();
    }
    Ok(())
}

/// Applies an action and submits a batch of it. Answers its id and theirs.
async fn submit(
    system: &System,
    (action_ref, limit): (&str, u32),
    run: &Value,
    parameters: impl IntoIterator<Item = Value>,
) -> anyhow::Result<(i64, Vec<i64>)> {
    let api = &system.api;
    let action = api.apply(&limited(action_ref, run, limit)).await?;
    Ok((
        number(&action, "id")?,
        api.submit_batch(action_ref, parameters).await?,
    ))
}

/// Waits for the end of everything: all that was accepted has succeeded, and nothing else.
async fn all_succeed(
    system: &System,
    action_ref: &str,
    accepted: &[i64],
) -> anyhow::Result<Vec<Value>> {
    let executions = system.api.until_idle(action_ref).await?;
    ensure!(
        ids(&executions)? == accepted,
        "{action_ref}: not what was accepted"
    );
    all_are(&executions, "succeeded")?;
    Ok(executions)
}

/// Outages shorter than the leases, of one server and of both: nobody loses anything, and every
/// execution runs once.
async fn short(system: &System) -> anyhow::Result<()> {
    let recording = |(action_ref, _): (&str, u32)| Recording::of(system, action_ref);
    let batch = async |action: (&str, u32)| {
        let work = std::iter::repeat_n(json!({"work_ms": 20}), 150);
        submit(system, action, &recording(action).run(system), work).await
    };
    let ((_, mut one), (_, four)) = tokio::try_join!(batch(ONE), batch(FOUR))?;
    let (database, broker) = system.proxies()?;
    for servers in [vec![database], vec![broker], vec![database, broker]] {
        let before = recording(ONE).intervals().map_or(0, |runs| runs.len());
        wait_for("progress", async || {
            let begun = recording(ONE).intervals()?.len();
            ensure!(begun > before + 3, "{begun} have begun");
            Ok(())
        })
        .await?;
        outage(system, &servers, Duration::from_secs(2)).await?;
        system.api.until_ready().await?;
    }
    let begun = recording(ONE).intervals()?.len();
    ensure!(
        begun < one.len(),
        "the batch was over before the last outage was"
    );
    one.push(during_an_outage(system).await?);
    for (action, accepted) in [(ONE, one), (FOUR, four)] {
        all_succeed(system, action.0, &accepted).await?;
        let runs = recording(action).intervals()?;
        ensure!(
            runs.len() == accepted.len(),
            "{} runs of {}",
            runs.len(),
            accepted.len()
        );
        judge(&runs, action.1, &accepted).context(action.0)?;
    }
    Ok(())
}

/// Whatever a client is told of a request during an outage, repeating it under its key gives one
/// execution.
async fn during_an_outage(system: &System) -> anyhow::Result<i64> {
    let (database, broker) = system.proxies()?;
    let body = json!({"action_ref": ONE.0, "parameters": {"work_ms": 1}});
    let send = async || {
        let headers = [("Idempotency-Key", "during")];
        let body = serde_json::to_vec(&body)?;
        system
            .api
            .send(Method::POST, "/api/v1/executions", &headers, body)
            .await
    };
    let servers = [database, broker];
    let outage = outage(system, &servers, Duration::from_secs(2));
    let (told, ()) = tokio::try_join!(send(), outage)?;
    ensure!(matches!(told.status, 200 | 201 | 503), "{told:?}");
    system.api.until_ready().await?;
    let accepted = wait_for("acceptance", async || {
        let answer = send().await?;
        ensure!(matches!(answer.status, 200 | 201), "{answer:?}");
        Ok(answer.body)
    })
    .await?;
    if told.status != 503 {
        ensure!(
            accepted["id"] == told.body["id"],
            "{accepted} after {told:?}"
        );
    }
    number(&accepted, "id")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_short_outages() -> anyhow::Result<()> {
    let leases = proxied()
        .set("executor.lease.ttl_seconds", "20")
        .set("worker.lease.ttl_seconds", "20");
    run(leases, short).await
}

/// An outage longer than the leases: workers kill what they run, owners and workers begin anew,
/// and still everything succeeds in order and within the limits.
async fn long(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    let sleep = json!({"builtin": "sleep"});
    let short = || std::iter::repeat_n(json!({"seconds": 0.1}), 30);
    // They hold all slots when the servers go.
    let long = std::iter::repeat_n(json!({"seconds": 6}), 4);
    let four = submit(system, FOUR, &sleep, long.chain(short())).await?;
    let one = submit(system, ONE, &sleep, short()).await?;
    wait_for("the first that has ended, and four that run", async || {
        for (action_ref, status, least) in [(ONE.0, "succeeded", 1), (FOUR.0, "running", 4)] {
            let path = format!("/api/v1/executions?action={action_ref}&status={status}");
            let page = api.get(&path).await?.expect(200)?;
            let found = page["executions"].as_array().context("no list")?.len();
            ensure!(found >= least, "{found} of {action_ref} {status}");
        }
        Ok(())
    })
    .await?;
    let (database, broker) = system.proxies()?;
    outage(system, &[database, broker], Duration::from_secs(7)).await?;
    for (action, (action_id, accepted)) in [(ONE, one), (FOUR, four)] {
        let executions = all_succeed(system, action.0, &accepted).await?;
        if action == FOUR {
            let killed = &executions[..4];
            ensure!(
                killed.iter().all(|it| it["attempt"] == 2),
                "not killed: {killed:?}"
            );
        }
        let runs = worker_intervals(&system.history(), action_id, accepted.len()).await?;
        judge(&runs, action.1, &accepted).context(action.0)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_long_outage() -> anyhow::Result<()> {
    run(proxied(), long).await
}

/// PostgreSQL is away for 40 s, and leases last as long as they do for everybody: no worker gives
/// up what it runs, and no attempt is counted.
async fn usual(system: &System) -> anyhow::Result<()> {
    const PATIENT: &str = "it.patient";
    const AWAY: Duration = Duration::from_secs(40);
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let mark = system.folder().join("mark");
    let script = format!(
        "echo begun >> {mark}; echo $ATTUNE_ATTEMPT; sleep 50; echo ended >> {mark}; echo ended",
        mark = mark.display()
    );
    let program = json!({"program": ["/bin/bash", "-c", script]});
    api.apply(&limited(PATIENT, &program, 1)).await?;
    api.apply(&limited("it.gate", &gate.run(), 1)).await?;
    let patient = api.submit(PATIENT, json!({})).await?.id;
    let ids = [
        api.submit("it.gate", json!({})).await?.id,
        api.submit("it.gate", json!({})).await?.id,
    ];
    let short = gate.next().await?;
    api.until(patient, "running").await?;
    let (database, _) = system.proxies()?;
    let leave = async {
        // It ends while nobody can write that down; the end waits with its worker.
        wait_for("the outage", async || {
            let answer = api.get("/readyz").await?;
            ensure!(answer.status == 503, "{answer:?}");
            Ok(())
        })
        .await?;
        short.leave(0).await
    };
    let servers = [database];
    tokio::try_join!(leave, outage(system, &servers, AWAY))?;
    let restored = Instant::now();
    let next = gate.next().await?;
    ensure!((next.execution_id, next.attempt) == (ids[1], 1), "{next:?}");
    println!("the next began {:?} after the outage", restored.elapsed());
    next.leave(0).await?;
    let ended = api.until(patient, "succeeded").await?;
    println!(
        "the patient ended {:?} after the outage",
        restored.elapsed()
    );
    ensure!(
        number(&ended, "attempt")? == 1 && ended["stdout"] == "1\nended\n",
        "{ended}"
    );
    let written = std::fs::read_to_string(&mark)?;
    ensure!(written == "begun\nended\n", "{written}");
    for id in ids {
        let ended = api.until(id, "succeeded").await?;
        ensure!(number(&ended, "attempt")? == 1, "{ended}");
    }
    ensure!(gate.uninvited().is_empty(), "something was run twice");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_outage_of_usual_leases() -> anyhow::Result<()> {
    let usual_leases = proxied()
        .set("executor.lease.ttl_seconds", "")
        .set("worker.lease.ttl_seconds", "")
        .set("worker.lease.grace_seconds", "");
    run(usual_leases, usual).await
}

/// Every connection to PostgreSQL goes mute, with nobody told, as behind a firewall that has forgotten them;
/// new ones work. What is in use is given up and made anew, long before the kernel would: what was accepted
/// goes on, once and in order, and more is accepted.
async fn silent(system: &System) -> anyhow::Result<()> {
    let recording = Recording::of(system, ONE.0);
    let work = std::iter::repeat_n(json!({"work_ms": 20}), 100);
    let (_, mut accepted) = submit(system, ONE, &recording.run(system), work).await?;
    wait_for("progress", async || {
        let begun = recording.intervals()?.len();
        ensure!(begun > 3, "{begun} have begun");
        Ok(())
    })
    .await?;
    let (database, _) = system.proxies()?;
    database.silence();
    let body = json!({"action_ref": ONE.0, "parameters": {"work_ms": 20}}).to_string();
    let late = wait_for("an acceptance", async || {
        let (path, key) = ("/api/v1/executions", [("idempotency-key", "late")]);
        let answer = system
            .api
            .send(Method::POST, path, &key, body.clone().into());
        let answer = answer.await?;
        ensure!(matches!(answer.status, 200 | 201), "{answer:?}");
        Ok(answer.body)
    });
    accepted.push(number(&late.await?, "id")?);
    all_succeed(system, ONE.0, &accepted).await?;
    let runs = recording.intervals()?;
    ensure!(runs.len() == accepted.len(), "{} runs", runs.len());
    judge(&runs, ONE.1, &accepted)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_connections_that_go_silent_are_made_anew() -> anyhow::Result<()> {
    run(proxied(), silent).await
}
