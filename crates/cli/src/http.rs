//! Calls to the server, and what their failures mean.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use attune_api_types::{ErrorBody, ErrorDetail};
use attune_identity::Key;
use reqwest::header::{AUTHORIZATION, HeaderValue, IF_MATCH};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Failure;
use super::render::one_line;
use super::trust::{self, Trust};

/// How long to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a call may take, its whole answer included; longer than any time that the server allows
/// itself.
const CALL_TIMEOUT: Duration = Duration::from_secs(90);
/// The same of a call whose answer goes on: a year.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// The largest answer that is read, in MiB. A page of a list has 8 MiB.
const MAX_ANSWER_MIB: usize = 64;
/// How long an unused connection is kept: shorter than the server keeps it, so that a call does
/// not meet a connection that is just being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(8);

/// The pause between two tries to reach a server that does not listen yet.
const ARRIVAL_PAUSE: Duration = Duration::from_millis(100);

/// The header under which a submission can be repeated.
pub(super) const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// A call did not give what was asked for.
#[derive(Debug, Clone)]
pub(super) enum CallError {
    /// The server refused; asking again does not help, except when a queue is full or drained.
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
                f.write_str(&said(detail))?;
                match detail.retry_after_seconds {
                    Some(seconds) => write!(f, "; try again in {seconds} s"),
                    None => Ok(()),
                }
            }
            Self::Unreachable(message) | Self::Unknown(message) => f.write_str(message),
        }
    }
}

/// What the server says of an error, on one line.
pub(super) fn said(detail: &ErrorDetail) -> String {
    one_line(&format!("{} [{}]", detail.message, detail.code))
}

/// What a client needs before it is built, also when it encrypts nothing.
pub(super) fn install_tls() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // The program's main installs it; tests have no main. Losing a race to another thread that
        // installs the same is fine.
        drop(rustls::crypto::ring::default_provider().install_default());
    }
}

/// A client of one server; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Http {
    client: Client,
    base: Url,
    arrival: Arc<Arrival>,
    /// By what the caller says who they are.
    key: Option<HeaderValue>,
}

/// The wait for a server that is being started at the same time as the command: for somebody to
/// listen, up to the first answer (a server that goes away later is another matter, which the
/// commands handle), then for its parts.
#[derive(Debug)]
struct Arrival {
    until: Instant,
    patience: Duration,
    told: AtomicBool,
    over: AtomicBool,
}

impl Arrival {
    /// Whether there is time for another try. Says once on stderr what it waits for.
    fn goes_on(&self, what: impl fmt::Display) -> bool {
        if Instant::now() >= self.until {
            return false;
        }
        if !self.told.swap(true, Ordering::Relaxed) {
            super::tell(&format!(
                "{what}; waiting for it, {} s at most",
                self.patience.as_secs()
            ));
        }
        true
    }

    /// Whether to try again after this error.
    fn waits_for(&self, base: &Url, error: &reqwest::Error) -> bool {
        !self.over.load(Ordering::Relaxed)
            && is_refused(error)
            && self.goes_on(format_args!(
                "no server at {} yet",
                without_credentials(base.as_str())
            ))
    }
}

impl Http {
    /// A client that waits up to `patience` for a server that does not listen yet.
    pub(super) fn new(url: &str, patience: Duration, trust: &Trust) -> Result<Self, Failure> {
        let base: Url = url
            .parse()
            .ok()
            .filter(|base: &Url| matches!(base.scheme(), "http" | "https") && base.has_host())
            .ok_or_else(|| {
                Failure::usage(format!(
                    "`{}` is not a URL like http://127.0.0.1:8080",
                    without_credentials(url)
                ))
            })?;
        install_tls();
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
        let client = trust
            .apply(builder)
            .map_err(Failure::usage)?
            .build()
            .map_err(|error| Failure::usage(format!("no HTTP client: {error}")))?;
        let arrival = Arc::new(Arrival {
            until: Instant::now() + patience,
            patience,
            told: AtomicBool::new(false),
            over: AtomicBool::new(false),
        });
        Ok(Self {
            client,
            base,
            arrival,
            key: None,
        })
    }

