//! `attune explain ID`.

use attune_api_types::{Execution, ExplainState, ExplainView};
use attune_core::explain::{Lack, Reason};
use attune_core::{ExecutionId, Status};
use chrono::{DateTime, SecondsFormat, Utc};
use clap::Args;

use super::http::Http;
use super::render::{Column, duration, one_line, or_dash, table};
use super::{Connect, EXIT_CODES, Failure, Output, pauses, waits};

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct ExplainArguments {
    #[command(flatten)]
    pub(super) connect: Connect,
    /// The execution's number, as `attune submit` and `attune executions list` print it.
    #[arg(value_name = "ID")]
    id: ExecutionId,
}

pub(super) async fn execute(http: &Http, arguments: ExplainArguments) -> Result<Output, Failure> {
    let path = format!("/executions/{}/explain", arguments.id);
    let view: ExplainView = http.get(&path, &[]).await?;
    if arguments.connect.json {
        return Ok(Output::json(&view));
    }
    // What its queue does not know: that it cannot be seen is no reason to say nothing.
    let path = format!("/executions/{}", arguments.id);
    let record: Option<Execution> = http.get(&path, &[]).await.ok();
    let (mut view, mut beside) = (view, Beside::default());
    if let Some(record) = record {
        match record.status {
            // Its queue has done its part: who works says more.
            Status::Requested if !waits::is_for_key(&view) => {
                view.waits = waits::remarks(http, &record)
                    .await
                    .waits
                    .unwrap_or(view.waits)
            }
            _ => beside.trouble = waits::troubles(http, &record).await,
        }
        (beside.error, beside.last_error) = (record.error, record.last_error);
    }
    Ok(Output::text(text(&view, beside)))
}

/// What its queue does not say of it.
#[derive(Debug, Default)]
struct Beside {
    /// Why it has ended.
    error: Option<String>,
    /// Why its last try has.
    last_error: Option<String>,
    /// What is wrong with who would run it, or does.
    trouble: Option<String>,
}

/// A line for each thing that is said, and a table for the holders of each limit.
fn text(view: &ExplainView, beside: Beside) -> String {
    let time = |at: DateTime<Utc>| at.to_rfc3339_opts(SecondsFormat::Millis, true);
    let about = if view.is_about { "about " } else { "" };
    let position = view.position.map(|before| match before {
        0 => "next in order".to_owned(),
        1 => format!("{about}1 stands before it"),
        many => format!("{about}{many} stand before it"),
    });
    let from_now = |at: DateTime<Utc>| format!("{}, {} from now", time(at), duration(at - view.at));
    let order = view.order_key.map(|order| {
        let key = match order.key {
            i64::MIN => "moved to the front".to_owned(),
            key => format!("key {key}"),
        };
        format!("{key}, sequence {}, priority {}", order.seq, view.priority)
    });
    let over = matches!(view.state, ExplainState::Ended);
    let lines = [
        ("execution", Some(view.id.to_string())),
        ("action", Some(view.action_ref.clone())),
        ("status", Some(view.status.to_string())),
        ("waits", Some(view.waits.clone())),
        ("error", beside.error),
        ("last error", beside.last_error),
        ("trouble", beside.trouble),
        ("held", pauses::of_queue(&view.pauses, 1).filter(|_| !over)),
        (
            "not before",
            view.next_time.filter(|at| *at > view.at).map(from_now),
        ),
        ("position", position),
        ("order", order),
        ("starts", view.starts.clone()),
        ("expires", view.expires_at.map(from_now)),
        ("limit of", view.limit_scope.clone()),
        (
            "policies",
            view.policy_version
                .map(|it| format!("version {it} of the set")),
        ),
        ("as of", Some(time(view.at))),
    ];
    let mut text = String::new();
    for (name, value) in lines {
        if let Some(value) = value {
            text.push_str(&format!("{name:12} {}\n", one_line(&value)));
        }
    }
    for reason in &view.waits_for {
        let (name, lack) = match reason {
            Reason::Limit(lack) => ("the slots of the action", lack),
            Reason::GroupLimit(lack) => ("the room of its group", lack),
            _ => continue,
        };
        if lack.holders.is_empty() {
            continue;
        }
        text.push_str(&format!(
            "\nwho holds {name}:\n{}\n",
            holders(lack, view.at)
        ));
    }
    text
}

