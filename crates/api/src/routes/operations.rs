//! `/api/v1/operations`: what is done to many executions at once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use attune_api_types::{
    ErrorBody, OperationFilter, OperationList, OperationName, OperationPreview, OperationRequest,
    OperationState, OperationView,
};
use attune_core::input::check_text;
use attune_core::{ActionRef, OperationId, OperationKind, RequestId};
use attune_record::{OperationAsked, OperationTold, Record, now_ns};
use attune_store::{MAX_OPEN_OPERATIONS, NewOperation, OperationRecord};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::actions::record;
use super::{App, lost_task};
use crate::answers::PageBudget;
use crate::auth::Caller;
use crate::body;
use crate::error::ApiError;
use crate::query::{NoParams, Params};

/// How long an answer waits for the end of an operation.
const PATIENCE: Duration = Duration::from_secs(5);
/// The first pause between two looks at how far it is; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// How many operations are read at once for a page.
const AT_ONCE: u32 = 50;
/// How many actions are read at once to see which packs there are, and how many packs an error names.
const ACTIONS_AT_ONCE: u32 = 500;
const PACKS_NAMED: usize = 10;

/// Begins an operation, and waits a little for its end.
#[utoipa::path(
    post, path = "/operations", tag = "operations", operation_id = "begin_operation",
    request_body = OperationRequest,
    responses(
        (status = 200, description = "It is over; its counts are final.", body = OperationView),
        (status = 202, description = "It is stored, and goes on by itself: `GET /operations/{id}` says how far it is.", body = OperationView),
        (status = 409, description = "`CONFLICT`: the request id was used for another operation.", body = ErrorBody),
        (status = 503, description = "`TOO_MANY_OPERATIONS`: 1,000 are open, and nothing is stored; try again when some are over. `STORE_UNAVAILABLE` likewise.", body = ErrorBody),
    )
)]
pub(crate) async fn begin(
    State(app): State<App>,
    caller: Caller,
    _none: NoParams,
    request: Request,
) -> Result<(StatusCode, Json<OperationView>), ApiError> {
    let new = asked(&app, caller, request).await?;
    let stored = begun(&app, new).await?;
    Ok(answer(&stored))
}

/// Counts what an operation would be about that began now.
#[utoipa::path(
    post, path = "/operations/preview", tag = "operations", operation_id = "preview_operation",
    request_body = OperationRequest,
    responses((status = 200, description = "Nothing is done.", body = OperationPreview))
)]
pub(crate) async fn preview(
    State(app): State<App>,
    caller: Caller,
    _none: NoParams,
    request: Request,
) -> Result<Json<OperationPreview>, ApiError> {
    let new = asked(&app, caller, request).await?;
    let operations = Arc::clone(&app.ports.operations);
    let matched = async move { operations.count_meant(new.kind, &new.filter).await };
    let matched = app.memory.ask(matched).await?;
    Ok(Json(OperationPreview { matched }))
}

/// Operations, the newest first.
#[utoipa::path(
    get, path = "/operations", tag = "operations", operation_id = "list_operations",
    params(
        ("before" = Option<i64>, Query, description = "Only those before this one: the `next` of the page before."),
        ("limit" = Option<u32>, Query, minimum = 1, description = "How many to show: 50 unless given, at most `api.max_page_size`."),
    ),
    responses((status = 200, description = "A page; it ends early when it would be too large.", body = OperationList))
)]
pub(crate) async fn list(State(app): State<App>, uri: Uri) -> Result<Response, ApiError> {
    let mut params = Params::of(&uri)?;
    let before: Option<i64> = params.parse("before")?;
    let limit = params.limit(app.options.max_page_size)?;
    params.end("before, limit")?;
    // A filter may name thousands of executions.
    let memory = app.memory.reserve(app.options.page_bytes).await?;
    let _turn = app.memory.turn().await?;
    let stored = &app.ports.operations;
    let (mut operations, mut next) = (Vec::new(), before.map(OperationId));
    let mut budget = PageBudget::new(app.options.page_bytes);
    let mut missing = limit;
    let more = 'page: loop {
        let asked = missing.min(AT_ONCE);
        let found = stored.list_operations(next, asked).await?;
        for record in &found {
            let view = view(record);
            if !budget.takes(&view) {
                break 'page true;
            }
            next = Some(record.id);
            operations.push(view);
        }
        missing -= asked;
        if found.len() < asked as usize || missing == 0 {
            break found.len() == asked as usize;
        }
    };
    let next = next.filter(|_| more);
    Ok(memory.json(&OperationList { operations, next }))
}

