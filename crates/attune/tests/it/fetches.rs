//! `core.http.get` is a program like every other: what it answers, and what ends it.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use attune_testkit::{DEADLINE, Setup, System, Wiring};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::lost_workers::{LEASE, worker_of};
use crate::support::{limited, number, run, setup};

/// A system whose workers may fetch from this machine.
fn reaching(wiring: Wiring) -> Setup {
    setup(wiring).set("worker.http.allow_private_addresses", "true")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_fetches() -> anyhow::Result<()> {
    run(reaching(Wiring::Embedded), fetches).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_fetches() -> anyhow::Result<()> {
    run(reaching(Wiring::Cluster), fetches).await
}

/// What a server says is the result; a time-out, a cancel and the death of its worker end a fetch
/// that waits, at once.
async fn fetches(system: &System) -> anyhow::Result<()> {
    let server = Server::listen().await?;
    let mut spec = limited("it.fetch", &json!({"builtin": "http.get"}), 1);
    system.api.apply(&spec).await?;
    answered(system, &server).await?;
    cancelled(system, &server).await?;
    killed(system, &server).await?;
    spec["timeout_seconds"] = json!(1);
    system.api.apply(&spec).await?;
    let id = server.submit(system).await?;
    let asked = server.next().await?;
    system.api.until(id, "timed_out").await?;
    asked.hung_up().await
}

async fn answered(system: &System, server: &Server) -> anyhow::Result<()> {
    for (line, status, error) in [
        ("200 OK", "succeeded", Value::Null),
        (
            "404 Not Found",
            "failed",
            json!("the server answered 404 Not Found"),
        ),
    ] {
        let id = server.submit(system).await?;
        server.next().await?.answer(line).await?;
        let ended = system.api.until(id, status).await?;
        ensure!(ended["error"] == error, "{ended}");
        let code: i64 = line[..3].parse()?;
        let result = json!({"status": code, "body": "there", "headers": {"content-length": "5"}});
        ensure!(ended["result"] == result, "{ended}");
        for none in ["exit_code", "stdout", "stderr"] {
            ensure!(ended[none].is_null(), "{none}: {ended}");
        }
    }
    Ok(())
}

async fn cancelled(system: &System, server: &Server) -> anyhow::Result<()> {
    let id = server.submit(system).await?;
    let asked = server.next().await?;
    system.api.cancel(id).await?.expect(202)?;
    system.api.until(id, "cancelled").await?;
    asked.hung_up().await
}

/// The guard ends what its worker fetched, and the next attempt ends well.
async fn killed(system: &System, server: &Server) -> anyhow::Result<()> {
    let id = server.submit(system).await?;
    let asked = server.next().await?;
    let name = worker_of(system, "it.fetch").await?;
    system.kill(&name).await?;
    let killed = Instant::now();
    asked.hung_up().await?;
    let outlived = killed.elapsed();
    ensure!(outlived < LEASE, "it outlived its worker by {outlived:?}");
    system.start_again(&name).await?;
    server.next().await?.answer("200 OK").await?;
    let ended = system.api.until(id, "succeeded").await?;
    ensure!(number(&ended, "attempt")? == 2, "{ended}");
    Ok(())
}

/// Answers when the test says so.
struct Server {
    listener: TcpListener,
    url: String,
}

impl Server {
    async fn listen() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/", listener.local_addr()?);
        Ok(Self { listener, url })
    }

    async fn submit(&self, system: &System) -> anyhow::Result<i64> {
        let parameters = json!({"url": self.url});
        Ok(system.api.submit("it.fetch", parameters).await?.id)
    }

    /// The next request, when all of it has arrived.
    async fn next(&self) -> anyhow::Result<Asked> {
        let next = timeout(DEADLINE, self.listener.accept());
        let (mut socket, _) = next.await.context("nobody asks")??;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await?);
        }
        Ok(Asked(socket))
    }
}

/// A request that waits for its answer.
struct Asked(TcpStream);

impl Asked {
    async fn answer(mut self, status: &str) -> anyhow::Result<()> {
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 5\r\n\r\nthere");
        Ok(self.0.write_all(answer.as_bytes()).await?)
    }

    /// Waits until whoever asked is gone.
    async fn hung_up(mut self) -> anyhow::Result<()> {
        let read = timeout(DEADLINE, self.0.read_u8()).await;
        ensure!(
            read.context("it still waits for its answer")?.is_err(),
            "it says something more"
        );
        Ok(())
    }
}
