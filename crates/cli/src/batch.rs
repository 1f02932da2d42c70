//! `attune submit --file`: many submissions, packed, in order, as fast as the queues take them.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use attune_api_types::{BatchItem, ErrorBody, ErrorDetail};
use attune_core::RequestId;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use tokio::task::JoinSet;

use super::batch_plan::{Attempt, Batch, Bounds, Fate, Item, Plan};
use super::batch_report::report;
use super::http::{CallError, Http};
use super::lines::{self, Line};
use super::{Failure, Output, bounded};

/// How many lines one request holds at most.
const BATCH_LINES: usize = 100;
/// How many bytes one request holds at most: half of what servers take unless told otherwise.
const BATCH_BYTES: usize = 512 * 1024;
/// How many requests are under way at once.
const UNDER_WAY: usize = 4;
/// The pause after a server that said nothing about when to try again.
const PAUSE: Duration = Duration::from_secs(1);
/// How many bad lines are told; a file of another kind has thousands.
const PROBLEMS_SHOWN: usize = 20;

pub(super) struct BatchOptions {
    /// From which the lines without a request id get one.
    pub(super) key: Option<RequestId>,
    pub(super) give_up_after: Duration,
    pub(super) json: bool,
}

pub(super) async fn execute(
    http: &Http,
    file: &Path,
    options: BatchOptions,
) -> Result<Output, Failure> {
    let lines = read(file, options.key)?;
    let items = lines.iter().map(|line| Item {
        action_ref: line.submission.action_ref.clone(),
        body: serde_json::to_string(&line.submission).expect("a submission has string keys"),
    });
    let plan = Plan::new(
        items.collect(),
        Bounds {
            lines: BATCH_LINES,
            bytes: BATCH_BYTES,
            give_up_after: options.give_up_after,
        },
    );
    let started = Instant::now();
    let fates = send_all(http, plan).await?;
    Ok(report(&lines, &fates, started.elapsed(), options.json))
}

/// Every line of the file; nothing is sent unless all can be read.
fn read(file: &Path, key: Option<RequestId>) -> Result<Vec<Line>, Failure> {
    let shown = file.display();
    let bytes = if file == Path::new("-") {
        bounded::read_lines(std::io::stdin().lock())
    } else {
        File::open(file).and_then(bounded::read_lines)
    };
    let bytes = bytes.map_err(|error| Failure::usage(format!("{shown}: {error}")))?;
    let lines = lines::parse(&bytes, key).map_err(|mut problems| {
        let more = problems.len().saturating_sub(PROBLEMS_SHOWN);
        problems.truncate(PROBLEMS_SHOWN);
        if more > 0 {
            problems.push(format!("and {more} more"));
        }
        Failure::usage(format!(
            "{shown}: nothing was submitted\n{}",
            problems.join("\n")
        ))
    })?;
    if lines.is_empty() {
        return Err(Failure::usage(format!(
            "{shown}: there is no line to submit"
        )));
    }
    Ok(lines)
}

type Call = Result<Vec<BatchItem>, CallError>;

