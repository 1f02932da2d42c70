//! `/api/v1/dead-letters`: messages that nobody could use, and putting them back.

use std::str::FromStr;

use attune_api_types::{DeadLetter, DeadLetterList, ErrorBody, RequeueRequest, Requeued};
use attune_bus::{Outgoing, PublishError, Refusal, Topic};
use attune_core::RequestId;
use attune_core::input::check_text;
use attune_dead_letters::put_back;
use attune_store::{DeadLetterFilter, Requeue};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;

use super::{App, lost_task};
use crate::answers::PageBudget;
use crate::auth::Caller;
use crate::body;
use crate::error::ApiError;
use crate::letters;
use crate::query::{NoParams, Params};

/// What a letter without its body is thought to need, in bytes.
const ROW_BYTES: usize = 1024;
/// What a letter is thought to need at most, in bytes, as long as its answer is not read.
const SHOWN_BYTES: usize = 2 * 1024 * 1024;

/// The letter that a path names.
fn id_of(path: Result<Path<String>, PathRejection>) -> Result<i64, ApiError> {
    let text = path.map(|Path(text)| text).unwrap_or_default();
    let id = text.parse().ok().filter(|id| *id > 0);
    id.ok_or_else(|| ApiError::field("id", "the id of a dead letter is a positive integer"))
}

fn no_letter(id: i64) -> ApiError {
    let message = format!("there is no dead letter {id}; old ones are removed");
    ApiError::new(StatusCode::NOT_FOUND, "UNKNOWN_DEAD_LETTER", message)
}

/// A part of a letter that a list has only if it is asked for.
struct IncludeBody;

impl FromStr for IncludeBody {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        (text == "body").then_some(Self).ok_or("there is body")
    }
}

/// Dead letters by filter, those that came first last, in pages.
#[utoipa::path(
    get, path = "/dead-letters", tag = "operations", operation_id = "list_dead_letters",
    params(
        ("source" = Option<String>, Query, description = "Only those that came from there, as in \
            `enforcement.created`."),
        ("reason" = Option<String>, Query, description = "Only those with exactly this reason."),
        ("requeued" = Option<bool>, Query, description = "Only those that were put back, or only \
            those that were not."),
        ("include" = Option<String>, Query, description = "`body`: what is kept of each message, \
            which is left out otherwise."),
        ("limit" = Option<u32>, Query, minimum = 1, description = "How many to show: 50 unless given, at most `api.max_page_size`."),
        ("before" = Option<i64>, Query, description = "The `next` of the page before."),
    ),
    responses((status = 200, description = "A page; it ends early when it would be too large.",
        body = DeadLetterList))
)]
pub(crate) async fn list(State(app): State<App>, uri: Uri) -> Result<Response, ApiError> {
    let mut params = Params::of(&uri)?;
    let filter = DeadLetterFilter {
        source: params.take("source")?,
        reason: params.take("reason")?,
        requeued: params.parse("requeued")?,
    };
    let with_body = !params.list::<IncludeBody>("include")?.is_empty();
    let before: Option<i64> = params.parse("before")?;
    let limit = params.limit(app.options.max_page_size)?;
    params.end("source, reason, requeued, include, limit, before")?;
    if !with_body {
        let bytes = app.options.page_bytes.min(limit as usize * ROW_BYTES);
        let memory = app.memory.reserve(bytes).await?;
        return Ok(memory.json(&page(&app, &filter, before, limit, false).await?));
    }
    let memory = app.memory.reserve(app.options.page_bytes).await?;
    let _turn = app.memory.turn().await?;
    Ok(memory.json(&page(&app, &filter, before, limit, true).await?))
}

async fn page(
    app: &App,
    filter: &DeadLetterFilter,
    before: Option<i64>,
    limit: u32,
    with_body: bool,
) -> Result<DeadLetterList, ApiError> {
    let letters = &app.ports.letters;
    // One more than asked for tells whether another page follows.
    let found = letters.list_dead_letters(filter, before, limit + 1).await?;
    let mut budget = PageBudget::new(app.options.page_bytes);
    let all = found.len();
    let mut shown = Vec::new();
    for letter in found.into_iter().take(limit as usize) {
        let row = match with_body {
            false => view(letter, None),
            true => match letters.find_dead_letter(letter.id).await? {
                Some((letter, body)) => view(letter, Some(letters::shown(app, body).await?)),
                // It was removed just now.
                None => view(letter, None),
            },
        };
        if !budget.takes(&row) {
            break;
        }
        shown.push(row);
    }
    let next = shown.last().filter(|_| shown.len() < all);
    Ok(DeadLetterList {
        next: next.map(|letter| letter.id),
        dead_letters: shown,
    })
}

fn view(letter: attune_store::DeadLetter, body: Option<String>) -> DeadLetter {
    DeadLetter {
        id: letter.id,
        message_id: letter.message_id,
        reason: letter.reason,
        source: letter.source,
        bytes: letter.bytes,
        truncated: letter.truncated,
        arrivals: letter.arrivals,
        received_at: letter.received_at,
        requeued_at: letter.requeued_at,
        requeued_by: letter.requeued_by,
        sender: letter.sender,
        body,
    }
}

/// One dead letter, with what is kept of the message.
#[utoipa::path(
    get, path = "/dead-letters/{id}", tag = "operations", operation_id = "show_dead_letter",
    params(("id" = i64, Path, minimum = 1, description = "The letter.")),
    responses(
        (status = 200, description = "The letter, with its body.", body = DeadLetter),
        (status = 404, description = "`UNKNOWN_DEAD_LETTER`.", body = ErrorBody),
    )
)]
pub(crate) async fn show(
    State(app): State<App>,
    _none: NoParams,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let id = id_of(path)?;
    let memory = app.memory.reserve(SHOWN_BYTES).await?;
    let found = app.ports.letters.find_dead_letter(id).await?;
    let (letter, body) = found.ok_or_else(|| no_letter(id))?;
    let body = letters::shown(&app, body).await?;
    Ok(memory.json(&view(letter, Some(body))))
}

