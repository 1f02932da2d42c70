//! Requests of foreign pages are refused.
//!
//! Where a listener asks nobody who they are, where it listens keeps other machines out, but not the
//! browser of a person on this machine: any page can make it send requests to a loopback or private
//! address, and a page whose host name is made to point there can even read the answers. So requests
//! for a foreign host or from a foreign origin are refused there. A listener that wants a key needs
//! none of this: no browser adds one by itself.

use std::net::IpAddr;

use attune_core::Network;
use attune_core::network::PRIVATE_DOMAINS;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// The address of this machine at which a request came in, in its extensions.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnEnd(pub(super) IpAddr);

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Foreign {
    /// What this header names, where this network is served.
    #[error(
        "the header `{header}` names another machine; where nobody is asked who they are, use {}",
        names_of(*network)
    )]
    Machine {
        header: &'static str,
        network: Network,
    },
    /// A page of another server of this machine.
    #[error(
        "the header `Origin` names another server than `Host`; a page of another server may read \
         here, and change nothing"
    )]
    Page,
}

/// The names by which a server may be asked for.
fn names_of(network: Network) -> String {
    match network {
        Network::Loopback => "127.0.0.1, [::1] or localhost".to_owned(),
        Network::Private => format!(
            "a private address, a name without dots, or one that ends with .{}",
            PRIVATE_DOMAINS.join(", .")
        ),
    }
}

impl IntoResponse for Foreign {
    fn into_response(self) -> Response {
        let error = json!({"code": "FOREIGN_ORIGIN", "message": self.to_string()});
        (StatusCode::FORBIDDEN, Json(json!({"error": error}))).into_response()
    }
}

/// Refuses requests that were made for a host outside the network that is served, or by a foreign page:
/// 403 `FOREIGN_ORIGIN`.
pub async fn refuse_foreign(
    State(network): State<Network>,
    request: Request,
    next: Next,
) -> Response {
    // What comes in at loopback is from this machine, where a name of a private network has no business, but a
    // page whose name somebody in the same network makes lead here (multicast DNS) has.
    let network = match request.extensions().get() {
        Some(OwnEnd(own)) if Network::Loopback.reaches(*own) => Network::Loopback,
        _ => network,
    };
    match check_origin(network, request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

fn check_origin(
    network: Network,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(), Foreign> {
    let machine = |header| Foreign::Machine { header, network };
    let text = |name| {
        headers
            .get(name)
            .map(|value: &HeaderValue| value.to_str().unwrap_or(""))
    };
    if headers.get_all(header::HOST).iter().nth(1).is_some() {
        return Err(machine("Host"));
    }
    // A request without any host (HTTP/1.0) cannot come from a browser.
    let host = text(header::HOST).or_else(|| uri.authority().map(Authority::as_str));
    if host.is_some_and(|host| !names_own(network, host)) {
        return Err(machine("Host"));
    }
    let origin = text(header::ORIGIN).map(|origin| {
        origin
            .parse::<Uri>()
            .ok()
            .and_then(|uri| uri.authority().map(ToString::to_string))
    });
    match origin {
        // Any program of this machine may serve a page, and what that sends without a body asks nobody
        // before it changes something.
        Some(Some(authority)) if !method.is_safe() && host != Some(authority.as_str()) => {
            Err(Foreign::Page)
        }
        Some(Some(authority)) if names_own(network, &authority) => Ok(()),
        Some(_) => Err(machine("Origin")),
        None => Ok(()),
    }
}

/// Whether `host` or `host:port` means a machine of the network that is served.
fn names_own(network: Network, authority: &str) -> bool {
    let Ok(authority) = authority.parse::<Authority>() else {
        return false;
    };
    !authority.as_str().contains('@') && network.is_named_by(authority.host())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(headers: &[(&'static str, &str)]) -> bool {
        may(&Method::GET, headers)
    }

    fn may(method: &Method, headers: &[(&'static str, &str)]) -> bool {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect();
        check_origin(Network::Loopback, method, &Uri::from_static("/x"), &headers).is_ok()
    }

    /// A page that is served under another name of the same network may read, and one whose name somebody
    /// has registered may not even do that.
    #[test]
    fn a_private_network_is_asked_by_private_names() {
        let asked = |host: &str, origin: Option<&str>, method: Method| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            let uri = Uri::from_static("/x");
            check_origin(Network::Private, &method, &uri, &headers).map_err(|why| why.to_string())
        };
        for host in [
            "api:8080",
            "10.0.0.1:8080",
            "attune.internal",
            "localhost:80",
        ] {
            assert_eq!(asked(host, None, Method::POST), Ok(()), "{host}");
            let own = format!("http://{host}");
            assert_eq!(asked(host, Some(&own), Method::POST), Ok(()), "{host}");
            let other = asked(host, Some("http://other"), Method::POST);
            assert!(other.unwrap_err().contains("another server"));
            assert_eq!(asked(host, Some("http://other"), Method::GET), Ok(()));
            let foreign = asked(host, Some("http://example.com"), Method::GET);
            assert!(foreign.unwrap_err().contains("`Origin`"));
        }
        let foreign = asked("example.com", None, Method::GET).unwrap_err();
        assert!(foreign.contains("a name without dots, or one that ends with .internal"));
    }

    /// A page of another program of this machine, which asks nobody before it cancels something.
    #[test]
    fn a_page_of_another_server_changes_nothing() {
        let own = [
            ("host", "localhost:8080"),
            ("origin", "http://localhost:8080"),
        ];
        let other = [
            ("host", "localhost:8080"),
            ("origin", "http://localhost:3000"),
        ];
        for method in [Method::POST, Method::PUT, Method::DELETE] {
            assert!(may(&method, &own) && !may(&method, &other), "{method}");
        }
        assert!(may(&Method::GET, &other));
        assert!(may(&Method::POST, &[("host", "localhost:8080")]));
    }

    #[test]
    fn a_host_is_named_once_and_without_a_user() {
        assert!(!allowed(&[("host", "localhost"), ("host", "localhost")]));
        assert!(!allowed(&[("host", "evil.example@localhost")]));
    }

    #[test]
    fn this_machine_may_and_foreign_pages_may_not() {
        assert!(allowed(&[]));
        for host in [
            "127.0.0.1:8080",
            "localhost",
            "[::1]:80",
            "127.8.8.8",
            "a.localhost:1",
        ] {
            assert!(allowed(&[("host", host)]), "{host}");
            assert!(
                allowed(&[("host", host), ("origin", &format!("http://{host}"))]),
                "{host}"
            );
        }
        for host in [
            "example.com",
            "127.0.0.1.example.com",
            "10.0.0.1:8080",
            "localhost.example",
        ] {
            assert!(!allowed(&[("host", host)]), "{host}");
            let origin = format!("https://{host}");
            assert!(
                !allowed(&[("host", "localhost"), ("origin", &origin)]),
                "{host}"
            );
        }
        assert!(!allowed(&[("host", "localhost"), ("origin", "null")]));
        assert!(!allowed(&[("host", "")]));
    }
}
