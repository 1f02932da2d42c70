//! `attune executions list | show | cancel | resubmit | reprioritise | front | release`.

use attune_api_types::{ActionView, Cancelled, Execution, ExecutionList};
use attune_core::{ActionRef, ExecutionId, Status};
use chrono::{DateTime, SecondsFormat, Utc};
use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::json;

use super::http::{CallError, Http};
use super::render::{Column, duration, one_line, or_dash, table};
use super::waits::{self, Remarks};
use super::{Connect, EXIT_CODES, Exit, Failure, Output, holders, operations, resubmit};

/// How many executions are asked for at once where many are wanted. Servers may allow less.
const LARGE_PAGE: u64 = 1000;

/// What a list has of each execution only if it is asked for.
const LONG_PARTS: &str = "parameters,result,stdout,stderr";

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct ExecutionsArguments {
    #[command(flatten)]
    pub(super) connect: Connect,
    #[command(subcommand)]
    command: ExecutionsCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum ExecutionsCommand {
    /// List executions, the newest first.
    ///
    /// `waited` is the time until a worker took it up (of what never ran: until its end was
    /// recorded), `ran` the time from then until its end was recorded; of what has no such moment
    /// yet, until now. While Attune is stopped no end is recorded, so `ran` can be longer than the
    /// program ran.
    #[command(after_help = EXIT_CODES)]
    List(ListArguments),
    /// Show everything about an execution, and why it waits.
    ///
    /// `started` is when a worker took it up, `finished` when its end was recorded, which while
    /// Attune is stopped is later than when the program ended.
    #[command(after_help = EXIT_CODES)]
    Show {
        /// The execution's number, as `attune submit` and `attune executions list` print it.
        #[arg(value_name = "ID")]
        id: ExecutionId,
        /// Show what is secret in its parameters, too. Needs the permission `secrets`, and is written into the audit
        /// log.
        #[arg(long)]
        show_secrets: bool,
    },
    /// End executions, waiting or running: by their numbers, or those that the options name.
    Cancel(Box<CancelArguments>),
    /// Run executions that have ended again, each as a new one that names the old one.
    Resubmit(resubmit::ResubmitArguments),
    /// Give executions that wait another priority; each stands there by its age.
    Reprioritise(Box<operations::ReprioritiseArguments>),
    /// Let executions that wait go before all others of their actions, in the order of acceptance.
    Front(Box<operations::FrontArguments>),
    /// Take the slot of an execution back by force, when its worker will never be heard of again.
    Release(holders::ReleaseArguments),
}

#[derive(Debug, Clone, Args)]
#[command(after_help = operations::EXIT_CODES)]
struct CancelArguments {
    /// The executions' numbers, as `attune submit` and `attune executions list` print them; those that
    /// run are ended, too.
    #[arg(value_name = "ID")]
    ids: Vec<ExecutionId>,
    #[command(flatten)]
    which: operations::Which,
    /// Ask those that run to end, too, where options name them.
    #[arg(long, conflicts_with = "ids")]
    include_running: bool,
    #[command(flatten)]
    how: operations::How,
}

#[derive(Debug, Clone, Args)]
pub(super) struct ListArguments {
    /// Only those of this action.
    #[arg(long, value_name = "REF")]
    action: Option<ActionRef>,
    /// Only those in these states, as in queued,running.
    #[arg(long, value_delimiter = ',')]
    status: Vec<Status>,
    /// Only those of this user.
    #[arg(long)]
    user: Option<String>,
    /// Only those of this group.
    #[arg(long)]
    group: Option<String>,
    /// How many to list.
    #[arg(long, default_value_t = 50, conflicts_with = "all", value_parser = at_least_one)]
    limit: u64,
    /// List all of them.
    #[arg(long)]
    all: bool,
}

impl ListArguments {
    /// All of these.
    pub(super) fn all_of(
        action: Option<ActionRef>,
        status: Vec<Status>,
        user: Option<String>,
        group: Option<String>,
    ) -> Self {
        Self {
            action,
            status,
            user,
            group,
            limit: u64::MAX,
            all: true,
        }
    }
}

/// Reads how many are to be listed.
pub(super) fn at_least_one(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a whole number from 1 on".to_owned()),
        Ok(number) => Ok(number),
    }
}

