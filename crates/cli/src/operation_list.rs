//! `attune operations list | show`: what was asked to be done to many executions, and how far it is.

use attune_api_types::{OperationList, OperationName, OperationState, OperationView};
use attune_core::OperationId;
use chrono::{DateTime, SecondsFormat, Utc};
use clap::{Args, Subcommand};

use super::executions::at_least_one;
use super::http::{CallError, Http};
use super::operation_follow::{self, Patience};
use super::render::{Column, duration, one_line, table};
use super::{Connect, Exit, Failure, Output, operations, seconds};

/// How many operations are asked for at once. Servers may allow less.
const PAGE: usize = 100;

#[derive(Debug, Clone, Args)]
#[command(after_help = operations::EXIT_CODES)]
pub struct OperationsArguments {
    #[command(flatten)]
    pub(super) connect: Connect,
    #[command(subcommand)]
    command: OperationsCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum OperationsCommand {
    /// List operations, the newest first.
    ///
    /// `matched` is how many executions it was about were found so far, `done` to how many of these it
    /// was done, `skipped` how many waited no longer when it came to them, or were so already.
    #[command(after_help = operations::EXIT_CODES)]
    List(ListArguments),
    /// Show everything about an operation: how far it is, and who is missing where it does not go on.
    #[command(after_help = operations::EXIT_CODES)]
    Show(ShowArguments),
}

#[derive(Debug, Clone, Args)]
struct ListArguments {
    /// How many to list.
    #[arg(long, default_value_t = 50, conflicts_with = "all", value_parser = at_least_one)]
    limit: u64,
    /// List all of them.
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Clone, Args)]
struct ShowArguments {
    /// The operation's number, as the command that began it and `attune operations list` print it.
    #[arg(value_name = "ID")]
    id: i64,
    /// Wait at most so many seconds for its end, then show how far it is, with exit code 3 if it is not
    /// over. It goes on by itself, whether anybody waits or not.
    #[arg(long, value_name = "SECONDS", value_parser = seconds::<u64>)]
    wait: Option<u64>,
}

pub(super) async fn execute(
    http: &Http,
    arguments: OperationsArguments,
) -> Result<Output, Failure> {
    let json = arguments.connect.json;
    match arguments.command {
        OperationsCommand::List(of) => list(http, &of, json).await,
        OperationsCommand::Show(of) => show(http, &of, json).await,
    }
}

async fn list(http: &Http, of: &ListArguments, json: bool) -> Result<Output, Failure> {
    let wanted = match of.all {
        true => usize::MAX,
        false => usize::try_from(of.limit).unwrap_or(usize::MAX),
    };
    let list = pages(http, wanted).await?;
    if json {
        return Ok(Output::json(&list));
    }
    if list.operations.is_empty() {
        return Ok(Output::text("there are no operations"));
    }
    let more = match list.next {
        Some(_) => "\n(there are more: --limit N or --all)",
        None => "",
    };
    let table = list_table(&list.operations, Utc::now());
    Ok(Output::text(format!("{table}{more}")))
}

/// The newest, as many as are wanted, from as many pages as that takes.
async fn pages(http: &Http, wanted: usize) -> Result<OperationList, CallError> {
    let (mut operations, mut next) = (Vec::new(), None);
    let mut largest = Some(PAGE);
    loop {
        let missing = wanted - operations.len();
        // Without a number the server gives its usual page, which is never too many for it.
        let limit = largest.map(|largest| missing.min(largest).to_string());
        let query = [
            ("limit", limit),
            ("before", next.map(|id: OperationId| id.to_string())),
        ];
        let page: OperationList = match http.get("/operations", &query).await {
            Err(CallError::Refused(detail))
                if detail.field.as_deref() == Some("limit") && largest.is_some() =>
            {
                largest = None;
                continue;
            }
            page => page?,
        };
        next = page.next;
        let too_many = (operations.len() + page.operations.len()).saturating_sub(wanted);
        operations.extend(page.operations);
        if too_many > 0 {
            operations.truncate(wanted);
            next = operations.last().map(|last: &OperationView| last.id);
        }
        if next.is_none() || operations.len() >= wanted {
            return Ok(OperationList { operations, next });
        }
    }
}

