//! `/api/v1/pauses`: holding queues and resuming them.

use attune_api_types::{ErrorBody, InForce, PauseApplied, PauseList, PauseRequest, PauseView};
use attune_commands::ClientError;
use attune_core::input::check_text;
use attune_core::{ActionRef, PartitionId, PauseMode, PauseTarget, Reject, RequestId};
use attune_record::{Record, now_ns};
use attune_store::{
    Actor, MAX_PAUSES, PartitionStore, Pause, PauseChange, PauseOutcome, PauseSet, StoreError,
};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri};
use tracing::warn;
use uuid::Uuid;

use super::actions::{record, why_pending};
use super::{App, lost_task};
use crate::auth::Caller;
use crate::body;
use crate::error::ApiError;
use crate::query::{NoParams, Params};

/// The scope and the target that a path names.
type Named = Result<Path<(String, String)>, PathRejection>;

fn target_of(path: Named) -> Result<PauseTarget, ApiError> {
    let Path((scope, target)) = path.map_err(|_| ApiError::unreadable_target())?;
    PauseTarget::of(&scope, &target).map_err(|(field, problem)| ApiError::field(field, problem))
}

/// Everything that is held.
#[utoipa::path(
    get, path = "/pauses", tag = "queues", operation_id = "list_pauses",
    responses((status = 200, description = "What operators hold.", body = PauseList))
)]
pub(crate) async fn list(State(app): State<App>, uri: Uri) -> Result<Json<PauseList>, ApiError> {
    Params::of(&uri)?.end("no parameters")?;
    let set = held(&*app.ports.partitions).await?;
    Ok(Json(PauseList {
        version: set.version,
        pauses: set.held.iter().map(view).collect(),
    }))
}

/// Holds an action or a pack.
#[utoipa::path(
    put, path = "/pauses/{scope}/{target}", tag = "queues", operation_id = "hold",
    request_body = PauseRequest,
    params(
        ("scope" = String, Path, description = "`action` or `pack`."),
        ("target" = String, Path, description = "The action's ref or the pack, as in `core.http.get` and `core`."),
    ),
    responses(
        (status = 200, description = "It is stored and audited.", body = PauseApplied),
        (status = 409, description = "`CONFLICT`: as much is held as may be.", body = ErrorBody),
    )
)]
pub(crate) async fn hold(
    State(app): State<App>,
    _none: NoParams,
    caller: Caller,
    path: Named,
    request: Request,
) -> Result<Json<PauseApplied>, ApiError> {
    put(app, &caller, target_of(path)?, request).await
}

/// Holds every queue.
#[utoipa::path(
    put, path = "/pauses/all", tag = "queues", operation_id = "hold_all",
    request_body = PauseRequest,
    responses(
        (status = 200, description = "It is stored and audited.", body = PauseApplied),
        (status = 409, description = "`CONFLICT`: as much is held as may be.", body = ErrorBody),
    )
)]
pub(crate) async fn hold_all(
    State(app): State<App>,
    caller: Caller,
    _none: NoParams,
    request: Request,
) -> Result<Json<PauseApplied>, ApiError> {
    put(app, &caller, PauseTarget::All, request).await
}

/// Resumes an action or a pack; what is not held is left as it is.
#[utoipa::path(
    delete, path = "/pauses/{scope}/{target}", tag = "queues", operation_id = "resume",
    params(
        ("scope" = String, Path, description = "`action` or `pack`."),
        ("target" = String, Path, description = "The action's ref or the pack."),
        ("who" = Option<String>, Query, description = "Who asks; `api` unless given."),
        ("reason" = Option<String>, Query, description = "Why, for the audit log."),
    ),
    responses((status = 200, description = "It is stored and audited.", body = PauseApplied))
)]
pub(crate) async fn resume(
    State(app): State<App>,
    caller: Caller,
    path: Named,
    uri: Uri,
) -> Result<Json<PauseApplied>, ApiError> {
    delete(app, &caller, target_of(path)?, &uri).await
}

/// Takes back that every queue is held; what is held by itself or with its pack stays so.
#[utoipa::path(
    delete, path = "/pauses/all", tag = "queues", operation_id = "resume_all",
    params(
        ("who" = Option<String>, Query, description = "Who asks; `api` unless given."),
        ("reason" = Option<String>, Query, description = "Why, for the audit log."),
    ),
    responses((status = 200, description = "It is stored and audited.", body = PauseApplied))
)]
pub(crate) async fn resume_all(
    State(app): State<App>,
    caller: Caller,
    uri: Uri,
) -> Result<Json<PauseApplied>, ApiError> {
    delete(app, &caller, PauseTarget::All, &uri).await
}

async fn put(
    app: App,
    caller: &Caller,
    target: PauseTarget,
    request: Request,
) -> Result<Json<PauseApplied>, ApiError> {
    let body = body::read(request, &app.options, &app.bodies).await?;
    let asked: PauseRequest = body::parse(&body)?;
    let who = caller.who(asked.who)?;
    change(app, target, Some(asked.mode), who, asked.reason).await
}

async fn delete(
    app: App,
    caller: &Caller,
    target: PauseTarget,
    uri: &Uri,
) -> Result<Json<PauseApplied>, ApiError> {
    let mut params = Params::of(uri)?;
    let (who, reason) = (params.take("who")?, params.take("reason")?);
    params.end("who, reason")?;
    change(app, target, None, caller.who(who)?, reason).await
}

