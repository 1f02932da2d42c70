//! `/healthz` and `/readyz`.

use std::collections::BTreeMap;

use attune_api_types::{ComponentHealth, Liveness, Readiness};
use attune_runtime::ComponentState;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use futures_util::future::join_all;

use crate::auth::Anonymous;
use crate::ports::Ports;
use crate::ready::ask;

/// The process answers.
#[utoipa::path(
    get, path = "/healthz", tag = "operations", operation_id = "liveness",
    responses((status = 200, description = "The process answers.", body = Liveness))
)]
pub(crate) async fn healthz() -> Json<Liveness> {
    let status = "ok".to_owned();
    Json(Liveness { status })
}

/// Whether requests would be served: asks every component now, and adds what the daemon says of
/// itself.
#[utoipa::path(
    get, path = "/readyz", tag = "operations", operation_id = "readiness",
    responses(
        (status = 200, description = "Requests would be served.", body = Readiness),
        (status = 503, description = "They would not; the body says what is missing, to whom a key opens that.",
            body = Readiness),
    )
)]
pub(crate) async fn readyz(
    State(ports): State<Ports>,
    anonymous: Option<Anonymous>,
) -> (StatusCode, Json<Readiness>) {
    let found = join_all(ports.probes.iter().map(|probe| async move {
        let state = match ask(probe.as_ref()).await {
            Ok(()) => ComponentHealth::Ready,
            Err(reason) => ComponentHealth::Waiting(reason),
        };
        (probe.name().to_owned(), state)
    }))
    .await;
    let daemon = ports.health.as_ref().map(|health| health.snapshot());
    let stopping = daemon.as_ref().is_some_and(|daemon| daemon.stopping);
    let of_daemon = daemon.map(|daemon| daemon.components).unwrap_or_default();
    let mut components: BTreeMap<String, ComponentHealth> = of_daemon
        .into_iter()
        .map(|(name, state)| (name, component(state)))
        .collect();
    components.extend(found);
    let ready = !stopping
        && components
            .values()
            .all(|state| *state == ComponentHealth::Ready);
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    if anonymous.is_some() {
        // Whoever is let in may know what there is and what is wrong with it.
        components.clear();
    }
    let readiness = Readiness {
        ready,
        stopping,
        components,
    };
    (status, Json(readiness))
}

fn component(state: ComponentState) -> ComponentHealth {
    match state {
        ComponentState::Ready => ComponentHealth::Ready,
        ComponentState::Waiting(reason) => ComponentHealth::Waiting(reason),
        ComponentState::Stalled(reason) => ComponentHealth::Stalled(reason),
    }
}
