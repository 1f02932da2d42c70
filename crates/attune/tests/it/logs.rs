//! A log that cannot be written.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use attune_testkit::{Api, variable};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::process::Command;

use crate::support::{all_are, limited};

/// Each of its lines is lost, and nothing else: what is asked for runs, and the process ends when it
/// is told to.
async fn only_lines_are_lost(log: Stdio) -> anyhow::Result<()> {
    let folder = tempfile::Builder::new().prefix("attune-it-").tempdir()?;
    let place = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let mut process = Command::new(env!("CARGO_BIN_EXE_attune"))
        .arg("standalone")
        .env(variable("log.level"), "debug")
        .env(variable("data_dir"), folder.path())
        .env(variable("api.listen"), &place)
        .env(variable("ops.listen"), "127.0.0.1:0")
        .env(variable("cluster.partitions"), "2")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()?;
    let api = Api::new(format!("http://{place}"))?;
    api.until_ready().await?;
    let program = json!({"program": ["/bin/sh", "-c", "echo said"]});
    api.apply(&limited("it.log", &program, 1)).await?;
    api.submit_batch("it.log", [json!({}), json!({})]).await?;
    all_are(&api.until_idle("it.log").await?, "succeeded")?;
    // What is refused is logged, too.
    let refused = api
        .post("/api/v1/executions", &json!({"action_ref": 7}))
        .await?;
    ensure!(
        refused.status == 400 || refused.status == 422,
        "{refused:?}"
    );
    let ready = api.get("/readyz").await?;
    ensure!(ready.status == 200, "{ready:?}");
    cannot_say_what_was_done(&place).await?;

    let id = process.id().context("it has ended")?;
    let pid = Pid::from_raw(i32::try_from(id)?).context("no process")?;
    kill_process(pid, Signal::TERM)?;
    let status = process.wait().await?;
    ensure!(status.success(), "{status}");
    Ok(())
}

/// A client command that has done what it should ends with 3 where nobody can read its answer: 1 would say how an
/// execution ended.
async fn cannot_say_what_was_done(place: &str) -> anyhow::Result<()> {
    for arguments in [
        &["submit", "core.noop"][..],
        &["queues"],
        &["executions", "list"],
    ] {
        let full = File::options().write(true).open("/dev/full")?;
        let client = Command::new(env!("CARGO_BIN_EXE_attune"))
            .args(arguments)
            .args(["--url", &format!("http://{place}")])
            .stdin(Stdio::null())
            .stdout(full)
            .stderr(Stdio::piped())
            .spawn()?
            .wait_with_output()
            .await?;
        let words = String::from_utf8_lossy(&client.stderr);
        let is_said = words.contains("stdout cannot be written");
        ensure!(
            client.status.code() == Some(3) && is_said,
            "{arguments:?}: {client:?}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_a_log_on_a_full_disk_costs_lines_alone() -> anyhow::Result<()> {
    let full = File::options().write(true).open("/dev/full")?;
    only_lines_are_lost(full.into()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_a_log_that_nobody_reads_costs_lines_alone() -> anyhow::Result<()> {
    let (reader, writer) = io::pipe()?;
    drop(reader);
    only_lines_are_lost(writer.into()).await
}

/// The reader is there and does not read: a stopped pager, a collector that hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_a_log_that_stands_full_costs_lines_alone() -> anyhow::Result<()> {
    let (_reader, mut writer) = io::pipe()?;
    // Until nothing more goes in, and whoever writes next would wait.
    let blocking = fcntl_getfl(&writer)?;
    fcntl_setfl(&writer, blocking | OFlags::NONBLOCK)?;
    while writer.write(b"\n").is_ok() {}
    fcntl_setfl(&writer, blocking)?;
    only_lines_are_lost(writer.into()).await
}
