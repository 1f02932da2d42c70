//! What daemons hold in memory while what they serve is large, or while nobody takes it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use attune_bus::Topic;
use attune_core::{PartitionId, RequestId};
use attune_testkit::{Api, System, Wiring, wait_for};
use futures_util::FutureExt as _;
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};

use crate::lasting::{LIVE, firing_of, the_rest_goes_on, within};
use crate::stranger::{connect, envelope, publish};
use crate::support::{all_are, limited, memory_was_bounded, noop, on_both_wirings, run, setup};

on_both_wirings! {
    unread_answers => embedded_memory_unread_answers, cluster_memory_unread_answers;
    idle_connections => embedded_memory_idle_connections, cluster_memory_idle_connections;
}

/// An action whose results are as large as its parameters.
const LARGE: &str = "it.large";
/// What one submission or message has, in bytes: nearly as much as it may.
const SIZE: usize = 900_000;
/// Somebody else is answered within this, whatever the others do.
const PROMPT: Duration = Duration::from_secs(5);

fn large() -> Value {
    limited(LARGE, &json!({"builtin": "echo"}), 32)
}

/// A submission to the owner of its partition, by the shorter way.
fn command_of(action_ref: &str, size: usize) -> Vec<u8> {
    let submission = json!({
        "action_ref": action_ref, "request_id": RequestId::fresh(),
        "parameters": {"pad": "x".repeat(size)},
    });
    envelope("partition.submit", 1, &json!({"submission": submission}))
}

/// Large messages that came while there was no executor, for the router and for the owner of one
/// partition: all are run, and neither who takes them nor who is handed what follows from them
/// holds too many at once.
async fn large_backlog(system: &System) -> anyhow::Result<()> {
    /// So many of each kind.
    const COUNT: usize = 120;
    const AT_ONCE: usize = 10;
    let api = &system.api;
    api.apply(&large()).await?;
    // Nobody else's partition.
    let silent = (0..)
        .map(|number| format!("it.silent{number}"))
        .find(|silent| {
            let partition = PartitionId::of(silent, 4);
            [LARGE, LIVE]
                .iter()
                .all(|other| PartitionId::of(other, 4) != partition)
        });
    let silent = silent.context("no name")?;
    api.apply(&limited(&silent, &noop(), 32)).await?;
    api.apply(&limited(LIVE, &noop(), 4)).await?;
    system.halt("executor").await?;
    let bus = connect(system).await?;
    let began = Instant::now();
    let commands = Topic::Commands(PartitionId::of(&silent, 4));
    for _ in 0..COUNT / AT_ONCE {
        let firings = (0..AT_ONCE)
            .map(async |_| publish(&bus, &Topic::Enforcements, firing_of(LARGE, SIZE)).await);
        let submissions =
            (0..AT_ONCE).map(async |_| publish(&bus, &commands, command_of(&silent, SIZE)).await);
        tokio::try_join!(try_join_all(firings), try_join_all(submissions))?;
    }
    let megabytes = 2 * COUNT * SIZE / 1_000_000;
    println!("{megabytes} MB wait after {:?}", began.elapsed());
    let began = Instant::now();
    system.start_again("executor").await?;
    the_rest_goes_on(system).await?;
    println!("something else ended after {:?}", began.elapsed());
    for action_ref in [&*silent, LARGE] {
        // In parts, of which each may take as long as anything.
        for least in (0..=COUNT).step_by(COUNT / 5) {
            wait_for("more of the backlog", async || {
                let path =
                    format!("/api/v1/executions?action={action_ref}&status=succeeded&limit=1000");
                let page = api.get(&path).await?.expect(200)?;
                let ended = page["executions"].as_array().context("no list")?.len();
                ensure!(ended >= least, "{ended} of {action_ref} have ended");
                Ok(())
            })
            .await?;
        }
        let executions = api.until_idle(action_ref).await?;
        ensure!(executions.len() == COUNT, "{} came", executions.len());
        all_are(&executions, "succeeded")?;
    }
    println!("all ended after {:?}", began.elapsed());
    memory_was_bounded(system).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_memory_large_backlog() -> anyhow::Result<()> {
    // Leases as long as they are for everybody: the database is given hundreds of megabytes, and a
    // busy machine is slow with that.
    let usual = setup(Wiring::Cluster)
        .set("executor.lease.ttl_seconds", "")
        .set("worker.lease.ttl_seconds", "");
    run(usual, large_backlog).await
}

/// Where a server listens.
fn place(api: &Api) -> anyhow::Result<SocketAddr> {
    let place = api.base().strip_prefix("http://");
    Ok(place.context("not http")?.parse()?)
}

/// A client that asks and does not read. Its own buffer holds next to nothing, so that the answer
/// stays with the server.
async fn asks(place: SocketAddr, path: &str) -> anyhow::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4096)?;
    let mut stream = socket.connect(place).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {place}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    Ok(stream)
}

