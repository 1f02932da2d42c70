//! `core.http.get`: fetches a URL, and nothing that only this machine's network can reach.
//!
//! A URL is checked three times: an address written in it before anything is sent, an address
//! that a name resolves to by the resolver of the very connection (so that a name cannot change
//! its mind between check and use), and every redirect as if it had been asked for. Proxies that
//! the environment names are not used: they would resolve names themselves.
//!
//! It runs in a process of its own; see [`super::fetch`].

use std::collections::BTreeMap;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::time::Duration;

use attune_core::Outcome;
use attune_core::input::json_prefix;
use attune_core::network::is_public;
use attune_secrets::Secrets;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use url::{Host, Url};

use super::capture::Capture;
use crate::options::HttpOptions;

/// Redirects that are followed, at most.
const MAX_REDIRECTS: usize = 5;
/// The headers of a response that are part of the result.
const HEADERS_KEPT: [&str; 9] = [
    "cache-control",
    "content-encoding",
    "content-language",
    "content-length",
    "content-type",
    "date",
    "etag",
    "last-modified",
    "retry-after",
];

/// What stands at the end of a body that was cut.
const CUT: &str = "… [cut]";

/// What is asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Get {
    url: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

/// Which addresses may be reached.
type Allowed = fn(IpAddr) -> bool;

/// Fetches URLs.
pub(crate) struct HttpGet {
    /// Made by the first fetch: it reads the certificates of the system.
    client: OnceLock<Result<Client, String>>,
    allowed: Allowed,
    timeout: Duration,
    max_body_bytes: usize,
    max_result_bytes: usize,
}

impl HttpGet {
    pub(crate) fn new(options: &HttpOptions) -> Self {
        let allowed: Allowed = if options.allow_private_addresses {
            |_| true
        } else {
            is_public
        };
        Self::with_allowed(options, allowed)
    }

    fn with_allowed(options: &HttpOptions, allowed: Allowed) -> Self {
        Self {
            client: OnceLock::new(),
            allowed,
            timeout: options.timeout,
            max_body_bytes: options.max_body_bytes,
            max_result_bytes: options.max_result_bytes,
        }
    }

    /// Fetches. A response of 400 or above is a failure whose result can be read as well.
    pub(crate) async fn run(&self, get: Get) -> Outcome {
        let fetched = tokio::time::timeout(self.timeout, self.fetch(get)).await;
        match fetched {
            Err(_) => Outcome::failed(format!("no whole answer within {:?}", self.timeout)),
            Ok(Err(error)) => Outcome::failed(error),
            Ok(Ok((status, result))) => {
                let raw = serde_json::value::to_raw_value(&result).ok();
                if status.is_client_error() || status.is_server_error() {
                    let error = format!("the server answered {status}");
                    return Outcome {
                        result: raw,
                        ..Outcome::failed(error)
                    };
                }
                Outcome::succeeded(raw)
            }
        }
    }

    async fn fetch(&self, get: Get) -> Result<(StatusCode, Value), String> {
        let client = self.client.get_or_init(|| client(self.allowed)).clone()?;
        let mut headers = headers(&get.headers)?;
        let mut url = Url::parse(&get.url).map_err(|error| format!("`url`: {error}"))?;
        for _ in 0..=MAX_REDIRECTS {
            check(&url, self.allowed)?;
            let request = client.get(url.clone()).headers(headers.clone());
            let response = request.send().await.map_err(words)?;
            let Some(next) = redirect(&url, &response)? else {
                return self.read(response).await;
            };
            if next.origin() != url.origin() {
                // They were meant for the first server and may hold its secrets.
                headers.clear();
            }
            url = next;
        }
        Err(format!("more than {MAX_REDIRECTS} redirects"))
    }

    async fn read(&self, mut response: Response) -> Result<(StatusCode, Value), String> {
        let status = response.status();
        let headers: BTreeMap<_, _> = HEADERS_KEPT
            .iter()
            .filter_map(|name| {
                let value = String::from_utf8_lossy(response.headers().get(*name)?.as_bytes());
                Some((*name, value.into_owned()))
            })
            .collect();
        let mut body = Capture::new(self.max_body_bytes, &Secrets::default());
        while !body.is_over()
            && let Some(chunk) = response.chunk().await.map_err(words)?
        {
            body.add(&chunk);
        }
        let body = body.into_text();
        let mut result = json!({"status": status.as_u16(), "headers": headers, "body": ""});
        let taken = result.to_string().len() + CUT.len() + r#","body_cut":true"#.len();
        let kept = json_prefix(&body.text, self.max_result_bytes.saturating_sub(taken));
        if body.cut > 0 || kept < body.text.len() {
            result["body"] = Value::String(format!("{}{CUT}", &body.text[..kept]));
            result["body_cut"] = Value::Bool(true);
        } else {
            result["body"] = Value::String(body.text);
        }
        Ok((status, result))
    }
}

fn client(allowed: Allowed) -> Result<Client, String> {
    // It fails when a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .user_agent(concat!("attune-worker/", env!("CARGO_PKG_VERSION")))
        .no_proxy()
        .redirect(Policy::none())
        .dns_resolver(Resolver { allowed })
        .build()
        .map_err(words)
}

