//! `attune queues`.

use attune_api_types::{HealthState, QueueList, QueueView};
use attune_core::{ActionRef, PauseMode};
use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};

use super::http::Http;
use super::render::{Column, duration, limit, millis, table};
use super::{Connect, EXIT_CODES, Failure, Output, holders, operations, pauses, queue_limit};

/// Figures of a moment less long ago, in milliseconds, are those of now: the time that the answer
/// itself takes.
const NOW_MS: u64 = 50;
/// What `as of` means.
const LAG: &str = "The figures are those of this moment where the server can ask the executor in \
its own process (`attune standalone`), else those that the executor told last: within a quarter of \
a second of a change (stats.publish_interval_ms), then once in a while; \
those of a queue that holds nothing only when it changes. The column `as of` says which.";

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES, after_long_help = format!("{LAG}\n\n{EXIT_CODES}"), args_conflicts_with_subcommands = true)]
pub struct QueuesArguments {
    #[command(flatten)]
    pub(super) connect: Connect,
    /// Only the queue of this action.
    #[arg(value_name = "REF")]
    action_ref: Option<ActionRef>,
    #[command(subcommand)]
    command: Option<QueuesCommand>,
}

/// How a command is written that takes queues: one of the three forms stands there, which the commands
/// see to themselves.
macro_rules! usage {
    ($command:literal) => {
        concat!(
            "attune queues ",
            $command,
            " [OPTIONS] <REF|--pack <PACK>|--all>"
        )
    };
}

#[derive(Debug, Clone, Subcommand)]
enum QueuesCommand {
    /// Who holds the slots of an action: which execution, on which worker, since when.
    #[command(after_help = EXIT_CODES)]
    Holders {
        /// The action's ref, as in core.echo.
        #[arg(value_name = "REF")]
        action_ref: ActionRef,
    },
    /// Holds queues: what comes is accepted, and nothing starts until they are resumed.
    #[command(override_usage = usage!("pause"))]
    Pause(pauses::PauseArguments),
    /// Holds queues and lets nothing in: what comes is refused; done when nothing runs.
    #[command(override_usage = usage!("drain"))]
    Drain(pauses::PauseArguments),
    /// Lets queues go on. What is also held with its pack or with all stays held.
    #[command(override_usage = usage!("resume"))]
    Resume(pauses::PauseArguments),
    /// Ends everything that waits in queues, delayed starts and retries too. What runs, or keeps its slot until
    /// its next try, goes on.
    #[command(override_usage = usage!("clear"))]
    Clear(operations::ClearArguments),
    /// Changes how many executions of an action may hold a slot at once.
    Limit(queue_limit::LimitArguments),
    /// Everything that is held: by whom, since when, why.
    #[command(after_help = EXIT_CODES)]
    Pauses,
}

pub(super) async fn execute(http: &Http, arguments: QueuesArguments) -> Result<Output, Failure> {
    let json = arguments.connect.json;
    match arguments.command {
        Some(QueuesCommand::Holders { action_ref }) => {
            return holders::list(http, &action_ref, json).await;
        }
        Some(QueuesCommand::Pause(of)) => {
            return pauses::change(http, of, Some(PauseMode::Pause), json).await;
        }
        Some(QueuesCommand::Drain(of)) => {
            return pauses::change(http, of, Some(PauseMode::Drain), json).await;
        }
        Some(QueuesCommand::Resume(of)) => return pauses::change(http, of, None, json).await,
        Some(QueuesCommand::Clear(of)) => return operations::clear(http, of, json).await,
        Some(QueuesCommand::Limit(of)) => return queue_limit::set_limit(http, of, json).await,
        Some(QueuesCommand::Pauses) => return pauses::list(http, json).await,
        None => {}
    }
    let now = Utc::now();
    if let Some(action_ref) = arguments.action_ref {
        let view: QueueView = http
            .get(&format!("/actions/{action_ref}/queue-stats"), &[])
            .await?;
        return Ok(if json {
            Output::json(&view)
        } else {
            Output::text(format!(
                "{}\n\n{}",
                queue_table(std::slice::from_ref(&view), now),
                ended(&view)
            ))
        });
    }
    let list: QueueList = http.get("/queue-stats", &[]).await?;
    if json {
        return Ok(Output::json(&list));
    }
    let mut text = queue_table(&list.queues, now);
    let left = list.total.saturating_sub(list.queues.len() as u64);
    if left > 0 {
        text.push_str(&format!("\n({left} shorter queues are not shown)"));
    }
    Ok(Output::text(text))
}

