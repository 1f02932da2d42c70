//! Health and metrics over HTTP.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use attune_core::Network;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;
use tracing::info;

use crate::health::Health;
use crate::http::{Bounds, Door, refuse_foreign};
use crate::metrics::Metrics;
use crate::shutdown::Shutdown;

/// How long an open request may go on after the order to stop; a scrape takes milliseconds.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a client may take to send the head of its request: a few lines, from this machine.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on metrics.listen {listen}")]
pub struct OpsError {
    listen: SocketAddr,
    source: io::Error,
}

/// Routes for any server:
/// - `/healthz`: 200 as long as the process answers, and what it waits for;
/// - `/readyz`: the same, but 503 unless all components are ready;
/// - `/metrics`: Prometheus text.
///
/// Requests for a host outside `network` or from a foreign page are refused.
pub fn ops_router(network: Network, metrics: Metrics, health: Health) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(health)
        .merge(metrics_router(metrics))
        .layer(middleware::from_fn_with_state(network, refuse_foreign))
}

/// `/metrics` alone, for a server that has probes of its own.
pub fn metrics_router(metrics: Metrics) -> Router {
    Router::new().route("/metrics", get(render).with_state(metrics))
}

/// Serves [`ops_router`] on `listen` until the stop, in a task of `shutdown`, and returns the
/// address in use (port 0 takes a free one). For daemons other than the API. It has the bounds of
/// [`Bounds::of_probes`], so that whoever connects there cannot take the descriptors that the daemon
/// needs for its work, and serves nobody outside `network`.
///
/// # Errors
/// When the address cannot be listened on.
pub async fn ops_server(
    (listen, network): (SocketAddr, Network),
    metrics: Metrics,
    health: Health,
    shutdown: &Shutdown,
) -> Result<SocketAddr, OpsError> {
    let failed = |source| OpsError { listen, source };
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    info!(server.address = %address, "serving /healthz, /readyz and /metrics");

    let bounds = Bounds::of_probes(network, HEAD_TIMEOUT);
    let door = Door::new(listener, ops_router(network, metrics, health), bounds);
    let stop = shutdown.clone();
    shutdown.spawn("ops-server", async move {
        let connections = TaskTracker::new();
        door.serve(&connections, stop.token()).await;
        connections.close();
        // A client that keeps its request open must not hold up the stop.
        let _in_time = tokio::time::timeout(CLOSE_TIMEOUT, connections.wait()).await;
    });
    Ok(address)
}

async fn healthz(State(health): State<Health>) -> impl IntoResponse {
    Json(health.snapshot())
}

async fn readyz(State(health): State<Health>) -> impl IntoResponse {
    let snapshot = health.snapshot();
    let status = if snapshot.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(snapshot))
}

async fn render(State(metrics): State<Metrics>) -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)],
        metrics.render(),
    )
}