/// One operation.
#[utoipa::path(
    get, path = "/operations/{id}", tag = "operations", operation_id = "show_operation",
    params(("id" = i64, Path, minimum = 1, description = "The operation.")),
    responses(
        (status = 200, description = "How far it is.", body = OperationView),
        (status = 404, description = "`UNKNOWN_OPERATION`: there is none, or it is forgotten.", body = ErrorBody),
    )
)]
pub(crate) async fn show(
    State(app): State<App>,
    _none: NoParams,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<OperationView>, ApiError> {
    let text = path.map(|Path(text)| text).unwrap_or_default();
    let id = text.parse().ok().filter(|id| *id > 0).map(OperationId);
    let id =
        id.ok_or_else(|| ApiError::field("id", "the id of an operation is a positive integer"))?;
    let found = app.ports.operations.find_operation(id).await?;
    let found = found.ok_or_else(|| {
        let words = format!("there is no operation {id}");
        ApiError::new(StatusCode::NOT_FOUND, "UNKNOWN_OPERATION", words)
    })?;
    Ok(Json(view(&found)))
}

/// What a request asks for.
async fn asked(app: &App, caller: Caller, request: Request) -> Result<NewOperation, ApiError> {
    let body = body::read(request, &app.options, &app.bodies).await?;
    let problem = "too many operations are being asked for; nothing was done, ask again";
    let partitions = app.options.partitions;
    let read = move |body: &[u8]| new_operation(&caller, body, partitions);
    let (asked, _) = app.read_document(body, problem, read).await?;
    check_known(app, &asked.filter).await?;
    Ok(asked)
}

fn new_operation(caller: &Caller, body: &[u8], partitions: u16) -> Result<NewOperation, ApiError> {
    let asked: OperationRequest = body::parse(body)?;
    let who = caller.who(asked.who.clone())?;
    if let Some(reason) = &asked.reason {
        check_text("reason", reason)?;
    }
    let kind = kind_of(&asked)?;
    let filter = filter_of(asked.filter)?;
    filter.check(kind)?;
    Ok(NewOperation {
        request_id: caller.own_request(asked.request_id.unwrap_or_else(RequestId::fresh)),
        kind,
        partitions: filter.partitions(partitions),
        filter,
        who,
        reason: asked.reason,
    })
}

fn kind_of(asked: &OperationRequest) -> Result<OperationKind, ApiError> {
    let include_running = asked.include_running;
    let kind = match (asked.kind, asked.priority) {
        (OperationName::Reprioritise, Some(priority)) => OperationKind::Reprioritise { priority },
        (OperationName::Reprioritise, None) => {
            let words = "it is required here: the priority that the executions shall have";
            return Err(ApiError::field("priority", words));
        }
        (_, Some(_)) => {
            let words = "only `reprioritise` gives a priority; those that have one are named by \
                         `filter.priority`";
            return Err(ApiError::field("priority", words));
        }
        (OperationName::Clear, None) => OperationKind::Clear,
        (OperationName::Cancel, None) => OperationKind::Cancel { include_running },
        (OperationName::MoveToFront, None) => OperationKind::MoveToFront,
        (OperationName::Unknown, None) => {
            let words = "it is one of clear, cancel, reprioritise and move_to_front";
            return Err(ApiError::field("kind", words));
        }
    };
    if include_running && !kind.includes_running() {
        let words = "only `cancel` asks what runs to end: leave it out";
        return Err(ApiError::field("include_running", words));
    }
    Ok(kind)
}

fn filter_of(asked: OperationFilter) -> Result<attune_core::OperationFilter, ApiError> {
    let action = asked.action.map(|action| {
        let action_ref: Result<ActionRef, String> = action.parse();
        action_ref.map_err(|problem| ApiError::field("filter.action", problem))
    });
    let ids: BTreeSet<_> = asked.ids.into_iter().collect();
    Ok(attune_core::OperationFilter {
        action: action.transpose()?,
        pack: asked.pack,
        user: asked.user,
        labels: asked.labels,
        priority: asked.priority,
        ids,
        all: asked.all,
    })
}

/// Refuses a filter that names an action or a pack that there is none of: whoever mistypes it would be told that
/// nothing was to be done.
async fn check_known(app: &App, filter: &attune_core::OperationFilter) -> Result<(), ApiError> {
    let actions = &app.ports.actions;
    if let Some(action_ref) = &filter.action
        && actions.find_action(action_ref).await?.is_none()
    {
        let words = format!(
            "there is no action `{action_ref}`: `attune action list` or `GET /api/v1/actions` shows all"
        );
        return Err(ApiError::field("filter.action", words));
    }
    let Some(pack) = &filter.pack else {
        return Ok(());
    };
    let (mut packs, mut after) = (BTreeSet::new(), None);
    loop {
        let page = actions
            .list_actions(after.as_ref(), ACTIONS_AT_ONCE)
            .await?;
        let refs = page.iter().map(|action| action.spec.action_ref.pack());
        packs.extend(refs.map(str::to_owned));
        if packs.contains(pack) {
            return Ok(());
        }
        let Some(last) = page.last() else { break };
        after = Some(last.spec.action_ref.clone());
    }
    let many = packs.len();
    let named: Vec<String> = packs.into_iter().take(PACKS_NAMED).collect();
    let words = format!(
        "there is no pack `{pack}`: a pack is what stands before the first dot of an action's ref, and there \
         are {many}: {}{}",
        named.join(", "),
        if many > named.len() { ", ..." } else { "" }
    );
    Err(ApiError::field("filter.pack", words))
}

/// Stores an operation, tells the owners that it concerns, and waits a little for its end.
pub(super) async fn begun(app: &App, new: NewOperation) -> Result<OperationRecord, ApiError> {
    record(app, || {
        Record::OperationAsked(Box::new(OperationAsked {
            request_id: new.request_id,
            what: new.kind,
            filter: new.filter.clone(),
            t_ns: now_ns(),
        }))
    });
    // Stored and told, or neither: whoever asks may go away in between.
    let begin = tokio::spawn(store_and_tell(app.clone(), new));
    let mut stored = begin.await.map_err(lost_task)??;
    let until = Instant::now() + PATIENCE;
    let mut pause = FIRST_PAUSE;
    while !stored.is_finished() && Instant::now() < until {
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        match app.ports.operations.find_operation(stored.id).await {
            Ok(now) => stored = now.unwrap_or(stored),
            // It is stored and goes on: whoever is told that it failed would ask for it once more.
            Err(error) => {
                warn!(%error, operation.id = %stored.id, "it cannot be seen how far an operation is");
            }
        }
    }
    if stored.is_finished() {
        record(app, || {
            Record::OperationTold(OperationTold {
                operation: stored.id,
                request_id: stored.request_id,
                partitions: stored.partitions,
                matched: stored.matched,
                done: stored.done,
                t_ns: now_ns(),
            })
        });
    }
    Ok(stored)
}

async fn store_and_tell(app: App, new: NewOperation) -> Result<OperationRecord, ApiError> {
    let stored = app.ports.operations.begin_operation(&new).await?;
    let stored = stored.ok_or_else(|| {
        let words = format!(
            "{MAX_OPEN_OPERATIONS} operations are open, and more may not be: nothing is stored; try again \
             when some are over (`attune operations list`, `GET /api/v1/operations`), and name many executions in \
             one operation"
        );
        ApiError::unavailable("TOO_MANY_OPERATIONS", words)
    })?;
    let same = stored.what.as_ref();
    if !same.is_ok_and(|(kind, filter)| (*kind, filter) == (new.kind, &new.filter)) {
        let words = format!(
            "request id {} was used before for another operation, {}",
            new.request_id, stored.id
        );
        return Err(ApiError::new(StatusCode::CONFLICT, "CONFLICT", words));
    }
    let deadline = app.options.submit_timeout.min(PATIENCE);
    let tell = app.clone();
    // Nobody waits for it: an owner that does not hear of it looks by itself, once in a while.
    tokio::spawn(async move {
        let commands = &tell.ports.commands;
        let outcomes = commands.operations_changed(&new.partitions, deadline).await;
        let failed = outcomes
            .into_iter()
            .filter_map(Result::err)
            .collect::<Vec<_>>();
        if let Some(error) = failed.first() {
            warn!(%error, partitions = failed.len(), "an operation begins in some partitions when their owners look for it");
        }
    });
    Ok(stored)
}

fn answer(stored: &OperationRecord) -> (StatusCode, Json<OperationView>) {
    let status = if stored.is_finished() {
        StatusCode::OK
    } else {
        StatusCode::ACCEPTED
    };
    (status, Json(view(stored)))
}

fn view(record: &OperationRecord) -> OperationView {
    let (known, unknown) = match record.what.clone() {
        Ok(known) => (Some(known), None),
        Err(words) => (None, Some(words)),
    };
    let (known, filter) = known.unzip();
    let (kind, priority) = match known {
        Some(OperationKind::Clear) => (OperationName::Clear, None),
        Some(OperationKind::Cancel { .. }) => (OperationName::Cancel, None),
        Some(OperationKind::Reprioritise { priority }) => {
            (OperationName::Reprioritise, Some(priority))
        }
        Some(OperationKind::MoveToFront) => (OperationName::MoveToFront, None),
        None => (OperationName::Unknown, None),
    };
    let filter = filter.unwrap_or_default();
    OperationView {
        id: record.id,
        kind,
        filter: OperationFilter {
            action: filter.action.map(String::from),
            pack: filter.pack,
            user: filter.user,
            labels: filter.labels,
            priority: filter.priority,
            ids: filter.ids.into_iter().collect(),
            all: filter.all,
        },
        unknown,
        priority,
        include_running: known.is_some_and(OperationKind::includes_running),
        who: record.who.clone(),
        reason: record.reason.clone(),
        created: record.created,
        request_id: record.request_id,
        state: match record.is_finished() {
            true => OperationState::Done,
            false => OperationState::Running,
        },
        partitions: record.partitions,
        partitions_done: record.finished,
        matched: record.matched,
        done: record.done,
        skipped: record.skipped,
    }
}
