//! The programs in `examples/python`, which know Attune from `docs/PROTOCOL.md` alone.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use attune_testkit::{Gate, Launch, Process, System, Wiring, prepared, wait_for, within};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::oracle::{Recording, judge};
use crate::support::{all_are, granted_in_order, ids, limited, number, run, setup};

/// What its worker is called, and for how long its lease lasts.
const NAME: &str = "python-worker";
const LEASE_SECONDS: u64 = 6;

fn program(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/python");
    folder.join(name).to_string_lossy().into_owned()
}

/// What a worker in Python speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaks {
    /// AMQP, and HTTP for its lease.
    Amqp,
    /// HTTP alone.
    Http,
}

/// A worker in Python.
pub(crate) fn worker(
    system: &System,
    speaks: Speaks,
    name: &str,
    lease_seconds: u64,
) -> anyhow::Result<Process> {
    let mut args = match speaks {
        Speaks::Http => vec![program("http_worker.py")],
        Speaks::Amqp => {
            let broker = system.broker()?;
            vec![
                program("worker.py"),
                format!("--amqp={}", broker.url()),
                format!("--prefix={}", broker.prefix()),
            ]
        }
    };
    args.extend([
        format!("--api={}", system.api.base()),
        "--slots=3".to_owned(),
        format!("--lease-seconds={lease_seconds}"),
        format!("--name={name}"),
    ]);
    Process::spawn(Launch {
        name: name.to_owned(),
        binary: prepared("ATTUNE_TEST_PYTHON")?.into(),
        args,
        // What Python has compiled is no part of the examples.
        env: BTreeMap::from([("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned())]),
        folder: system.folder().to_owned(),
    })
}

/// Submits by `submit.py`; its exit code and the outcome that it printed.
async fn submit(system: &System, args: &[&str]) -> anyhow::Result<(i32, Value)> {
    let broker = system.broker()?;
    let mut command = Command::new(prepared("ATTUNE_TEST_PYTHON")?);
    command.arg(program("submit.py")).args(args);
    command.arg(format!("--amqp={}", broker.url()));
    command.arg(format!("--prefix={}", broker.prefix()));
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = within("the end of submit.py", command.output()).await??;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    let outcome = serde_json::from_str(&stdout)
        .with_context(|| format!("submit.py {args:?} said {stdout:?} and {stderr}"))?;
    Ok((output.status.code().context("it was killed")?, outcome))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_python_examples() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster).workers(0), async |system| {
        let mut python = worker(system, Speaks::Amqp, NAME, LEASE_SECONDS)?;
        let outcome = examples(system, &mut python).await;
        outcome.with_context(|| format!("the Python worker's log:\n{}", python.tail()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_python_worker_over_http() -> anyhow::Result<()> {
    over_http(Wiring::Cluster).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_python_worker_over_http() -> anyhow::Result<()> {
    over_http(Wiring::Embedded).await
}

async fn over_http(wiring: Wiring) -> anyhow::Result<()> {
    // The bundled worker of the embedded wiring serves others.
    let setup = setup(wiring).workers(0).set("worker.pool", "bundled");
    run(setup, async |system| {
        let mut python = worker(system, Speaks::Http, NAME, LEASE_SECONDS)?;
        let outcome = ends(system).await;
        outcome.with_context(|| format!("the Python worker's log:\n{}", python.tail()))?;
        python.stop().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_a_silent_worker_keeps_its_slots() -> anyhow::Result<()> {
    silent(Wiring::Cluster, &["executor", "api"]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_a_silent_worker_keeps_its_slots() -> anyhow::Result<()> {
    silent(Wiring::Embedded, &["standalone"]).await
}

/// A worker that says nothing while the system starts again goes on with what it runs: until its lease ends its
/// slot is nobody else's, though another worker has room.
async fn silent(wiring: Wiring, crashed: &[&str]) -> anyhow::Result<()> {
    const REF: &str = "it.python-held";
    const OTHERS: &str = "it.python-others";
    let setup = setup(wiring).workers(0).set("worker.pool", "bundled");
    run(setup, async |system| {
        let (api, mut gate) = (&system.api, Gate::open().await?);
        api.apply(&limited(REF, &gate.run(), 1)).await?;
        let others = json!({"ref": OTHERS, "run": {"program": ["/bin/true"]}});
        api.apply(&others).await?;
        let mut first = worker(system, Speaks::Http, "python-first", 60)?;
        let held = api.submit(REF, json!({})).await?.id;
        let waits = api.submit(REF, json!({})).await?.id;
        let inside = gate.next().await?;
        ensure!(inside.execution_id == held, "{inside:?}");
        first.pause()?;
        for daemon in crashed {
            system.crash(daemon).await?;
        }
        api.until_ready().await?;
        let mut second = worker(system, Speaks::Http, "python-second", 60)?;
        // More than the first one, which is taken to be there, has room for: the second serves, so owners decide.
        let ids = api
            .submit_batch(OTHERS, std::iter::repeat_n(json!({}), 8))
            .await?;
        wait_for("work that the other worker does", async || {
            let all = api.executions(OTHERS).await?;
            let ended = all.iter().filter(|one| one["status"] == "succeeded");
            let ended = ended.count();
            ensure!(ended >= 3, "{ended} have ended");
            Ok(())
        })
        .await?;
        let path = format!("/api/v1/actions/{REF}/holders");
        let list = api.get(&path).await?.expect(200)?;
        let holders = list["holders"].as_array().context("no list")?;
        ensure!(
            holders.len() == 1 && number(&holders[0], "execution_id")? == held,
            "{list}"
        );
        ensure!(gate.uninvited().is_empty(), "two ran at once");
        first.resume()?;
        inside.leave(0).await?;
        let record = api.until(held, "succeeded").await?;
        ensure!(record["attempt"] == 1, "{record}");
        let next = gate.next().await?;
        ensure!(next.execution_id == waits, "{next:?}");
        next.leave(0).await?;
        api.until(waits, "succeeded").await?;
        for id in ids {
            api.until(id, "succeeded").await?;
        }
        first.stop().await?;
        second.stop().await
    })
    .await
}

async fn examples(system: &System, python: &mut Process) -> anyhow::Result<()> {
    answers(system).await?;
    ends(system).await?;
    printed(system).await?;
    batch(system, python).await?;
    python.stop().await?;
    ensure!(
        python.log().ends_with("stopped\n"),
        "it did not say that it stopped"
    );
    Ok(())
}

/// What is accepted runs with what it was given; what is refused is told so.
async fn answers(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.python";
    let api = &system.api;
    let script = "echo \"{\\\"given\\\": $(cat), \\\"attempt\\\": $ATTUNE_ATTEMPT}\"";
    let program = json!({"program": ["/bin/bash", "-c", script]});
    api.apply(&limited(REF, &program, 1)).await?;
    let message = "--message-id=7f8d9f6e-3a44-4f6a-9d3c-0d5f1e9c7a10";
    let args = [REF, "text=three words", "number=9007199254740993", message];
    let (code, outcome) = submit(system, &args).await?;
    let accepted = &outcome["accepted"];
    ensure!(code == 0 && accepted["repeated"] == false, "{outcome}");
    let id = number(accepted, "execution_id")?;
    let record = api.until(id, "succeeded").await?;
    let given = json!({"text": "three words", "number": 9_007_199_254_740_993_i64});
    ensure!(
        record["result"] == json!({"given": given, "attempt": 1}),
        "{record}"
    );
    ensure!(
        record["exit_code"] == 0 && !record["worker"].is_null(),
        "{record}"
    );
    // Sent once more under the same id it is the same execution, if its body is the same.
    let (code, outcome) = submit(system, &args).await?;
    ensure!(
        code == 0 && outcome["accepted"]["execution_id"] == id,
        "{outcome}"
    );
    ensure!(outcome["accepted"]["repeated"] == true, "{outcome}");
    let (code, outcome) = submit(system, &[REF, "text=other words", message]).await?;
    ensure!(
        code == 1 && outcome["rejected"]["code"] == "CONFLICT",
        "{outcome}"
    );
    let (code, outcome) = submit(system, &["it.nobody-knows"]).await?;
    ensure!(
        code == 1 && outcome["rejected"]["code"] == "UNKNOWN_ACTION",
        "{outcome}"
    );
    Ok(())
}

/// Failing, timed out and cancelled ones, and one that returns something.
async fn ends(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&limited("it.python-cancel", &gate.run_with_child(), 1))
        .await?;
    let mut slow = limited("it.python-slow", &gate.run_with_child(), 1);
    slow["timeout_seconds"] = json!(1);
    api.apply(&slow).await?;
    let failing = json!({"program": ["/bin/bash", "-c", "echo no >&2; exit 9"]});
    api.apply(&limited("it.python-fails", &failing, 1)).await?;
    let deep =
        json!({"program": ["/bin/bash", "-c", "printf '[%.0s' {1..200}; printf ']%.0s' {1..200}"]});
    api.apply(&limited("it.python-deep", &deep, 1)).await?;
    api.apply(&limited(
        "it.python-cat",
        &json!({"program": ["/bin/cat"]}),
        1,
    ))
    .await?;

    let cancelled = api.submit("it.python-cancel", json!({})).await?.id;
    let inside = gate.next().await?;
    api.cancel(cancelled).await?.expect(202)?;
    inside.gone().await?;
    api.until(cancelled, "cancelled").await?;
    let slow = api.submit("it.python-slow", json!({})).await?.id;
    gate.next().await?.gone().await?;
    api.until(slow, "timed_out").await?;
    let failed = api.submit("it.python-fails", json!({})).await?.id;
    let failed = api.until(failed, "failed").await?;
    ensure!(failed["exit_code"] == 9, "{failed}");
    // What cannot be stored keeps nothing from being told.
    let deep = api.submit("it.python-deep", json!({})).await?.id;
    api.until(deep, "succeeded").await?;
    let printed = api.submit("it.python-cat", json!({"a": [1, null]})).await?;
    let printed = api.until(printed.id, "succeeded").await?;
    ensure!(printed["result"] == json!({"a": [1, null]}), "{printed}");
    Ok(())
}

/// What the worker that speaks AMQP has besides: its own actions, and what programs print.
async fn printed(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    let failed = api.submit("it.python-fails", json!({})).await?.id;
    let failed = api.until(failed, "failed").await?;
    ensure!(failed["stderr"] == "no\n", "{failed}");
    api.apply(&limited("it.python-echo", &json!({"builtin": "echo"}), 1))
        .await?;
    let echoed = api.submit("it.python-echo", json!({"a": 1})).await?.id;
    let echoed = api.until(echoed, "succeeded").await?;
    ensure!(echoed["result"] == json!({"a": 1}), "{echoed}");
    Ok(())
}

/// A batch in whose middle the worker is replaced: in order, within the limit, nothing lost.
async fn batch(system: &System, python: &mut Process) -> anyhow::Result<()> {
    const REF: &str = "it.python-batch";
    let api = &system.api;
    let recording = Recording::of(system, REF);
    api.apply(&limited(REF, &recording.run(system), 2)).await?;
    let parameters = std::iter::repeat_n(json!({"work_ms": 20}), 40);
    let accepted = api.submit_batch(REF, parameters).await?;
    wait_for("the first that have ended", async || {
        let path = format!("/api/v1/executions?action={REF}&status=succeeded&limit=5");
        let page = api.get(&path).await?.expect(200)?;
        ensure!(
            page["executions"]
                .as_array()
                .is_some_and(|it| it.len() == 5),
            "{page}"
        );
        Ok(())
    })
    .await?;
    python.stop().await?;
    *python = worker(system, Speaks::Amqp, NAME, LEASE_SECONDS)?;
    let executions = api.until_idle(REF).await?;
    ensure!(ids(&executions)? == accepted, "not what was accepted");
    all_are(&executions, "succeeded")?;
    granted_in_order(&executions)?;
    let runs = recording.intervals()?;
    ensure!(
        runs.len() == accepted.len(),
        "{} runs of {}",
        runs.len(),
        accepted.len()
    );
    judge(&runs, 2, &accepted)?;
    Ok(())
}
