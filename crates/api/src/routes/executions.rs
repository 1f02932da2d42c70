//! `/api/v1/executions`: reading and cancelling.

use attune_bus::client::ClientError;
use attune_core::{ActionRef, ExecutionId, Reject, RejectCode};
use attune_store::{ExecutionFilter, ExecutionRecord};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};

use super::App;
use crate::error::ApiError;
use crate::query::{Params, decode_cursor, encode_cursor};
use crate::wire::{Cancelled, ExecutionList};

/// The execution that a path names.
pub(super) fn id_of(path: Result<Path<String>, PathRejection>) -> Result<ExecutionId, ApiError> {
    let text = path.map(|Path(text)| text).unwrap_or_default();
    text.parse()
        .ok()
        .filter(|id: &ExecutionId| id.0 > 0)
        .ok_or_else(|| ApiError::field("id", "the id of an execution is a positive integer"))
}

/// One execution.
pub(crate) async fn show(
    State(app): State<App>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<ExecutionRecord>, ApiError> {
    let id = id_of(path)?;
    let record = app.ports.executions.find_execution(id).await?;
    record.map(Json).ok_or_else(|| ApiError::no_execution(id))
}

/// Executions by filter, the newest first, in pages.
pub(crate) async fn list(
    State(app): State<App>,
    uri: Uri,
) -> Result<Json<ExecutionList>, ApiError> {
    let mut params = Params::of(&uri)?;
    let action: Option<ActionRef> = params.parse("action")?;
    let filter = ExecutionFilter {
        action_ref: action.map(String::from),
        statuses: params.list("status")?,
        requested_by: params.take("user")?,
        group: params.take("group")?,
    };
    let limit = params.limit(app.options.max_page_size)?;
    let after = params
        .take("cursor")?
        .map(|text| decode_cursor(&text))
        .transpose()?;
    params.end("action, status, user, group, limit, cursor")?;
    let page = app
        .ports
        .executions
        .list_executions(&filter, after, limit)
        .await?;
    Ok(Json(ExecutionList {
        executions: page.executions,
        next: page.next.map(encode_cursor),
    }))
}

/// Ends an execution, waiting or running.
pub(crate) async fn cancel(
    State(app): State<App>,
    path: Result<Path<String>, PathRejection>,
) -> Result<(StatusCode, Json<Cancelled>), ApiError> {
    let id = id_of(path)?;
    if id.partition().0 >= app.options.partitions {
        // No owner would ever answer.
        return Err(ApiError::no_execution(id));
    }
    let accepted = match app
        .ports
        .commands
        .cancel(id, app.options.submit_timeout)
        .await
    {
        Ok(accepted) => accepted,
        Err(ClientError::Rejected(reject)) => return Err(refused(&app, id, reject).await?),
        Err(error) => return Err(error.into()),
    };
    let status = match accepted.status {
        Some(status) => status,
        None => show_status(&app, id).await?,
    };
    Ok((StatusCode::ACCEPTED, Json(Cancelled { id, status })))
}

/// An owner knows only what waits or holds a slot, so it cannot tell an execution that has ended
/// from one that never was; the store can.
pub(super) async fn refused(
    app: &App,
    id: ExecutionId,
    reject: Reject,
) -> Result<ApiError, ApiError> {
    if !matches!(
        reject.code,
        RejectCode::UnknownExecution | RejectCode::AlreadyEnded
    ) {
        return Ok(reject.into());
    }
    let record = app.ports.executions.find_execution(id).await?;
    Ok(match record {
        None => ApiError::no_execution(id),
        Some(record) if record.status.is_terminal() => {
            let message = format!("execution {id} has ended already: {}", record.status);
            Reject::new(RejectCode::AlreadyEnded, message).into()
        }
        // It is on its way between the two.
        Some(_) => reject.into(),
    })
}

async fn show_status(app: &App, id: ExecutionId) -> Result<attune_core::Status, ApiError> {
    let record = app.ports.executions.find_execution(id).await?;
    record
        .map(|record| record.status)
        .ok_or_else(|| ApiError::no_execution(id))
}