fn headers(given: &BTreeMap<String, String>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let problem = |what: &str| format!("`headers`: {name:?} is not the {what} of a header");
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| problem("name"))?;
        let value = HeaderValue::from_str(value)
            .map_err(|_| format!("`headers`: the value of {name:?} cannot be sent"))?;
        headers.insert(key, value);
    }
    Ok(headers)
}

/// Checks what can be seen of a URL without resolving its name.
fn check(url: &Url, allowed: Allowed) -> Result<(), String> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("`url`: {} is not http or https", url.scheme()));
    }
    let address = match url.host() {
        Some(Host::Ipv4(address)) => IpAddr::V4(address),
        Some(Host::Ipv6(address)) => IpAddr::V6(address),
        Some(Host::Domain(_)) => return Ok(()),
        None => return Err("`url` names no host".to_owned()),
    };
    if allowed(address) {
        Ok(())
    } else {
        Err(refusal(&address.to_string(), address))
    }
}

fn refusal(host: &str, address: IpAddr) -> String {
    format!(
        "{host} is refused: {address} is not a public address, and this worker may reach only \
         those (worker.http.allow_private_addresses)"
    )
}

/// Where a response sends on to, if it does.
fn redirect(from: &Url, response: &Response) -> Result<Option<Url>, String> {
    use StatusCode as Code;
    let sends_on = matches!(
        response.status(),
        Code::MOVED_PERMANENTLY
            | Code::FOUND
            | Code::SEE_OTHER
            | Code::TEMPORARY_REDIRECT
            | Code::PERMANENT_REDIRECT
    );
    match response.headers().get(LOCATION) {
        Some(location) if sends_on => {
            let location = String::from_utf8_lossy(location.as_bytes());
            let url = from
                .join(&location)
                .map_err(|error| format!("a redirect: {error}"))?;
            Ok(Some(url))
        }
        _ => Ok(None),
    }
}

/// An error with everything below it, without the URL: it may hold a secret.
fn words(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut words = error.to_string();
    let mut below = error.source();
    while let Some(source) = below {
        words.push_str(": ");
        words.push_str(&source.to_string());
        below = source.source();
    }
    words
}