pub(super) async fn execute(
    http: &Http,
    arguments: ExecutionsArguments,
) -> Result<Output, Failure> {
    let json = arguments.connect.json;
    match arguments.command {
        ExecutionsCommand::List(filter) => list(http, &filter, json).await,
        ExecutionsCommand::Show { id, show_secrets } => {
            let secrets = show_secrets.then(|| "true".to_owned());
            let query = [("show_secrets", secrets)];
            let record: Execution = http.get(&format!("/executions/{id}"), &query).await?;
            if json {
                return Ok(Output::json(&record));
            }
            let remarks = waits::remarks(http, &record).await;
            Ok(Output::text(details(&record, remarks)))
        }
        ExecutionsCommand::Release(release) => holders::release(http, release, json).await,
        ExecutionsCommand::Cancel(of) => match (of.ids.is_empty(), of.which.is_empty()) {
            // What is to be counted, or to be in the audit log, is an operation.
            (false, true) if of.how.says_something() => {
                operations::cancel(http, (&of.which, &of.ids), true, &of.how, json).await
            }
            (false, true) => cancel(http, &of.ids, json).await,
            (false, false) => {
                let words = "name executions by their numbers or by options, not both";
                Err(Failure::usage(words))
            }
            (true, _) => {
                let running = of.include_running;
                operations::cancel(http, (&of.which, &[]), running, &of.how, json).await
            }
        },
        ExecutionsCommand::Resubmit(of) => resubmit::execute(http, of, json).await,
        ExecutionsCommand::Reprioritise(of) => operations::reprioritise(http, *of, json).await,
        ExecutionsCommand::Front(of) => operations::front(http, *of, json).await,
    }
}

async fn list(http: &Http, filter: &ListArguments, json: bool) -> Result<Output, Failure> {
    let wanted = if filter.all { u64::MAX } else { filter.limit };
    let mut found = Vec::new();
    let take = |page| {
        found.extend(page);
        found.truncate(usize::try_from(wanted).unwrap_or(usize::MAX));
        found.len() as u64
    };
    let cursor = each_page(http, filter, wanted, json, take).await?;
    Ok(if json {
        Output::json(&json!({"executions": found, "next": cursor}))
    } else {
        let more = if cursor.is_some() {
            "\n(there are more: --limit N or --all)"
        } else {
            ""
        };
        Output::text(format!("{}{more}", list_table(&found, Utc::now())))
    })
}

/// Hands pages on until `take`, which says how many it has by now, has as many as are `wanted`; gives
/// where the next page begins, if there is one.
pub(super) async fn each_page(
    http: &Http,
    filter: &ListArguments,
    wanted: u64,
    whole: bool,
    mut take: impl FnMut(Vec<Execution>) -> u64,
) -> Result<Option<String>, Failure> {
    let (mut found, mut cursor) = (0, None);
    let mut largest = LARGE_PAGE;
    loop {
        let missing = wanted - found;
        // Without a number the server gives its usual page, which is never too many for it.
        let limit = (missing.min(largest) > 0).then(|| missing.min(largest).to_string());
        let page = match page(http, filter, limit, &cursor, whole).await {
            Err(CallError::Refused(detail))
                if detail.field.as_deref() == Some("limit") && largest > 0 =>
            {
                largest = 0;
                continue;
            }
            page => page?,
        };
        found = take(page.executions);
        cursor = page.next;
        if cursor.is_none() || found >= wanted {
            break;
        }
    }
    if let (Some(action), 0) = (&filter.action, found) {
        // A ref that is misspelt would look like an action that has nothing: this refuses it.
        let _: ActionView = http.get(&format!("/actions/{action}"), &[]).await?;
    }
    Ok(cursor)
}

