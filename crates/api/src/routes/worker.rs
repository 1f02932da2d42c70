//! `/api/v1/worker`: the claim for workers that do not speak to the store themselves.

use attune_api_types::ErrorBody;
use std::time::Duration;

use attune_core::check_pool;
use attune_core::input::check_required_text;
use attune_store::{StoreError, WorkerLease};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;

use super::App;
use crate::body;
use crate::error::ApiError;
use crate::query::NoParams;
use attune_api_types::{ClaimRequest, ClaimedItem, Claims, RetireRequest};

/// How many executions can be claimed at once.
const MAX_ITEMS: usize = 1000;
/// How many slots a worker can say it has.
const MAX_SLOTS: u32 = 100_000;
/// The longest lease, in seconds: so long a dead worker can hold its slots.
const MAX_LEASE_SECONDS: u32 = 300;

/// Renews the worker's lease, then claims. Both can be repeated when the answer was lost: what
/// this worker has claimed before is answered again.
#[utoipa::path(
    post, path = "/worker/claims", tag = "workers", operation_id = "claim",
    request_body = ClaimRequest,
    responses(
        (status = 200, description = "The lease is renewed; these may be run.", body = Claims),
        (status = 409, description = "`LEASE_EXPIRED`: end what runs and come back under a fresh \
            id.", body = ErrorBody),
    )
)]
pub(crate) async fn claims(
    State(app): State<App>,
    _none: NoParams,
    request: Request,
) -> Result<Json<Claims>, ApiError> {
    let body = body::read(request, &app.options, &app.bodies).await?;
    let asked: ClaimRequest = body::parse(&body)?;
    check(&asked)?;
    let lease = WorkerLease {
        worker: asked.worker,
        name: asked.name,
        pool: asked.pool,
        slots: asked.slots,
        ttl: Duration::from_secs(asked.lease_seconds.into()),
    };
    let workers = &app.ports.workers;
    workers.renew_worker(&lease).await.map_err(over)?;
    let claimed = if asked.items.is_empty() {
        Vec::new()
    } else {
        let wanted: Vec<_> = asked
            .items
            .iter()
            .map(|item| (item.execution_id, item.attempt))
            .collect();
        workers.claim(lease.worker, &wanted).await.map_err(over)?
    };
    let claimed = claimed
        .into_iter()
        .map(|claim| ClaimedItem {
            execution_id: claim.execution_id,
            attempt: claim.attempt,
            cancel_requested: claim.cancel_requested,
        })
        .collect();
    Ok(Json(Claims {
        claimed,
        lease_expires_in_ms: u64::from(asked.lease_seconds) * 1000,
    }))
}

/// The store knows of one conflict with a worker: its lease is over.
fn over(error: StoreError) -> ApiError {
    match error {
        StoreError::Conflict(_) => ApiError::new(
            StatusCode::CONFLICT,
            "LEASE_EXPIRED",
            "the lease of this worker has expired: end what it runs and come back under a fresh id",
        ),
        other => other.into(),
    }
}

fn check(asked: &ClaimRequest) -> Result<(), ApiError> {
    check_required_text("name", &asked.name)?;
    check_pool(&asked.pool)?;
    for (field, value, max) in [
        ("slots", asked.slots, MAX_SLOTS),
        ("lease_seconds", asked.lease_seconds, MAX_LEASE_SECONDS),
    ] {
        if !(1..=max).contains(&value) {
            return Err(ApiError::field(
                field,
                format!("`{field}` must be from 1 to {max}"),
            ));
        }
    }
    if asked.items.len() > MAX_ITEMS {
        return Err(ApiError::field(
            "items",
            format!(
                "{} items; at most {MAX_ITEMS} can be claimed at once",
                asked.items.len()
            ),
        ));
    }
    for (index, item) in asked.items.iter().enumerate() {
        for (name, fits) in [
            ("execution_id", item.execution_id.0 > 0),
            ("attempt", item.attempt.0 >= 0),
        ] {
            if !fits {
                let field = format!("items.{index}.{name}");
                let message = format!("`{field}` is a number that no execution has");
                return Err(ApiError::field(field, message));
            }
        }
    }
    Ok(())
}

/// Ends the lease of a worker that has nothing left to run.
#[utoipa::path(
    post, path = "/worker/retire", tag = "workers", operation_id = "retire_worker",
    request_body = RetireRequest,
    responses((status = 204, description = "The lease is given up."))
)]
pub(crate) async fn retire(
    State(app): State<App>,
    _none: NoParams,
    request: Request,
) -> Result<StatusCode, ApiError> {
    let body = body::read(request, &app.options, &app.bodies).await?;
    let asked: RetireRequest = body::parse(&body)?;
    app.ports.workers.retire_worker(asked.worker).await?;
    Ok(StatusCode::NO_CONTENT)
}
