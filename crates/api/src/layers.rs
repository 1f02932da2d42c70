//! What stands before every route, beside [the refusal of foreign pages](attune_runtime::http):
//! bounds on time and load, panics.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;
use tracing::{debug, error};

use crate::error::{ApiError, ErrorCode};
use crate::figures::ApiFigures;
use crate::routes::submit::IDEMPOTENCY_KEY;
use crate::traced::{trace_of, trace_of_answer};

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
    let only_reads = only_reads(&request);
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

/// Whether a request is a question, whatever its method.
fn only_reads(request: &Request) -> bool {
    let (path, query) = (request.uri().path(), request.uri().query());
    let asks = |pair: &str| matches!(pair, "dry_run=true" | "check=true");
    request.method().is_safe()
        || path.ends_with("/preview")
        || query.is_some_and(|query| query.split('&').any(asks))
}

/// Refuses a condition that nobody would look at. Whoever takes one, or has more to say about it, has a path
/// that begins with these.
pub(crate) async fn refuse_conditions(request: Request, next: Next) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    match check_conditions(request.uri().path(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Checks the headers of a request that changes something.
fn check_conditions(path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
    if headers.contains_key(header::IF_NONE_MATCH) {
        let words = "`If-None-Match` is not looked at; leave it out: a change of a policy takes `If-Match` with \
                     the version that it is for";
        return Err(ApiError::field("If-None-Match", words));
    }
    // Submitting is the one change that is named by a header.
    let submits = path == "/api/v1/executions" || path.ends_with("/resubmit");
    if !submits && headers.contains_key(IDEMPOTENCY_KEY) {
        let words = "`Idempotency-Key` is for submissions and not looked at here; leave it out: an operation is \
                     named by its `request_id`, and any other change may be repeated";
        return Err(ApiError::field("Idempotency-Key", words));
    }
    let looks = ["/api/v1/policies", "/api/v1/actions/"];
    if looks.iter().any(|begin| path.starts_with(begin)) {
        return Ok(());
    }
    no_if_match(headers, "it is for policies; leave it out")
}

/// Refuses a condition that would not be looked at; `instead` says what to do.
pub(crate) fn no_if_match(headers: &HeaderMap, instead: &str) -> Result<(), ApiError> {
    match headers.contains_key(header::IF_MATCH) {
        false => Ok(()),
        true => {
            let words = format!("`If-Match` has no meaning here: {instead}");
            Err(ApiError::field("If-Match", words))
        }
    }
}

/// Counts and logs each request, and marks each answer as not to be kept.
pub(crate) async fn observe(
    State(figures): State<Arc<ApiFigures>>,
    request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let method = request.method().clone();
    // The route and not the path: ids and filters would make every line different.
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "(none)".to_owned(), |path| path.as_str().to_owned());
    let named = trace_of(request.headers());
    let mut response = next.run(request).await;
    let named = named.map(|trace| trace.trace_id());
    let trace = trace_of_answer(&response).or(named);
    let (status, after) = (response.status(), started.elapsed());
    debug!(
        http.method = %method,
        http.route = %route,
        http.status = status.as_u16(),
        trace_id = trace.map(display),
        duration_us = u64::try_from(after.as_micros()).unwrap_or(u64::MAX),
        "answered"
    );
    if let Some(ErrorCode(code)) = response.extensions().get() {
        figures.refused(&route, code);
    }
    figures.answered(route, &method, status, after);
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
    use axum::body::Body;

    use super::*;

    #[test]
    fn a_header_that_nobody_looks_at_is_refused() {
        let field = |path: &str, name: &'static str| {
            let headers = HeaderMap::from_iter([(
                axum::http::HeaderName::from_static(name),
                HeaderValue::from_static("1"),
            )]);
            check_conditions(path, &headers).map_err(|refusal| refusal.into_response().status())
        };
        let (policy, executions) = ("/api/v1/policies/user/ann", "/api/v1/executions");
        for (path, name) in [
            (policy, "if-match"),
            (executions, "idempotency-key"),
            ("/api/v1/executions/7/resubmit", "idempotency-key"),
        ] {
            assert_eq!(field(path, name), Ok(()), "{path} {name}");
        }
        let refused = Err(axum::http::StatusCode::UNPROCESSABLE_ENTITY);
        for (path, name) in [
            (policy, "if-none-match"),
            (policy, "idempotency-key"),
            ("/api/v1/actions/a.b", "if-none-match"),
            (executions, "if-none-match"),
            (executions, "if-match"),
            ("/api/v1/operations", "idempotency-key"),
            ("/api/v1/pauses/all", "if-none-match"),
        ] {
            assert_eq!(field(path, name), refused, "{path} {name}");
        }
    }

    #[test]
    fn a_question_is_one_whatever_its_method() {
        for (method, uri, expected) in [
            ("GET", "/api/v1/executions", true),
            ("POST", "/api/v1/executions", false),
            ("POST", "/api/v1/operations/preview", true),
            ("PUT", "/api/v1/policies/global?who=a&dry_run=true", true),
            ("PUT", "/api/v1/policies/global?dry_run=false", false),
            ("PUT", "/api/v1/actions/a.b?check=true", true),
            ("DELETE", "/api/v1/policies/user/dry_run=true", false),
        ] {
            let request = Request::builder().method(method).uri(uri);
            let request = request.body(Body::empty()).unwrap();
            assert_eq!(only_reads(&request), expected, "{method} {uri}");
        }
    }
}