/// Sends until every line has its fate. Fails at once when there is no server at the very
/// beginning; one that goes away later is waited for.
async fn send_all(http: &Http, mut plan: Plan) -> Result<Vec<Option<Fate>>, Failure> {
    let bar = progress(plan.open());
    let mut calls: JoinSet<(Batch, Call)> = JoinSet::new();
    let (mut answered, total) = (false, plan.open());
    while plan.open() > 0 {
        // One request until the server has answered: most mistakes show in the first.
        let room = if answered { UNDER_WAY } else { 1 };
        while calls.len() < room
            && let Some(batch) = plan.next_batch(Instant::now())
        {
            let (http, body) = (http.clone(), plan.body(&batch));
            calls.spawn(async move { (batch, call(&http, body).await) });
        }
        // With all places taken, only the end of a request changes anything.
        let wake = if calls.len() < room {
            plan.next_wake()
        } else {
            None
        };
        if calls.is_empty() && wake.is_none() {
            break;
        }
        let Some(ended) = next(&mut calls, wake).await else {
            continue;
        };
        let (batch, outcome) =
            ended.map_err(|error| Failure::unknown(format!("a request did not end: {error}")))?;
        match &outcome {
            Err(error @ CallError::Unreachable(_)) if !answered => {
                return Err(error.clone().into());
            }
            Err(CallError::Refused(detail)) if detail.code == "TOO_LARGE" && batch.0.len() > 1 => {
                plan.shrink(batch);
                continue;
            }
            Err(CallError::Unreachable(_) | CallError::Unknown(_)) => {}
            Ok(_) | Err(_) => answered = true,
        }
        let attempts = attempts(outcome, batch.0.len());
        plan.settle(batch, attempts, Instant::now());
        bar.set_position((total - plan.open()) as u64);
    }
    Ok(plan.into_fates())
}

async fn call(http: &Http, body: String) -> Call {
    let request = http
        .request(Method::POST, "/executions")
        .header(CONTENT_TYPE, "application/json")
        .body(body);
    http.send(request).await
}

/// The next request that ends; `None` when it is time to look at the plan again.
async fn next(
    calls: &mut JoinSet<(Batch, Call)>,
    wake: Option<Instant>,
) -> Option<Result<(Batch, Call), tokio::task::JoinError>> {
    let wake = wake.map(tokio::time::Instant::from_std);
    match wake {
        None => calls.join_next().await,
        Some(wake) if calls.is_empty() => {
            tokio::time::sleep_until(wake).await;
            None
        }
        Some(wake) => tokio::time::timeout_at(wake, calls.join_next())
            .await
            .ok()?,
    }
}

/// What a request means for each of its lines.
fn attempts(outcome: Call, count: usize) -> Vec<Attempt> {
    match outcome {
        Ok(items) if items.len() == count => items.into_iter().map(of_item).collect(),
        Ok(items) => {
            let message = format!("{} answers to {count} submissions", items.len());
            vec![later(detail("UNEXPECTED_ANSWER", message), true); count]
        }
        Err(CallError::Refused(detail)) => {
            vec![Attempt::Final(Fate::Refused(detail)); count]
        }
        Err(CallError::Unavailable(detail)) => vec![later(detail, true); count],
        Err(CallError::Unreachable(message)) => {
            vec![later(detail("UNREACHABLE", message), false); count]
        }
        Err(CallError::Unknown(message)) => {
            vec![later(detail("NO_ANSWER", message), true); count]
        }
    }
}

fn of_item(item: BatchItem) -> Attempt {
    match item {
        BatchItem::Accepted(submitted) => Attempt::Final(Fate::Accepted(submitted)),
        BatchItem::Refused(ErrorBody { error }) => {
            // Whatever the server says can be tried again carries the time for it.
            if error.retry_after_seconds.is_some() {
                let unknown = error.code == "OUTCOME_UNKNOWN";
                later(error, unknown)
            } else {
                Attempt::Final(Fate::Refused(error))
            }
        }
    }
}

fn later(detail: ErrorDetail, unknown: bool) -> Attempt {
    let pause = detail
        .retry_after_seconds
        .map_or(PAUSE, |it| Duration::from_secs(it.into()));
    Attempt::Later {
        detail,
        pause,
        unknown,
    }
}

fn detail(code: &'static str, message: String) -> ErrorDetail {
    ErrorDetail {
        code: code.into(),
        message,
        field: None,
        retry_after_seconds: None,
        request_id: None,
    }
}

/// A bar on a terminal; nothing elsewhere.
fn progress(lines: usize) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{bar:40} {human_pos}/{human_len} submitted  {per_sec}  {eta} left",
    )
    .expect("the template is fixed and right");
    ProgressBar::new(lines as u64)
        .with_style(style)
        .with_finish(ProgressFinish::AndClear)
}
