//! `/api/v1/worker`: the lease for workers that do not speak to the store themselves.

use std::time::Duration;

use attune_api_types::{ErrorBody, Lease, LeaseRequest, RetireRequest};
use attune_core::check_pool;
use attune_core::input::check_required_text;
use attune_store::{StoreError, WorkerLease};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;

use super::App;
use crate::auth::Caller;
use crate::body;
use crate::error::ApiError;
use crate::query::NoParams;

/// How many slots a worker can say it has.
const MAX_SLOTS: u32 = 100_000;
/// The longest lease, in seconds: so long a dead worker can hold its slots.
const MAX_LEASE_SECONDS: u32 = 300;

/// Registers a worker, or renews its lease. It can be repeated when the answer was lost.
#[utoipa::path(
    post, path = "/worker/lease", tag = "workers", operation_id = "renew_worker_lease",
    request_body = LeaseRequest,
    responses(
        (status = 200, description = "The lease holds.", body = Lease),
        (status = 409, description = "`LEASE_EXPIRED`: end what runs and come back under a fresh \
            id.", body = ErrorBody),
    )
)]
pub(crate) async fn lease(
    State(app): State<App>,
    caller: Caller,
    _none: NoParams,
    request: Request,
) -> Result<Json<Lease>, ApiError> {
    let body = body::read(request, &app.options, &app.bodies).await?;
    let asked: LeaseRequest = body::parse(&body)?;
    check(&asked)?;
    caller.check_pool(&asked.pool)?;
    Ok(Json(renew(&app, &caller, asked).await?))
}

/// Renews what was checked before.
pub(super) async fn renew(
    app: &App,
    caller: &Caller,
    asked: LeaseRequest,
) -> Result<Lease, ApiError> {
    caller.hear_life(asked.worker)?;
    let lease = WorkerLease {
        worker: asked.worker,
        name: asked.name,
        pool: asked.pool,
        slots: asked.slots,
        ttl: Duration::from_secs(asked.lease_seconds.into()),
        draining: asked.draining,
        broker_user: asked.broker_user,
        principal: caller.owner_of_lives(),
    };
    app.ports.workers.renew_worker(&lease).await.map_err(over)?;
    Ok(Lease {
        lease_expires_in_ms: u64::from(asked.lease_seconds) * 1000,
    })
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

pub(super) fn check(asked: &LeaseRequest) -> Result<(), ApiError> {
    check_required_text("name", &asked.name)?;
    check_pool(&asked.pool)?;
    if let Some(user) = &asked.broker_user {
        check_required_text("broker_user", user)?;
    }
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
    Ok(())
}

/// Ends the lease of a worker that has nothing left to run, and says what has begun there.
#[utoipa::path(
    post, path = "/worker/retire", tag = "workers", operation_id = "retire_worker",
    request_body = RetireRequest,
    responses((status = 204, description = "The lease is given up."))
)]
pub(crate) async fn retire(
    State(app): State<App>,
    caller: Caller,
    _none: NoParams,
    request: Request,
) -> Result<StatusCode, ApiError> {
    let body = body::read(request, &app.options, &app.bodies).await?;
    let asked: RetireRequest = body::parse(&body)?;
    let begun = asked.begun.map(|begun| {
        let pairs = begun.iter().map(|name| (name.execution_id, name.attempt));
        pairs.collect::<Vec<_>>()
    });
    let owner = app.ports.workers.principal_of(asked.worker).await?;
    if owner.is_some_and(|owner| owner != caller.owner_of_lives()) {
        return Err(caller.not_its_life());
    }
    app.ports
        .workers
        .retire_worker(asked.worker, begun.as_deref())
        .await?;
    Ok(StatusCode::NO_CONTENT)
}
