//! The HTTP server of daemons without an API.

use std::net::SocketAddr;
use std::time::Duration;

use attune_runtime::{Health, Metrics, Shutdown, ops_server};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LOOPBACK: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
const LONG: Duration = Duration::from_secs(30);

/// The status line, the lower-cased header lines and the body of one answer.
async fn get(address: SocketAddr, path: &str) -> (String, String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: attune\r\nconnection: close\r\n\r\n");
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

#[tokio::test]
async fn an_address_in_use_is_named() {
    let shutdown = Shutdown::new();
    let serve = |listen| ops_server(listen, Metrics::new(), Health::new(), &shutdown);
    let address = serve(LOOPBACK).await.unwrap();
    let error = serve(address).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot listen on metrics.listen {address}")
    );
}
