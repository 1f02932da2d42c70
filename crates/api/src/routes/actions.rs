//! `/api/v1/actions`: applying and reading.

use attune_api_types::{ErrorBody, words};
use std::str::FromStr;

use attune_api_types::{ActionApplied, ActionList, ActionView, InForce};
use attune_commands::ClientError;
use attune_core::{ActionRef, ActionSpec};
use attune_identity::Permission;
use attune_record::{Record, now_ns};
use attune_store::Actor;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use tracing::warn;
use uuid::Uuid;

use super::{App, lost_task};
use crate::answers::PageBudget;
use crate::auth::Caller;
use crate::body;
use crate::catalog::compile;
use crate::error::ApiError;
use crate::extent::Extent;
use crate::layers::no_if_match;
use crate::policies;
use crate::query::{NoParams, Params};

/// The action that a path names.
pub(crate) fn ref_of(path: Result<Path<String>, PathRejection>) -> Result<ActionRef, ApiError> {
    let text = path.map(|Path(text)| text).unwrap_or_default();
    text.parse()
        .map_err(|problem: String| ApiError::field("ref", problem))
}

/// Creates an action or changes it.
#[utoipa::path(
    put, path = "/actions/{ref}", tag = "actions", operation_id = "apply_action",
    request_body = words::ActionSpec,
    params(
        ("ref" = String, Path, description = "The action's ref, as in `core.http.get`."),
        ("check" = Option<bool>, Query, description = "`true`: only say whether it could be applied."),
        ("who" = Option<String>, Query, description = "Who changes it, for the versions of its policy; \
            `api` unless given."),
    ),
    responses(
        (status = 204, description = "With `check`: it could be applied."),
        (status = 201, description = "Created.", body = ActionApplied),
        (status = 200, description = "Changed, or as it was.", body = ActionApplied),
        (status = 409, description = "`CONFLICT`: the store refuses the change.", body = ErrorBody),
    )
)]
pub(crate) async fn apply(
    State(app): State<App>,
    caller: Caller,
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
    request: Request,
) -> Result<Response, ApiError> {
    let action_ref = ref_of(path)?;
    let mut params = Params::of(&uri)?;
    let only_check = params.parse::<bool>("check")?.unwrap_or(false);
    let who = caller.who(params.take("who")?)?;
    params.end("check, who")?;
    let instead = "an action has no such version; its policy has one (`PUT /policies/action/REF`)";
    no_if_match(request.headers(), instead)?;
    caller.check_action(action_ref.as_str())?;
    let body = body::read(request, &app.options, &app.bodies).await?;
    let deadline = app.check_deadline();
    let problem = "too many actions are being applied; nothing was done, apply it again";
    let read = move |body: &[u8]| {
        let spec: ActionSpec = body::parse(body)?;
        if spec.action_ref != action_ref {
            return Err(ApiError::field(
                "ref",
                format!(
                    "`ref` is {} and the path says {action_ref}",
                    spec.action_ref
                ),
            ));
        }
        spec.check()?;
        if let Some(schema) = &spec.parameters {
            // Before it waits for its turn: no tree waits that is too large to be used.
            Extent::check_size(schema)?;
        }
        Ok(spec)
    };
    // A schema is parsed to a tree, which can take many times its text.
    let (spec, share) = app.read_document(body, problem, read).await?;
    if let Some(schema) = &spec.parameters {
        compile(schema, &app.aside, deadline).await??;
    }
    drop(share);
    let spec = spec.settled();
    check_pools(&app, &caller, &spec).await?;
    if only_check {
        policies::check_action(&app.ports, &app.policies, &spec).await?;
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    // Stored and told, or neither: a client that goes away in between must not leave a live
    // queue with the old limit.
    let applied = tokio::spawn(store_and_tell(app, spec, who))
        .await
        .map_err(lost_task)??;
    let status = if applied.created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((status, Json(applied)).into_response())
}

/// Refuses a definition whose workers, now or so far, the key is not for: it decides what they run.
async fn check_pools(app: &App, caller: &Caller, spec: &ActionSpec) -> Result<(), ApiError> {
    caller.check_pool(&spec.pool)?;
    match app.ports.actions.find_action(&spec.action_ref).await? {
        Some(before) => caller.check_pool(&before.spec.pool),
        None => Ok(()),
    }
}

/// Why the owner has not taken over what is stored. Not in the words of a command, which say what
/// became of it and to repeat it: an owner takes the action over by itself.
pub(super) fn why_pending(error: ClientError) -> String {
    match error {
        ClientError::NotConfirmed { reason, .. } => {
            format!("its executor has not answered in time ({reason})")
        }
        ClientError::Overloaded { .. } => "too many commands wait for an answer".to_owned(),
        error => ApiError::from(error).detail.message,
    }
}

async fn store_and_tell(app: App, spec: ActionSpec, who: Actor) -> Result<ActionApplied, ApiError> {
    let partitions = app.options.partitions;
    let apply_id = Uuid::new_v4();
    record(&app, || Record::ApplyInvoke {
        apply_id,
        action_ref: spec.action_ref.to_string(),
        limit: spec.policy.concurrency.limit,
        order: spec.policy.order(),
        sets_priorities: spec.policy.priority.sets_any(),
        inherits_length: spec.policy.queue.max_length.is_none(),
        t_ns: now_ns(),
    });
    let applied =
        policies::apply_action(&app.ports, &app.policies, &spec, partitions, &who).await?;
    let learnt = app
        .catalog
        .learn(applied.action.clone(), app.check_deadline());
    if let Err(error) = learnt.await {
        // Whoever submits it asks the store again.
        warn!(action.r#ref = %spec.action_ref, error.message = %error.detail.message, "an applied action is not at hand yet");
    }
    // Also when nothing changed: the owner may have missed the change that was applied before.
    let told = app
        .ports
        .commands
        .action_changed(spec.action_ref.as_str(), app.options.submit_timeout)
        .await;
    let pending_reason = told.err().map(why_pending);
    if let Some(reason) = &pending_reason {
        warn!(action.r#ref = %spec.action_ref, error.message = %reason, "an applied action is not in force yet");
    }
    record(&app, || Record::ApplyOk {
        apply_id,
        action_id: applied.action.id,
        in_force: pending_reason.is_none(),
        t_ns: now_ns(),
    });
    Ok(ActionApplied {
        created: applied.created,
        changed: applied.changed,
        applied: if pending_reason.is_none() {
            InForce::Now
        } else {
            InForce::Pending
        },
        pending_reason,
        action: applied.action.into(),
    })
}

/// For the checker of histories: limits by what was asked for, not by what owners say.
pub(super) fn record(app: &App, record: impl FnOnce() -> Record) {
    if let Some(recorder) = &app.ports.recorder {
        recorder.record(record());
    }
}

/// One action.
#[utoipa::path(
    get, path = "/actions/{ref}", tag = "actions", operation_id = "show_action",
    params(("ref" = String, Path, description = "The action's ref, as in `core.http.get`.")),
    responses((status = 200, description = "The action.", body = ActionView))
)]
pub(crate) async fn show(
    State(app): State<App>,
    caller: Caller,
    _none: NoParams,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<ActionView>, ApiError> {
    let action_ref = ref_of(path)?;
    let action = app.ports.actions.find_action(&action_ref).await?;
    let action = action.filter(|_| caller.is_shown(action_ref.as_str()));
    let action = action.ok_or_else(|| ApiError::no_action(action_ref.as_str()))?;
    let mut view = ActionView::from(action);
    if !caller.principal().may(Permission::Read) {
        // It is for whoever defines the action, and who looks after it.
        view.spec.env.clear();
    }
    Ok(Json(view))
}

/// How many actions are read at once: a schema can have a mebibyte.
const READ_AT_ONCE: u32 = 32;

/// Actions by ref, in pages.
#[utoipa::path(
    get, path = "/actions", tag = "actions", operation_id = "list_actions",
    params(
        ("limit" = Option<u32>, Query, minimum = 1, description = "How many to show: 50 unless given, at most `api.max_page_size`."),
        ("include" = Option<String>, Query, description = "Parts of the spec that are left out \
            otherwise, of `parameters,env`."),
        ("after" = Option<String>, Query, description = "The `next` of the page before."),
    ),
    responses((status = 200, description = "A page; it ends early when it would be too large.",
        body = ActionList))
)]
pub(crate) async fn list(State(app): State<App>, uri: Uri) -> Result<Response, ApiError> {
    let mut params = Params::of(&uri)?;
    let after: Option<ActionRef> = params.parse("after")?;
    let include: Vec<Include> = params.list("include")?;
    let limit = params.limit(app.options.max_page_size)?;
    params.end("after, include, limit")?;
    let memory = app.memory.reserve(app.options.page_bytes).await?;
    let _turn = app.memory.turn().await?;
    Ok(memory.json(&page(&app, &include, after, limit).await?))
}