async fn page(
    http: &Http,
    filter: &ListArguments,
    limit: Option<String>,
    cursor: &Option<String>,
    whole: bool,
) -> Result<ExecutionList, CallError> {
    let statuses: Vec<&str> = filter.status.iter().map(|status| status.as_str()).collect();
    let query = [
        ("action", filter.action.as_ref().map(ToString::to_string)),
        ("status", (!statuses.is_empty()).then(|| statuses.join(","))),
        ("user", filter.user.clone()),
        ("group", filter.group.clone()),
        ("include", whole.then(|| LONG_PARTS.to_owned())),
        ("limit", limit),
        ("cursor", cursor.clone()),
    ];
    http.get("/executions", &query).await
}

fn list_table(executions: &[Execution], now: DateTime<Utc>) -> String {
    let rows = executions.iter().map(|execution| {
        let waited = execution
            .started_at
            .or(execution.finished_at)
            .unwrap_or(now);
        let ran = execution
            .started_at
            .map(|start| execution.finished_at.unwrap_or(now) - start);
        vec![
            execution.id.to_string(),
            execution.action_ref.clone(),
            execution.status.to_string(),
            execution.priority.to_string(),
            or_dash(execution.requested_by.clone()),
            duration(now - execution.created),
            duration(waited - execution.created),
            ran.map_or_else(|| "-".to_owned(), duration),
        ]
    });
    let columns = [
        Column::Figures("id"),
        Column::Text("action"),
        Column::Words("status"),
        Column::Words("priority"),
        Column::Text("user"),
        Column::Figures("age"),
        Column::Figures("waited"),
        Column::Figures("ran"),
    ];
    table(&columns, rows.collect())
}

/// One execution, a line for each thing that is known about it, long texts at the end.
fn details(record: &Execution, remarks: Remarks) -> String {
    let time =
        |at: Option<DateTime<Utc>>| at.map(|at| at.to_rfc3339_opts(SecondsFormat::Millis, true));
    let labels: Vec<String> = record
        .labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let worker = record.worker.map(|worker| match remarks.worker {
        Some(remark) => format!("{worker} {remark}"),
        None => worker.to_string(),
    });
    let lines = [
        ("id", Some(record.id.to_string())),
        ("action", Some(record.action_ref.clone())),
        ("status", Some(record.status.to_string())),
        ("waits", remarks.waits),
        (
            "cancelling",
            (record.cancel_requested && !record.status.is_terminal()).then(|| "yes".to_owned()),
        ),
        ("priority", Some(record.priority.to_string())),
        ("attempt", Some(record.attempt.to_string())),
        ("user", record.requested_by.clone()),
        ("group", record.group.clone()),
        ("enforcement", record.enforcement_id.clone()),
        ("labels", (!labels.is_empty()).then(|| labels.join(", "))),
        ("request", Some(record.request_id.to_string())),
        ("runs again", record.requeue_of.map(|of| of.to_string())),
        ("trace", record.trace_id.clone()),
        ("worker", worker),
        ("created", time(Some(record.created))),
        ("not before", time(record.not_before)),
        ("requested", time(record.requested_at)),
        ("started", time(record.started_at)),
        ("finished", time(record.finished_at)),
        ("exit code", record.exit_code.map(|code| code.to_string())),
        ("end code", record.end_code.clone()),
        ("error", record.error.clone()),
        ("last error", record.last_error.clone()),
    ];
    let mut text = String::new();
    for (name, value) in lines {
        if let Some(value) = value {
            text.push_str(&format!("{name:12} {}\n", one_line(&value)));
        }
    }
    let pretty =
        |value: &serde_json::Value| serde_json::to_string_pretty(value).expect("a value is JSON");
    for (name, value) in [
        ("parameters", record.parameters.as_ref().map(pretty)),
        (
            "result",
            record.result.as_ref().and_then(Option::as_ref).map(pretty),
        ),
        ("stdout", record.stdout.clone().flatten()),
        ("stderr", record.stderr.clone().flatten()),
    ] {
        if let Some(value) = value.filter(|value| !value.trim().is_empty()) {
            text.push_str(&format!("\n{name}:\n{}\n", value.trim_end()));
        }
    }
    text
}

