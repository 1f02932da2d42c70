//! Asks a process whether it lives, or is ready.

use std::error::Error as _;
use std::time::{Duration, Instant};

use reqwest::{Client, StatusCode, redirect};

use super::http::{install_tls, without_credentials};
use super::render::one_line;
use super::trust::{self, Trust};

/// How long an answer may take, its body included: whoever runs this asks again soon. A process whose
/// server does not answer says so after three seconds.
const TIMEOUT: Duration = Duration::from_secs(4);
/// How long [`probe_for`] waits before it asks again.
const PAUSE: Duration = Duration::from_millis(200);
/// What is read of an answer, in bytes.
const MAX_ANSWER: usize = 16 * 1024;

/// Asks for `url`, such as `http://127.0.0.1:8081/readyz`.
///
/// # Errors
/// In words for people: there is no answer in time, or it is not 200; then with its body.
async fn probe(url: &str, trust: &Trust) -> Result<(), String> {
    install_tls();
    let shown = without_credentials(url);
    // Probes are where they are: what sends elsewhere is another server, whose answer says nothing.
    let client = Client::builder()
        .timeout(TIMEOUT)
        .no_proxy()
        .redirect(redirect::Policy::none());
    let client = trust.apply(client)?.build();
    let client = client.map_err(|error| format!("no HTTP client: {error}"))?;
    let failed = |error: reqwest::Error| {
        let cause = trust::objection(&error);
        let cause = cause.or_else(|| error.source().map(ToString::to_string));
        let cause = cause.map(|cause| format!(": {cause}"));
        format!("{shown} does not answer{}", cause.unwrap_or_default())
    };
    let mut answer = client.get(url).send().await.map_err(failed)?;
    let status = answer.status();
    if status == StatusCode::OK {
        return Ok(());
    }
    let mut body = Vec::new();
    while body.len() < MAX_ANSWER
        && let Ok(Some(chunk)) = answer.chunk().await
    {
        body.extend_from_slice(&chunk);
    }
    body.truncate(MAX_ANSWER);
    let body = one_line(&String::from_utf8_lossy(&body));
    Err(format!("{shown} answers {status}: {body}"))
}

/// Asks again and again until the answer is yes, for so long at most; once at least. Over https it
/// believes whom `trust` says.
///
/// # Errors
/// The last answer, as [`probe`].
pub async fn probe_for(url: &str, patience: Duration, trust: &Trust) -> Result<(), String> {
    let began = Instant::now();
    loop {
        let asked = probe(url, trust).await;
        if asked.is_ok() || began.elapsed() >= patience {
            return asked;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn credentials_are_not_told_and_nothing_is_followed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answering = tokio::spawn(async move {
            for answer in [
                format!("302 Found\r\nlocation: http://{address}/other"),
                "200 OK".to_owned(),
            ] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _head = stream.read(&mut [0; 4096]).await.unwrap();
                let head =
                    format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                stream.write_all(head.as_bytes()).await.unwrap();
            }
        });
        let url = format!("http://u:hunter2@{address}/readyz");
        let why = probe(&url, &Trust::default()).await.unwrap_err();
        let expected = format!("http://***@{address}/readyz answers 302 Found");
        assert!(why.starts_with(&expected), "{why}");
        assert_eq!(probe(&url, &Trust::default()).await, Ok(()));
        answering.await.unwrap();
        let why = probe(&url, &Trust::default()).await.unwrap_err();
        assert!(why.contains("does not answer"), "{why}");
        assert!(!why.contains("hunter2"), "{why}");
    }

    #[tokio::test]
    async fn it_is_asked_until_it_says_yes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/readyz", listener.local_addr().unwrap());
        let answering = tokio::spawn(async move {
            for status in ["503 Service Unavailable", "200 OK"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _head = stream.read(&mut [0; 1024]).await.unwrap();
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
                stream.shutdown().await.unwrap();
            }
        });
        probe_for(&url, Duration::from_secs(60), &Trust::default())
            .await
            .unwrap();
        answering.await.unwrap();
        probe_for(&url, Duration::ZERO, &Trust::default())
            .await
            .unwrap_err();
    }
}
