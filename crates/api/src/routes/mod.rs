//! The routes: what each answers, and what stands before all of them.

mod actions;
mod cluster;
mod executions;
mod holders;
mod probes;
mod queues;
mod submit;
mod worker;

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use tokio::sync::Semaphore;
use tokio::task::JoinError;
use tower_http::catch_panic::CatchPanicLayer;
use tracing::error;

use crate::answers::AnswerMemory;
use crate::catalog::Catalog;
use crate::error::ApiError;
use crate::guard;
use crate::options::ApiOptions;
use crate::ports::Ports;

/// What every handler can reach.
pub(crate) type App = Arc<Shared>;

pub(crate) struct Shared {
    pub(crate) options: ApiOptions,
    pub(crate) ports: Ports,
    pub(crate) catalog: Catalog,
    pub(crate) memory: AnswerMemory,
}

/// All routes without a socket. `extra` is served beside them, without the bounds on load and
/// time; it must not have a fallback.
///
/// # Panics
/// When `extra` has a path of the API.
pub fn router(options: ApiOptions, ports: Ports, extra: Router) -> Router {
    let permits = Arc::new(Semaphore::new(options.max_requests));
    let request_timeout = options.request_timeout();
    let catalog = Catalog::new(ports.actions.clone());
    let app: App = Arc::new(Shared {
        options,
        ports,
        catalog,
        memory: AnswerMemory::new(),
    });
    let probes = probes(app.ports.clone());
    let api = api(app)
        .layer(middleware::from_fn_with_state(
            request_timeout,
            guard::bound_time,
        ))
        .layer(middleware::from_fn_with_state(permits, guard::bound_load));
    guarded(api.merge(probes).merge(extra))
}

/// The probes, and what `extra` adds to them, without the API.
pub(crate) fn ops_routes(ports: Ports, extra: Router) -> Router {
    guarded(probes(ports).merge(extra))
}

fn probes(ports: Ports) -> Router {
    Router::new()
        .route("/healthz", get(probes::healthz))
        .route("/readyz", get(probes::readyz))
        .with_state(ports)
}

/// What stands before every route of every listener.
fn guarded(routes: Router) -> Router {
    routes
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(CatchPanicLayer::custom(guard::on_panic))
        .layer(middleware::from_fn(guard::loopback_only))
        .layer(middleware::from_fn(guard::observe))
}

fn api(app: App) -> Router {
    let v1 = Router::new()
        .route("/executions", post(submit::submit).get(executions::list))
        .route("/executions/{id}", get(executions::show))
        .route("/executions/{id}/cancel", post(executions::cancel))
        .route("/executions/{id}/release", post(holders::release))
        .route("/actions", get(actions::list))
        .route("/actions/{ref}", get(actions::show).put(actions::apply))
        .route("/actions/{ref}/queue-stats", get(queues::show))
        .route("/actions/{ref}/holders", get(holders::list))
        .route("/queue-stats", get(queues::list))
        .route("/cluster", get(cluster::show))
        .route("/audit-log", get(cluster::audit_log))
        .route("/worker/claims", post(worker::claims))
        .route("/worker/retire", post(worker::retire))
        .with_state(app);
    Router::new().nest("/api/v1", v1)
}

async fn not_found() -> impl IntoResponse {
    ApiError::new(
        StatusCode::NOT_FOUND,
        "NOT_FOUND",
        "there is nothing at this path",
    )
}

async fn method_not_allowed() -> impl IntoResponse {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "METHOD_NOT_ALLOWED",
        "this path does not take this method; the header `Allow` says which it takes",
    )
}

/// What is to be answered when a task that did the work of a request did not come to its end.
pub(crate) fn lost_task(error: JoinError) -> ApiError {
    error!(error.message = %error, "the task of a request did not end");
    ApiError::internal()
}
