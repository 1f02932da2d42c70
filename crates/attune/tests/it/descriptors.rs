//! Few descriptors (`ulimit -n`), and clients that take as many as they get.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use attune_testkit::{Api, Launch, Process, variable, wait_for};
use serde_json::json;
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

use crate::support::{all_are, limited};

/// The soft limit of the processes here; the hard one is that of this test.
const LIMIT: usize = 400;
/// Of so many addresses, each with fewer connections than one address may have.
const PEERS: u8 = 3;
const OF_EACH: usize = 150;

/// How to start a role with few descriptors.
fn launch(role: &str, folder: &std::path::Path, settings: &[(&str, &str)]) -> Launch {
    let binary = env!("CARGO_BIN_EXE_attune");
    let script = format!("ulimit -Sn {LIMIT} && exec {binary} {role}");
    let settings = settings.iter();
    let env: BTreeMap<_, _> = settings
        .map(|(key, value)| (variable(key), (*value).to_owned()))
        .collect();
    Launch {
        name: role.to_owned(),
        binary: "/bin/sh".into(),
        args: vec!["-c".to_owned(), script],
        env,
        folder: folder.to_owned(),
    }
}

/// Connects from one of the addresses of this machine, and asks nothing.
async fn idle(last: u8, address: SocketAddr) -> anyhow::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(([127, 0, 0, last], 0).into())?;
    let _held = socket.connect(address).await?;
    std::future::pending().await
}

/// How many descriptors a process has open.
fn descriptors(process: &Process) -> anyhow::Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{}/fd", process.pid()))?.count())
}

/// They get what is left of them, and no more: probes are answered, and what runs has its pipes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_clients_of_many_addresses_leave_some_descriptors() -> anyhow::Result<()> {
    let folder = tempfile::Builder::new().prefix("attune-it-").tempdir()?;
    let data = folder.path().join("data");
    let settings = [
        ("data_dir", data.to_str().context("no text")?),
        ("api.listen", "127.0.0.1:0"),
        ("ops.listen", "127.0.0.1:0"),
        ("cluster.partitions", "2"),
        ("log.format", "text"),
    ];
    let process = Process::start(launch("standalone", folder.path(), &settings)).await?;
    let outcome = few_are_left(&process).await;
    if outcome.is_err() {
        eprintln!("{}", process.tail());
    }
    outcome
}

async fn few_are_left(process: &Process) -> anyhow::Result<()> {
    let announced = async |mark| {
        wait_for(mark, async || {
            process.announced(mark).context("it is not told")
        })
        .await
    };
    let base = announced("Attune listens on ").await?;
    let place: SocketAddr = base.trim_start_matches("http://").parse()?;
    let probes = announced("serving /healthz, /readyz and /metrics server.address=").await?;
    let (api, probes) = (Api::new(base)?, Api::new(format!("http://{probes}"))?);
    let program = json!({"program": ["/bin/sh", "-c", "ulimit -n"]});
    api.apply(&limited("it.limit", &program, 1)).await?;
    // It starts while nobody can ask for anything.
    let soon = chrono::Utc::now() + chrono::TimeDelta::seconds(2);
    let body = json!({"action_ref": "it.limit", "not_before": soon.to_rfc3339()});
    let id = api.try_submit(&body).await?.expect(201)?["id"].clone();

    // Those for which there is no room wait to be connected.
    let mut clients = JoinSet::new();
    for peer in 2..2 + PEERS {
        for _ in 0..OF_EACH {
            clients.spawn(idle(peer, place));
        }
    }
    wait_for("connections", async || {
        let open = descriptors(process)?;
        ensure!(open > LIMIT / 4, "{open} descriptors");
        Ok(())
    })
    .await?;
    for path in ["/healthz", "/readyz", "/metrics"] {
        let answer = probes.get(path).await?;
        ensure!(answer.status == 200, "{path}: {answer:?}");
    }
    wait_for("the run", async || {
        let runs = probes.metric("worker_completions_reported_total").await?;
        ensure!(runs == 1.0, "{runs} have ended");
        Ok(())
    })
    .await?;
    let open = descriptors(process)?;
    ensure!(open < LIMIT / 2, "{open} descriptors");
    drop(clients);
    let ended = api.until_idle("it.limit").await?;
    all_are(&ended, "succeeded")?;
    ensure!(ended.len() == 1 && ended[0]["id"] == id, "{ended:?}");
    // What a program may open is what the operator said.
    let limit = api.execution(id.as_i64().context("no id")?).await?["result"].clone();
    ensure!(limit == json!(LIMIT), "{limit}");
    let log = process.log();
    ensure!(
        !log.contains("could not be accepted"),
        "descriptors ran out"
    );
    ensure!(
        log.contains("api.max_connections_per_peer"),
        "it is not told that fewer connections are served"
    );
    Ok(())
}

/// Programs that a worker runs inherit its limit, and some cannot live with a high one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_runs_no_programs_takes_all_descriptors_that_it_may_have()
-> anyhow::Result<()> {
    // It refuses connections, so that everybody waits for it.
    let socket = TcpSocket::new_v4()?;
    socket.bind("127.0.0.1:0".parse()?)?;
    let url = format!("postgres://nobody@{}/none", socket.local_addr()?);
    for (role, raised) in [("executor", true), ("api", true), ("worker", false)] {
        let folder = tempfile::Builder::new().prefix("attune-it-").tempdir()?;
        let settings = [
            ("database.url", url.as_str()),
            ("broker.url", "amqp://attune:none@127.0.0.1:1"),
            ("worker.allow_root", "true"),
        ];
        let process = Process::spawn(launch(role, folder.path(), &settings))?;
        wait_for("its start", async || {
            let log = process.log();
            ensure!(log.contains("waiting for PostgreSQL"), "{log}");
            Ok(())
        })
        .await?;
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", process.pid()))?;
        let line = limits
            .lines()
            .find(|line| line.starts_with("Max open files"));
        let mut words = line.context("no limit")?.split_whitespace().skip(3);
        let (soft, hard) = (words.next(), words.next());
        let low = LIMIT.to_string();
        let expected = if raised { hard } else { Some(low.as_str()) };
        ensure!(soft == expected, "{role}: {limits}");
    }
    Ok(())
}