/// Resolves names and leaves out the addresses that may not be reached.
struct Resolver {
    allowed: Allowed,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let allowed = self.allowed;
        Box::pin(async move {
            let found: Vec<SocketAddr> =
                tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let usable: Vec<_> = found
                .iter()
                .copied()
                .filter(|found| allowed(found.ip()))
                .collect();
            match (usable.is_empty(), found.first()) {
                (true, Some(refused)) => Err(refusal(name.as_str(), refused.ip()).into()),
                _ => Ok(Box::new(usable.into_iter()) as Addrs),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Answers every connection with what `answer` makes of the request's text.
    async fn server(answer: impl Fn(&str, u16) -> String + Send + 'static) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = socket.read_u8().await else {
                        break;
                    };
                    head.push(byte);
                }
                let answer = answer(&String::from_utf8_lossy(&head), port);
                let _ = socket.write_all(answer.as_bytes()).await;
            }
        });
        port
    }

    fn ok(body: &str) -> String {
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nset-cookie: a=b\r\nconnection: close\
             \r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    }

    fn moved(to: &str) -> String {
        format!(
            "HTTP/1.1 302 Found\r\nlocation: {to}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        )
    }

    fn options(max_body_bytes: usize) -> HttpOptions {
        HttpOptions {
            max_body_bytes,
            ..HttpOptions::default()
        }
    }

    fn only_one(address: IpAddr) -> bool {
        address == IpAddr::from([127, 0, 0, 1])
    }

    fn get(url: String) -> Get {
        Get {
            url,
            headers: BTreeMap::from([("x-key".to_owned(), "secret".to_owned())]),
        }
    }

    fn result(outcome: &Outcome) -> Value {
        serde_json::from_str(outcome.result.as_ref().unwrap().get()).unwrap()
    }

    #[tokio::test]
    async fn a_response_becomes_the_result() {
        let port = server(|_, _| ok("héllo\0")).await;
        let http = HttpGet::new(&HttpOptions {
            allow_private_addresses: true,
            ..options(100)
        });
        let outcome = http
            .run(get(format!("http://127.0.0.1:{port}/x?y=1")))
            .await;
        assert_eq!(outcome.error, None);
        let headers = json!({"content-length": "7", "content-type": "text/plain"});
        let expected = json!({"status": 200, "headers": headers, "body": "héllo\u{fffd}"});
        assert_eq!(result(&outcome), expected);
    }

    #[tokio::test]
    async fn a_long_body_is_cut_and_an_error_status_fails() {
        let port =
            server(|_, _| ok("0123456789ab").replace("200 OK", "503 Service Unavailable")).await;
        let http = HttpGet::with_allowed(&options(10), only_one);
        let outcome = http.run(get(format!("http://127.0.0.1:{port}/"))).await;
        let error = outcome.error.as_deref().unwrap();
        assert_eq!(error, "the server answered 503 Service Unavailable");
        let result = result(&outcome);
        assert_eq!(result["body"], "0123456789… [cut]");
        assert_eq!(
            (&result["body_cut"], &result["status"]),
            (&json!(true), &json!(503))
        );
    }

    /// As JSON such a body has twice or six times its bytes.
    #[tokio::test]
    async fn a_result_never_takes_more_than_it_may() {
        let body = "\"\u{1}é\n".repeat(500);
        let port = server(move |_, _| ok(&body)).await;
        for max_result_bytes in [200, 1_000, 1_003, 7_000] {
            let http = HttpGet::with_allowed(
                &HttpOptions {
                    max_result_bytes,
                    ..options(10_000)
                },
                only_one,
            );
            let outcome = http.run(get(format!("http://127.0.0.1:{port}/"))).await;
            let written = outcome.result.as_ref().unwrap().get().len();
            assert!(written <= max_result_bytes, "{written}");
            let is_cut = max_result_bytes < 7_000;
            assert!(!is_cut || written + 7 > max_result_bytes, "{written}");
            assert_eq!(result(&outcome)["body_cut"] == true, is_cut);
        }
    }

    #[tokio::test]
    async fn private_addresses_are_refused_however_they_are_written() {
        let port = server(|_, _| ok("inside")).await;
        let http = HttpGet::new(&options(100));
        for host in [
            "127.0.0.1",
            "localhost",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "0x7f000001",
            "2130706433",
        ] {
            let outcome = http.run(get(format!("http://{host}:{port}/"))).await;
            let error = outcome.error.unwrap();
            assert!(error.contains("is not a public address"), "{host}: {error}");
            assert!(outcome.result.is_none());
        }
    }

    #[tokio::test]
    async fn a_redirect_is_checked_like_a_first_request() {
        let port = server(|_, port| moved(&format!("http://127.0.0.2:{port}/secret"))).await;
        let http = HttpGet::with_allowed(&options(100), only_one);
        let outcome = http.run(get(format!("http://127.0.0.1:{port}/"))).await;
        let error = outcome.error.unwrap();
        assert!(error.starts_with("127.0.0.2 is refused"), "{error}");
        for (to, problem) in [
            ("file:///etc/passwd", "not http"),
            ("http://", "a redirect"),
        ] {
            let port = server(move |_, _| moved(to)).await;
            let error = http
                .run(get(format!("http://127.0.0.1:{port}/")))
                .await
                .error
                .unwrap();
            assert!(error.contains(problem), "{to}: {error}");
        }
    }

    #[tokio::test]
    async fn redirects_are_followed_a_few_times_and_headers_stay_with_their_origin() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let note = Arc::clone(&seen);
        let other = server(move |head, _| {
            note.lock().unwrap().push(head.to_ascii_lowercase());
            ok("there")
        })
        .await;
        let note = Arc::clone(&seen);
        let first = server(move |head, _| {
            note.lock().unwrap().push(head.to_ascii_lowercase());
            if head.starts_with("GET /again") {
                moved(&format!("http://127.0.0.1:{other}/"))
            } else {
                moved("again")
            }
        })
        .await;
        let http = HttpGet::with_allowed(&options(100), only_one);
        let outcome = http
            .run(get(format!("http://127.0.0.1:{first}/start")))
            .await;
        assert_eq!(result(&outcome)["body"], "there");
        let keys: Vec<_> = seen
            .lock()
            .unwrap()
            .iter()
            .map(|head| head.contains("x-key: secret"))
            .collect();
        assert_eq!(keys, [true, true, false]);

        let endless = server(|_, _| moved("/")).await;
        let outcome = http.run(get(format!("http://127.0.0.1:{endless}/"))).await;
        assert_eq!(outcome.error.as_deref(), Some("more than 5 redirects"));
    }

    #[tokio::test]
    async fn what_cannot_be_asked_for_is_said() {
        let http = HttpGet::new(&options(100));
        for (url, problem) in [
            ("ftp://example.org/", "not http"),
            ("nonsense", "`url`"),
            ("http://", "`url`"),
        ] {
            let error = http.run(get(url.to_owned())).await.error.unwrap();
            assert!(error.contains(problem), "{url}: {error}");
        }
        let headers = BTreeMap::from([("bad name".to_owned(), "x".to_owned())]);
        let error = http
            .run(Get {
                url: "http://1.1.1.1/".to_owned(),
                headers,
            })
            .await
            .error;
        assert!(error.unwrap().contains("not the name of a header"));
    }

    #[tokio::test]
    async fn silence_ends_with_the_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let timeout = Duration::from_millis(100);
        let http = HttpGet::with_allowed(
            &HttpOptions {
                timeout,
                ..options(100)
            },
            only_one,
        );
        let error = http
            .run(get(format!("http://127.0.0.1:{port}/")))
            .await
            .error
            .unwrap();
        assert_eq!(error, "no whole answer within 100ms");
        drop(listener);
    }
}
