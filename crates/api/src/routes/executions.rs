//! `/api/v1/executions`: reading and cancelling.

use attune_api_types::ErrorBody;
use std::str::FromStr;
use std::sync::Arc;

use attune_api_types::{Cancelled, Execution, ExecutionList};
use attune_commands::ClientError;
use attune_core::secret::masked;
use attune_core::{ActionRef, ExecutionId, Reject, RejectCode, RequestId};
use attune_identity::Permission;
use attune_store::{Bodies, Cursor, ExecutionFilter, ExecutionRecord, NewAudit, Standing, What};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde_json::Value;
use serde_json::value::to_raw_value;
use tracing::warn;

use super::App;
use crate::answers::PageBudget;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::query::{NoParams, Params, decode_cursor, encode_cursor};

/// The execution that a path names.
pub(super) fn id_of(path: Result<Path<String>, PathRejection>) -> Result<ExecutionId, ApiError> {
    let text = path.map(|Path(text)| text).unwrap_or_default();
    text.parse()
        .ok()
        .filter(|id: &ExecutionId| id.0 > 0)
        .ok_or_else(|| ApiError::field("id", "the id of an execution is a positive integer"))
}

/// What one execution is thought to need at most, in bytes, as long as its answer is not read.
pub(super) const SHOWN_BYTES: usize = 1024 * 1024;
/// What a row without long parts is thought to need, in bytes.
const ROW_BYTES: usize = 1024;
/// How many rows with long parts are read at once.
const LONG_ROWS: u32 = 8;

/// One execution.
#[utoipa::path(
    get, path = "/executions/{id}", tag = "executions", operation_id = "show_execution",
    params(
        ("id" = i64, Path, minimum = 1, description = "The execution."),
        ("show_secrets" = Option<bool>, Query, description = "`true` shows what is secret in its \
            parameters, in place of `********`. Needs the permission `secrets`; that it was asked \
            is written into the audit log first."),
    ),
    responses((status = 200, description = "The execution, whole.", body = Execution))
)]
pub(crate) async fn show(
    State(app): State<App>,
    caller: Caller,
    uri: Uri,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let id = id_of(path)?;
    let mut params = Params::of(&uri)?;
    let shows_secrets: bool = params.parse("show_secrets")?.unwrap_or_default();
    params.end("show_secrets")?;
    if shows_secrets {
        caller.needs(&[Permission::Secrets])?;
    }
    let memory = app.memory.reserve(SHOWN_BYTES).await?;
    let record = app.ports.executions.find_execution(id).await?;
    let record = record.filter(|it| caller.sees(it.requested_by.as_deref()));
    let mut record = record.ok_or_else(|| ApiError::no_execution(id))?;
    if shows_secrets {
        record.parameters = revealed(&app, &caller, &record).await?;
    } else {
        mask(&app, &mut record).await?;
    }
    Ok(memory.json(&view(record, Bodies::ALL)))
}

/// The parameters of an execution with what is secret in them, once it is written down that somebody saw it.
async fn revealed(app: &App, caller: &Caller, record: &ExecutionRecord) -> Result<Value, ApiError> {
    let entry = NewAudit {
        request_id: RequestId::fresh(),
        who: caller.who(None)?,
        what: What::SecretRead,
        target: record.id.to_string(),
        reason: None,
        before: None,
        after: None,
    };
    app.ports.audit.note_audit(&entry).await?;
    let unreadable = |error: String| ApiError::field("show_secrets", error);
    let stored = to_raw_value(&record.parameters);
    let stored = stored.map_err(|error| unreadable(error.to_string()))?;
    let opened = app.options.secrets.open(&record.action_ref, &stored);
    let opened = opened.map_err(|error| unreadable(error.to_string()))?;
    let Some(opened) = opened else {
        return Ok(record.parameters.clone());
    };
    serde_json::from_str(opened.parameters.get()).map_err(|error| unreadable(error.to_string()))
}

/// Hides what is secret in the parameters: what was when it was asked for, and what the action's schema marks now.
async fn mask(app: &App, record: &mut ExecutionRecord) -> Result<(), ApiError> {
    let known = match record.action_ref.parse() {
        Ok(action_ref) => app.catalog.find(&action_ref, app.check_deadline()).await?,
        Err(_) => None,
    };
    let marks = known.as_ref().and_then(|known| known.marks());
    record.parameters = masked(std::mem::take(&mut record.parameters), marks);
    Ok(())
}

