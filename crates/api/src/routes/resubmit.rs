//! `POST /api/v1/executions/{id}/resubmit`: what has ended is asked for once more.

use attune_api_types::{ErrorBody, Submitted};
use attune_core::{ExecutionId, RequestId, Submission, TraceParent};
use attune_identity::Permission;
use attune_store::{ExecutionRecord, What};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::value::RawValue;

use super::App;
use super::executions::{SHOWN_BYTES, id_of, note_act};
use super::submit::{Named, idempotency_key, submit_one};
use crate::auth::Caller;
use crate::auth::access::Class;
use crate::error::ApiError;
use crate::query::NoParams;
use crate::traced::Traced;

/// Runs an execution that has ended again, as a new one.
///
/// The new execution has the action, parameters, user, group, labels, priority and time limit of the
/// old one and names it (`requeue_of`). It is a submission like any other: the definition and the
/// policy of the action as they are now hold for it, and it stands behind those that wait. A start that
/// was put off (`not_before`) is not put off again.
#[utoipa::path(
    post, path = "/executions/{id}/resubmit", tag = "executions",
    operation_id = "resubmit_execution",
    params(
        ("id" = i64, Path, minimum = 1, description = "The execution that has ended."),
        ("Idempotency-Key" = Option<String>, Header, description = "Names the request, so that \
            repeating it within 24 hours gives the same new execution; without it each request gives \
            another one."),
        ("traceparent" = Option<String>, Header, description = "Of which trace the new execution is \
            a part; that of the old one is left as it was."),
    ),
    responses(
        (status = 201, description = "Accepted and durable.", body = Submitted,
            headers(("Location" = String, description = "The path of the new execution."))),
        (status = 200, description = "It had been accepted before.", body = Submitted),
        (status = 404, description = "`UNKNOWN_EXECUTION`: it never was, or is kept no longer.",
            body = ErrorBody),
        (status = 409, description = "`NOT_ENDED`: it still waits or runs. `CONFLICT`, \
            `ALREADY_REJECTED`: as of any submission.", body = ErrorBody),
        (status = 422, description = "`UNKNOWN_ACTION`: its action is gone. `INVALID_INPUT`: what it \
            was given does not fit the action any more.", body = ErrorBody),
        (status = 429, description = "As of any submission: `QUEUE_FULL`, `LIMIT_REACHED`, \
            `USER_LIMIT_REACHED`, `RATE_LIMITED`, `QUOTA_EXCEEDED`.", body = ErrorBody,
            headers(("Retry-After" = u32, description = "Seconds."))),
        (status = 503, description = "As of any submission.", body = ErrorBody),
    )
)]
pub(crate) async fn resubmit(
    State(app): State<App>,
    caller: Caller,
    _none: NoParams,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Response {
    let route = "/api/v1/executions/{id}/resubmit";
    let traced = Traced::begin(&headers, &app.ports.spans, route);
    let answer = run_again(app, &caller, path, &headers, traced.trace()).await;
    traced.answered(answer)
}

async fn run_again(
    app: App,
    caller: &Caller,
    path: Result<Path<String>, PathRejection>,
    headers: &HeaderMap,
    trace: Option<TraceParent>,
) -> Result<Response, ApiError> {
    let id = id_of(path)?;
    caller.charge(Class::Submit, 1)?;
    let key = idempotency_key(headers)?;
    let named = Named::of(caller, key);
    let memory = app.memory.reserve(SHOWN_BYTES).await?;
    let record = app.ports.executions.find_execution(id).await?;
    let record = record.filter(|it| caller.sees(it.requested_by.as_deref()));
    let mut record = record.ok_or_else(|| ApiError::no_execution(id))?;
    caller.check_action(&record.action_ref)?;
    if !caller.principal().may(Permission::Operate) {
        // Who looks after the system lets somebody's execution run again; everybody else asks for their own.
        record.requested_by = caller.requested_by(None)?;
    }
    if !record.status.is_terminal() {
        return Err(not_ended(&record));
    }
    let parameters = app.ports.executions.find_parameters(id).await?;
    let parameters = parameters.ok_or_else(|| ApiError::no_execution(id))?;
    let parameters = RawValue::from_string(parameters).map_err(|_| unreadable(id))?;
    // It is checked, and sealed with the key of today, as if it came from a client.
    let opened = app.options.secrets.open(&record.action_ref, &parameters);
    let opened = opened.map_err(|error| ApiError::field("id", error.to_string()))?;
    let parameters = opened.map_or(parameters, |opened| opened.parameters);
    let mut submission = again(record, parameters, named.stored);
    submission.trace = trace;
    let answer = submit_one(app.clone(), caller, named, submission).await;
    drop(memory);
    if answer.is_ok() {
        note_act(&app, caller, What::Resubmit, id).await;
    }
    answer
}

fn not_ended(record: &ExecutionRecord) -> ApiError {
    let message = format!(
        "execution {} has not ended: it is {}; wait for its end or cancel it first",
        record.id, record.status
    );
    ApiError::new(StatusCode::CONFLICT, "NOT_ENDED", message)
}

fn unreadable(id: ExecutionId) -> ApiError {
    let words = format!("what execution {id} was given is stored as no JSON; submit it anew");
    ApiError::field("id", words)
}

/// What was asked for, once more.
fn again(record: ExecutionRecord, parameters: Box<RawValue>, request_id: RequestId) -> Submission {
    Submission {
        request_id: Some(request_id),
        parameters,
        priority: Some(record.priority),
        enforcement_id: record.enforcement_id,
        requested_by: record.requested_by,
        group: record.group,
        labels: record.labels,
        timeout_seconds: record.timeout_seconds,
        requeue_of: Some(record.id),
        ..Submission::new(record.action_ref)
    }
}
