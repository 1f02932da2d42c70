//! Who holds the slots of an action, and taking a slot back by force.

use attune_api_types::ErrorBody;
use attune_commands::ClientError;
use attune_core::input::check_required_text;
use attune_core::{ExecutionId, Reject, RejectCode, RequestId, millis};
use attune_messages::v1::ForceRelease;
use attune_store::SlotHolder;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::Uri;

use super::App;
use super::actions::ref_of;
use super::executions::{id_of, refused};
use crate::auth::Caller;
use crate::body;
use crate::error::ApiError;
use crate::query::{NoParams, Params};
use attune_api_types::{Holder, HolderList, HolderWorker, ReleaseRequest, Released};

/// The holders of an action's slots, by rising id, in pages.
#[utoipa::path(
    get, path = "/actions/{ref}/holders", tag = "queues", operation_id = "list_holders",
    params(
        ("ref" = String, Path, description = "The action's ref, as in `core.http.get`."), ("limit" = Option<u32>, Query, minimum = 1, description = "How many to show: 50 unless given, at most `api.max_page_size`."),
        ("after" = Option<i64>, Query, description = "The `next` of the page before."),
    ),
    responses((status = 200, description = "Who holds the action's slots.", body = HolderList))
)]
pub(crate) async fn list(
    State(app): State<App>,
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<HolderList>, ApiError> {
    let action_ref = ref_of(path)?;
    let mut params = Params::of(&uri)?;
    let after: Option<ExecutionId> = params.parse("after")?;
    let limit = params.limit(app.options.max_page_size)?;
    params.end("after, limit")?;
    let Some(action) = app.ports.actions.find_action(&action_ref).await? else {
        return Err(ApiError::no_action(action_ref.as_str()));
    };
    // One more than asked for, to see whether there is a next page.
    let found = app
        .ports
        .executions
        .slot_holders(action.id, after, limit + 1)
        .await?;
    let more = found.len() > limit as usize;
    let holders: Vec<Holder> = found.into_iter().take(limit as usize).map(holder).collect();
    Ok(Json(HolderList {
        action_ref,
        limit: action.spec.policy.concurrency.limit,
        next: holders.last().filter(|_| more).map(|it| it.execution_id),
        holders,
    }))
}

fn holder(found: SlotHolder) -> Holder {
    Holder {
        execution_id: found.id,
        attempt: found.attempt,
        status: found.status,
        requested_at: found.requested_at,
        held_ms: millis(found.held_for),
        started_at: found.started_at,
        cancel_requested: found.cancel_requested,
        worker: found.worker.map(|worker| HolderWorker {
            id: worker.id,
            name: worker.name,
            pool: worker.pool,
            seen_ago_ms: worker.seen_ago.map(millis),
            lease_remaining_ms: millis(worker.remaining),
            lost_for_ms: millis(worker.lost_for),
        }),
    }
}

/// Takes the slot from the attempt that holds it.
#[utoipa::path(
    post, path = "/executions/{id}/release", tag = "executions", operation_id = "release_slot",
    request_body = ReleaseRequest,
    params(("id" = i64, Path, minimum = 1, description = "The execution.")),
    responses(
        (status = 200, description = "The slot was taken back; audited.", body = Released),
        (status = 409, description = "`ALREADY_ENDED`: that attempt holds no slot.",
            body = ErrorBody),
    )
)]
pub(crate) async fn release(
    State(app): State<App>,
    caller: Caller,
    _none: NoParams,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Json<Released>, ApiError> {
    let id = id_of(path)?;
    let body = body::read(request, &app.options, &app.bodies).await?;
    let asked: ReleaseRequest = body::parse(&body)?;
    let who = caller.who(asked.who)?;
    check_required_text("reason", &asked.reason)?;
    let standing = app.ports.executions.find_standing(id).await?;
    let Some(standing) = standing else {
        return Err(ApiError::no_execution(id));
    };
    let attempt = asked.attempt.unwrap_or(standing.attempt);
    if !standing.status.holds_slot() || standing.attempt != attempt {
        let words = format!(
            "attempt {attempt} of execution {id} holds no slot: it is {} in attempt {}",
            standing.status, standing.attempt
        );
        return Err(Reject::new(RejectCode::AlreadyEnded, words).into());
    }
    let command = ForceRelease {
        request_id: RequestId::fresh(),
        execution_id: id,
        attempt,
        who: who.name,
        reason: asked.reason,
        worker: standing.worker,
        never_begun: false,
    };
    let deadline = app.options.submit_timeout;
    let accepted = match app.ports.commands.force_release(command, deadline).await {
        Ok(accepted) => accepted,
        Err(ClientError::Rejected(reject)) => return Err(refused(&app, id, reject).await?),
        Err(error) => return Err(error.into()),
    };
    Ok(Json(Released {
        id,
        attempt,
        status: accepted.status.unwrap_or(standing.status),
    }))
}
