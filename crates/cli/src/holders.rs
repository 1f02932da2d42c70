//! `attune queues holders` and `attune executions release`.

use attune_api_types::{Holder, HolderList, HolderWorker, ReleaseRequest, Released};
use attune_core::{ActionRef, Attempt, ExecutionId, Status};
use clap::Args;
use reqwest::Method;

use super::http::{CallError, Http};
use super::render::{Column, millis, or_dash, table};
use super::{EXIT_CODES, Failure, NOBODY, Output};

/// All holders of an action's slots, page after page.
pub(super) async fn all(http: &Http, action_ref: &str) -> Result<HolderList, CallError> {
    let path = format!("/actions/{action_ref}/holders");
    let mut list: HolderList = http.get(&path, &[]).await?;
    while let Some(next) = list.next {
        let page: HolderList = http
            .get(&path, &[("after", Some(next.to_string()))])
            .await?;
        list.holders.extend(page.holders);
        list.next = page.next;
    }
    Ok(list)
}

/// Prints them.
pub(super) async fn list(
    http: &Http,
    action_ref: &ActionRef,
    json: bool,
) -> Result<Output, Failure> {
    let list = all(http, action_ref.as_str()).await?;
    if json {
        return Ok(Output::json(&list));
    }
    let held = held(list.holders.len(), list.limit);
    Ok(Output::text(if list.holders.is_empty() {
        held
    } else {
        format!("{}\n\n{held}", holder_table(&list.holders))
    }))
}

/// How many slots are held, of how many.
fn held(count: usize, limit: Option<u32>) -> String {
    match (count, limit) {
        (count, Some(limit)) => format!("{count} of {limit} slots are held"),
        (1, None) => "1 slot is held; the action has no limit".to_owned(),
        (count, None) => format!("{count} slots are held; the action has no limit"),
    }
}

fn holder_table(holders: &[Holder]) -> String {
    let rows = holders.iter().map(|holder| {
        let worker = holder.worker.as_ref();
        let status = if holder.cancel_requested {
            format!("{} (cancelling)", holder.status)
        } else {
            holder.status.to_string()
        };
        vec![
            holder.execution_id.to_string(),
            holder.attempt.to_string(),
            status,
            millis(holder.held_ms),
            worker.map_or_else(|| "-".to_owned(), name),
            or_dash(worker.and_then(|worker| worker.seen_ago_ms).map(millis)),
            worker.map_or_else(|| "-".to_owned(), lease),
        ]
    });
    table(&COLUMNS, rows.collect())
}

const COLUMNS: [Column; 7] = [
    Column::Figures("execution"),
    Column::Figures("attempt"),
    Column::Text("status"),
    Column::Figures("held for"),
    Column::Text("worker"),
    Column::Figures("seen ago"),
    Column::Words("lease"),
];

fn name(worker: &HolderWorker) -> String {
    worker
        .name
        .clone()
        .unwrap_or_else(|| "(forgotten)".to_owned())
}

fn lease(worker: &HolderWorker) -> String {
    if worker.lease_remaining_ms > 0 {
        format!("{} left", millis(worker.lease_remaining_ms))
    } else {
        format!("lost {} ago", millis(worker.lost_for_ms))
    }
}

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct ReleaseArguments {
    /// The execution's number, as `attune queues holders` prints it.
    #[arg(value_name = "ID")]
    id: ExecutionId,
    /// Why, for the audit log; it becomes the `error` of an execution that ends by this, and the
    /// `last_error` of one that waits again.
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Only if this attempt holds the slot.
    #[arg(long, value_name = "N")]
    attempt: Option<i32>,
    /// Who does it, for the audit log.
    #[arg(long, env = "USER", value_name = "NAME", default_value = NOBODY)]
    who: String,
}

/// Takes a slot back by force.
pub(super) async fn release(
    http: &Http,
    arguments: ReleaseArguments,
    json: bool,
) -> Result<Output, Failure> {
    let body = ReleaseRequest {
        reason: arguments.reason,
        attempt: arguments.attempt.map(Attempt),
        who: Some(super::who(&arguments.who).to_owned()),
    };
    let path = format!("/executions/{}/release", arguments.id);
    let request = http.request(Method::POST, &path).json(&body);
    let released: Released = http.send(request).await?;
    if json {
        return Ok(Output::json(&released));
    }
    let (id, attempt) = (released.id, released.attempt);
    let then = match released.status {
        Status::Queued => "it waits at its old place".to_owned(),
        status => format!("it is {status}"),
    };
    Ok(Output::text(format!(
        "attempt {attempt} of execution {id} holds no slot any more; {then}"
    )))
}

#[cfg(test)]
mod tests {
    use attune_core::WorkerId;

    use super::*;

    #[test]
    fn a_holder_is_a_row_with_its_worker() {
        let mut holder = Holder {
            execution_id: ExecutionId(7),
            attempt: Attempt(2),
            status: Status::Running,
            requested_at: None,
            held_ms: 65_000,
            started_at: None,
            cancel_requested: true,
            worker: Some(HolderWorker {
                id: WorkerId::fresh(),
                name: Some("w-1".to_owned()),
                pool: Some("default".to_owned()),
                seen_ago_ms: Some(1200),
                lease_remaining_ms: 0,
                lost_for_ms: 300,
            }),
        };
        let cells = |holder: &Holder| {
            let text = holder_table(std::slice::from_ref(holder));
            let row = text.lines().nth(1).unwrap().to_owned();
            let cells = row.split("  ").map(str::trim);
            let cells = cells.filter(|it| !it.is_empty()).map(str::to_owned);
            cells.collect::<Vec<_>>()
        };
        let expected = [
            "7",
            "2",
            "running (cancelling)",
            "1m 5s",
            "w-1",
            "1.2s",
            "lost 300ms ago",
        ];
        assert_eq!(cells(&holder), expected);
        holder.execution_id = ExecutionId(1_099_511_627_783);
        holder.cancel_requested = false;
        let usual = holder_table(std::slice::from_ref(&holder));
        assert!(usual.lines().all(|line| line.len() <= 80), "{usual}");
        holder.worker = None;
        assert_eq!(cells(&holder)[4..], ["-", "-", "-"]);
    }

    #[test]
    fn how_many_are_held_reads_well_with_a_limit_and_without() {
        assert_eq!(held(1, Some(2)), "1 of 2 slots are held");
        assert_eq!(held(1, None), "1 slot is held; the action has no limit");
        assert_eq!(held(0, None), "0 slots are held; the action has no limit");
    }
}
