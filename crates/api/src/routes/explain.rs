//! `/api/v1/executions/{id}/explain`: why an execution does not run yet.

use std::time::Duration;

use attune_api_types::{ErrorBody, ExplainState, ExplainView};
use attune_commands::ClientError;
use attune_core::explain::{QueueState, Reason};
use attune_core::{ExecutionId, Explanation, RejectCode, Status};
use attune_store::ExecutionRecord;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use chrono::Utc;

use super::executions::{SHOWN_BYTES, id_of};
use super::{App, pauses};
use crate::auth::Caller;
use crate::error::ApiError;
use crate::query::NoParams;

/// An owner answers within a round: who has not by now is asked again later.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// When asking again may help where nobody has answered, in seconds: a takeover takes about as long.
const RETRY_AFTER_SECONDS: u32 = 5;

/// Why an execution does not run yet: what it waits for, who holds it, its position, and when it is given a
/// slot as far as can be told.
#[utoipa::path(
    get, path = "/executions/{id}/explain", tag = "executions", operation_id = "explain_execution",
    params(("id" = i64, Path, minimum = 1, description = "The execution.")),
    responses(
        (status = 200, description = "As the owner of its queue says it; nothing changes by it.",
            body = ExplainView),
        (status = 503, description = "`NO_ANSWER`: the owner has not answered, or there is none at this \
            moment; the message says what to do.", body = ErrorBody),
    )
)]
pub(crate) async fn explain(
    State(app): State<App>,
    caller: Caller,
    _none: NoParams,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<ExplainView>, ApiError> {
    let id = id_of(path)?;
    let memory = app.memory.reserve(SHOWN_BYTES).await?;
    let found = record(&app, id).await?;
    if !caller.sees(found.requested_by.as_deref()) {
        return Err(ApiError::no_execution(id));
    }
    if found.status.is_terminal() {
        return Ok(Json(ended(&found)));
    }
    let deadline = app.options.submit_timeout.min(LONGEST_WAIT);
    let answer = app.ports.commands.explain(id, deadline).await;
    let explanation = match answer {
        Ok(accepted) => accepted.explanation,
        Err(ClientError::Rejected(reject)) if reject.code == RejectCode::AlreadyEnded => None,
        Err(ClientError::NotConfirmed { .. } | ClientError::Unroutable(_)) => {
            return Err(no_answer(&app, id).await?);
        }
        Err(error) => return Err(error.into()),
    };
    // What the row says now is not older than what the owner has said.
    let found = record(&app, id).await?;
    let view = match explanation {
        _ if found.status.is_terminal() => ended(&found),
        Some(mut explanation) => {
            if caller.sees_only_its_own() {
                name_no_others(&mut explanation);
            }
            view(&app, &found, *explanation).await?
        }
        None => {
            let message = format!(
                "execution {id} is {} and its owner does not know it at this moment; ask again in a second",
                found.status
            );
            return Err(ApiError::unavailable("NO_ANSWER", message));
        }
    };
    drop(memory);
    Ok(Json(view))
}

/// Who sees nothing of others learns how much of a limit they hold, and not which executions they are.
fn name_no_others(explanation: &mut Explanation) {
    for reason in &mut explanation.waits_for {
        match reason {
            Reason::Limit(lack) | Reason::GroupLimit(lack) => {
                lack.more_holders += lack.holders.len() as u64;
                lack.holders.clear();
            }
            Reason::Turn { next, .. } => *next = None,
            _ => {}
        }
    }
}

async fn record(app: &App, id: ExecutionId) -> Result<ExecutionRecord, ApiError> {
    let found = app.ports.executions.find_execution(id).await?;
    found.ok_or_else(|| ApiError::no_execution(id))
}

/// Why nobody has answered, as the leases show it, and what to do.
async fn no_answer(app: &App, id: ExecutionId) -> Result<ApiError, ApiError> {
    let partition = id.partition();
    let leases = app.ports.partitions.leases().await?;
    let lease = leases
        .into_iter()
        .find(|lease| lease.partition == partition);
    let message = match lease.filter(|lease| lease.owner.is_some() && !lease.remaining.is_zero()) {
        Some(lease) => {
            let name = lease.owner_name.unwrap_or_default();
            let remaining = lease.remaining.as_secs() + 1;
            let trouble = lease
                .trouble
                .map_or(String::new(), |trouble| format!(" ({})", trouble.words));
            format!(
                "the executor {name:?} owns partition {partition} of execution {id} and has not \
                 answered{trouble}: it may have died (its lease is over in {remaining} s, and another executor \
                 takes the partition over), loads the partition, cannot write its rounds, or is of a \
                 release that does not know the question; ask again in {RETRY_AFTER_SECONDS} s, and look \
                 at `attune cluster` and its /readyz"
            )
        }
        None => format!(
            "nobody owns partition {partition} of execution {id} at this moment: it waits, and goes on when \
             an executor has taken the partition over, which takes about as long as a lease; ask again in \
             {RETRY_AFTER_SECONDS} s, and look at `attune cluster` if that lasts"
        ),
    };
    let mut error = ApiError::unavailable("NO_ANSWER", message);
    error.detail.retry_after_seconds = Some(RETRY_AFTER_SECONDS);
    Ok(error)
}

fn ended(record: &ExecutionRecord) -> ExplainView {
    ExplainView {
        waits: format!("for nothing: it has ended, {}", record.status),
        ..blank(record, ExplainState::Ended)
    }
}

fn blank(record: &ExecutionRecord, state: ExplainState) -> ExplainView {
    ExplainView {
        id: record.id,
        action_ref: record.action_ref.clone(),
        status: record.status,
        state,
        attempt: record.attempt,
        priority: record.priority,
        at: Utc::now(),
        waits: String::new(),
        waits_for: Vec::new(),
        pauses: Vec::new(),
        next_time: None,
        expires_at: None,
        position: None,
        is_about: false,
        order_key: None,
        starts: None,
        estimate: None,
        no_estimate: None,
        policy_version: None,
        limit_scope: None,
    }
}

/// Says how the workers are called that lack a key: the owner of a queue does not know.
async fn name_workers(app: &App, said: &mut Explanation) -> Result<(), ApiError> {
    for reason in &mut said.waits_for {
        if let Reason::Key {
            worker,
            worker_name,
            ..
        } = reason
        {
            let workers = app.ports.workers.workers().await?;
            let found = workers.into_iter().find(|it| it.worker == *worker);
            *worker_name = found.map(|it| it.name);
        }
    }
    Ok(())
}

async fn view(
    app: &App,
    record: &ExecutionRecord,
    mut said: Explanation,
) -> Result<ExplainView, ApiError> {
    name_workers(app, &mut said).await?;
    let state = match said.state {
        QueueState::Delayed => ExplainState::Delayed,
        QueueState::Waiting => ExplainState::Waiting,
        QueueState::HoldsSlot => ExplainState::HoldsSlot,
        QueueState::Other => ExplainState::Other,
    };
    let waits = match (said.state, record.status) {
        // It keeps its slot until its next try, and no worker is given it before.
        (QueueState::HoldsSlot, Status::Requested) if !said.waits_for.is_empty() => said.words(),
        (QueueState::HoldsSlot, Status::Requested) if record.cancel_requested => {
            "for its worker to end it: it is being cancelled".to_owned()
        }
        (QueueState::HoldsSlot, Status::Requested) => {
            "for its worker to say that it runs: it holds a slot".to_owned()
        }
        (QueueState::HoldsSlot, _) => "for nothing: it holds a slot".to_owned(),
        _ => said.words(),
    };
    let held = pauses::held(&*app.ports.partitions).await?;
    let pauses = pauses::of_action(&held, &record.action_ref);
    Ok(ExplainView {
        attempt: said.attempt,
        priority: said.priority,
        at: said.at,
        waits,
        starts: said.estimate_words(),
        policy_version: said.policy_version,
        limit_scope: said.limit_scope().map(|scope| scope.as_str().to_owned()),
        waits_for: said.waits_for,
        pauses,
        next_time: said.next_time,
        expires_at: said.expires_at,
        position: said.position,
        is_about: said.is_about,
        order_key: said.order_key,
        estimate: said.estimate,
        no_estimate: said.no_estimate,
        ..blank(record, state)
    })
}