/// Clients ask for lists with everything in them and leave the answers unread: others are served
/// meanwhile, and the answers together stay within bounds.
async fn unread_answers(system: &System) -> anyhow::Result<()> {
    const COUNT: usize = 80;
    const AT_ONCE: usize = 4;
    const CLIENTS: usize = 6;
    const LIST: &str = "/api/v1/executions?limit=1000&include=parameters,result,stdout,stderr";
    let api = &system.api;
    api.apply(&large()).await?;
    api.apply(&limited(LIVE, &noop(), 4)).await?;
    let parameters = json!({"pad": "x".repeat(SIZE)});
    for _ in 0..COUNT / AT_ONCE {
        try_join_all((0..AT_ONCE).map(async |_| api.submit(LARGE, parameters.clone()).await))
            .await?;
    }
    let executions = api.until_idle(LARGE).await?;
    ensure!(executions.len() == COUNT, "{} came", executions.len());
    all_are(&executions, "succeeded")?;
    let place = place(api)?;
    let clients = try_join_all((0..CLIENTS).map(async |_| asks(place, LIST).await)).await?;
    for client in &clients {
        // Whatever it is: an answer has begun, and its rest waits with the server.
        let mut begun = [0; 12];
        attune_testkit::within("the head of an answer", client.peek(&mut begun)).await??;
        ensure!(
            &begun == b"HTTP/1.1 200",
            "{}",
            String::from_utf8_lossy(&begun)
        );
    }
    let began = Instant::now();
    let others = async {
        the_rest_goes_on(system).await?;
        let page = api.get(LIST).await?.expect(200)?;
        let shown = page["executions"].as_array().context("no list")?.len();
        ensure!(shown > 0 && page["next"].is_string(), "{shown} in one page");
        api.get("/readyz").await?.expect(200)
    };
    let answered = tokio::time::timeout(PROMPT, others).await;
    answered.context("the others wait")??;
    println!("the others were served within {:?}", began.elapsed());
    memory_was_bounded(system).await?;
    drop(clients);
    Ok(())
}

/// A connection from an address of its own, on which nothing is asked.
async fn idle(place: SocketAddr) -> anyhow::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind("127.0.0.2:0".parse()?)?;
    Ok(socket.connect(place).await?)
}

/// What has come on a connection, without waiting for it; `None` while nothing has. Nothing and an
/// error are its end.
fn come(stream: &TcpStream) -> Option<Vec<u8>> {
    let mut bytes = [0; 12];
    // Each look counts, however many there are.
    let look = tokio::task::unconstrained(stream.peek(&mut bytes)).now_or_never()?;
    Some(bytes[..look.unwrap_or_default()].to_owned())
}

fn is_open(stream: &TcpStream) -> bool {
    come(stream).is_none()
}

fn is_refused(stream: &TcpStream) -> bool {
    come(stream).is_some_and(|bytes| bytes == b"HTTP/1.1 503")
}

/// A thousand connections of one address on which nothing is asked: it is told that it has too
/// many, and everybody else is served.
async fn idle_connections(system: &System) -> anyhow::Result<()> {
    const CONNECTIONS: usize = 1000;
    /// What one address may have by default.
    const PER_PEER: usize = 512;
    let api = &system.api;
    api.apply(&limited(LIVE, &noop(), 4)).await?;
    the_rest_goes_on(system).await?;
    let mut serving = "standalone";
    if system.wiring() == Wiring::Cluster {
        serving = "api";
    }
    let mark = "serving /healthz, /readyz and /metrics server.address=";
    let probes = system.announced(serving, mark).await;
    let probes = Api::new(format!("http://{}", probes.context("no probes")?))?;
    let place = place(api)?;
    let began = Instant::now();
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(idle(place).await?);
    }
    let refused = || connections.iter().filter(|it| is_refused(it)).count();
    within(
        PROMPT,
        "the refusal of those that are too many",
        async || {
            let refused = refused();
            ensure!(refused == CONNECTIONS - PER_PEER, "{refused} were refused");
            Ok(())
        },
    )
    .await?;
    println!("{CONNECTIONS} were opened within {:?}", began.elapsed());
    let asked = Instant::now();
    let others = async {
        for api in [api, &probes] {
            for path in ["/healthz", "/readyz"] {
                api.get(path).await?.expect(200)?;
            }
        }
        the_rest_goes_on(system).await
    };
    let answered = tokio::time::timeout(PROMPT, others).await;
    answered.context("the others wait")??;
    println!("the others were served within {:?}", asked.elapsed());
    memory_was_bounded(system).await?;
    // Who asks nothing is cut off, and with that may come back.
    wait_for("the end of the idle connections", async || {
        let open = connections.iter().filter(|it| is_open(it)).count();
        ensure!(open == 0, "{open} are open");
        Ok(())
    })
    .await?;
    println!("all were closed after {:?}", began.elapsed());
    let again = idle(place).await?;
    ensure!(is_open(&again), "it may not come back");
    the_rest_goes_on(system).await
}