/// Puts a dead letter back.
///
/// What never became an execution, and a completion, is published as it came, under the id that
/// it came with.
#[utoipa::path(
    post, path = "/dead-letters/{id}/requeue", tag = "operations",
    operation_id = "requeue_dead_letter",
    request_body = RequeueRequest,
    params(("id" = i64, Path, minimum = 1, description = "The letter.")),
    responses(
        (status = 200, description = "It was put back; audited.", body = Requeued),
        (status = 404, description = "`UNKNOWN_DEAD_LETTER`.", body = ErrorBody),
        (status = 409, description = "`ALREADY_REQUEUED`: it was put back and has not come again \
            since. `CONFLICT`: it has come again since it was looked at (`arrivals`), or came just \
            now.", body = ErrorBody),
        (status = 422, description = "`INVALID_INPUT`: nothing good could come of it; the message \
            says why.", body = ErrorBody),
    )
)]
pub(crate) async fn requeue(
    State(app): State<App>,
    caller: Caller,
    _none: NoParams,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Json<Requeued>, ApiError> {
    let id = id_of(path)?;
    let text = body::read(request, &app.options, &app.bodies).await?;
    let asked: RequeueRequest = body::parse(&text)?;
    let who = caller.who(asked.who)?;
    if let Some(reason) = &asked.reason {
        check_text("reason", reason)?;
    }
    // A client that goes away must not leave what was published without its mark.
    let task = async move {
        let requeue = Requeue {
            id,
            arrivals: 0,
            request_id: RequestId::fresh(),
            who,
            reason: asked.reason,
        };
        put_letter_back(&app, asked.arrivals, requeue).await
    };
    tokio::spawn(task).await.map_err(lost_task)?.map(Json)
}

/// Writes the intent down, carries it out, and marks the letter at the end, so that a crash in
/// between leaves a letter that can be put back again, which changes nothing.
async fn put_letter_back(
    app: &App,
    seen: Option<u64>,
    mut requeue: Requeue,
) -> Result<Requeued, ApiError> {
    let id = requeue.id;
    let _memory = app.memory.reserve(SHOWN_BYTES).await?;
    let found = app.ports.letters.find_dead_letter(id).await?;
    let (mut letter, body) = found.ok_or_else(|| no_letter(id))?;
    let body = letters::open(app, body)?;
    letter.truncated = letter.bytes > body.len() as u64;
    if let Some(at) = letter.requeued_at {
        let by = letter.requeued_by.unwrap_or_default();
        let at = at.to_rfc3339_opts(chrono::SecondsFormat::Micros, true);
        let message = format!("{by} put it back at {at}; if it is still of no use, it comes again");
        return Err(conflict("ALREADY_REQUEUED", message));
    }
    if let Some(seen) = seen.filter(|seen| *seen != letter.arrivals) {
        let message = format!(
            "it has come {} times, and you looked at it after {seen}; look at it again",
            letter.arrivals
        );
        return Err(conflict("CONFLICT", message));
    }
    requeue.arrivals = letter.arrivals;
    let message = letters::unsealed(app, put_back(&letter, body)?)?;
    let message = of_here(app, message)?;
    if !app.ports.letters.begin_requeue(&requeue).await? {
        return Err(conflict(
            "CONFLICT",
            "it came again, or was removed or put back by somebody else just now; nothing was \
             done; look at it again"
                .to_owned(),
        ));
    }
    publish(app, message).await?;
    if !app.ports.letters.mark_requeued(&requeue).await? {
        return Err(conflict(
            "CONFLICT",
            "it was put back, and came again or was removed or put back by somebody else \
             meanwhile; look at it again"
                .to_owned(),
        ));
    }
    Ok(Requeued {
        id,
        published: true,
        executions: Vec::new(),
    })
}

fn conflict(code: &'static str, message: String) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, code, message)
}

/// A message that goes back to where it came from, if that is a place of this cluster.
fn of_here(app: &App, message: Outgoing) -> Result<Outgoing, ApiError> {
    let partitions = app.options.partitions;
    if let Topic::Commands(partition) | Topic::Control(partition) = &message.topic
        && partition.0 >= partitions
    {
        let words = format!("it came from partition {partition}, and there are {partitions}");
        return Err(ApiError::field("id", words));
    }
    Ok(message)
}

/// Publishes a message as it came.
async fn publish(app: &App, message: Outgoing) -> Result<(), ApiError> {
    let message_id = message.message_id;
    let Err(error) = app.ports.bus.publish(vec![message]).await else {
        return Ok(());
    };
    Err(match error.refusal_of(message_id) {
        Some(refusal @ (Refusal::Unroutable | Refusal::Full | Refusal::Forbidden(_))) => {
            ApiError::unavailable(
                "OVERLOADED",
                format!("where it came from takes nothing now: {refusal}; nothing was done"),
            )
        }
        Some(refusal) => ApiError::field("id", format!("it cannot be sent: {refusal}")),
        None => unconfirmed(&error),
    })
}

fn unconfirmed(error: &PublishError) -> ApiError {
    ApiError::unavailable(
        "OUTCOME_UNKNOWN",
        format!("{error}; whether it was put back is unknown; put it back again"),
    )
}
