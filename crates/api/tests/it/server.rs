//! The socket side.

use std::net::SocketAddr;
use std::time::Duration;

use attune_api::{ApiOptions, ApiServer, BindError, OpsListen};
use attune_bus::{Bus as _, Subscription, Topic};
use attune_core::WorkerId;
use axum::Router;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::fakes::Fake;
use crate::harness::{options, until};

#[tokio::test]
async fn only_this_machine_is_served_where_nobody_is_asked_who_they_are() {
    for listen in ["0.0.0.0:0", "[::]:0", "10.0.0.1:80", "1.1.1.1:80"] {
        let mut options = options();
        options.listen = listen.parse().unwrap();
        let error = ApiServer::bind(options, Fake::default().ports(), Router::new())
            .await
            .err()
            .unwrap();
        assert!(matches!(error, BindError::Beyond { .. }), "{error:?}");
        let words = "which other machines can reach, and nobody is asked there who they are";
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let server = start(Fake::default()).await.0;
    let mut options = options();
    options.listen = server;
    let error = ApiServer::bind(options, Fake::default().ports(), Router::new())
        .await
        .err()
        .unwrap();
    assert!(error.to_string().contains(&server.to_string()), "{error}");
}

pub(crate) type Started = (SocketAddr, CancellationToken, tokio::task::JoinHandle<()>);

async fn start(fake: Fake) -> Started {
    start_with(fake, options()).await
}

pub(crate) async fn start_with(fake: Fake, options: ApiOptions) -> Started {
    start_beside(Router::new(), fake, options).await
}

/// The same with further routes.
pub(crate) async fn start_beside(extra: Router, fake: Fake, options: ApiOptions) -> Started {
    let server = ApiServer::bind(options, fake.ports(), extra).await.unwrap();
    let address = server.local_addr().unwrap();
    let stop = CancellationToken::new();
    let task = tokio::spawn(server.serve(stop.clone()));
    (address, stop, task)
}

/// Sends text and reads until the server closes.
pub(crate) async fn talk(stream: &mut TcpStream, text: &str) -> String {
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// The call of a worker that waits for sections.
fn waits(worker: WorkerId) -> String {
    let body = format!(
        r#"{{"worker": "{worker}", "name": "w", "pool": "default", "slots": 1, "lease_seconds": 60,
            "wait_ms": 20000}}"#
    );
    format!(
        "POST /api/v1/worker/exchange HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn a_worker_that_hangs_up_is_told_nothing_more() {
    let fake = Fake::default();
    let (address, ..) = start(fake.clone()).await;
    let (bus, worker) = (fake.with(|state| state.bus.clone()), WorkerId::fresh());
    let subscribe = |topic| bus.subscribe(Subscription { topic, prefetch: 1 });
    let mut hellos = subscribe(Topic::Hello).await.unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(waits(worker).as_bytes()).await.unwrap();
    hellos.next().await.unwrap();
    // Who else wants its place is refused while it has a link.
    assert!(subscribe(Topic::link("default", worker)).await.is_err());
    drop(stream);
    let ending = async {
        while subscribe(Topic::link("default", worker)).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(5), ending).await;
    ended.expect("half of the time for which a link stays without a call");
}

#[tokio::test]
async fn a_stop_answers_a_worker_that_waits() {
    let fake = Fake::default();
    let (address, stop, task) = start(fake.clone()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = waits(WorkerId::fresh());
    let began = std::time::Instant::now();
    let stopping = async {
        until(|| fake.with(|state| !state.leases.is_empty())).await;
        stop.cancel();
    };
    let (answer, ()) = tokio::join!(talk(&mut stream, &request), stopping);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with(r#""sections":[]}"#), "{answer}");
    task.await.unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(9),
        "it was waited for"
    );
}

#[tokio::test]
async fn requests_are_served_and_a_stop_closes_idle_connections() {
    let (address, stop, task) = start(Fake::default()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let answer = talk(&mut stream, request).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("cache-control: no-store"), "{answer}");

    // One connection that never asks anything, one that is between two requests.
    let _silent = TcpStream::connect(address).await.unwrap();
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .unwrap();
    let mut head = [0; 12];
    idle.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(8), task)
        .await
        .unwrap()
        .unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_body_that_is_too_large_gets_its_answer() {
    let (address, _stop, _task) = start(Fake::default()).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    // Larger than the bound and than what the sockets buffer.
    let body = "x".repeat(4_000_000);
    let request = format!(
        "POST /api/v1/executions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = talk(&mut stream, &request).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert!(answer.contains("TOO_LARGE"), "{answer}");
}

const POST: &str = "POST /api/v1/executions HTTP/1.1\r\nhost: localhost\r\n\
                    content-type: application/json\r\n";
const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
/// Longer than anything here takes that is not refused at once.
const SOON: Duration = Duration::from_secs(8);

/// Sends a part of a request and reads the answer, which comes although the rest never does.
async fn answer_to_part(address: SocketAddr, part: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(part.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let read = tokio::time::timeout(SOON, stream.read(&mut answer)).await;
    answer.truncate(read.expect("an answer comes").unwrap());
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn what_will_be_too_large_is_refused_before_it_is_sent() {
    let (address, _stop, _task) = start(Fake::default()).await;
    let chunk = "x".repeat(20_000);
    for part in [
        format!("{POST}content-length: 99999999\r\n\r\nx"),
        format!("{POST}content-length: 99999999\r\nexpect: 100-continue\r\n\r\n"),
        format!("{POST}transfer-encoding: chunked\r\n\r\n4e20\r\n{chunk}\r\n"),
    ] {
        let answer = answer_to_part(address, &part).await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
        assert!(answer.contains("\r\nconnection: close"), "{answer}");
    }
}

#[tokio::test]
async fn a_body_that_does_not_come_is_408() {
    let mut options = options();
    options.body_timeout = Duration::from_millis(300);
    let (address, _stop, _task) = start_with(Fake::default(), options).await;
    for part in [
        "content-length: 100\r\n\r\n{",
        "transfer-encoding: chunked\r\n\r\n1\r\n{\r\n",
    ] {
        let answer = answer_to_part(address, &format!("{POST}{part}")).await;
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert!(answer.contains("BODY_TIMEOUT"), "{answer}");
        assert!(answer.contains("nothing was done"), "{answer}");
    }
}

#[tokio::test]
async fn idle_connections_end_and_keep_no_probe_out() {
    let mut options = options();
    options.max_connections = 3;
    options.head_timeout = Duration::from_secs(2);
    options.ops = OpsListen::At("127.0.0.1:0".parse().unwrap());
    let server = ApiServer::bind(options, Fake::default().ports(), Router::new())
        .await
        .unwrap();
    let address = server.local_addr().unwrap();
    let ops = server.ops_addr().unwrap().unwrap();
    let _serving = tokio::spawn(server.serve(CancellationToken::new()));
    let mut idle = Vec::new();
    for _ in 0..8 {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    for path in ["healthz", "readyz"] {
        let mut probe = TcpStream::connect(ops).await.unwrap();
        let request = HEALTH.replace("healthz", path);
        let answered = tokio::time::timeout(SOON, talk(&mut probe, &request)).await;
        assert!(answered.unwrap().starts_with("HTTP/1.1 200"));
    }
    let mut api = TcpStream::connect(ops).await.unwrap();
    let list = HEALTH.replace("healthz", "api/v1/actions");
    assert!(talk(&mut api, &list).await.starts_with("HTTP/1.1 404"));
    // The idle ones are ended, so that whoever comes after them is served.
    let mut late = TcpStream::connect(address).await.unwrap();
    let answered = tokio::time::timeout(3 * SOON, talk(&mut late, HEALTH)).await;
    assert!(answered.unwrap().starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn one_peer_cannot_take_every_connection() {
    let mut options = options();
    options.max_connections_per_peer = 2;
    let (address, _stop, _task) = start_with(Fake::default(), options).await;
    let mut kept = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = HEALTH.replace("connection: close\r\n", "");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.read_exact(&mut [0; 12]).await.unwrap();
        kept.push(stream);
    }
    let mut answer = String::new();
    let mut refused = TcpStream::connect(address).await.unwrap();
    refused.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("TOO_MANY_CONNECTIONS"), "{answer}");
}

#[tokio::test]
async fn one_address_cannot_keep_the_probes_of_others_out() {
    let mut options = options();
    options.ops = OpsListen::At("127.0.0.1:0".parse().unwrap());
    // Nothing ends the connections while this test runs.
    options.head_timeout = 10 * SOON;
    let server = ApiServer::bind(options, Fake::default().ports(), Router::new())
        .await
        .unwrap();
    let ops = server.ops_addr().unwrap().unwrap();
    let _serving = tokio::spawn(server.serve(CancellationToken::new()));
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(TcpStream::connect(ops).await.unwrap());
    }
    let other = tokio::net::TcpSocket::new_v4().unwrap();
    other.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut probe = other.connect(ops).await.unwrap();
    let answered = tokio::time::timeout(SOON, talk(&mut probe, HEALTH)).await;
    assert!(answered.unwrap().starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_usual_address_that_is_in_use_is_replaced() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut options = options();
    options.ops = OpsListen::Near(taken.local_addr().unwrap());
    let ports = Fake::default().ports();
    let server = ApiServer::bind(options.clone(), ports.clone(), Router::new())
        .await
        .unwrap();
    assert_ne!(server.ops_addr().unwrap(), taken.local_addr().ok());
    options.ops = OpsListen::At(taken.local_addr().unwrap());
    let error = ApiServer::bind(options, ports, Router::new())
        .await
        .err()
        .unwrap();
    assert!(error.to_string().contains("ops.listen"), "{error}");
}