fn holders(lack: &Lack, now: DateTime<Utc>) -> String {
    let is_kept = lack.holders.iter().any(|it| it.kept_until.is_some());
    let rows = lack.holders.iter().map(|holder| {
        let mut row = vec![
            holder.execution_id.to_string(),
            holder.attempt.to_string(),
            holder.cost.to_string(),
            or_dash(holder.since.map(|since| duration(now - since))),
        ];
        let next_try = |until| match until > now {
            true => format!("in {}", duration(until - now)),
            false => "now".to_owned(),
        };
        row.extend(is_kept.then(|| or_dash(holder.kept_until.map(next_try))));
        row
    });
    let mut columns = vec![
        Column::Figures("execution"),
        Column::Figures("attempt"),
        Column::Figures("takes"),
        Column::Figures("held for"),
    ];
    columns.extend(is_kept.then_some(Column::Figures("next try")));
    let more = match lack.more_holders {
        0 => String::new(),
        more => format!("\n(and {more} more)"),
    };
    format!("{}{more}", table(&columns, rows.collect()))
}

#[cfg(test)]
mod tests {
    use attune_core::explain::{LimitHolder, OrderKey};
    use attune_core::{Attempt, Priority, Seq};
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn what_is_said_stands_line_by_line_with_the_holders_below() {
        let at = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let lack = Lack {
            capacity: 2,
            used: 2,
            cost: 1,
            ahead: 1,
            holders: vec![LimitHolder {
                execution_id: ExecutionId(5),
                attempt: Attempt(1),
                cost: 1,
                since: Some(at - TimeDelta::seconds(3)),
                kept_until: Some(at + TimeDelta::seconds(4)),
            }],
            more_holders: 1,
            is_shared: false,
        };
        let view = ExplainView {
            id: ExecutionId(7),
            action_ref: "core.echo".to_owned(),
            status: Status::Queued,
            state: ExplainState::Waiting,
            attempt: Attempt(0),
            priority: Priority::Normal,
            at,
            waits: "for a slot".to_owned(),
            waits_for: vec![Reason::Limit(lack), Reason::NextRound],
            pauses: Vec::new(),
            next_time: None,
            expires_at: Some(at + TimeDelta::seconds(60)),
            position: Some(1),
            is_about: false,
            order_key: Some(OrderKey {
                key: 2,
                seq: Seq(9),
            }),
            starts: Some("in about 2.0s".to_owned()),
            estimate: None,
            no_estimate: None,
            policy_version: Some(3),
            limit_scope: Some("action".to_owned()),
        };
        let expected = "execution    7\n\
                        action       core.echo\n\
                        status       queued\n\
                        waits        for a slot\n\
                        trouble      no worker of its pool \"gpu\" is alive\n\
                        position     1 stands before it\n\
                        order        key 2, sequence 9, priority normal\n\
                        starts       in about 2.0s\n\
                        expires      2027-01-15T08:01:00.000Z, 1m 0s from now\n\
                        limit of     action\n\
                        policies     version 3 of the set\n\
                        as of        2027-01-15T08:00:00.000Z\n\n\
                        who holds the slots of the action:\n\
                        execution  attempt  takes  held for  next try\n        \
                        5        1      1      3.0s   in 4.0s\n\
                        (and 1 more)\n";
        let beside = Beside {
            trouble: Some("no worker of its pool \"gpu\" is alive".to_owned()),
            ..Beside::default()
        };
        assert_eq!(text(&view, beside), expected);
    }
}
