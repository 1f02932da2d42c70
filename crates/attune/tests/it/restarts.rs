//! Every process stopped or killed in the middle of a batch, with nothing lost.

use std::cell::{Cell, RefCell};

use anyhow::{Context as _, bail, ensure};
use attune_record::now_ns;
use attune_testkit::{Api, System, wait_for};
use futures_util::future::try_join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::guards::until_no_orphans;
use crate::histories::promises_are_kept;
use crate::oracle::{Recording, judge};
use crate::support::{all_are, ids, limited, number, on_both_wirings};

on_both_wirings! {
    stopped => embedded_restart_in_a_batch, cluster_restart_in_a_batch;
    killed => embedded_crash_in_a_batch, cluster_crash_in_a_batch;
}

/// Actions and their limits.
const ACTIONS: [(&str, u32); 3] = [("it.one", 1), ("it.two", 2), ("it.five", 5)];
/// What is submitted at once.
const PORTION: usize = 10;
/// So many wait at most; enough that the batch never runs dry.
const AHEAD: usize = 30;
/// So much is submitted at least, over all actions.
const LEAST: usize = 300;
/// The batch ends here, whatever happens.
const MOST: usize = 6000;

/// Who is asked to stop finishes what it has begun: every execution runs exactly once.
async fn stopped(system: &System) -> anyhow::Result<()> {
    let names = processes(system).await;
    let restart = async |name: &str| system.restart(name).await;
    let batches = go_through(system, 20, &names, restart).await?;
    each_ran_once(system, batches).await
}

/// Checks that every execution ran exactly once, in order and within the limits.
pub(crate) async fn each_ran_once(system: &System, batches: Vec<Batch>) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for Batch {
        action_ref,
        limit,
        recording,
        accepted,
    } in batches
    {
        let executions = system.api.until_idle(action_ref).await?;
        ensure!(
            ids(&executions)? == accepted,
            "{action_ref}: not what was accepted"
        );
        all_are(&executions, "succeeded")?;
        let runs = recording.intervals()?;
        ensure!(
            runs.len() == accepted.len(),
            "{action_ref}: {} of {}",
            runs.len(),
            accepted.len()
        );
        let most = judge(&runs, limit, &accepted).context(action_ref)?;
        // A busy machine may start programs more slowly than they end.
        ensure!(
            most * 2 > u64::from(limit),
            "{action_ref}: {most} at once; the batch ran dry"
        );
        all.extend(executions);
    }
    promises_are_kept(system, &all).await?;
    Ok(())
}

/// Who is killed may leave runs behind, which are tried again; still all succeed, in order and
/// within the limits.
async fn killed(system: &System) -> anyhow::Result<()> {
    let gone = RefCell::new(Vec::new());
    let crash = async |name: &str| {
        if let Some(worker) = system
            .announced(name, "the worker is registered worker.id=")
            .await
        {
            until_running_on(&system.api, &worker).await?;
        }
        system.kill(name).await?;
        // What it ran goes with it: from here on the programs whose end nobody wrote are gone.
        until_no_orphans(system).await?;
        gone.borrow_mut().push(now_ns());
        system.start_again(name).await
    };
    let batches = go_through(system, 80, &processes(system).await, crash).await?;
    let (mut tried_again, mut all) = (0, Vec::new());
    for batch in batches {
        let Batch {
            action_ref,
            limit,
            ref accepted,
            ..
        } = batch;
        let executions = system.api.until_idle(action_ref).await?;
        ensure!(
            ids(&executions)? == *accepted,
            "{action_ref}: not what was accepted"
        );
        all_are(&executions, "succeeded")?;
        let runs = batch.recording.ended_by(&gone.borrow())?;
        judge(&runs, limit, accepted).context(action_ref)?;
        let mut attempts = 0;
        for execution in &executions {
            attempts += usize::try_from(number(execution, "attempt")?)?;
        }
        // An attempt can end before its program has begun, but no program begins without one.
        ensure!(
            runs.len() <= attempts,
            "{action_ref}: {} runs, {attempts} attempts",
            runs.len()
        );
        tried_again += attempts - accepted.len();
        all.extend(executions);
    }
    promises_are_kept(system, &all).await?;
    ensure!(tried_again > 0, "no run was hit, so nothing was shown");
    Ok(())
}

/// What was accepted of one action.
pub(crate) struct Batch {
    pub(crate) action_ref: &'static str,
    pub(crate) limit: u32,
    pub(crate) recording: Recording,
    pub(crate) accepted: Vec<i64>,
}

/// All processes; one alone is disturbed more than once.
async fn processes(system: &System) -> Vec<String> {
    let mut names = system.names().await;
    if names == ["standalone"] {
        names.extend(names.clone());
    }
    names
}