    /// The same with a key in each request.
    ///
    /// # Errors
    /// When it is no key, or would cross a network in the clear.
    pub(super) fn with_key(mut self, key: &Key) -> Result<Self, Failure> {
        if self.base.scheme() != "https" && !is_loopback(&self.base) {
            return Err(Failure::usage(format!(
                "the key would cross the network to {} in the clear: use https://, or leave the key out \
                 (--key-file, ATTUNE_KEY_FILE, ATTUNE_KEY)",
                self.shown()
            )));
        }
        let value = format!("Bearer {}", key.expose());
        let mut value = HeaderValue::try_from(value)
            .map_err(|_| Failure::usage("the key is none".to_owned()))?;
        value.set_sensitive(true);
        self.key = Some(value);
        Ok(self)
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
        self.send(self.client.get(self.url(path, query)?)).await
    }

    /// Begins to read `path`, whose answer goes on until the server ends it.
    pub(super) async fn listen(
        &self,
        path: &str,
        query: &[(&str, Option<String>)],
    ) -> Result<Response, CallError> {
        let request = self.client.get(self.url(path, query)?).timeout(FOR_EVER);
        let response = self.reach(request).await;
        let response = response.map_err(|error| self.no_answer(error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.refusal(response).await)
    }

    /// Puts `body` at `path`, with the parameters of `query` that have a value.
    pub(super) async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, Option<String>)],
        body: &(impl Serialize + Sync),
    ) -> Result<T, CallError> {
        self.send(self.client.put(self.url(path, query)?).json(body))
            .await
    }

    /// Puts `body` at `path` if what is there has this version still.
    pub(super) async fn put_over<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, Option<String>)],
        version: i64,
        body: &(impl Serialize + Sync),
    ) -> Result<T, CallError> {
        let request = self.client.put(self.url(path, query)?).json(body);
        let request = request.header(IF_MATCH, format!("\"{version}\""));
        self.send(request).await
    }

    /// Deletes `path`, with the parameters of `query` that have a value.
    pub(super) async fn delete<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, Option<String>)],
    ) -> Result<T, CallError> {
        self.send(self.client.delete(self.url(path, query)?)).await
    }

    fn url(&self, path: &str, query: &[(&str, Option<String>)]) -> Result<Url, CallError> {
        let mut url = format!("{}/api/v1{path}", self.base.as_str().trim_end_matches('/'))
            .parse::<Url>()
            .map_err(|error| CallError::Unreachable(format!("not a URL: {error}")))?;
        for (name, value) in query {
            if let Some(value) = value {
                url.query_pairs_mut().append_pair(name, value);
            }
        }
        Ok(url)
    }

    /// Sends a request and reads its answer.
    pub(super) async fn send<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
    ) -> Result<T, CallError> {
        let response = self
            .reach(request)
            .await
            .map_err(|error| self.no_answer(error))?;
        let status = response.status();
        let body = self.read(response).await?;
        if status.is_success() {
            let body: &[u8] = match status {
                StatusCode::NO_CONTENT => b"null",
                _ => &body,
            };
            return serde_json::from_slice(body)
                .map_err(|error| self.foreign(&format!("an answer that does not fit: {error}")));
        }
        Err(self.refused(status, &body))
    }

    async fn refusal(&self, response: Response) -> CallError {
        let status = response.status();
        match self.read(response).await {
            Ok(body) => self.refused(status, &body),
            Err(error) => error,
        }
    }

    /// What an answer means that is no success.
    fn refused(&self, status: StatusCode, body: &[u8]) -> CallError {
        let Ok(ErrorBody { error }) = serde_json::from_slice(body) else {
            return self.foreign(&format!("HTTP {}", status.as_u16()));
        };
        // Of a queue that is drained it is known that nothing was done.
        if status.is_server_error() && error.code != "QUEUE_DRAINING" {
            CallError::Unavailable(error)
        } else {
            CallError::Refused(error)
        }
    }

    /// Reads an answer, up to the bound: whoever listens there may never stop sending.
    async fn read(&self, mut response: Response) -> Result<Vec<u8>, CallError> {
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() > MAX_ANSWER_MIB << 20 => {
                    return Err(self.foreign(&format!("more than {MAX_ANSWER_MIB} MiB")));
                }
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => return Ok(body),
                Err(error) => return Err(self.no_answer(error)),
            }
        }
    }

    /// Sends a request that may be repeated, again as long as the server says that its parts are
    /// not up yet, and reads the answer.
    pub(super) async fn send_when_up<T: DeserializeOwned>(
        &self,
        mut request: RequestBuilder,
    ) -> Result<T, CallError> {
        loop {
            let again = request.try_clone();
            let outcome = self.send(request).await;
            match (&outcome, again) {
                (Err(CallError::Unavailable(detail)), Some(again))
                    if detail.code == "NO_OWNER"
                        && self.arrival.goes_on("no executor owns the action yet") =>
                {
                    tokio::time::sleep(ARRIVAL_PAUSE).await;
                    request = again;
                }
                _ => return outcome,
            }
        }
    }

    /// Sends a request, again as long as nothing listens and the server may still come.
    async fn reach(&self, mut request: RequestBuilder) -> reqwest::Result<Response> {
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key.clone());
        }
        loop {
            let again = request.try_clone();
            let outcome = request.send().await;
            match (outcome, again) {
                (Err(error), Some(again)) if self.arrival.waits_for(&self.base, &error) => {
                    tokio::time::sleep(ARRIVAL_PAUSE).await;
                    request = again;
                }
                (outcome, _) => {
                    self.arrival.over.store(true, Ordering::Relaxed);
                    return outcome;
                }
            }
        }
    }

    fn no_answer(&self, error: reqwest::Error) -> CallError {
        let refused = error.is_connect();
        let objection = trust::objection(&error);
        let cause = anyhow::Error::new(error.without_url());
        match objection {
            Some(words) if refused => {
                let words = format!("no TLS with {}: {words}", self.shown());
                return CallError::Unreachable(words);
            }
            // The other side says so when this one believes that all is agreed on.
            Some(words) => {
                let words = format!("no answer from {}: {words}", self.shown());
                return CallError::Unknown(words);
            }
            None => {}
        }
        if refused {
            return CallError::Unreachable(format!(
                "no server at {}: {}; is it running? (--url, ATTUNE_URL)",
                self.shown(),
                cause.root_cause()
            ));
        }
        CallError::Unknown(format!("no answer from {}: {cause:#}", self.shown()))
    }

    fn foreign(&self, what: &str) -> CallError {
        CallError::Unknown(format!(
            "{} answers, but not as Attune does: {}",
            self.shown(),
            one_line(what)
        ))
    }

    /// The server's address as it is told to people.
    fn shown(&self) -> String {
        without_credentials(self.base.as_str())
    }
}

