//! Calls to the server, and what their failures mean.

use std::fmt;
use std::time::Duration;

use attune_api::wire::{ErrorBody, ErrorDetail};
use reqwest::{Client, Method, RequestBuilder, Url};
use serde::de::DeserializeOwned;

use super::Failure;

/// How long to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a call may take; longer than any time that the server allows itself.
const CALL_TIMEOUT: Duration = Duration::from_secs(90);
/// How long an unused connection is kept: shorter than the server keeps it, so that a call does
/// not meet a connection that is just being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(8);

/// The header under which a submission can be repeated.
pub(super) const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// A call did not give what was asked for.
#[derive(Debug, Clone)]
pub(super) enum CallError {
    /// The server refused; asking again does not help, except when a queue is full.
    Refused(ErrorDetail),
    /// The server could not do it now, and maybe has done it.
    Unavailable(ErrorDetail),
    /// There is no server; nothing was done.
    Unreachable(String),
    /// No answer, or one that is not Attune's; whether it was done is unknown.
    Unknown(String),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(detail) | Self::Unavailable(detail) => {
                write!(f, "{} [{}]", detail.message, detail.code)?;
                match detail.retry_after_seconds {
                    Some(seconds) => write!(f, "; try again in {seconds} s"),
                    None => Ok(()),
                }
            }
            Self::Unreachable(message) | Self::Unknown(message) => f.write_str(message),
        }
    }
}

/// A client of one server; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Http {
    client: Client,
    base: Url,
}

impl Http {
    pub(super) fn new(url: &str) -> Result<Self, Failure> {
        let base: Url = url
            .parse()
            .ok()
            .filter(|base: &Url| matches!(base.scheme(), "http" | "https") && base.has_host())
            .ok_or_else(|| {
                Failure::usage(format!("`{url}` is not a URL like http://127.0.0.1:8080"))
            })?;
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // The program's main installs it; tests have no main. Losing a race to another
            // thread that installs the same is fine.
            drop(rustls::crypto::ring::default_provider().install_default());
        }
        let mut builder = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(CALL_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .tcp_nodelay(true)
            .user_agent(concat!("attune/", env!("CARGO_PKG_VERSION")));
        if is_loopback(&base) {
            // A proxy that the environment names cannot reach this machine's own addresses.
            builder = builder.no_proxy();
        }
        let client = builder
            .build()
            .map_err(|error| Failure::usage(format!("no HTTP client: {error}")))?;
        Ok(Self { client, base })
    }

    /// A request to `path` below `/api/v1`.
    pub(super) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let base = self.base.as_str().trim_end_matches('/');
        self.client.request(method, format!("{base}/api/v1{path}"))
    }

    /// Reads `path`, with the parameters of `query` that have a value.
    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, Option<String>)],
    ) -> Result<T, CallError> {
        let mut url = format!("{}/api/v1{path}", self.base.as_str().trim_end_matches('/'))
            .parse::<Url>()
            .map_err(|error| CallError::Unreachable(format!("not a URL: {error}")))?;
        for (name, value) in query {
            if let Some(value) = value {
                url.query_pairs_mut().append_pair(name, value);
            }
        }
        self.send(self.client.get(url)).await
    }

    /// Sends a request and reads its answer.
    pub(super) async fn send<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
    ) -> Result<T, CallError> {
        let response = request
            .send()
            .await
            .map_err(|error| self.no_answer(error))?;
        let status = response.status();
        let body = response
            .bytes()
            .await
            .map_err(|error| self.no_answer(error))?;
        if status.is_success() {
            return serde_json::from_slice(&body)
                .map_err(|error| self.foreign(&format!("an answer that does not fit: {error}")));
        }
        let Ok(ErrorBody { error }) = serde_json::from_slice(&body) else {
            return Err(self.foreign(&format!("HTTP {}", status.as_u16())));
        };
        if status.is_server_error() {
            Err(CallError::Unavailable(error))
        } else {
            Err(CallError::Refused(error))
        }
    }

    fn no_answer(&self, error: reqwest::Error) -> CallError {
        let refused = error.is_connect();
        let cause = anyhow::Error::new(error.without_url());
        if refused {
            return CallError::Unreachable(format!(
                "no server at {}: {}; is it running? (--url, ATTUNE_URL)",
                self.base,
                cause.root_cause()
            ));
        }
        CallError::Unknown(format!("no answer from {}: {cause:#}", self.base))
    }

    fn foreign(&self, what: &str) -> CallError {
        CallError::Unknown(format!(
            "{} answers, but not as Attune does: {what}",
            self.base
        ))
    }
}

fn is_loopback(url: &Url) -> bool {
    url.host_str().is_some_and(|host| {
        let host = host.trim_matches(['[', ']']);
        host == "localhost"
            || host
                .parse()
                .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
    })
}