async fn show(http: &Http, of: &ShowArguments, json: bool) -> Result<Output, Failure> {
    let patience = of.wait.map(Patience::of);
    let mut operation: OperationView = http.get(&format!("/operations/{}", of.id), &[]).await?;
    let mut not_over = None;
    if let Some(patience) = patience {
        let followed = operation_follow::to_its_end(http, operation, patience, None).await?;
        (operation, not_over) = (followed.now, followed.not_over);
    }
    let output = if json {
        Output::json(&operation)
    } else {
        let missing = match (operation.state, &not_over) {
            (OperationState::Running, None) => {
                operation_follow::who_is_missing(http, &operation).await
            }
            _ => None,
        };
        Output::text(details(&operation, missing))
    };
    Ok(match not_over {
        Some(words) => output.with(Exit::Unknown, vec![words]),
        None => output,
    })
}

fn list_table(operations: &[OperationView], now: DateTime<Utc>) -> String {
    let rows = operations.iter().map(|operation| {
        vec![
            operation.id.to_string(),
            duration(now - operation.created),
            state(operation).to_owned(),
            kind(operation),
            about(operation),
            operation.matched.to_string(),
            operation.done.to_string(),
            operation.skipped.to_string(),
            operation.who.clone(),
        ]
    });
    let columns = [
        Column::Figures("id"),
        Column::Figures("age"),
        Column::Words("state"),
        Column::Words("kind"),
        Column::Words("about"),
        Column::Figures("matched"),
        Column::Figures("done"),
        Column::Figures("skipped"),
        Column::Words("who"),
    ];
    table(&columns, rows.collect())
}

fn state(operation: &OperationView) -> &'static str {
    match operation.state {
        OperationState::Running => "running",
        OperationState::Done => "done",
    }
}

/// What it does, in the words of the command that asks for it.
fn kind(operation: &OperationView) -> String {
    match (operation.kind, operation.priority) {
        (OperationName::Clear, _) => "clear".to_owned(),
        (OperationName::Cancel, _) if operation.include_running => {
            "cancel, what runs too".to_owned()
        }
        (OperationName::Cancel, _) => "cancel".to_owned(),
        (OperationName::Reprioritise, Some(priority)) => format!("reprioritise to {priority}"),
        (OperationName::Reprioritise, None) => "reprioritise".to_owned(),
        (OperationName::MoveToFront, _) => "front".to_owned(),
        (OperationName::Unknown, _) => "unknown".to_owned(),
    }
}

/// Which executions it is about.
fn about(operation: &OperationView) -> String {
    let words = match operation_follow::filter_of(&operation.filter) {
        Some(filter) => filter.to_string(),
        // Of a later release: better as it came than not at all.
        None => serde_json::to_string(&operation.filter).unwrap_or_default(),
    };
    match words.is_empty() {
        true => "-".to_owned(),
        false => words,
    }
}

/// One operation, a line for each thing that is known about it.
fn details(operation: &OperationView, missing: Option<String>) -> String {
    let created = operation
        .created
        .to_rfc3339_opts(SecondsFormat::Millis, true);
    let partitions = format!(
        "{} of {} are over",
        operation.partitions_done, operation.partitions
    );
    let lines = [
        ("id", Some(operation.id.to_string())),
        ("state", Some(state(operation).to_owned())),
        ("waits", missing),
        ("kind", Some(kind(operation))),
        ("stored", operation.unknown.clone()),
        ("about", Some(about(operation))),
        ("matched", Some(operation.matched.to_string())),
        ("done", Some(operation.done.to_string())),
        ("skipped", Some(operation.skipped.to_string())),
        ("partitions", Some(partitions)),
        ("who", Some(operation.who.clone())),
        ("reason", operation.reason.clone()),
        ("created", Some(created)),
        ("request", Some(operation.request_id.to_string())),
    ];
    let lines = lines.into_iter().filter_map(|(name, value)| {
        let value = one_line(&value?);
        Some(format!("{name:12} {value}\n"))
    });
    lines.collect()
}