/// A URL, or what was meant to be one, without what stands before the `@`: it may be a password,
/// and what is told ends up in logs.
pub(crate) fn without_credentials(url: &str) -> String {
    match (url.rsplit_once('@'), url.split_once("://")) {
        (Some((_, rest)), Some((scheme, _))) => format!("{scheme}://***@{rest}"),
        (Some((_, rest)), None) => format!("***@{rest}"),
        (None, _) => url.to_owned(),
    }
}

/// Whether the machine answered that nothing listens there.
fn is_refused(error: &reqwest::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        let kind = error.downcast_ref().map(io::Error::kind);
        if kind == Some(io::ErrorKind::ConnectionRefused) {
            return true;
        }
        cause = error.source();
    }
    false
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_told() {
        for (url, shown) in [
            ("http://127.0.0.1:1/", "http://127.0.0.1:1/"),
            ("http://user:SECRET@127.0.0.1:1/", "http://***@127.0.0.1:1/"),
            ("http://user:SEC@RET@host", "http://***@host"),
            ("user:SECRET@host", "***@host"),
        ] {
            assert_eq!(without_credentials(url), shown);
        }
        let refused = Http::new("ftp://user:SECRET@host", Duration::ZERO, &Trust::default());
        assert!(!format!("{:?}", refused.err()).contains("SECRET"));
    }
}
