//! `POST /api/v1/executions`: one submission or a batch of them.

use attune_api_types::words;
use attune_commands::ClientError;
use attune_core::secret::find_sealed;
use attune_core::{
    ActionRef, Reject, RejectCode, RequestId, Status, Submission, TraceParent, WaitBound,
};
use attune_messages::v1::Accepted;
use attune_record::{Record, Recorder, now_ns};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{App, lost_task};
use crate::auth::Caller;
use crate::auth::access::Class;
use crate::body;
use crate::error::ApiError;
use crate::query::NoParams;
use crate::traced::Traced;
use attune_api_types::{BatchItem, ErrorBody, Submitted};

/// How many submissions one request may hold.
const MAX_BATCH: usize = 1000;
/// The header that names a request, so that it can be repeated.
pub(crate) const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Takes a submission, or an array of them, and answers when their owners have.
#[utoipa::path(
    post, path = "/executions", tag = "executions", operation_id = "submit",
    request_body = words::Submissions,
    params(("Idempotency-Key" = Option<String>, Header, description = "Names the request, so that \
        repeating it within 24 hours gives the same execution: a UUID as it is, any other text by \
        its hash. For an array each item's id follows from the key and its place, so that the same \
        array can be repeated as a whole."),
        ("traceparent" = Option<String>, Header, description = "Of which trace the executions are a \
        part, as W3C Trace Context has it. A malformed one is ignored; it is no part of the request, \
        which may be repeated with another one.")),
    responses(
        (status = 201, description = "Accepted and durable.", body = Submitted,
            headers(("Location" = String, description = "The path of the execution."))),
        (status = 200, description = "It had been accepted before; or the answer to an array, with \
            one item for each submission, in their order.", body = words::SubmitAnswer),
        (status = 409, description = "`CONFLICT`: the request id was used with a different body. \
            `ALREADY_REJECTED`: it was refused before, as the execution that is named records.",
            body = ErrorBody),
        (status = 422, description = "`INVALID_INPUT` or `UNKNOWN_ACTION`: the body names the \
            field.", body = ErrorBody),
        (status = 429, description = "`QUEUE_FULL`: the queue of the action holds as many as it \
            may. `LIMIT_REACHED`: its limit is reached, and by its policy nobody waits. \
            `USER_LIMIT_REACHED`: its user has as many of it as one may, or as many wait that were \
            asked for with this key as `max_waiting` of the key allows. `RATE_LIMITED`: its rate is \
            used up, and its policy refuses what would wait for it. `QUOTA_EXCEEDED`: as many were \
            accepted as its policy allows in the hour, the day or the month.", body = ErrorBody, headers(("Retry-After" = u32, description = "Seconds."))),
        (status = 503, description = "`OUTCOME_UNKNOWN`: no answer in time; repeat it with the \
            `request_id` as the key. `NO_OWNER`, `OVERLOADED`, `STORE_UNAVAILABLE`: nothing was \
            done; repeat it later. `QUEUE_DRAINING`: operators drain the queue of the action, \
            which takes nothing new.", body = ErrorBody),
    )
)]
pub(crate) async fn submit(
    State(app): State<App>,
    caller: Caller,
    _none: NoParams,
    request: Request,
) -> Response {
    let route = "/api/v1/executions";
    let traced = Traced::begin(request.headers(), &app.ports.spans, route);
    let answer = take(app, &caller, request, traced.trace()).await;
    traced.answered(answer)
}

async fn take(
    app: App,
    caller: &Caller,
    request: Request,
    trace: Option<TraceParent>,
) -> Result<Response, ApiError> {
    let key = idempotency_key(request.headers())?;
    let body = body::read(request, &app.options, &app.bodies).await?;
    if body::is_array(&body) {
        return submit_batch(app, caller, (key, trace), &body).await;
    }
    caller.charge(Class::Submit, 1)?;
    let mut submission: Submission = body::parse(&body)?;
    submission.trace = trace;
    let named = own(caller, &mut submission, key)?;
    submit_one(app, caller, named, submission).await
}

/// Asks for one execution, and answers when its owner has.
pub(super) async fn submit_one(
    app: App,
    caller: &Caller,
    named: Named,
    mut submission: Submission,
) -> Result<Response, ApiError> {
    prepare(&app, &mut submission, named, app.check_deadline()).await?;
    let mut answers = send(app, caller, vec![(named, submission)])
        .await?
        .into_iter();
    let submitted = answers
        .next()
        .unwrap_or_else(|| Err(unanswered(named.given)))?;
    let location = format!("/api/v1/executions/{}", submitted.id);
    let status = status_of(&submitted);
    Ok((status, [(header::LOCATION, location)], Json(submitted)).into_response())
}

/// How many bytes of the answer to a batch one item takes at most, as a rule.
const ANSWER_BYTES: usize = 2048;

