//! What a worker runs never outlives its right to run it, whatever becomes of the worker.

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use attune_testkit::{Gate, System, Visitor, Wiring, wait_for};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::json;

use crate::lost_workers::{GRACE, LEASE, worker_of};
use crate::support::{limited, number, on_both_wirings};

on_both_wirings! {
    killed => embedded_guard_after_kill, cluster_guard_after_kill;
    paused => embedded_guard_during_pause, cluster_guard_during_pause;
    replaced => embedded_guard_replaced, cluster_guard_replaced;
    stopped => embedded_guard_stopped, cluster_guard_stopped;
}

/// A process, as `/proc` shows it.
struct Seen {
    pid: i32,
    parent: u32,
    is_stopped: bool,
    command: Vec<String>,
}

/// Every process that has not ended.
fn processes() -> anyhow::Result<Vec<Seen>> {
    let mut seen = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // It may end at any moment.
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}"));
        let (Ok(stat), Ok(command)) = (read("stat"), read("cmdline")) else {
            continue;
        };
        let (_, rest) = stat.rsplit_once(") ").context("a strange stat")?;
        let mut words = rest.split(' ');
        let (state, parent) = (words.next(), words.next().context("no parent")?);
        if state == Some("Z") {
            continue;
        }
        seen.push(Seen {
            pid,
            parent: parent.parse()?,
            is_stopped: state == Some("T"),
            command: command.split('\0').map(str::to_owned).collect(),
        });
    }
    Ok(seen)
}

/// Whether a process catches SIGTERM: from then on it is a guard that nothing but the end of its
/// worker ends.
fn catches_term(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid()));
    let status = status.unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & (1 << (Signal::TERM.as_raw() - 1)) != 0)
}

/// The guard of a worker process, once it has one besides `before` that listens.
async fn guard_of(worker: u32, before: Option<Pid>) -> anyhow::Result<Pid> {
    wait_for("the guard of the worker", async || {
        let guard = processes()?.into_iter().find(|seen| {
            seen.parent == worker && seen.command.iter().any(|argument| argument == "guard")
        });
        let guard = guard.and_then(|seen| Pid::from_raw(seen.pid));
        let guard = guard.filter(|pid| Some(*pid) != before && catches_term(*pid));
        guard.context("none yet")
    })
    .await
}

/// Waits until a process is gone.
async fn is_gone(pid: Pid) -> anyhow::Result<()> {
    wait_for("the end of the process", async || {
        ensure!(test_kill_process(pid).is_err(), "it goes on");
        Ok(())
    })
    .await
}

/// Waits until every demo program of a system has a worker of that system for a parent.
pub(crate) async fn until_no_orphans(system: &System) -> anyhow::Result<()> {
    until_no_orphans_beside(system, &[]).await
}

/// Likewise, where these processes are workers as well.
pub(crate) async fn until_no_orphans_beside(system: &System, beside: &[u32]) -> anyhow::Result<()> {
    let folder = system.folder().to_string_lossy();
    wait_for("the end of the orphans", async || {
        let mut workers = beside.to_vec();
        for name in system.names().await {
            workers.push(system.pid(&name).await?);
        }
        for seen in processes()? {
            let is_program = seen.command.get(1).is_some_and(|it| it == "demo-program")
                && seen.command.iter().any(|it| it.starts_with(&*folder));
            ensure!(
                !is_program || workers.contains(&seen.parent),
                "{:?} goes on",
                seen.command
            );
        }
        Ok(())
    })
    .await
}

/// Starts a program one child of which has left its group and its session.
async fn begin(system: &System, gate: &mut Gate) -> anyhow::Result<(i64, Visitor, String)> {
    let run = gate.run_with_escaped_child();
    system.api.apply(&limited("it.guarded", &run, 1)).await?;
    let id = system.api.submit("it.guarded", json!({})).await?.id;
    let visitor = gate.next().await?;
    ensure!(visitor.attempt == 1 && visitor.execution_id == id);
    let name = worker_of(system, "it.guarded").await?;
    Ok((id, visitor, name))
}

/// The next attempt is made, and ends well.
async fn again(system: &System, gate: &mut Gate, id: i64) -> anyhow::Result<()> {
    let again = gate.next().await?;
    ensure!((again.execution_id, again.attempt) == (id, 2), "{again:?}");
    again.leave(0).await?;
    let ended = system.api.until(id, "succeeded").await?;
    ensure!(number(&ended, "attempt")? == 2, "{ended}");
    Ok(())
}