async fn change(
    app: App,
    target: PauseTarget,
    mode: Option<PauseMode>,
    who: Actor,
    reason: Option<String>,
) -> Result<Json<PauseApplied>, ApiError> {
    if let Some(reason) = &reason {
        check_text("reason", reason)?;
    }
    let change = PauseChange {
        request_id: RequestId::fresh(),
        target,
        mode,
        who,
        reason,
    };
    // Stored and told, or neither: a client that goes away in between must not leave queues that
    // go on although they are held.
    let applied = tokio::spawn(store_and_tell(app, change));
    Ok(Json(applied.await.map_err(lost_task)??))
}

async fn store_and_tell(app: App, change: PauseChange) -> Result<PauseApplied, ApiError> {
    let (target, pause_id) = (&change.target, Uuid::new_v4());
    record(&app, || Record::PauseInvoke {
        pause_id,
        scope: target.scope().to_owned(),
        target: target.target().to_owned(),
        mode: change.mode,
        t_ns: now_ns(),
    });
    // Whoever checks the history takes what is not written down for not asked.
    if let Some(recorder) = app.ports.recorder.clone() {
        let flushed = tokio::task::spawn_blocking(move || recorder.flush());
        if let Ok(Err(error)) = flushed.await {
            warn!(error.message = %error, "the history is incomplete");
        }
    }
    let (before, after) = match app.ports.pauses.change_pause(&change).await? {
        PauseOutcome::Stored { before, after } => (before, after),
        PauseOutcome::NoTarget => return Err(no_target(target)),
        PauseOutcome::TooMany => {
            let words = format!(
                "{MAX_PAUSES} actions and packs are held already: resume some, or hold a pack or \
                 everything (`all`) in their place"
            );
            return Err(ApiError::new(StatusCode::CONFLICT, "CONFLICT", words));
        }
    };
    // Also when nothing changed: an owner may have missed the change before.
    let pending_reason = tell(&app, target).await;
    if let Some(reason) = &pending_reason {
        warn!(pause.target = %target, error.message = %reason, "what operators hold is not in force everywhere yet");
    }
    record(&app, || Record::PauseOk {
        pause_id,
        in_force: pending_reason.is_none(),
        t_ns: now_ns(),
    });
    // It is stored and told: that what else holds the queue cannot be read makes no failure of it.
    let others = match app.ports.partitions.pauses(None).await {
        Ok(pauses) => pauses.unwrap_or_default().held,
        Err(error) => {
            warn!(pause.target = %target, error.message = %error, "what else holds it cannot be read");
            Vec::new()
        }
    };
    let others = others.iter().filter(|other| covers(other, target));
    Ok(PauseApplied {
        before: before.as_ref().map(view),
        now: after.as_ref().map(view),
        also_held_by: others.map(view).collect(),
        applied: match pending_reason {
            None => InForce::Now,
            Some(_) => InForce::Pending,
        },
        pending_reason,
    })
}

/// Tells the owners of what the target covers; why some of them do not go by it yet.
async fn tell(app: &App, target: &PauseTarget) -> Option<String> {
    let partitions = app.options.partitions;
    let concerned: Vec<PartitionId> = match target {
        PauseTarget::Action(it) => vec![PartitionId::of(it.as_str(), partitions)],
        PauseTarget::Pack(_) | PauseTarget::All => (0..partitions).map(PartitionId).collect(),
    };
    let deadline = app.options.submit_timeout;
    let commands = &app.ports.commands;
    let outcomes = commands.pauses_changed(&concerned, deadline).await;
    let failed: Vec<ClientError> = outcomes.into_iter().filter_map(Result::err).collect();
    let (many, all) = (failed.len(), concerned.len());
    let why = why_pending(failed.into_iter().next()?);
    Some(format!(
        "{many} of {all} partitions do not go by it yet: {why}"
    ))
}

fn no_target(target: &PauseTarget) -> ApiError {
    let there_is_none = match target {
        PauseTarget::Action(it) => {
            format!("there is no action `{it}` (`attune action list` shows all)")
        }
        _ => format!(
            "there is no pack `{}`: a pack is what stands before the first dot of an action's ref",
            target.target()
        ),
    };
    Reject::field("target", there_is_none).into()
}

/// Whether one pause, another than that of the target itself, covers everything that it covers.
fn covers(other: &Pause, target: &PauseTarget) -> bool {
    let covers = match (&other.target, target) {
        (PauseTarget::All, _) => true,
        (PauseTarget::Pack(pack), PauseTarget::Action(it)) => pack == it.pack(),
        _ => false,
    };
    covers && other.target != *target
}

/// What is held at this moment.
pub(super) async fn held(partitions: &dyn PartitionStore) -> Result<PauseSet, StoreError> {
    Ok(partitions.pauses(None).await?.unwrap_or_default())
}

/// The pauses that cover an action.
pub(super) fn of_action(set: &PauseSet, action_ref: &str) -> Vec<PauseView> {
    let Ok(action_ref) = action_ref.parse::<ActionRef>() else {
        return Vec::new();
    };
    let held = set.held.iter().filter(|it| it.target.covers(&action_ref));
    held.map(view).collect()
}

fn view(pause: &Pause) -> PauseView {
    let name = pause.target.target();
    PauseView {
        scope: pause.target.scope().to_owned(),
        target: (!name.is_empty()).then(|| name.to_owned()),
        mode: pause.mode,
        since: pause.since,
        who: pause.who.clone(),
        reason: pause.reason.clone(),
    }
}