async fn cancel(http: &Http, ids: &[ExecutionId], json: bool) -> Result<Output, Failure> {
    let (mut cancelled, mut failed, mut exit) = (Vec::new(), Vec::new(), Exit::Done);
    for id in ids {
        let request = http.request(Method::POST, &format!("/executions/{id}/cancel"));
        match http.send::<Cancelled>(request).await {
            Ok(answer) => cancelled.push(answer),
            Err(error) => {
                failed.push(format!("cannot cancel {id}: {error}"));
                exit = exit.max(Failure::from(error).exit);
            }
        }
    }
    let output = if json {
        Output::json(&json!({"cancelled": cancelled, "failed": failed}))
    } else {
        let lines: Vec<String> = cancelled
            .iter()
            .map(|Cancelled { id, status }| match status {
                Status::Cancelled => format!("execution {id} is cancelled"),
                Status::Requested => format!(
                    "execution {id} is marked ({status}): it ends when a worker takes it up, \
                     without being run; where none will come, take its slot back: attune \
                     executions release {id} --reason TEXT"
                ),
                status => format!("execution {id} is being ended ({status})"),
            })
            .collect();
        Output::text(lines.join("\n"))
    };
    Ok(output.with(exit, failed))
}

#[cfg(test)]
mod tests {
    use super::super::tests::record;
    use super::*;

    #[test]
    fn a_list_shows_age_wait_and_run() {
        let mut execution = record(7, Status::Succeeded);
        let created = execution.created;
        execution.started_at = Some(created + chrono::TimeDelta::seconds(3));
        execution.finished_at = Some(created + chrono::TimeDelta::seconds(5));
        execution.requested_by = Some("ann".to_owned());
        let text = list_table(&[execution], created + chrono::TimeDelta::seconds(60));
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            rows[0],
            [
                "id", "action", "status", "priority", "user", "age", "waited", "ran"
            ]
        );
        assert_eq!(
            rows[1],
            [
                "7",
                "core.echo",
                "succeeded",
                "normal",
                "ann",
                "1m",
                "0s",
                "3.0s",
                "2.0s"
            ]
        );
    }

    #[test]
    fn whoever_has_ended_is_not_being_cancelled_any_more() {
        for (status, is_told) in [(Status::Running, true), (Status::Cancelled, false)] {
            let mut execution = record(7, status);
            execution.cancel_requested = true;
            let text = details(&execution, Remarks::default());
            assert_eq!(text.contains("cancelling"), is_told, "{text}");
        }
    }

    #[test]
    fn details_leave_out_what_is_not_there() {
        let mut execution = record(7, Status::Failed);
        execution.exit_code = Some(3);
        execution.stderr = Some(Some("boom\n".to_owned()));
        let text = details(&execution, Remarks::default());
        assert!(text.contains("status       failed\n"), "{text}");
        assert!(text.contains("exit code    3\n"), "{text}");
        assert!(text.ends_with("\nstderr:\nboom\n"), "{text}");
        assert!(!text.contains("started"), "{text}");
        assert!(!text.contains("stdout"), "{text}");
        assert!(!text.contains("waits"), "{text}");
    }

    #[test]
    fn remarks_stand_beside_what_they_are_about() {
        let mut execution = record(7, Status::Running);
        let worker = attune_core::WorkerId::fresh();
        execution.worker = Some(worker);
        let remarks = Remarks {
            waits: Some("for a slot".to_owned()),
            worker: Some("is lost".to_owned()),
        };
        let text = details(&execution, remarks);
        assert!(text.contains("\nwaits        for a slot\n"), "{text}");
        let line = format!("\nworker       {worker} is lost\n");
        assert!(text.contains(&line), "{text}");
    }
}
