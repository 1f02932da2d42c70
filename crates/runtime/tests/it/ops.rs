//! The HTTP server of daemons without an API.

use std::net::SocketAddr;
use std::time::Duration;

use attune_core::Network;
use attune_runtime::{Health, Metrics, Shutdown, ops_server};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, timeout};

const LOOPBACK: (SocketAddr, Network) = (
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0),
    Network::Loopback,
);
const LONG: Duration = Duration::from_secs(30);

/// The status line, the lower-cased header lines and the body of one answer.
async fn get(address: SocketAddr, path: &str) -> (String, String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let (status, headers) = head.split_once("\r\n").unwrap();
    (status.to_owned(), headers.to_lowercase(), body.to_owned())
}

#[tokio::test]
async fn it_serves_health_and_metrics_until_the_stop() {
    let (metrics, health, shutdown) = (Metrics::new(), Health::new(), Shutdown::new());
    let bus = health.component("bus");
    metrics
        .meter("stats")
        .u64_counter("stats.writes.total")
        .build()
        .add(2, &[]);
    let address = ops_server(LOOPBACK, metrics, health.clone(), &shutdown)
        .await
        .unwrap();

    bus.waiting("RabbitMQ at mq:5672");
    let (status, _, body) = get(address, "/healthz").await;
    assert_eq!(status, "HTTP/1.1 200 OK");
    let shown: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(shown["components"]["bus"]["reason"], "RabbitMQ at mq:5672");
    assert_eq!(
        get(address, "/readyz").await.0,
        "HTTP/1.1 503 Service Unavailable"
    );

    bus.ready();
    let (status, _, body) = get(address, "/readyz").await;
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["ready"], true);

    let (status, headers, body) = get(address, "/metrics").await;
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(
        headers.contains("content-type: text/plain; version=0.0.4"),
        "{headers}"
    );
    assert!(body.contains("stats_writes_total 2"), "{body}");
    assert_eq!(get(address, "/elsewhere").await.0, "HTTP/1.1 404 Not Found");

    shutdown.cancel();
    assert_eq!(shutdown.wait(LONG).await, Ok(()));
    assert!(
        TcpStream::connect(address).await.is_err(),
        "nobody listens after the stop"
    );
}

#[tokio::test]
async fn an_open_request_does_not_hold_up_the_stop() {
    let shutdown = Shutdown::new();
    let address = ops_server(LOOPBACK, Metrics::new(), Health::new(), &shutdown)
        .await
        .unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\n")
        .await
        .unwrap();
    // An answer to another client shows that the server is past accepting the first.
    assert_eq!(get(address, "/healthz").await.0, "HTTP/1.1 200 OK");
    shutdown.cancel();
    assert_eq!(shutdown.wait(LONG).await, Ok(()));
}

/// How many connections the listener may hold.
const HELD: usize = 32;
/// How many connections open at once that drip: more than it may hold, and from many addresses, each
/// of which has fewer than one address may have.
const PEERS: u8 = 20;
const OF_EACH: usize = 10;

/// A connection from one of the addresses of this machine.
async fn connect(last: u8, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, last], 0).into()).unwrap();
    socket.connect(address).await.unwrap()
}

/// Sends a request byte by byte, for as long as the server takes it; how the answer begins.
async fn drip(mut stream: TcpStream) -> Vec<u8> {
    let mut dripping = interval(Duration::from_millis(200));
    let mut answer = vec![0; 12];
    loop {
        tokio::select! {
            // The end and a reset are both the end of this connection.
            read = stream.read(&mut answer) => {
                answer.truncate(read.unwrap_or(0));
                return answer;
            }
            _ = dripping.tick() => drop(stream.write_all(b"G").await),
        }
    }
}

/// How many sockets this process has; nextest gives each test one of its own.
fn sockets() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| target.to_string_lossy().starts_with("socket:"))
        .count()
}

