//! The workers in Python that know Attune from `docs/PROTOCOL.md` alone, killed and started again
//! under load, where nobody else serves their pool.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};
use attune_history::judge_action;
use attune_record::now_ns;
use attune_testkit::{Gate, Process, System, Wiring, wait_for};
use chrono::{Local, NaiveDateTime, TimeDelta};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::guards::until_no_orphans_beside;
use crate::histories::promises_are_kept;
use crate::lost_workers::LEASE;
use crate::oracle::{Recording, judge, tell_checker};
use crate::python::{Speaks, worker};
use crate::restarts::{Batch, go_through};
use crate::support::{all_are, ids, limited, number, run, setup};

/// Tried once: what its worker took with it has ended.
const ONCE: &str = "it.once";
/// Short ones, with their limits.
const SHORT: [(&str, u32); 2] = [("it.echo", 1), ("it.noop", 2)];
/// How many of each are asked for beside the batch, before each disturbance.
const PORTION: usize = 12;
/// What is done to whom, one after the other.
const STEPS: [&str; 5] = [
    "kill python-1",
    "stop python-2",
    "kill python-2",
    "crash owner",
    "kill python-1",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_python_workers_are_killed() -> anyhow::Result<()> {
    serve(Wiring::Cluster, Speaks::Amqp).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_python_workers_over_http_are_killed() -> anyhow::Result<()> {
    serve(Wiring::Cluster, Speaks::Http).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_python_workers_over_http_are_killed() -> anyhow::Result<()> {
    serve(Wiring::Embedded, Speaks::Http).await
}

async fn serve(wiring: Wiring, speaks: Speaks) -> anyhow::Result<()> {
    // The bundled worker of the embedded wiring serves others.
    let setup = setup(wiring).workers(0).set("worker.pool", "bundled");
    run(setup, async |system| {
        let rig = Rig::new(system, speaks)?;
        let outcome = killed(&rig).await;
        let logs: Vec<_> = rig
            .workers
            .lock()
            .await
            .values()
            .map(Process::tail)
            .collect();
        outcome.with_context(|| format!("the workers' logs:\n{}", logs.join("\n")))
    })
    .await
}

/// A system, and the workers that serve it.
struct Rig<'a> {
    system: &'a System,
    speaks: Speaks,
    workers: Mutex<BTreeMap<String, Process>>,
    /// What was accepted beside the batch, by action.
    accepted: RefCell<BTreeMap<&'static str, BTreeSet<i64>>>,
    /// When nothing was left of a worker that was killed.
    gone: RefCell<Vec<i64>>,
}

impl<'a> Rig<'a> {
    fn new(system: &'a System, speaks: Speaks) -> anyhow::Result<Self> {
        let rig = Self {
            system,
            speaks,
            workers: Mutex::default(),
            accepted: RefCell::default(),
            gone: RefCell::default(),
        };
        let names = ["python-1", "python-2"];
        let workers = names.map(|name| anyhow::Ok((name.to_owned(), rig.start(name)?)));
        let workers = Mutex::new(workers.into_iter().collect::<anyhow::Result<_>>()?);
        Ok(Self { workers, ..rig })
    }

    fn start(&self, name: &str) -> anyhow::Result<Process> {
        worker(self.system, self.speaks, name, LEASE.as_secs())
    }

    /// The `run` of one of [`SHORT`].
    fn short(&self, action_ref: &str) -> Value {
        let name = action_ref.trim_start_matches("it.");
        match (self.speaks, name) {
            (Speaks::Amqp, name) => json!({"builtin": name}),
            (Speaks::Http, "echo") => json!({"program": ["/bin/cat"]}),
            (Speaks::Http, _) => json!({"program": ["/bin/true"]}),
        }
    }

    /// When nothing was left of what had no end of its own: of workers that were killed, and of those that had lost
    /// their lease, as they do where a crashed API takes long to come back.
    async fn gone(&self) -> anyhow::Result<Vec<i64>> {
        let mut gone = self.gone.borrow().clone();
        for process in self.workers.lock().await.values() {
            gone.extend(lost_lives(&process.log())?);
        }
        gone.sort_unstable();
        Ok(gone)
    }

    /// Does one of [`STEPS`], with more to do for the workers than they have slots.
    async fn disturb(&self, step: &str) -> anyhow::Result<()> {
        for action_ref in SHORT
            .map(|(action_ref, _)| action_ref)
            .into_iter()
            .chain([ONCE])
        {
            let parameters = std::iter::repeat_n(json!({"work_ms": 100}), PORTION);
            let ids = self.system.api.submit_batch(action_ref, parameters).await?;
            self.accepted
                .borrow_mut()
                .entry(action_ref)
                .or_default()
                .extend(ids);
        }
        match step.split_once(' ').context("a step")? {
            ("crash", _) => {
                let owner = match self.system.wiring() {
                    Wiring::Embedded => "standalone",
                    Wiring::Cluster => "executor",
                };
                self.system.crash(owner).await?;
                self.system.api.until_ready().await
            }
            ("kill", name) => self.kill(name).await,
            (_, name) => self.stop(name, true).await,
        }
    }

    /// Kills a worker in the middle of a run, and starts it again when its programs are gone.
    async fn kill(&self, name: &str) -> anyhow::Result<()> {
        until_holding(self.system, name).await?;
        let mut workers = self.workers.lock().await;
        workers
            .get_mut(name)
            .context(name.to_owned())?
            .kill()
            .await?;
        let others = workers.iter().filter(|(other, _)| *other != name);
        let others: Vec<u32> = others.map(|(_, process)| process.pid()).collect();
        until_no_orphans_beside(self.system, &others).await?;
        self.gone.borrow_mut().push(now_ns());
        workers.insert(name.to_owned(), self.start(name)?);
        Ok(())
    }

    /// Asks a worker to stop, which ends well, and starts it again if that is wanted.
    async fn stop(&self, name: &str, again: bool) -> anyhow::Result<()> {
        let mut workers = self.workers.lock().await;
        let process = workers.get_mut(name).context(name.to_owned())?;
        process.stop().await?;
        let log = process.log();
        ensure!(
            log.ends_with("stopped\n"),
            "{name} did not say that it stopped"
        );
        if again {
            workers.insert(name.to_owned(), self.start(name)?);
        }
        Ok(())
    }
}

/// The name of the worker that holds the only slot of an action.
async fn holder_of(system: &System, action_ref: &str) -> anyhow::Result<String> {
    wait_for("a worker that holds the slot", async || {
        let path = format!("/api/v1/actions/{action_ref}/holders");
        let list = system.api.get(&path).await?.expect(200)?;
        let name = list["holders"][0]["worker"]["name"].as_str();
        Ok(name.context("no worker yet")?.to_owned())
    })
    .await
}

/// Waits until a worker of this name holds slots.
async fn until_holding(system: &System, name: &str) -> anyhow::Result<()> {
    wait_for("a run on the worker", async || {
        let path = "/api/v1/actions/it.five/holders";
        let list = system.api.get(path).await?.expect(200)?;
        let holders = list["holders"].as_array().context("no list")?;
        let runs =
            |holder: &Value| holder["worker"]["name"] == name && !holder["started_at"].is_null();
        ensure!(holders.iter().any(runs), "{list}");
        Ok(())
    })
    .await
}

async fn killed(rig: &Rig<'_>) -> anyhow::Result<()> {
    let api = &rig.system.api;
    for (action_ref, limit) in SHORT {
        let run = rig.short(action_ref);
        api.apply(&limited(action_ref, &run, limit)).await?;
    }
    let mut once = limited(ONCE, &Recording::of(rig.system, ONCE).run(rig.system), 2);
    once["on_worker_lost"] = json!("fail");
    api.apply(&once).await?;
    programs_end_with_their_worker(rig).await?;
    let steps = STEPS.map(str::to_owned);
    let batches = go_through(rig.system, 120, &steps, async |step| {
        rig.disturb(step).await
    })
    .await?;
    let mut all = Vec::new();
    for batch in batches {
        all.extend(tried_until_they_succeed(rig, &batch).await?);
    }
    for (action_ref, _) in SHORT {
        let executions = ended(rig, action_ref).await?;
        all_are(&executions, "succeeded")?;
        all.extend(executions);
    }
    all.extend(tried_once(rig).await?);
    all.extend(api.executions("it.held").await?);
    for name in ["python-1", "python-2"] {
        rig.stop(name, false).await?;
    }
    let summary = promises_are_kept(rig.system, &all).await?;
    for (what, least) in [("starts", 300), ("retries", 1)] {
        let judged = summary["judged"][what].as_u64();
        ensure!(judged >= Some(least), "{what} of {}: {summary}", all.len());
    }
    nothing_is_left(rig.system).await
}

/// When a worker that had lost its lease served again, by its log: it has killed what it ran before that.
fn lost_lives(log: &str) -> anyhow::Result<Vec<i64>> {
    let (mut is_lost, mut again) = (false, Vec::new());
    for line in log.lines() {
        if line.contains("the lease is lost") {
            is_lost = true;
        } else if is_lost && line.contains("serving pool") {
            is_lost = false;
            let time = line.split(' ').next().context("a time")?;
            let time: NaiveDateTime = time.parse().with_context(|| line.to_owned())?;
            let time = time.and_local_timezone(Local).latest().context("a time")?;
            // The log is in milliseconds.
            let time = time + TimeDelta::milliseconds(1);
            again.push(time.timestamp_nanos_opt().context("a time of today")?);
        }
    }
    Ok(again)
}

/// A program ends when its worker is killed, long before anybody else may have its slot.
async fn programs_end_with_their_worker(rig: &Rig<'_>) -> anyhow::Result<()> {
    const REF: &str = "it.held";
    let (api, mut gate) = (&rig.system.api, Gate::open().await?);
    api.apply(&limited(REF, &gate.run(), 1)).await?;
    let id = api.submit(REF, json!({})).await?.id;
    let (orphan, name) = (gate.next().await?, holder_of(rig.system, REF).await?);
    rig.workers
        .lock()
        .await
        .get_mut(&name)
        .context(name.clone())?
        .kill()
        .await?;
    let killed = std::time::Instant::now();
    orphan.gone().await?;
    let outlived = killed.elapsed();
    ensure!(outlived < LEASE, "it outlived its worker by {outlived:?}");
    rig.workers
        .lock()
        .await
        .insert(name.clone(), rig.start(&name)?);
    let again = gate.next().await?;
    ensure!(again.execution_id == id && again.attempt > 1, "{again:?}");
    again.leave(0).await?;
    api.until(id, "succeeded").await?;
    Ok(())
}

/// Everything of the batch has succeeded, in order and within the limit, and some of it was lost once.
async fn tried_until_they_succeed(rig: &Rig<'_>, batch: &Batch) -> anyhow::Result<Vec<Value>> {
    let executions = rig.system.api.until_idle(batch.action_ref).await?;
    ensure!(
        ids(&executions)? == batch.accepted,
        "{}: not what was accepted",
        batch.action_ref
    );
    all_are(&executions, "succeeded")?;
    let runs = batch.recording.ended_by(&rig.gone().await?)?;
    judge(&runs, batch.limit, &batch.accepted).context(batch.action_ref)?;
    tell_checker(rig.system, batch.action_ref, &runs)?;
    Ok(executions)
}

/// Each began at most once, and what its worker took with it is abandoned.
async fn tried_once(rig: &Rig<'_>) -> anyhow::Result<Vec<Value>> {
    let executions = ended(rig, ONCE).await?;
    let runs = Recording::of(rig.system, ONCE).ended_by(&rig.gone().await?)?;
    let began: BTreeSet<i64> = runs.iter().map(|run| run.execution_id.0).collect();
    ensure!(began.len() == runs.len(), "an execution began twice");
    let verdict = judge_action(&runs, Some(2));
    ensure!(verdict.limit_violations == 0, "{verdict:?}");
    tell_checker(rig.system, ONCE, &runs)?;
    let mut abandoned = 0;
    for execution in &executions {
        match execution["status"].as_str() {
            Some("succeeded") => ensure!(began.contains(&number(execution, "id")?), "{execution}"),
            Some("abandoned") => abandoned += 1,
            _ => anyhow::bail!("{execution}"),
        }
    }
    let kills = rig.gone.borrow().len();
    ensure!(
        abandoned <= 2 * kills,
        "{abandoned} are abandoned after {kills} kills"
    );
    Ok(executions)
}

/// All of an action, which is all that was accepted of it.
async fn ended(rig: &Rig<'_>, action_ref: &'static str) -> anyhow::Result<Vec<Value>> {
    let executions = rig.system.api.until_idle(action_ref).await?;
    let found: BTreeSet<i64> = ids(&executions)?.into_iter().collect();
    let accepted = rig.accepted.borrow();
    ensure!(
        accepted.get(action_ref) == Some(&found),
        "{action_ref}: not what was accepted"
    );
    Ok(executions)
}

/// Nothing waits or holds a slot, nothing was unreadable, and no life is left.
async fn nothing_is_left(system: &System) -> anyhow::Result<()> {
    if system.wiring() == Wiring::Embedded {
        let cluster = system.api.get("/api/v1/cluster").await?.expect(200)?;
        let workers = cluster["workers"].as_array().context("no workers")?;
        let is_left = |life: &&Value| life["alive"] == true && life["pool"] == "default";
        ensure!(!workers.iter().any(|life| is_left(&life)), "{cluster}");
        return Ok(());
    }
    let mut connection = system.database()?.connect().await?;
    for what in [
        "attune.execution_active",
        "attune.dead_letter",
        "attune.worker_lease WHERE expires_at > now()",
    ] {
        let count = format!("SELECT count(*) FROM {what}");
        let count = sqlx::query_scalar(sqlx::AssertSqlSafe(count));
        let count: i64 = count.fetch_one(&mut connection).await?;
        ensure!(count == 0, "{count} rows in {what}");
    }
    Ok(())
}
