//! What the scenarios share.

use std::panic::{AssertUnwindSafe, resume_unwind};

use anyhow::{Context as _, ensure};
use attune_testkit::{Setup, System, Wiring};
use futures_util::FutureExt as _;
use serde_json::{Value, json};

/// What any daemon may hold in memory, whatever waits or is asked, in bytes.
const MEMORY: u64 = 512 << 20;

/// Declares the tests of scenarios that must hold on both wirings.
macro_rules! on_both_wirings {
    ($($scenario:ident => $embedded:ident, $cluster:ident;)+) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $embedded() -> anyhow::Result<()> {
            use $crate::support::{run, setup};
            run(setup(attune_testkit::Wiring::Embedded), $scenario).await
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $cluster() -> anyhow::Result<()> {
            use $crate::support::{run, setup};
            run(setup(attune_testkit::Wiring::Cluster), $scenario).await
        }
    )+};
}
pub(crate) use on_both_wirings;

/// When it is set, every part of every cluster has a user and a login of its own, with few rights.
const ACCOUNTS: &str = "ATTUNE_TEST_ACCOUNTS";

/// The system that most scenarios run on.
pub(crate) fn setup(wiring: Wiring) -> Setup {
    let setup = Setup::new(env!("CARGO_BIN_EXE_attune"), wiring);
    match std::env::var_os(ACCOUNTS).is_some() {
        true => setup.accounts(),
        false => setup,
    }
}

/// Runs a scenario on a system of its own, which must also stop well. When it fails, the logs of
/// the system are shown.
pub(crate) async fn run(
    setup: Setup,
    scenario: impl AsyncFnOnce(&System) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let system = System::start(setup).await?;
    let outcome = AssertUnwindSafe(scenario(&system)).catch_unwind().await;
    if !matches!(outcome, Ok(Ok(()))) {
        eprintln!("{}", system.logs().await);
    }
    match outcome {
        Ok(Ok(())) => system.stop().await.context("stopping the system"),
        Ok(Err(error)) => Err(error),
        Err(panic) => resume_unwind(panic),
    }
}

/// An action with a limit on how many of it run at once.
pub(crate) fn limited(action_ref: &str, run: &Value, limit: u32) -> Value {
    json!({
        "ref": action_ref,
        "run": run,
        "policy": {"concurrency": {"limit": limit}},
    })
}

/// The `run` of an action that does nothing, inside the worker.
pub(crate) fn noop() -> Value {
    json!({"builtin": "noop"})
}

/// A field of something that was answered.
pub(crate) fn number(value: &Value, field: &str) -> anyhow::Result<i64> {
    value[field]
        .as_i64()
        .with_context(|| format!("no number `{field}` in {value}"))
}

/// Checks that every execution has this status.
pub(crate) fn all_are(executions: &[Value], status: &str) -> anyhow::Result<()> {
    for execution in executions {
        ensure!(
            execution["status"] == status,
            "{status} was expected: {execution}"
        );
    }
    Ok(())
}

/// Checks that slots were granted in the order of acceptance. Ids rise in that order; a grant
/// has a number of its own. Only for executions that were tried once.
pub(crate) fn granted_in_order(executions: &[Value]) -> anyhow::Result<()> {
    let mut latest = i64::MIN;
    for execution in executions {
        let grant = number(execution, "grant_no")?;
        ensure!(grant > latest, "granted before an earlier one: {execution}");
        latest = grant;
    }
    Ok(())
}

/// The ids of executions.
pub(crate) fn ids(executions: &[Value]) -> anyhow::Result<Vec<i64>> {
    executions
        .iter()
        .map(|execution| number(execution, "id"))
        .collect()
}

/// Checks that no process of a system, since it was started, ever held more memory than a daemon
/// may.
pub(crate) async fn memory_was_bounded(system: &System) -> anyhow::Result<()> {
    for name in system.names().await {
        let bytes = most_memory(system.pid(&name).await?)?;
        println!("{name}: at most {} MiB", bytes >> 20);
        ensure!(
            bytes <= MEMORY,
            "{name} had {} MiB of memory at once",
            bytes >> 20
        );
    }
    Ok(())
}

/// The most memory that a process ever held at once, in bytes.
fn most_memory(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kib.context("no VmHWM")?.parse::<u64>()? * 1024)
}
