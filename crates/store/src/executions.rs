//! Reading executions, and the upkeep of their history.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use attune_core::{
    ActionId, Attempt, ExecutionId, Priority, RequestId, Status, TraceParent, WorkerId,
};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::dead_letters::DeadLetterRetention;
use crate::error::StoreError;

/// Everything that is stored about an execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecutionRecord {
    /// Its id.
    pub id: ExecutionId,
    /// Its action.
    pub action_id: ActionId,
    /// The action's ref.
    pub action_ref: String,
    /// Where it stands.
    pub status: Status,
    /// Its priority.
    pub priority: Priority,
    /// How often it was granted a slot.
    pub attempt: Attempt,
    /// The number of its latest grant among the grants of its partition.
    pub grant_no: Option<i64>,
    /// The request that led to it.
    pub request_id: RequestId,
    /// The rule firing that asked for it.
    pub enforcement_id: Option<String>,
    /// The user for whom it runs.
    pub requested_by: Option<String>,
    /// The key to list it by.
    pub group: Option<String>,
    /// Marks that are shown with it.
    pub labels: BTreeMap<String, String>,
    /// What it is given.
    pub parameters: Value,
    /// It does not start before this time.
    pub not_before: Option<DateTime<Utc>>,
    /// Its own run timeout, in seconds.
    pub timeout_seconds: Option<u32>,
    /// Whether it shall be ended.
    pub cancel_requested: bool,
    /// Whom its attempt was granted to: who runs or ran it, if somebody did.
    pub worker: Option<WorkerId>,
    /// When it was accepted.
    pub created: DateTime<Utc>,
    /// When it was last given a slot.
    pub requested_at: Option<DateTime<Utc>>,
    /// When its attempt began to run: as soon as its worker has said so, which it does of one that runs
    /// for a while, or with its end.
    pub started_at: Option<DateTime<Utc>>,
    /// When its end was recorded.
    pub finished_at: Option<DateTime<Utc>>,
    /// What it returned.
    pub result: Option<Value>,
    /// Why it was not run to its end, where that has a name: [`EndCode::as_str`](attune_core::EndCode::as_str).
    pub end_code: Option<String>,
    /// Why it did not succeed.
    pub error: Option<String>,
    /// The exit code of its program.
    pub exit_code: Option<i32>,
    /// What its program wrote.
    pub stdout: Option<String>,
    /// What its program wrote to stderr.
    pub stderr: Option<String>,
    /// The ended execution that it runs again.
    pub requeue_of: Option<ExecutionId>,
    /// Why its last try ended that was followed by another.
    pub last_error: Option<String>,
    /// Of which trace it is a part; nothing where what is stored is none.
    pub trace: Option<TraceParent>,
}

/// Where an execution stands: what a command about it needs. It can be read where the rest of the
/// execution cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Where it stands.
    pub status: Status,
    /// How often it was granted a slot.
    pub attempt: Attempt,
    /// Whom its attempt was granted to: who runs or ran it, if somebody did.
    pub worker: Option<WorkerId>,
}

/// An execution that holds a slot, as people look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotHolder {
    /// Its id.
    pub id: ExecutionId,
    /// The attempt that holds the slot.
    pub attempt: Attempt,
    /// `Requested` or `Running`.
    pub status: Status,
    /// When the slot was granted.
    pub requested_at: Option<DateTime<Utc>>,
    /// How long ago that was.
    pub held_for: Duration,
    /// When it began to run, if its worker has said so.
    pub started_at: Option<DateTime<Utc>>,
    /// Whether it shall be ended.
    pub cancel_requested: bool,
    /// Whom the slot was granted to; nobody while it is kept for the next try.
    pub worker: Option<SlotWorker>,
}

/// The worker of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotWorker {
    /// Its id.
    pub id: WorkerId,
    /// Its name for people; absent when its lease row is gone, which happens a day after its end.
    pub name: Option<String>,
    /// The pool it serves, likewise.
    pub pool: Option<String>,
    /// How long ago it last renewed its lease, as far as is known.
    pub seen_ago: Option<Duration>,
    /// How long its lease still holds; zero when it has expired.
    pub remaining: Duration,
    /// How long ago its lease ended; zero while it holds. Without a lease row it counts as lost
    /// since the start, or since the grant where nothing is known of a start.
    pub lost_for: Duration,
}

/// The parts of an execution that can be long: up to a mebibyte each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bodies {
    /// What it is given.
    pub parameters: bool,
    /// What it returned.
    pub result: bool,
    /// What its program wrote.
    pub stdout: bool,
    /// What its program wrote to stderr.
    pub stderr: bool,
}

impl Bodies {
    /// All of them.
    pub const ALL: Self = Self {
        parameters: true,
        result: true,
        stdout: true,
        stderr: true,
    };

    /// None of them.
    pub const NONE: Self = Self {
        parameters: false,
        result: false,
        stdout: false,
        stderr: false,
    };
}

impl Default for Bodies {
    fn default() -> Self {
        Self::ALL
    }
}