/// Each item is accepted or refused by itself; the answer has as many items as the request.
async fn submit_batch(
    app: App,
    caller: &Caller,
    (key, trace): (Option<RequestId>, Option<TraceParent>),
    text: &[u8],
) -> Result<Response, ApiError> {
    let items = body::parse_list(text)?;
    if items.is_empty() || items.len() > MAX_BATCH {
        return Err(Reject::new(
            RejectCode::InvalidInput,
            format!(
                "a batch has from 1 to {MAX_BATCH} submissions, not {}",
                items.len()
            ),
        )
        .into());
    }
    caller.charge(
        Class::Submit,
        u32::try_from(items.len()).unwrap_or(u32::MAX),
    )?;
    // Before anything is sent: whoever cannot be answered shall not have asked.
    let memory = app.memory.reserve(items.len() * ANSWER_BYTES).await?;
    let deadline = app.check_deadline();
    let (mut prepared, mut wanted) = (Vec::with_capacity(items.len()), Vec::new());
    for (index, item) in items.iter().enumerate() {
        let item = prepare_item(
            &app,
            caller,
            item,
            (key.map(|key| key.of_item(index)), trace),
            deadline,
        )
        .await;
        prepared.push(item.map(|(named, submission)| {
            wanted.push((named, submission));
            named
        }));
    }
    let mut answers = if wanted.is_empty() {
        Vec::new().into_iter()
    } else {
        send(app, caller, wanted).await?.into_iter()
    };
    let results: Vec<BatchItem> = prepared
        .into_iter()
        .map(|item| {
            let answer = |named: Named| {
                answers
                    .next()
                    .unwrap_or_else(|| Err(unanswered(named.given)))
            };
            match item.and_then(answer) {
                Ok(submitted) => BatchItem::Accepted(submitted),
                Err(refusal) => BatchItem::Refused(ErrorBody {
                    error: refusal.detail,
                }),
            }
        })
        .collect();
    Ok(memory.json(&results))
}

async fn prepare_item(
    app: &App,
    caller: &Caller,
    item: &RawValue,
    (key, trace): (Option<RequestId>, Option<TraceParent>),
    deadline: Instant,
) -> Result<(Named, Submission), ApiError> {
    let mut submission: Submission = body::parse(item.get().as_bytes())?;
    submission.trace = trace;
    let named = own(caller, &mut submission, key)?;
    prepare(app, &mut submission, named, deadline).await?;
    Ok((named, submission))
}

/// The request id that the header stands for.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<RequestId>, ApiError> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(ApiError::field(
            "Idempotency-Key",
            "`Idempotency-Key` is given twice",
        ));
    }
    let text = value.to_str().map_err(|_| {
        ApiError::field(
            "Idempotency-Key",
            "`Idempotency-Key` takes visible ASCII characters",
        )
    })?;
    attune_core::input::check_text("Idempotency-Key", text.trim())?;
    Ok(Some(RequestId::from_key(text.trim())))
}

/// The name of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named {
    /// As the client gives it, or is told it.
    pub(super) given: RequestId,
    /// Under which the system knows it.
    pub(super) stored: RequestId,
    /// It was named here, so that nobody can have asked for it before.
    is_new: bool,
}

impl Named {
    /// By the name that the client gives it, if it does.
    pub(super) fn of(caller: &Caller, given: Option<RequestId>) -> Self {
        let is_new = given.is_none();
        let given = given.unwrap_or_else(RequestId::fresh);
        Self {
            given,
            stored: caller.own_request(given),
            is_new,
        }
    }
}

/// Makes a submission that of whoever asks, with a request id of theirs.
fn own(
    caller: &Caller,
    submission: &mut Submission,
    key: Option<RequestId>,
) -> Result<Named, ApiError> {
    let named = Named::of(caller, name_of(submission, key)?);
    submission.request_id = Some(named.stored);
    let owned = caller.check_action(&submission.action_ref).and_then(|()| {
        submission.requested_by = caller.requested_by(submission.requested_by.take())?;
        Ok(named)
    });
    owned.map_err(|error| error.of_request(Some(named.given)))
}

/// The request id that the client gives its submission, in the header or in the body.
fn name_of(submission: &Submission, key: Option<RequestId>) -> Result<Option<RequestId>, ApiError> {
    match (key, submission.request_id) {
        (Some(key), Some(own)) if key != own => Err(ApiError::field(
            "request_id",
            "`request_id` and the header `Idempotency-Key` name different requests; \
             give one of them, or the same UUID in both",
        )),
        (key, own) => Ok(key.or(own)),
    }
}

/// Refuses what the owner would refuse, with the parameters checked against the action's schema, and seals what is
/// secret in them.
async fn prepare(
    app: &App,
    submission: &mut Submission,
    named: Named,
    deadline: Instant,
) -> Result<(), ApiError> {
    let checked = check(app, submission, deadline).await;
    let refused = checked.map_err(|error| error.of_request(Some(named.given)));
    if let (Err(error), Some(recorder)) = (&refused, &app.ports.recorder) {
        record(recorder, named.stored, Err(error));
    }
    refused
}