/// Of one queue [`ended`] says more.
const COLUMNS: [Column; 7] = [
    Column::Text("action"),
    Column::Figures("waiting"),
    Column::Figures("active"),
    Column::Figures("limit"),
    Column::Figures("oldest"),
    Column::Figures("as of"),
    Column::Text("health"),
];

fn queue_table(queues: &[QueueView], now: DateTime<Utc>) -> String {
    let rows = queues.iter().map(|queue| {
        let oldest = queue.oldest_enqueued_at.map(|at| duration(now - at));
        vec![
            queue.action_ref.clone(),
            queue.queue_length.to_string(),
            queue.active_count.to_string(),
            limit(queue.max_concurrent),
            oldest.unwrap_or_else(|| "-".to_owned()),
            queue.age_ms.map_or_else(|| "-".to_owned(), as_of),
            health(queue),
        ]
    });
    table(&COLUMNS, rows.collect())
}

/// How much was ever enqueued, and how it has ended.
fn ended(queue: &QueueView) -> String {
    format!(
        "enqueued: {} in all\nended:    {} completed (succeeded, failed, timed out or abandoned),\n          {} \
         cancelled, {} expired (waited too long)",
        queue.total_enqueued, queue.total_completed, queue.total_cancelled, queue.total_expired
    )
}

/// Which moment the figures describe.
fn as_of(age_ms: u64) -> String {
    if age_ms < NOW_MS {
        "now".to_owned()
    } else {
        format!("{} ago", millis(age_ms))
    }
}

fn health(queue: &QueueView) -> String {
    let held = pauses::of_queue(&queue.pauses, queue.active_count);
    match (held, verdict(queue)) {
        (Some(held), verdict) if verdict == "healthy" => held,
        (Some(held), verdict) => format!("{held}; {verdict}"),
        (None, verdict) => verdict,
    }
}

fn verdict(queue: &QueueView) -> String {
    let state = match queue.health.state {
        HealthState::Healthy => return "healthy".to_owned(),
        HealthState::Degraded => "degraded",
        HealthState::Unhealthy => "unhealthy",
    };
    format!("{state}: {}", queue.health.reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use super::super::tests::queue;
    use super::*;

    #[test]
    fn a_queue_is_a_row_with_its_verdict() {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let mut queue = queue(12, 2, None);
        (queue.total_expired, queue.total_cancelled) = (3, 1);
        let text = queue_table(std::slice::from_ref(&queue), now);
        let row = text.lines().nth(1).unwrap();
        let cells: Vec<&str> = row
            .split("  ")
            .map(str::trim)
            .filter(|it| !it.is_empty())
            .collect();
        assert_eq!(
            cells,
            [
                "core.echo",
                "12",
                "2",
                "unlimited",
                "1m 5s",
                "1.2s ago",
                "degraded: a tenth full or more: 12 of 100"
            ]
        );
        let width = row.find("degraded").unwrap() + "healthy".len();
        assert!(width <= 80, "{width} columns while it is well");
        assert_eq!(
            ended(&queue),
            "enqueued: 20 in all\n\
             ended:    6 completed (succeeded, failed, timed out or abandoned),\n          \
             1 cancelled, 3 expired (waited too long)"
        );
    }
}