/// Which executions to list, and how much of each; an empty filter is all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecutionFilter {
    /// Only those of these priorities; all when empty.
    pub priorities: Vec<Priority>,
    /// Only this action's.
    pub action_ref: Option<String>,
    /// Only those in one of these states; empty is all.
    pub statuses: Vec<Status>,
    /// Only this user's.
    pub requested_by: Option<String>,
    /// Only this group's.
    pub group: Option<String>,
    /// What is read of their long parts; the others are null.
    pub bodies: Bodies,
}

/// A place in the list: the newest come first, by (created, id).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// When the last execution of the page was accepted, to the microsecond.
    pub created: DateTime<Utc>,
    /// Its id.
    pub id: ExecutionId,
}

/// Part of a list.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ExecutionPage {
    /// The executions, the newest first.
    pub executions: Vec<ExecutionRecord>,
    /// Where the next page starts; `None` at the end.
    pub next: Option<Cursor>,
}

/// How long what has ended is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryRetention {
    /// Executions that have ended.
    pub history: Duration,
    /// Request ids, within which a repeated request gives the same execution. An adapter may keep
    /// them for up to a day longer, never shorter.
    pub requests: Duration,
    /// What is kept beside them.
    pub records: RecordRetention,
}

/// How long is kept what is written down about the work, and not the work itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordRetention {
    /// Entries of the audit log, and versions of policies that are not in force any more. An
    /// adapter may keep them longer, never shorter.
    pub audit: Duration,
    /// The history of the queues' snapshots.
    pub stats: Duration,
    /// Dead letters.
    pub letters: DeadLetterRetention,
}

impl RecordRetention {
    /// 400 days of audit log; 30 days of snapshots and of dead letters, of which 256 MiB.
    pub const USUAL: Self = Self {
        audit: days(400),
        stats: days(30),
        letters: DeadLetterRetention::USUAL,
    };
}

/// The labels of an execution, as they are stored. What somebody has changed by hand into something
/// else is shown as the JSON that it is: one row shall not hide a page of others.
pub fn stored_labels(json: &str) -> BTreeMap<String, String> {
    let of = |(key, value): (String, Value)| match value {
        Value::String(text) => (key, text),
        other => (key, other.to_string()),
    };
    match serde_json::from_str(json) {
        Ok(Value::Object(labels)) => labels.into_iter().map(of).collect(),
        Ok(Value::Null) => BTreeMap::new(),
        _ => BTreeMap::from([("unreadable".to_owned(), json.to_owned())]),
    }
}

const fn days(count: u64) -> Duration {
    Duration::from_secs(count * 24 * 3600)
}

/// What the API asks about executions, and what keeps their history small.
#[async_trait]
pub trait ExecutionStore: Send + Sync {
    /// The execution with this id.
    ///
    /// # Errors
    /// When the store fails.
    async fn find_execution(&self, id: ExecutionId) -> Result<Option<ExecutionRecord>, StoreError>;

    /// Where the execution with this id stands. Reads nothing that a client or a program wrote.
    ///
    /// # Errors
    /// When the store fails.
    async fn find_standing(&self, id: ExecutionId) -> Result<Option<Standing>, StoreError>;

    /// What the execution with this id was given, as JSON and as it was written: in
    /// [`ExecutionRecord::parameters`] a number may have lost digits.
    ///
    /// # Errors
    /// When the store fails.
    async fn find_parameters(&self, id: ExecutionId) -> Result<Option<String>, StoreError>;

    /// Up to `limit` executions, the newest first, after `after`.
    ///
    /// # Errors
    /// When the store fails.
    async fn list_executions(
        &self,
        filter: &ExecutionFilter,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<ExecutionPage, StoreError>;

    /// Up to `limit` executions of an action that hold a slot, by rising id, after `after`.
    ///
    /// # Errors
    /// When the store fails.
    async fn slot_holders(
        &self,
        action: ActionId,
        after: Option<ExecutionId>,
        limit: u32,
    ) -> Result<Vec<SlotHolder>, StoreError>;

    /// Makes room for the days to come and drops what is older than `keep`. Safe to run by
    /// several at once and as often as wanted. A step that fails does not keep the others from
    /// being taken.
    ///
    /// # Errors
    /// The first failure, after every step was tried.
    async fn maintain_history(&self, keep: HistoryRetention) -> Result<(), StoreError>;

    /// What there is that the upkeep looks after.
    ///
    /// # Errors
    /// When the store fails.
    async fn stock(&self) -> Result<Stock, StoreError>;
}

/// What there is that the upkeep looks after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stock {
    /// How many days after today have a table of the history; `None` where it is not kept by day.
    pub days_ahead: Option<u64>,
    /// Rows of the history and of the requests that no day has taken.
    pub of_no_day: u64,
    /// Dead letters that were not put back.
    pub letters: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_somebody_has_changed_are_shown_as_they_are() {
        let labels = |json| Vec::from_iter(stored_labels(json));
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(labels(r#"{"a":"b"}"#), [pair("a", "b")]);
        assert_eq!(labels("null"), []);
        assert_eq!(
            labels(r#"{"a":1,"b":{"c":[]}}"#),
            [pair("a", "1"), pair("b", r#"{"c":[]}"#)]
        );
        assert_eq!(labels("[7]"), [pair("unreadable", "[7]")]);
        assert_eq!(labels("{"), [pair("unreadable", "{")]);
    }
}