#[tokio::test]
async fn clients_that_drip_are_cut_and_hold_few_descriptors() {
    let shutdown = Shutdown::new();
    let address = ops_server(LOOPBACK, Metrics::new(), Health::new(), &shutdown)
        .await
        .unwrap();
    let before = sockets();
    let began = Instant::now();
    let mut dripping = JoinSet::new();
    for peer in 2..2 + PEERS {
        for _ in 0..OF_EACH {
            dripping.spawn(drip(connect(peer, address).await));
        }
    }
    // Those beyond the bound end at once, and then the others are all that there is.
    let many = dripping.len();
    let refused = async {
        while dripping.len() > HELD {
            dripping.join_next().await.unwrap().unwrap();
        }
    };
    let waited = timeout(Duration::from_secs(4), refused).await;
    assert!(waited.is_ok(), "{} of {many} are held", dripping.len());
    // Of each that is left this process has both ends, and none of those that have ended.
    let held = sockets() - before;
    assert!(held <= 2 * HELD, "{held} sockets");
    let others = timeout(LONG, async {
        while let Some(answer) = dripping.join_next().await {
            assert!(answer.unwrap().is_empty(), "a part of a head has no answer");
        }
    });
    others.await.expect("they are cut");
    assert!(began.elapsed() < Duration::from_secs(12), "{began:?}");
    assert_eq!(get(address, "/metrics").await.0, "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn one_address_keeps_nobody_else_out() {
    let shutdown = Shutdown::new();
    let address = ops_server(LOOPBACK, Metrics::new(), Health::new(), &shutdown)
        .await
        .unwrap();
    let mut idle = Vec::new();
    for _ in 0..3 * HELD {
        idle.push(connect(2, address).await);
    }
    let mut answer = [0; 12];
    let mut last = idle.pop().unwrap();
    let refused = timeout(Duration::from_secs(4), last.read_exact(&mut answer)).await;
    refused.expect("it is refused at once").unwrap();
    assert_eq!(&answer, b"HTTP/1.1 503");
    let scrape = timeout(Duration::from_secs(4), get(address, "/metrics")).await;
    assert_eq!(scrape.expect("it is answered").0, "HTTP/1.1 200 OK");
}

/// Who sends only a part of a body, or asks again and again and reads nothing, holds a connection no
/// longer than one that is answered.
#[tokio::test]
async fn a_connection_is_for_one_request() {
    let shutdown = Shutdown::new();
    let address = ops_server(LOOPBACK, Metrics::new(), Health::new(), &shutdown)
        .await
        .unwrap();
    for rest in ["\r\n", "content-length: 100\r\n\r\n{"] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{rest}");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = timeout(Duration::from_secs(4), stream.read_to_string(&mut answer)).await;
        read.expect("the connection ends").unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[tokio::test]
async fn foreign_pages_are_refused() {
    let shutdown = Shutdown::new();
    let address = ops_server(LOOPBACK, Metrics::new(), Health::new(), &shutdown)
        .await
        .unwrap();
    for (header, path) in [
        ("host: example.com", "/metrics"),
        ("host: example.com", "/elsewhere"),
        ("host: localhost\r\norigin: http://example.com", "/readyz"),
    ] {
        let (status, body) = ask(address, path, header).await;
        assert_eq!(status, "HTTP/1.1 403 Forbidden");
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["error"]["code"], "FOREIGN_ORIGIN");
    }
}

/// The status line and the body of an answer to a request with these lines in its head.
async fn ask(address: SocketAddr, path: &str, header: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\n{header}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.lines().next().unwrap_or_default();
    (status.to_owned(), body.to_owned())
}

/// Whoever answers for `evil.local` in the network of a laptop can let it lead to 127.0.0.1.
#[tokio::test]
async fn loopback_is_asked_by_its_own_names_also_where_a_private_network_is_served() {
    let shutdown = Shutdown::new();
    let all = ("0.0.0.0:0".parse().unwrap(), Network::Private);
    let port = ops_server(all, Metrics::new(), Health::new(), &shutdown)
        .await
        .unwrap()
        .port();
    let own = (std::net::Ipv4Addr::LOCALHOST, port).into();
    for (header, served) in [
        ("host: localhost", true),
        ("host: 127.0.0.1:80", true),
        ("host: evil.local", false),
        ("host: api", false),
        ("host: 10.0.0.1", false),
        ("host: localhost\r\norigin: http://evil.local", false),
    ] {
        let (status, body) = ask(own, "/healthz", header).await;
        assert_eq!(status.ends_with("200 OK"), served, "{header}: {status}");
        assert_eq!(!body.contains("FOREIGN_ORIGIN"), served, "{body}");
    }
    // Another address of this machine, where it has one: nothing is sent for this.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let mine = socket
        .connect("192.168.255.254:9")
        .and_then(|()| socket.local_addr());
    if let Ok(mine) = mine
        && Network::Private.reaches(mine.ip())
        && !mine.ip().is_loopback()
    {
        let own = (mine.ip(), port).into();
        for header in ["host: api", "host: attune.internal"] {
            assert_eq!(ask(own, "/healthz", header).await.0, "HTTP/1.1 200 OK");
        }
    }
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let shutdown = Shutdown::new();
    let serve = |served| ops_server(served, Metrics::new(), Health::new(), &shutdown);
    let address = serve(LOOPBACK).await.unwrap();
    let error = serve((address, Network::Loopback)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot listen on metrics.listen {address}")
    );
}
