//! What stands before every route, beside [the refusal of foreign pages](attune_runtime::http):
//! bounds on time and load, panics.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;
use tracing::{debug, error};

use crate::error::ApiError;

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
