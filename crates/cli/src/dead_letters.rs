//! `attune dead-letters list | show | requeue`.

use attune_api_types::{DeadLetter, DeadLetterList, RequeueRequest, Requeued, RequeuedExecution};
use chrono::{DateTime, SecondsFormat, Utc};
use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::json;

use super::http::Http;
use super::render::{Column, duration, one_line, or_dash, table};
use super::{Connect, EXIT_CODES, Exit, Failure, NOBODY, Output};

/// How many letters are asked for at once: what every server allows unless its operator says
/// otherwise.
const PAGE: usize = 100;

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct DeadLettersArguments {
    #[command(flatten)]
    pub(super) connect: Connect,
    #[command(subcommand)]
    command: DeadLettersCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum DeadLettersCommand {
    /// List messages that nobody could use; those that came last stand first.
    #[command(after_help = EXIT_CODES)]
    List(ListArguments),
    /// Show everything about one, with what is kept of the message.
    #[command(after_help = EXIT_CODES)]
    Show {
        /// The letter's number, as `attune dead-letters list` prints it.
        #[arg(value_name = "ID")]
        id: i64,
    },
    /// Put messages back where they came from, once their cause is mended. What an executor told a
    /// worker cannot be put back.
    #[command(after_help = EXIT_CODES)]
    Requeue(RequeueArguments),
}

#[derive(Debug, Clone, Args)]
struct ListArguments {
    /// Only those that came from there, as in enforcement.created.
    #[arg(long, value_name = "TOPIC")]
    source: Option<String>,
    /// Only those with exactly this reason.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Only those that were put back (true), or only those that were not (false).
    #[arg(long, value_name = "BOOL")]
    requeued: Option<bool>,
    /// How many to list.
    #[arg(long, default_value_t = 50)]
    limit: usize,
}

#[derive(Debug, Clone, Args)]
struct RequeueArguments {
    /// The letters' numbers, as `attune dead-letters list` prints them.
    #[arg(value_name = "ID", required = true)]
    ids: Vec<i64>,
    /// Why, for the audit log.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Who does it, for the audit log.
    #[arg(long, env = "USER", value_name = "NAME", default_value = NOBODY)]
    who: String,
    /// Only if the letter has come so often, as the list and `show` print it: not when it has come
    /// again since, with perhaps another body. With one ID.
    #[arg(long, value_name = "N")]
    arrivals: Option<u64>,
}

pub(super) async fn execute(
    http: &Http,
    arguments: DeadLettersArguments,
) -> Result<Output, Failure> {
    let json = arguments.connect.json;
    match arguments.command {
        DeadLettersCommand::List(filter) => list(http, &filter, json).await,
        DeadLettersCommand::Show { id } => {
            let letter: DeadLetter = http.get(&format!("/dead-letters/{id}"), &[]).await?;
            Ok(if json {
                Output::json(&letter)
            } else {
                Output::text(details(&letter))
            })
        }
        DeadLettersCommand::Requeue(arguments) => requeue(http, arguments, json).await,
    }
}

async fn list(http: &Http, filter: &ListArguments, json: bool) -> Result<Output, Failure> {
    let (mut found, mut before) = (Vec::new(), None);
    loop {
        let missing = filter.limit - found.len();
        if missing == 0 {
            break;
        }
        let query = [
            ("source", filter.source.clone()),
            ("reason", filter.reason.clone()),
            ("requeued", filter.requeued.map(|it| it.to_string())),
            ("limit", Some(missing.min(PAGE).to_string())),
            ("before", before.map(|id: i64| id.to_string())),
        ];
        let page: DeadLetterList = http.get("/dead-letters", &query).await?;
        found.extend(page.dead_letters);
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    if json {
        return Ok(Output::json(
            &json!({"dead_letters": found, "next": before}),
        ));
    }
    let more = match before {
        Some(_) => "\n(there are more: --limit N)",
        None => "",
    };
    Ok(Output::text(format!(
        "{}{more}",
        list_table(&found, Utc::now())
    )))
}

fn list_table(letters: &[DeadLetter], now: DateTime<Utc>) -> String {
    let rows = letters.iter().map(|letter| {
        let back = letter.requeued_at.map(|at| duration(now - at) + " ago");
        vec![
            letter.id.to_string(),
            duration(now - letter.received_at),
            letter.source.clone(),
            letter.bytes.to_string(),
            letter.arrivals.to_string(),
            or_dash(back),
            letter.reason.clone(),
        ]
    });
    let columns = [
        Column::Figures("id"),
        Column::Figures("age"),
        Column::Words("source"),
        Column::Figures("bytes"),
        Column::Figures("arrivals"),
        Column::Words("put back"),
        Column::Text("reason"),
    ];
    table(&columns, rows.collect())
}

/// One letter, a line for each thing that is known about it, the message at the end.
fn details(letter: &DeadLetter) -> String {
    let time = |at: DateTime<Utc>| at.to_rfc3339_opts(SecondsFormat::Millis, true);
    let kept = if letter.truncated {
        " (only the beginning is kept)"
    } else {
        ""
    };
    let back = letter.requeued_at.map(|at| {
        let who = letter.requeued_by.as_deref().unwrap_or("-");
        format!("{} by {}", time(at), one_line(who))
    });
    format!(
        "{:12} {}\n{:12} {}\n{:12} {}\n{:12} {}\n{:12} {}\n{:12} {}{kept}\n{:12} {}\n{:12} {}\n{:12} {}\n\n\
         message:\n{}",
        "id",
        letter.id,
        "message id",
        letter.message_id,
        "source",
        one_line(&letter.source),
        "sender",
        or_dash(letter.sender.as_deref().map(one_line)),
        "reason",
        one_line(&letter.reason),
        "bytes",
        letter.bytes,
        "arrivals",
        letter.arrivals,
        "received",
        time(letter.received_at),
        "put back",
        or_dash(back),
        letter.body.as_deref().unwrap_or_default(),
    )
}

async fn requeue(http: &Http, arguments: RequeueArguments, json: bool) -> Result<Output, Failure> {
    if arguments.arrivals.is_some() && arguments.ids.len() > 1 {
        let words = "--arrivals says how often one letter has come: name one ID, or leave it out";
        return Err(Failure::usage(words));
    }
    let body = RequeueRequest {
        reason: arguments.reason,
        who: Some(super::who(&arguments.who).to_owned()),
        arrivals: arguments.arrivals,
    };
    let (mut done, mut failed, mut exit) = (Vec::new(), Vec::new(), Exit::Done);
    for id in arguments.ids {
        let path = format!("/dead-letters/{id}/requeue");
        let request = http.request(Method::POST, &path).json(&body);
        match http.send::<Requeued>(request).await {
            Ok(requeued) => done.push(requeued),
            Err(error) => {
                failed.push(format!("cannot put {id} back: {error}"));
                exit = exit.max(Failure::from(error).exit);
            }
        }
    }
    let output = if json {
        Output::json(&json!({"requeued": done, "failed": failed}))
    } else {
        let lines: Vec<String> = done.iter().flat_map(lines).collect();
        Output::text(lines.join("\n"))
    };
    Ok(output.with(exit, failed))
}

fn lines(requeued: &Requeued) -> Vec<String> {
    let mut lines = vec![format!("dead letter {} is put back", requeued.id)];
    lines.extend(requeued.executions.iter().map(line));
    lines
}

fn line(execution: &RequeuedExecution) -> String {
    let old = execution.requeue_of;
    match (execution.id, execution.status) {
        (Some(new), _) => format!("  execution {new} runs {old} again"),
        (None, Some(status)) => format!("  execution {old} is {status}: nothing was to be done"),
        (None, None) => format!("  execution {old} is not kept any more"),
    }
}

#[cfg(test)]
mod tests {
    use attune_core::{ExecutionId, Status};
    use uuid::Uuid;

    use super::*;

    fn letter() -> DeadLetter {
        DeadLetter {
            id: 7,
            message_id: Uuid::nil(),
            reason: "there is no action `a.b`".to_owned(),
            source: "enforcement.created".to_owned(),
            bytes: 5000,
            truncated: true,
            arrivals: 2,
            received_at: DateTime::UNIX_EPOCH,
            requeued_at: None,
            requeued_by: None,
            sender: Some("client-shop".to_owned()),
            body: Some("{}".to_owned()),
        }
    }

    #[test]
    fn a_letter_is_a_row_and_a_page() {
        let now = DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(60);
        let mut letter = letter();
        let text = list_table(std::slice::from_ref(&letter), now);
        let row = text.lines().nth(1).unwrap();
        for cell in ["7", "1m", "enforcement.created", "5000", "-", "no action"] {
            assert!(row.contains(cell), "{cell}: {row}");
        }
        let text = details(&letter);
        assert!(text.contains("5000 (only the beginning is kept)"), "{text}");
        assert!(text.contains("sender       client-shop\n"), "{text}");
        assert!(text.ends_with("\nmessage:\n{}"), "{text}");
        letter.requeued_at = Some(now);
        letter.requeued_by = Some("ann".to_owned());
        letter.reason = "no\nput back     1970 by root".to_owned();
        let text = details(&letter);
        assert!(text.contains("1970-01-01T00:01:00.000Z by ann"), "{text}");
        // A sender has no say in what stands on a line of ours.
        assert!(text.contains("no put back     1970 by root\n"), "{text}");
    }

    #[test]
    fn what_was_put_back_says_what_became_of_it() {
        let of = |id: Option<i64>, status| RequeuedExecution {
            requeue_of: ExecutionId(256),
            id: id.map(ExecutionId),
            status,
        };
        let requeued = Requeued {
            id: 7,
            published: false,
            executions: vec![
                of(Some(512), Some(Status::Queued)),
                of(None, Some(Status::Running)),
                of(None, None),
            ],
        };
        let expected = [
            "dead letter 7 is put back",
            "  execution 512 runs 256 again",
            "  execution 256 is running: nothing was to be done",
            "  execution 256 is not kept any more",
        ];
        assert_eq!(lines(&requeued), expected);
    }
}