async fn check(app: &App, submission: &mut Submission, deadline: Instant) -> Result<(), ApiError> {
    submission.check()?;
    if let Some(field) = find_sealed("parameters", submission.parameters.get()) {
        return Err(Reject::sealed(field).into());
    }
    let action_ref: ActionRef = submission
        .action_ref
        .parse()
        .map_err(|problem: String| ApiError::field("action_ref", problem))?;
    let Some(known) = app.catalog.find(&action_ref, deadline).await? else {
        return Err(Reject::unknown_action(action_ref.as_str()).into());
    };
    known.check(submission, &app.aside, deadline).await?;
    known.seal(&app.options.secrets, submission)
}

/// Sends submissions to their owners in a task of its own: a client that goes away while some of
/// a batch are sent must not keep the rest from being sent, nor what is known of them from being
/// recorded. The answers are in the order of the submissions.
async fn send(
    app: App,
    caller: &Caller,
    submissions: Vec<(Named, Submission)>,
) -> Result<Vec<Result<Submitted, ApiError>>, ApiError> {
    let bound = caller.wait_bound();
    let let_in = match bound {
        Some(bound) => {
            let wanted = u32::try_from(submissions.len()).unwrap_or(u32::MAX);
            Some(app.waiting.let_in(&*app.ports.keys, bound, wanted).await?)
        }
        None => None,
    };
    let task = async move {
        let (requests, mut submissions): (Vec<Named>, Vec<_>) = submissions.into_iter().unzip();
        let (commands, timeout) = (&app.ports.commands, app.options.submit_timeout);
        // The last of them: what is let in keeps its order.
        let rest = let_in.as_ref().map(|it| submissions.split_off(it.count()));
        let mut outcomes = match submissions.is_empty() {
            true => Vec::new(),
            false => commands.submit(submissions, bound, timeout).await,
        };
        for (outcome, named) in outcomes.iter_mut().zip(&requests) {
            // Where its first answer was lost the owner was asked again, and says so.
            if let Ok(accepted) = outcome {
                accepted.repeated &= !named.is_new;
            }
        }
        if let Some(let_in) = let_in {
            let waits = |outcome: &Result<Accepted, ClientError>| match outcome {
                Ok(accepted) => !accepted.repeated && accepted.status == Some(Status::Queued),
                Err(error) => !matches!(error, ClientError::Rejected(_)),
            };
            let_in.settle(outcomes.iter().filter(|it| !waits(it)).count());
        }
        if let Some((bound, rest)) = bound.zip(rest).filter(|(_, rest)| !rest.is_empty()) {
            // Their owners know which of them were accepted before; new ones they refuse.
            let none = WaitBound {
                max_waiting: 0,
                ..bound
            };
            let answers = commands.submit(rest, Some(none), timeout).await;
            outcomes.extend(answers.into_iter().map(|answer| refuse_new(answer, bound)));
        }
        let answered = requests.into_iter().zip(outcomes);
        answered
            .map(|(named, outcome)| {
                let answer = answer(outcome, named.given);
                if let Some(recorder) = &app.ports.recorder {
                    record(recorder, named.stored, answer.as_ref());
                }
                answer
            })
            .collect()
    };
    tokio::spawn(task).await.map_err(lost_task)
}

/// What is said of one for which there was no room by the sum over all partitions.
fn refuse_new(
    answer: Result<Accepted, ClientError>,
    bound: WaitBound,
) -> Result<Accepted, ClientError> {
    match answer {
        Err(ClientError::Rejected(reject)) if reject.code == RejectCode::UserLimitReached => {
            let refused = bound.admits(bound.max_waiting).err();
            Err(ClientError::Rejected(refused.unwrap_or(reject)))
        }
        other => other,
    }
}

/// What the client is told about one submission.
fn answer(
    outcome: Result<Accepted, ClientError>,
    request_id: RequestId,
) -> Result<Submitted, ApiError> {
    let accepted = outcome.map_err(|error| ApiError::from(error).of_request(Some(request_id)))?;
    let (Some(id), Some(status)) = (accepted.execution_id, accepted.status) else {
        return Err(unknown(request_id, "the owner's answer names no execution"));
    };
    Ok(Submitted {
        id,
        status,
        position: accepted.position,
        repeated: accepted.repeated,
        priority: accepted.priority,
        request_id,
    })
}

fn unanswered(request_id: RequestId) -> ApiError {
    unknown(request_id, "the command was not answered")
}

fn unknown(request_id: RequestId, reason: &str) -> ApiError {
    let error = ClientError::NotConfirmed {
        request_id,
        reason: reason.to_owned(),
    };
    ApiError::from(error).of_request(Some(request_id))
}

fn status_of(submitted: &Submitted) -> StatusCode {
    if submitted.repeated {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    }
}

fn record(recorder: &Recorder, request_id: RequestId, answer: Result<&Submitted, &ApiError>) {
    let status = answer.map_or_else(|error| error.status, status_of);
    recorder.record(Record::Answered {
        request_id,
        http_status: status.as_u16(),
        execution_id: answer.ok().map(|submitted| submitted.id),
        code: answer.err().map(|error| error.detail.code.to_string()),
        t_ns: now_ns(),
    });
}