async fn killed(system: &System) -> anyhow::Result<()> {
    let mut gate = Gate::open().await?;
    let (id, orphan, name) = begin(system, &mut gate).await?;
    let guard = guard_of(system.pid(&name).await?, None).await?;
    system.kill(&name).await?;
    let killed = Instant::now();
    orphan.gone().await?;
    let outlived = killed.elapsed();
    ensure!(outlived < LEASE, "it outlived its worker by {outlived:?}");
    is_gone(guard).await?;
    system.start_again(&name).await?;
    again(system, &mut gate, id).await
}

/// Waits for a line of a log: a thread of the process writes it, by and by.
async fn says(system: &System, words: &str) -> anyhow::Result<()> {
    wait_for("a line of a log", async || {
        let logs = system.logs().await;
        ensure!(logs.contains(words), "nobody says: {words}");
        Ok(())
    })
    .await
}

async fn paused(system: &System) -> anyhow::Result<()> {
    let mut gate = Gate::open().await?;
    let (id, program, name) = begin(system, &mut gate).await?;
    let worker = system.pid(&name).await?;
    system.pause(&name).await?;
    let paused = Instant::now();
    program.gone().await?;
    let outlived = paused.elapsed();
    ensure!(outlived < LEASE, "it outlived the lease: {outlived:?}");
    if system.wiring() == Wiring::Cluster {
        // It must not wake up and go on with what it runs within itself.
        wait_for("the end of the worker", async || {
            let mut seen = processes()?.into_iter();
            ensure!(
                !seen.any(|seen| u32::try_from(seen.pid) == Ok(worker)),
                "it is there"
            );
            Ok(())
        })
        .await?;
        let outlived = paused.elapsed();
        ensure!(
            outlived < LEASE + GRACE,
            "it may wake up after {outlived:?}"
        );
        says(system, "the worker stands still beyond its lease").await?;
        system.start_again(&name).await?;
    } else {
        // It stands still with its executor, so that nobody else begins anything.
        let seen = processes()?.into_iter();
        let mut worker = seen.filter(|seen| u32::try_from(seen.pid) == Ok(worker));
        ensure!(worker.next().is_some_and(|worker| worker.is_stopped));
        system.resume(&name).await?;
    }
    again(system, &mut gate, id).await
}

async fn replaced(system: &System) -> anyhow::Result<()> {
    let mut gate = Gate::open().await?;
    let (id, orphan, name) = begin(system, &mut gate).await?;
    let worker = system.pid(&name).await?;
    let first = guard_of(worker, None).await?;
    kill_process(first, Signal::KILL)?;
    let second = guard_of(worker, Some(first)).await?;
    says(system, "the worker's guard has ended").await?;
    // What a service manager sends to every process of a service does not concern it.
    kill_process(second, Signal::TERM)?;
    system.kill(&name).await?;
    orphan.gone().await?;
    is_gone(second).await?;
    system.start_again(&name).await?;
    again(system, &mut gate, id).await
}

async fn stopped(system: &System) -> anyhow::Result<()> {
    let mut gate = Gate::open().await?;
    let (id, program, name) = begin(system, &mut gate).await?;
    program.leave(0).await?;
    system.api.until(id, "succeeded").await?;
    let guard = guard_of(system.pid(&name).await?, None).await?;
    system.restart(&name).await?;
    ensure!(test_kill_process(guard).is_err(), "the guard goes on");
    ensure!(gate.uninvited().is_empty());
    Ok(())
}

/// An upgrade puts another file in the place of the program, and the worker goes on with the old one.
#[tokio::test]
async fn a_guard_is_replaced_although_the_file_of_the_program_was() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("attune");
    std::fs::copy(env!("CARGO_BIN_EXE_attune"), &program)?;
    let mut worker = tokio::process::Command::new(&program)
        .arg("standalone")
        .args([
            "--set",
            "api.listen=127.0.0.1:0",
            "--set",
            "ops.listen=127.0.0.1:0",
        ])
        .env_clear()
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let pid = worker.id().context("it has ended")?;
    let first = guard_of(pid, None).await?;
    std::fs::remove_file(&program)?;
    kill_process(first, Signal::KILL)?;
    let second = guard_of(pid, Some(first)).await?;
    worker.kill().await?;
    is_gone(second).await
}
