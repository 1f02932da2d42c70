//! What stands before every route: bounds on time and load, foreign pages, panics.
//!
//! The server has no authentication, and some actions run programs. Listening on loopback keeps
//! other machines out, but not the browser of a person on this machine: any page can make it
//! send requests to a loopback address, and a page whose host name is made to point there can
//! even read the answers. So requests for a foreign host or from a foreign origin are refused.

use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;
use tracing::{debug, error};

use crate::error::ApiError;

/// Refuses requests that were made for a foreign host or by a foreign page.
pub(crate) async fn loopback_only(request: Request, next: Next) -> Response {
    match check_origin(request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

fn check_origin(method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name| {
        headers
            .get(name)
            .map(|value: &HeaderValue| value.to_str().unwrap_or(""))
    };
    // A request without any host (HTTP/1.0) cannot come from a browser.
    let host = text(header::HOST).or_else(|| uri.authority().map(Authority::as_str));
    if host.is_some_and(|host| !names_loopback(host)) {
        return Err(foreign("Host"));
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
            Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "FOREIGN_ORIGIN",
                "the header `Origin` names another server than `Host`; a page of another server may \
                 read here, and change nothing",
            ))
        }
        Some(Some(authority)) if names_loopback(&authority) => Ok(()),
        Some(_) => Err(foreign("Origin")),
        None => Ok(()),
    }
}

fn foreign(header: &str) -> ApiError {
    ApiError::new(
        StatusCode::FORBIDDEN,
        "FOREIGN_ORIGIN",
        format!(
            "the header `{header}` names another machine; until authentication exists, use \
             127.0.0.1, [::1] or localhost"
        ),
    )
}

/// Whether `host` or `host:port` means this machine.
fn names_loopback(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<Authority>() else {
        return false;
    };
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

/// Answers with 503 when so many requests are under way that another would only wait.
pub(crate) async fn bound_load(
    State(permits): State<Arc<Semaphore>>,
    request: Request,
    next: Next,
) -> Response {
    match permits.try_acquire() {
        Ok(_permit) => next.run(request).await,
        Err(_) => ApiError::unavailable(
            "OVERLOADED",
            "the server works on as many requests as it may; nothing was done",
        )
        .into_response(),
    }
}

/// Ends a request that takes too long. What it started goes on: everything that must not be left
/// half done runs in a task of its own.
pub(crate) async fn bound_time(
    State(limit): State<Duration>,
    request: Request,
    next: Next,
) -> Response {
    let only_reads = request.method().is_safe();
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) if only_reads => ApiError::unavailable(
            "TIMEOUT",
            format!("no answer within {} s; ask again", limit.as_secs()),
        )
        .into_response(),
        Err(_) => ApiError::unavailable(
            "OUTCOME_UNKNOWN",
            format!(
                "no answer within {} s; whether the request was carried out is unknown: repeat it",
                limit.as_secs()
            ),
        )
        .into_response(),
    }
}

/// Logs each request and marks each answer as not to be kept.
pub(crate) async fn observe(request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = request.method().clone();
    // The route and not the path: ids and filters would make every line different.
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "(none)".to_owned(), |path| path.as_str().to_owned());
    let mut response = next.run(request).await;
    debug!(
        http.method = %method,
        http.route = %route,
        http.status = response.status().as_u16(),
        duration_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX),
        "answered"
    );
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// The answer after a panic: what happened belongs into the log only.
pub(crate) fn on_panic(panic: Box<dyn Any + Send + 'static>) -> Response {
    let message = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("(no message)");
    error!(panic.message = %message, "a request handler panicked");
    ApiError::internal().into_response()
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
