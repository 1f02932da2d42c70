//! Requests of foreign pages are refused.
//!
//! The servers have no authentication, and some actions run programs. Listening on loopback keeps
//! other machines out, but not the browser of a person on this machine: any page can make it
//! send requests to a loopback address, and a page whose host name is made to point there can
//! even read the answers. So requests for a foreign host or from a foreign origin are refused.

use std::net::IpAddr;

use axum::Json;
use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Foreign {
    /// What this header names.
    #[error(
        "the header `{0}` names another machine; until authentication exists, use 127.0.0.1, [::1] \
         or localhost"
    )]
    Machine(&'static str),
    /// A page of another server of this machine.
    #[error(
        "the header `Origin` names another server than `Host`; a page of another server may read \
         here, and change nothing"
    )]
    Page,
}

impl IntoResponse for Foreign {
    fn into_response(self) -> Response {
        let error = json!({"code": "FOREIGN_ORIGIN", "message": self.to_string()});
        (StatusCode::FORBIDDEN, Json(json!({"error": error}))).into_response()
    }
}

/// Refuses requests that were made for a foreign host or by a foreign page: 403 `FOREIGN_ORIGIN`.
pub async fn loopback_only(request: Request, next: Next) -> Response {
    match check_origin(request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

fn check_origin(method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Foreign> {
    let text = |name| {
        headers
            .get(name)
            .map(|value: &HeaderValue| value.to_str().unwrap_or(""))
    };
    if headers.get_all(header::HOST).iter().nth(1).is_some() {
        return Err(Foreign::Machine("Host"));
    }
    // A request without any host (HTTP/1.0) cannot come from a browser.
    let host = text(header::HOST).or_else(|| uri.authority().map(Authority::as_str));
    if host.is_some_and(|host| !names_loopback(host)) {
        return Err(Foreign::Machine("Host"));
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
        Some(Some(authority)) if names_loopback(&authority) => Ok(()),
        Some(_) => Err(Foreign::Machine("Origin")),
        None => Ok(()),
    }
}

/// Whether `host` or `host:port` means this machine.
fn names_loopback(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<Authority>() else {
        return false;
    };
    if authority.as_str().contains('@') {
        return false;
    }
    let host = authority
        .host()
        .trim_matches(['[', ']'])
        .to_ascii_lowercase();
    host == "localhost"
        || host.ends_with(".localhost")
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.to_canonical().is_loopback())
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
        check_origin(method, &Uri::from_static("/x"), &headers).is_ok()
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
