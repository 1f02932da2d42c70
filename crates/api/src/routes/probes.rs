//! `/healthz` and `/readyz`.

use std::collections::BTreeMap;

use attune_runtime::{ComponentState, HealthSnapshot};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::ports::Ports;
use crate::ready::ask;

/// The process answers.
pub(crate) async fn healthz() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// Whether requests would be served: asks every component now, and adds what the daemon says of
/// itself.
pub(crate) async fn readyz(State(ports): State<Ports>) -> (StatusCode, Json<HealthSnapshot>) {
    let found = join_all(ports.probes.iter().map(|probe| async move {
        let state = match ask(probe.as_ref()).await {
            Ok(()) => ComponentState::Ready,
            Err(reason) => ComponentState::Waiting(reason),
        };
        (probe.name().to_owned(), state)
    }))
    .await;
    let daemon = ports.health.as_ref().map(|health| health.snapshot());
    let stopping = daemon.as_ref().is_some_and(|daemon| daemon.stopping);
    let mut components: BTreeMap<_, _> = daemon.map(|daemon| daemon.components).unwrap_or_default();
    components.extend(found);
    let ready = !stopping
        && components
            .values()
            .all(|state| *state == ComponentState::Ready);
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (
        status,
        Json(HealthSnapshot {
            ready,
            stopping,
            components,
        }),
    )
}
