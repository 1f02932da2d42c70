//! The socket side.

use std::net::SocketAddr;
use std::time::Duration;

use attune_api::{ApiServer, BindError};
use axum::Router;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::fakes::Fake;
use crate::harness::options;

#[tokio::test]
async fn other_machines_cannot_be_served_yet() {
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
        let mut options = options();
        options.listen = listen.parse().unwrap();
        let error = ApiServer::bind(options, Fake::default().ports(), Router::new())
            .await
            .err()
            .unwrap();
        assert!(matches!(error, BindError::NotLoopback(_)), "{error:?}");
        assert!(error.to_string().contains("authentication"), "{error}");
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

async fn start(fake: Fake) -> (SocketAddr, CancellationToken, tokio::task::JoinHandle<()>) {
    let server = ApiServer::bind(options(), fake.ports(), Router::new())
        .await
        .unwrap();
    let address = server.local_addr().unwrap();
    let stop = CancellationToken::new();
    let task = tokio::spawn(server.serve(stop.clone()));
    (address, stop, task)
}

/// Sends text and reads until the server closes.
async fn talk(stream: &mut TcpStream, text: &str) -> String {
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
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
