//! `attune executions resubmit`: what has ended is run again, each as a new execution.

use attune_api_types::{Execution, Submitted};
use attune_core::{ActionRef, ExecutionId, RequestId, Status};
use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};

use super::executions::{self, ListArguments};
use super::http::{CallError, Http, IDEMPOTENCY_KEY};
use super::{EXIT_CODES, Exit, Failure, Output};

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct ResubmitArguments {
    /// The executions' numbers; without them those that the options name.
    #[arg(value_name = "ID")]
    ids: Vec<ExecutionId>,
    /// Those of this action, as in core.echo.
    #[arg(long, value_name = "REF", conflicts_with = "ids")]
    action: Option<ActionRef>,
    /// Those that have ended so, as in failed,timed_out.
    #[arg(
        long,
        value_name = "STATUS",
        value_delimiter = ',',
        required_unless_present = "ids",
        conflicts_with = "ids"
    )]
    status: Vec<Status>,
    /// Those of this user.
    #[arg(long, conflicts_with = "ids")]
    user: Option<String>,
    /// Those of this group.
    #[arg(long, conflicts_with = "ids")]
    group: Option<String>,
    /// Only count what would be run again.
    #[arg(long)]
    dry_run: bool,
    /// Names the request: repeating it within 24 hours gives the same new executions.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

pub(super) async fn execute(
    http: &Http,
    arguments: ResubmitArguments,
    json: bool,
) -> Result<Output, Failure> {
    if let Some(key) = &arguments.key
        && !key.chars().all(|c| c.is_ascii_graphic() || c == ' ')
    {
        return Err(Failure::usage("`--key` takes visible ASCII characters"));
    }
    let ids = match arguments.ids.is_empty() {
        false => arguments.ids,
        true => ended(http, &arguments).await?,
    };
    if arguments.dry_run {
        return Ok(if json {
            Output::json(&json!({"matched": ids.len(), "executions": ids}))
        } else {
            Output::text(format!("{} executions would be run again", ids.len()))
        });
    }
    let key = arguments.key;
    let key = key.unwrap_or_else(|| RequestId::fresh().to_string());
    Ok(resubmit(http, &ids, &key, json).await)
}

/// The executions that the options name, those that were accepted first first.
async fn ended(http: &Http, arguments: &ResubmitArguments) -> Result<Vec<ExecutionId>, Failure> {
    if let Some(status) = arguments.status.iter().find(|it| !it.is_terminal()) {
        let words = format!("`--status {status}`: only what has ended can be run again");
        return Err(Failure::usage(words));
    }
    let filter = ListArguments::all_of(
        arguments.action.clone(),
        arguments.status.clone(),
        arguments.user.clone(),
        arguments.group.clone(),
    );
    let mut ids = Vec::new();
    let take = |page: Vec<Execution>| {
        ids.extend(page.into_iter().map(|execution| execution.id));
        ids.len() as u64
    };
    executions::each_page(http, &filter, u64::MAX, false, take).await?;
    ids.reverse();
    Ok(ids)
}

/// One after the other, so that they stand in line as they are named.
async fn resubmit(http: &Http, ids: &[ExecutionId], key: &str, json: bool) -> Output {
    let (mut resubmitted, mut failed) = (Vec::<(ExecutionId, Submitted)>::new(), Vec::new());
    let (mut exit, mut is_unknown) = (Exit::Done, false);
    for id in ids {
        let request = http.request(Method::POST, &format!("/executions/{id}/resubmit"));
        let request = request.header(IDEMPOTENCY_KEY, format!("{key}.{id}"));
        match http.send_when_up::<Submitted>(request).await {
            Ok(submitted) => resubmitted.push((*id, submitted)),
            Err(error) => {
                is_unknown |= matches!(error, CallError::Unavailable(_) | CallError::Unknown(_));
                failed.push(format!("cannot run {id} again: {error}"));
                exit = exit.max(Failure::from(error).exit);
            }
        }
    }
    if is_unknown {
        failed.push(format!("to try all of it again safely, add --key {key}"));
    }
    let output = if json {
        let answers = resubmitted.iter().map(|(old, new)| {
            let mut answer = serde_json::to_value(new).unwrap_or_default();
            answer["requeue_of"] = json!(old);
            answer
        });
        Output::json(&json!({"resubmitted": answers.collect::<Vec<Value>>(), "failed": failed}))
    } else {
        let lines: Vec<String> = resubmitted.iter().map(line).collect();
        Output::text(lines.join("\n"))
    };
    output.with(exit, failed)
}

fn line((old, new): &(ExecutionId, Submitted)) -> String {
    let again = if new.repeated {
        " (accepted before)"
    } else {
        ""
    };
    format!(
        "execution {old} runs again as {}, which is {}{again}",
        new.id, new.status
    )
}