async fn page(
    app: &App,
    include: &[Include],
    mut after: Option<ActionRef>,
    limit: u32,
) -> Result<ActionList, ApiError> {
    let mut budget = PageBudget::new(app.options.page_bytes);
    let (mut actions, mut missing) = (Vec::new(), limit);
    loop {
        // One more than there is room for, to see whether there is a next page.
        let step = READ_AT_ONCE.min(missing + 1);
        let part = app.ports.actions.list_actions(after.as_ref(), step).await?;
        let last = part.len() < step as usize;
        for action in part {
            let mut view = ActionView::from(action);
            if !include.contains(&Include::Parameters) {
                view.spec.parameters = None;
            }
            if !include.contains(&Include::Env) {
                view.spec.env.clear();
            }
            if missing == 0 || !budget.takes(&view) {
                let next = after;
                return Ok(ActionList { actions, next });
            }
            missing -= 1;
            after = Some(view.action_ref.clone());
            actions.push(view);
        }
        if last {
            let next = None;
            return Ok(ActionList { actions, next });
        }
    }
}

/// A part of an action that a list has only if it is asked for.
#[derive(PartialEq)]
enum Include {
    Parameters,
    Env,
}

impl FromStr for Include {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "parameters" => Ok(Self::Parameters),
            "env" => Ok(Self::Env),
            _ => Err("there are parameters and env"),
        }
    }
}
