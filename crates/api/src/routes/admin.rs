//! `/api/v1/admin/executions`: executions as who answers for the system sees them.

use std::sync::Arc;

use attune_api_types::{
    AdminQueue, ByPriority, ErrorBody, ExecutionList, PriorityRequest, Reprioritised,
};
use attune_core::input::check_text;
use attune_core::{ExecutionId, OperationFilter, OperationKind, Priority, RequestId, Status};
use attune_store::{Bodies, ExecutionFilter, NewOperation};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;

use super::App;
use super::executions::{id_of, listed};
use super::operations::begun;
use crate::auth::Caller;
use crate::body;
use crate::error::ApiError;
use crate::query::{NoParams, Params};

/// Executions by status, priority and user, the newest first, in pages.
#[utoipa::path(
    get, path = "/admin/executions/", tag = "admin", operation_id = "admin_list_executions",
    params(
        ("status" = Option<String>, Query, description = "Only those in these states, as in \
            `queued,running`."),
        ("priority" = Option<String>, Query, description = "Only those of these priorities, as in \
            `critical,high`."),
        ("user" = Option<String>, Query, description = "Only those of this user."),
        ("limit" = Option<u32>, Query, minimum = 1, description = "How many to show: 50 unless given, at most `api.max_page_size`."),
        ("cursor" = Option<String>, Query, description = "The `next` of the page before."),
    ),
    responses((status = 200, description = "A page; it ends early when it would be too large.",
        body = ExecutionList))
)]
pub(crate) async fn list(State(app): State<App>, uri: Uri) -> Result<Response, ApiError> {
    let mut params = Params::of(&uri)?;
    let filter = ExecutionFilter {
        statuses: params.list("status")?,
        priorities: params.list("priority")?,
        requested_by: params.take("user")?,
        bodies: Bodies::NONE,
        ..ExecutionFilter::default()
    };
    listed(app, params, filter, "status, priority, user, limit, cursor").await
}

/// Gives an execution that waits another priority; it stands there by its age.
#[utoipa::path(
    put, path = "/admin/executions/{id}/priority", tag = "admin", operation_id = "set_priority",
    request_body = PriorityRequest,
    params(("id" = i64, Path, minimum = 1, description = "The execution.")),
    responses(
        (status = 200, description = "It is stored and audited.", body = Reprioritised),
        (status = 409, description = "`NOT_WAITING`: it holds a slot, or has ended.", body = ErrorBody),
    )
)]
pub(crate) async fn set_priority(
    State(app): State<App>,
    caller: Caller,
    _none: NoParams,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Json<Reprioritised>, ApiError> {
    let id = id_of(path)?;
    let body = body::read(request, &app.options, &app.bodies).await?;
    let asked: PriorityRequest = body::parse(&body)?;
    let who = caller.who(asked.who)?;
    if let Some(reason) = &asked.reason {
        check_text("reason", reason)?;
    }
    let (_, status) = stands(&app, id).await?;
    if status != Status::Queued {
        return Err(not_waiting(id, status));
    }
    let filter = OperationFilter {
        ids: [id].into(),
        ..OperationFilter::default()
    };
    let new = NewOperation {
        request_id: RequestId::fresh(),
        kind: OperationKind::Reprioritise {
            priority: asked.priority,
        },
        partitions: filter.partitions(app.options.partitions),
        filter,
        who,
        reason: asked.reason,
    };
    let operation = begun(&app, new).await?;
    if !operation.is_finished() {
        let words = format!(
            "operation {} is stored, and nobody has carried it out yet: no executor owns the partition \
             (`attune cluster`, /readyz); it is done when one does",
            operation.id
        );
        return Err(ApiError::unavailable("NO_OWNER", words));
    }
    // It may have had that priority already.
    let (now, status) = match operation.done {
        0 => stands(&app, id).await?,
        _ => (asked.priority, Status::Queued),
    };
    if status != Status::Queued || now != asked.priority {
        return Err(not_waiting(id, status));
    }
    Ok(Json(Reprioritised {
        id,
        priority: now,
        status,
        operation: operation.id,
    }))
}

fn not_waiting(id: ExecutionId, status: Status) -> ApiError {
    let words = format!("execution {id} does not wait for a slot: {status}");
    ApiError::new(StatusCode::CONFLICT, "NOT_WAITING", words)
}

async fn stands(app: &App, id: ExecutionId) -> Result<(Priority, Status), ApiError> {
    let record = app.ports.executions.find_execution(id).await?;
    let record = record.ok_or_else(|| ApiError::no_execution(id))?;
    Ok((record.priority, record.status))
}

/// All queues together: how many wait, by priority, and how many hold a slot.
#[utoipa::path(
    get, path = "/admin/executions/queue", tag = "admin", operation_id = "admin_queue",
    responses((status = 200, description = "The figures of one moment.", body = AdminQueue))
)]
pub(crate) async fn queue(State(app): State<App>, uri: Uri) -> Result<Json<AdminQueue>, ApiError> {
    Params::of(&uri)?.end("no parameters")?;
    let operations = Arc::clone(&app.ports.operations);
    let depth = async move { operations.depth().await };
    let depth = app.memory.ask(depth).await?;
    let mut by_priority = ByPriority::default();
    for (priority, many) in &depth.waiting {
        *match priority {
            Priority::Critical => &mut by_priority.critical,
            Priority::High => &mut by_priority.high,
            Priority::Normal => &mut by_priority.normal,
            Priority::Low => &mut by_priority.low,
            Priority::Background => &mut by_priority.background,
        } = *many;
    }
    Ok(Json(AdminQueue {
        depth: depth.waiting.iter().map(|(_, many)| many).sum(),
        active: depth.active,
        max_concurrent: None,
        by_priority,
    }))
}