/// Executions by filter, the newest first, in pages.
#[utoipa::path(
    get, path = "/executions", tag = "executions", operation_id = "list_executions",
    params(
        ("action" = Option<String>, Query, description = "Only those of this action."),
        ("status" = Option<String>, Query, description = "Only those in these states, as in \
            `queued,running`."),
        ("user" = Option<String>, Query, description = "Only those of this user."),
        ("group" = Option<String>, Query, description = "Only those of this group."),
        ("include" = Option<String>, Query, description = "Long parts that are left out otherwise, \
            of `parameters,result,stdout,stderr`."),
        ("limit" = Option<u32>, Query, minimum = 1, description = "How many to show: 50 unless given, at most `api.max_page_size`."),
        ("cursor" = Option<String>, Query, description = "The `next` of the page before."),
    ),
    responses((status = 200, description = "A page; it ends early when it would be too large.",
        body = ExecutionList))
)]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    uri: Uri,
) -> Result<Response, ApiError> {
    let mut params = Params::of(&uri)?;
    let action: Option<ActionRef> = params.parse("action")?;
    let filter = ExecutionFilter {
        action_ref: action.map(String::from),
        statuses: params.list("status")?,
        requested_by: caller.user_of_list(params.take("user")?)?,
        group: params.take("group")?,
        priorities: Vec::new(),
        bodies: bodies(&params.list("include")?),
    };
    let known = "action, status, user, group, include, limit, cursor";
    listed(app, params, filter, known).await
}

/// A page of executions by filter, with what is left of the parameters: `limit` and `cursor`.
pub(super) async fn listed(
    app: App,
    mut params: Params,
    filter: ExecutionFilter,
    known: &str,
) -> Result<Response, ApiError> {
    let limit = params.limit(app.options.max_page_size)?;
    let after = params
        .take("cursor")?
        .map(|text| decode_cursor(&text))
        .transpose()?;
    params.end(known)?;
    let max = app.options.page_bytes;
    if filter.bodies == Bodies::NONE {
        let memory = app.memory.reserve(max.min(limit as usize * ROW_BYTES));
        let memory = memory.await?;
        let page = page(Arc::clone(&app), filter, after, limit, limit);
        return Ok(memory.json(&app.memory.ask(page).await?));
    }
    let memory = app.memory.reserve(max).await?;
    let _turn = app.memory.turn().await?;
    // It has a turn of its own, so that short lists do not wait behind pages of long parts.
    let page = page(Arc::clone(&app), filter, after, limit, LONG_ROWS);
    Ok(memory.json(&page.await?))
}

/// A page of up to `limit` rows and [`page_bytes`](crate::ApiOptions::page_bytes), read in steps
/// of `step` rows.
async fn page(
    app: App,
    filter: ExecutionFilter,
    mut after: Option<Cursor>,
    limit: u32,
    step: u32,
) -> Result<ExecutionList, ApiError> {
    let mut budget = PageBudget::new(app.options.page_bytes);
    let (mut executions, mut missing) = (Vec::new(), limit);
    while missing > 0 {
        let part = app
            .ports
            .executions
            .list_executions(&filter, after, step.min(missing))
            .await?;
        for mut record in part.executions {
            let place = Cursor {
                created: record.created,
                id: record.id,
            };
            if filter.bodies.parameters {
                mask(&app, &mut record).await?;
            }
            let row = view(record, filter.bodies);
            if !budget.takes(&row) {
                // The page ends with the row before, which `after` still names.
                return Ok(list_of(executions, after));
            }
            executions.push(row);
            after = Some(place);
            missing -= 1;
        }
        if part.next.is_none() {
            return Ok(list_of(executions, None));
        }
    }
    Ok(list_of(executions, after))
}

fn list_of(executions: Vec<Execution>, next: Option<Cursor>) -> ExecutionList {
    ExecutionList {
        executions,
        next: next.map(encode_cursor),
    }
}

/// A part of an execution that a list has only if it is asked for.
enum Include {
    Parameters,
    Result,
    Stdout,
    Stderr,
}

impl FromStr for Include {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "parameters" => Ok(Self::Parameters),
            "result" => Ok(Self::Result),
            "stdout" => Ok(Self::Stdout),
            "stderr" => Ok(Self::Stderr),
            _ => Err("there are parameters, result, stdout and stderr"),
        }
    }
}

