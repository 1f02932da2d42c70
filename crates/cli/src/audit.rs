//! `attune audit list | check`.

use attune_api_types::{AuditCheck, AuditEntry, AuditList};
use chrono::{SecondsFormat, Utc};
use clap::{Args, Subcommand};
use serde_json::json;

use super::http::Http;
use super::render::{Column, one_line, or_dash, table};
use super::{Connect, EXIT_CODES, Exit, Failure, Output};

/// How many entries are asked for at once: what every server allows unless its operator says otherwise.
const PAGE: usize = 100;

const VERIFY_EXIT_CODES: &str = "Exit codes:
  0  all entries are as they were written
  1  one was changed or is missing, or the hash that was noted is no part of the chain
  2  wrong usage, or the server refused
  3  no server, or it cannot be done now";

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct AuditArguments {
    #[command(flatten)]
    pub(super) connect: Connect,
    #[command(subcommand)]
    command: AuditCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum AuditCommand {
    /// List what was done by hand and what was found wrong; the newest stand first.
    #[command(after_help = EXIT_CODES)]
    List {
        /// Only what was done by this one.
        #[arg(long, value_name = "NAME")]
        who: Option<String>,
        /// Only what begins with this, as in key. or execution.cancel.
        #[arg(long, value_name = "TEXT")]
        what: Option<String>,
        /// How many to list.
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
    /// Look whether every entry is as it was written and none is missing.
    #[command(after_help = VERIFY_EXIT_CODES)]
    Verify {
        /// A hash that an earlier look has printed: it must be part of the chain still.
        #[arg(long, value_name = "HASH")]
        noted: Option<String>,
    },
}

pub(super) async fn execute(http: &Http, arguments: AuditArguments) -> Result<Output, Failure> {
    let json = arguments.connect.json;
    match arguments.command {
        AuditCommand::List { who, what, limit } => {
            let is_meant = |entry: &AuditEntry| {
                let is_who = who.as_ref().is_none_or(|who| *who == entry.who);
                is_who
                    && what
                        .as_ref()
                        .is_none_or(|what| entry.what.starts_with(what.as_str()))
            };
            list(http, is_meant, limit, json).await
        }
        AuditCommand::Verify { noted } => verify(http, noted, json).await,
    }
}

async fn list(
    http: &Http,
    is_meant: impl Fn(&AuditEntry) -> bool,
    limit: usize,
    json: bool,
) -> Result<Output, Failure> {
    let (mut found, mut before) = (Vec::new(), None);
    loop {
        let query = [
            ("limit", Some(PAGE.to_string())),
            ("before", before.map(|id: i64| id.to_string())),
        ];
        let page: AuditList = http.get("/audit-log", &query).await?;
        found.extend(page.entries.into_iter().filter(&is_meant));
        before = page.next;
        if before.is_none() || found.len() >= limit {
            break;
        }
    }
    let more = before.is_some() || found.len() > limit;
    found.truncate(limit);
    if json {
        return Ok(Output::json(&json!({"entries": found})));
    }
    let text = entry_table(&found);
    Ok(Output::text(match more {
        true => format!("{text}\n(there are more: --limit N)"),
        false => text,
    }))
}

fn entry_table(entries: &[AuditEntry]) -> String {
    table(&COLUMNS, rows(entries))
}

fn rows(entries: &[AuditEntry]) -> Vec<Vec<String>> {
    let rows = entries.iter().map(|entry| {
        vec![
            entry
                .at
                .with_timezone(&Utc)
                .to_rfc3339_opts(SecondsFormat::Secs, true),
            entry.who.clone(),
            format!("{} {}", entry.what, entry.target),
            from(entry),
            or_dash(entry.reason.as_deref().map(one_line)),
        ]
    });
    rows.collect()
}

const COLUMNS: [Column; 5] = [
    Column::Words("at"),
    Column::Text("who"),
    Column::Text("what"),
    Column::Text("from"),
    Column::Text("reason"),
];

/// Where it came from: the address, else the way. `--json` has both, and the key.
fn from(entry: &AuditEntry) -> String {
    or_dash(entry.source_ip.as_ref().or(entry.via.as_ref()))
}

async fn verify(http: &Http, noted: Option<String>, json: bool) -> Result<Output, Failure> {
    let check: AuditCheck = http.get("/audit-log/check", &[("noted", noted)]).await?;
    let exit = match check.whole {
        true => Exit::Done,
        false => Exit::NotSucceeded,
    };
    if json {
        return Ok(Output::json(&check).with(exit, Vec::new()));
    }
    let place = check
        .broken_at
        .map_or(String::new(), |no| format!("at link {no}: "));
    let problem = check
        .problem
        .map(|words| format!("the audit log is not what was written: {place}{words}"));
    if let Some(problem) = problem {
        // No hash of it is worth noting.
        return Ok(Output::text(String::new()).with(exit, vec![problem]));
    }
    let head = match (check.head, check.head_hash) {
        (Some(no), Some(hash)) => {
            format!("; note elsewhere the hash of the last link, {no}:\n{hash}")
        }
        _ => String::new(),
    };
    let text = format!("{} entries are as they were written{head}", check.entries);
    Ok(Output::text(text).with(exit, Vec::new()))
}

#[cfg(test)]
mod tests {
    use super::super::render::within;
    use super::*;

    #[test]
    fn usual_entries_fit_into_a_terminal_and_lose_nothing() {
        let entry = |what: &str, target: &str, reason: Option<&str>| {
            let entry = json!({
                "id": 1, "at": "2026-12-01T04:15:11Z", "who": "olga", "what": what, "target": target,
                "reason": reason, "before": null, "after": null,
                "request_id": "0198c1f0-5a00-7000-8000-000000000001", "via": "http", "source_ip": "192.168.100.200", "key_id": "gq77dntrhe1q",
            });
            serde_json::from_value::<AuditEntry>(entry).unwrap()
        };
        let reason = "the mail server is being moved to another machine until noon";
        let entries = [
            entry("queues.pause", "action shop.send-mail", Some(reason)),
            entry("key.create", "n5g50nnd112b", None),
        ];
        let text = within(Some(80), &COLUMNS, rows(&entries));
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        for word in
            "olga queues.pause action shop.send-mail key.create n5g50nnd112b 192.168.100.200"
                .split(' ')
                .chain(reason.split(' '))
        {
            assert!(text.contains(word), "{word}: {text}");
        }
        // In a pipe an entry is a line.
        assert_eq!(entry_table(&entries).lines().count(), 3);
    }
}