/// Keeps executions coming, which take `work_ms` or a little more, while something is done to
/// one process after the other.
pub(crate) async fn go_through(
    system: &System,
    work_ms: usize,
    names: &[String],
    disturb: impl AsyncFn(&str) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<Batch>> {
    let api = &system.api;
    for (action_ref, limit) in ACTIONS {
        let run = Recording::of(system, action_ref).run(system);
        api.apply(&limited(action_ref, &run, limit)).await?;
    }
    let over = Cell::new(false);
    let disturbing = async {
        for name in names {
            until_progress(system)
                .await
                .with_context(|| format!("before {name}"))?;
            disturb(name)
                .await
                .with_context(|| format!("disturbing {name}"))?;
        }
        until_progress(system).await?;
        over.set(true);
        Ok(())
    };
    let submitting = try_join_all(ACTIONS.map(|(action_ref, limit)| {
        let over = &over;
        async move {
            let accepted = keep_coming(api, action_ref, work_ms, over).await?;
            let recording = Recording::of(system, action_ref);
            anyhow::Ok(Batch {
                action_ref,
                limit,
                recording,
                accepted,
            })
        }
    }));
    let ((), batches) = tokio::try_join!(disturbing, submitting)?;
    Ok(batches)
}

/// Waits until programs of every action have begun since now, and more of them wait.
async fn until_progress(system: &System) -> anyhow::Result<()> {
    let begun = || {
        ACTIONS.map(|(action_ref, _)| {
            Recording::of(system, action_ref)
                .intervals()
                .map_or(0, |runs| runs.len())
        })
    };
    let before = begun();
    wait_for("progress", async || {
        let now = begun();
        for ((action_ref, limit), (now, before)) in ACTIONS.iter().zip(now.iter().zip(before)) {
            let fresh = now - before;
            ensure!(
                fresh > *limit as usize,
                "only {fresh} of {action_ref} have begun"
            );
            let waiting = open(&system.api, action_ref, "queued").await?;
            ensure!(waiting > 0, "nothing of {action_ref} waits");
        }
        Ok(())
    })
    .await
}

/// Waits until something runs on this worker.
async fn until_running_on(api: &Api, worker: &str) -> anyhow::Result<()> {
    wait_for("a run on the worker", async || {
        let page = api
            .get("/api/v1/executions?status=running&limit=100")
            .await?
            .expect(200)?;
        let running = page["executions"].as_array().context("no list")?;
        let hit = running
            .iter()
            .any(|execution| execution["worker"] == worker);
        ensure!(hit, "{} run, none on {worker}", running.len());
        Ok(())
    })
    .await
}

async fn open(api: &Api, action_ref: &str, status: &str) -> anyhow::Result<usize> {
    let limit = AHEAD + 1;
    let path = format!("/api/v1/executions?action={action_ref}&status={status}&limit={limit}");
    let page = api.get(&path).await?.expect(200)?;
    Ok(page["executions"].as_array().context("no list")?.len())
}

/// Submits until the disturbances are over, and repeats what was not answered.
async fn keep_coming(
    api: &Api,
    action_ref: &str,
    work_ms: usize,
    over: &Cell<bool>,
) -> anyhow::Result<Vec<i64>> {
    let mut accepted = Vec::new();
    while !over.get() || accepted.len() < LEAST / ACTIONS.len() {
        if accepted.len() > MOST {
            bail!("the disturbances do not come to an end");
        }
        let body: Value = (0..PORTION)
            .map(|number| {
                let work_ms = work_ms + (accepted.len() + number * 7) % 30;
                json!({"action_ref": action_ref, "parameters": {"work_ms": work_ms}})
            })
            .collect();
        let key = format!("{action_ref}-{}", accepted.len());
        accepted.extend(submit_surely(api, &key, &body).await?);
        wait_for("room for more", async || {
            let waiting = open(api, action_ref, "queued").await?;
            ensure!(waiting <= AHEAD || over.get(), "more than {AHEAD} wait");
            Ok(())
        })
        .await?;
    }
    accepted.sort_unstable();
    Ok(accepted)
}

/// Repeats a request under the same key until all of it is accepted.
async fn submit_surely(api: &Api, key: &str, body: &Value) -> anyhow::Result<Vec<i64>> {
    wait_for("acceptance", async || {
        let headers = [("Idempotency-Key", key)];
        let body = serde_json::to_vec(body)?;
        let answer = api
            .send(Method::POST, "/api/v1/executions", &headers, body)
            .await?;
        let answer = answer.expect(200)?;
        ids(answer.as_array().context("no list")?)
    })
    .await
}
