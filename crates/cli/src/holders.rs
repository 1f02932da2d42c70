//! `attune queues holders` and `attune executions release`.

use attune_api_types::{Holder, HolderList, HolderWorker, ReleaseRequest, Released};
use attune_core::{ActionRef, Attempt, ExecutionId, Status};
use clap::Args;
use reqwest::Method;

use super::http::{CallError, Http};
use super::render::{Column, limit, millis, or_dash, table};
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
    let held = format!(
        "{} of {} slots are held",
        list.holders.len(),
        limit(list.limit)
    );
    Ok(Output::text(if list.holders.is_empty() {
        held
    } else {
        format!("{}\n\n{held}", holder_table(&list.holders))
    }))
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
            or_dash(worker.map(|worker| worker.id)),
        ]
    });
    let columns = [
        Column::Figures("execution"),
        Column::Figures("attempt"),
        Column::Words("status"),
        Column::Figures("held for"),
        Column::Words("worker"),
        Column::Figures("seen ago"),
        Column::Words("lease"),
        Column::Words("worker id"),
    ];
    table(&columns, rows.collect())
}

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
            cells.take(7).collect::<Vec<_>>()
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
        holder.worker = None;
        assert_eq!(cells(&holder)[4..], ["-", "-", "-"]);
    }
}