fn bodies(included: &[Include]) -> Bodies {
    let mut bodies = Bodies::NONE;
    for part in included {
        *match part {
            Include::Parameters => &mut bodies.parameters,
            Include::Result => &mut bodies.result,
            Include::Stdout => &mut bodies.stdout,
            Include::Stderr => &mut bodies.stderr,
        } = true;
    }
    bodies
}

/// An execution as clients see it, with these of its long parts.
fn view(record: ExecutionRecord, bodies: Bodies) -> Execution {
    Execution {
        id: record.id,
        action_id: record.action_id,
        action_ref: record.action_ref,
        status: record.status,
        priority: record.priority,
        attempt: record.attempt,
        grant_no: record.grant_no,
        request_id: record.request_id,
        enforcement_id: record.enforcement_id,
        requested_by: record.requested_by,
        group: record.group,
        labels: record.labels,
        parameters: bodies.parameters.then_some(record.parameters),
        not_before: record.not_before,
        timeout_seconds: record.timeout_seconds,
        cancel_requested: record.cancel_requested,
        worker: record.worker,
        created: record.created,
        requested_at: record.requested_at,
        started_at: record.started_at,
        finished_at: record.finished_at,
        result: bodies.result.then_some(record.result),
        end_code: record.end_code,
        error: record.error,
        exit_code: record.exit_code,
        stdout: bodies.stdout.then_some(record.stdout),
        stderr: bodies.stderr.then_some(record.stderr),
        requeue_of: record.requeue_of,
        last_error: record.last_error,
        trace_id: record.trace.map(|trace| trace.trace_id().to_string()),
    }
}

/// Ends an execution, waiting or running.
#[utoipa::path(
    post, path = "/executions/{id}/cancel", tag = "executions", operation_id = "cancel_execution",
    params(("id" = i64, Path, minimum = 1, description = "The execution.")),
    responses(
        (status = 202, description = "It is cancelled, or its worker is told to end it.",
            body = Cancelled),
        (status = 409, description = "`ALREADY_ENDED`.", body = ErrorBody),
    )
)]
pub(crate) async fn cancel(
    State(app): State<App>,
    caller: Caller,
    _none: NoParams,
    path: Result<Path<String>, PathRejection>,
) -> Result<(StatusCode, Json<Cancelled>), ApiError> {
    let id = id_of(path)?;
    if id.partition().0 >= app.options.partitions {
        // No owner would ever answer.
        return Err(ApiError::no_execution(id));
    }
    if !caller.principal().may(Permission::Operate) {
        check_own(&app, &caller, id).await?;
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
    note_act(&app, &caller, What::Cancel, id).await;
    Ok((StatusCode::ACCEPTED, Json(Cancelled { id, status })))
}

/// Writes down who has done something to an execution, where that is known and it need not be their own.
pub(super) async fn note_act(app: &App, caller: &Caller, what: What, id: ExecutionId) {
    let principal = caller.principal();
    if principal.key().is_none() || !principal.may(Permission::Operate) {
        return;
    }
    let entry = NewAudit {
        request_id: RequestId::fresh(),
        who: caller.named(principal.name().to_owned()),
        what,
        target: id.to_string(),
        reason: None,
        before: None,
        after: None,
    };
    if let Err(error) = app.ports.audit.note_audit(&entry).await {
        warn!(execution.id = %id, who = entry.who.name, error.message = %error, "who did something to it could not be written down");
    }
}

/// Refuses an execution of somebody else, as one that is not there.
async fn check_own(app: &App, caller: &Caller, id: ExecutionId) -> Result<(), ApiError> {
    let _memory = app.memory.reserve(SHOWN_BYTES).await?;
    let record = app.ports.executions.find_execution(id).await?;
    let own = record.filter(|it| it.requested_by.as_deref() == Some(caller.principal().name()));
    own.map(drop).ok_or_else(|| ApiError::no_execution(id))
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
    let standing = app.ports.executions.find_standing(id).await?;
    Ok(match standing {
        None => ApiError::no_execution(id),
        Some(Standing { status, .. }) if status.is_terminal() => {
            let message = format!("execution {id} has ended already: {status}");
            Reject::new(RejectCode::AlreadyEnded, message).into()
        }
        // It is on its way between the two.
        Some(_) => reject.into(),
    })
}

async fn show_status(app: &App, id: ExecutionId) -> Result<attune_core::Status, ApiError> {
    let standing = app.ports.executions.find_standing(id).await?;
    standing
        .map(|standing| standing.status)
        .ok_or_else(|| ApiError::no_execution(id))
}
