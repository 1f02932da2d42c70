//! Who is served, and who a client is.

use std::net::SocketAddr;

use attune_core::Auth;
use attune_runtime::http::Client;
use axum::routing::get;
use axum::{Extension, Router};
use tokio::net::TcpSocket;

use crate::fakes::Fake;
use crate::harness::options;
use crate::server::{start_beside, talk};

/// Answers with the address of who asks, at a path that is served beside the API.
fn echo() -> Router {
    let say = async |Extension(Client(address)): Extension<Client>| address.to_string();
    Router::new().route("/metrics", get(say))
}

/// What a client at `from` is answered that sends these lines.
async fn ask(server: SocketAddr, from: &str, path: &str, lines: &str) -> String {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(from.parse().unwrap()).unwrap();
    let mut stream = socket.connect(server).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\n{lines}connection: close\r\n\r\n");
    talk(&mut stream, &request).await
}

const HERE: &str = "127.0.0.1:0";
const ELSEWHERE: &str = "127.0.0.2:0";

/// A browser sends a page's requests to wherever the page says, and never a key that it was not told.
#[tokio::test]
async fn where_a_key_is_required_a_host_may_have_any_name() {
    let mut options = options();
    let foreign = "host: attune.example.com\r\norigin: https://other.example.com\r\n";
    let (address, _stop, _task) = start_beside(echo(), Fake::default(), options.clone()).await;
    let refused = ask(address, HERE, "/healthz", foreign).await;
    assert!(refused.contains("FOREIGN_ORIGIN"), "{refused}");
    options.auth = Auth::Required;
    let (address, _stop, _task) = start_beside(echo(), Fake::default(), options).await;
    let answer = ask(address, HERE, "/healthz", foreign).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn a_client_is_who_the_proxy_says_and_not_who_it_says_itself() {
    let forwarded = "host: localhost\r\nx-forwarded-for: 1.1.1.1, 8.8.8.8\r\n";
    let mut options = options();
    let (address, _stop, _task) = start_beside(echo(), Fake::default(), options.clone()).await;
    let answer = ask(address, ELSEWHERE, "/metrics", forwarded).await;
    assert!(answer.ends_with("\r\n127.0.0.2"), "{answer}");
    options.proxies = Some(["127.0.0.1".parse().unwrap()].into());
    // The proxy has the connections of many.
    options.max_connections_per_peer = 1;
    let (address, _stop, _task) = start_beside(echo(), Fake::default(), options).await;
    let _kept = tokio::net::TcpStream::connect(address).await.unwrap();
    let answer = ask(address, HERE, "/metrics", forwarded).await;
    assert!(answer.ends_with("\r\n8.8.8.8"), "{answer}");
    let answer = ask(address, ELSEWHERE, "/metrics", forwarded).await;
    assert!(answer.ends_with("\r\n127.0.0.2"), "{answer}");
}
