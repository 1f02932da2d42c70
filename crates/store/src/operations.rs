//! Bulk operations: asked for here, carried out by the owners of partitions, a page at a time, in the
//! commits that say how far they are.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use attune_core::{
    ExecutionId, Operation, OperationFilter, OperationId, OperationKind, OperationProgress,
    PartOfOperation, PartitionId, Priority, RequestId, Seq,
};
use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::actor::Actor;
use crate::audit::{NewAudit, What};
use crate::error::StoreError;

/// How many operations may be open at once, over all partitions. Every owner reads those that are open and
/// carries them out one after the other, so more of them would only wait longer, and make everybody read
/// more; a system that carries them out has a handful.
pub const MAX_OPEN_OPERATIONS: u32 = 1_000;

/// What an operator asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewOperation {
    /// Names the request: a second one of the same is the same operation.
    pub request_id: RequestId,
    /// What is to be done.
    pub kind: OperationKind,
    /// To which executions.
    pub filter: OperationFilter,
    /// Who asks.
    pub who: Actor,
    /// Why.
    pub reason: Option<String>,
    /// Where there can be such executions.
    pub partitions: Vec<PartitionId>,
}

impl NewOperation {
    /// The entry of the audit log, written in the transaction that stores it as `id`.
    pub fn audit(&self, id: OperationId) -> NewAudit {
        NewAudit {
            request_id: self.request_id,
            who: self.who.clone(),
            what: What::Operation,
            target: format!("operation {id}"),
            reason: self.reason.clone(),
            before: None,
            after: Some(json!({"what": self.kind, "filter": self.filter})),
        }
    }
}

/// An operation, and how far it is in all of its partitions together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationRecord {
    /// Which one.
    pub id: OperationId,
    /// Names the request.
    pub request_id: RequestId,
    /// What it does, and to which executions; or in words what is stored, where this program does not know
    /// it: it is of a later release, or written by hand.
    pub what: Result<(OperationKind, OperationFilter), String>,
    /// Who asked.
    pub who: String,
    /// Why.
    pub reason: Option<String>,
    /// When.
    pub created: DateTime<Utc>,
    /// In how many partitions there can be such executions.
    pub partitions: u32,
    /// In how many of them it is over.
    pub finished: u32,
    /// How many executions it was about were found so far.
    pub matched: u64,
    /// To how many of these it was done.
    pub done: u64,
    /// How many of these waited no longer, or were so already.
    pub skipped: u64,
}

impl OperationRecord {
    /// Whether it is over everywhere.
    pub fn is_finished(&self) -> bool {
        self.finished == self.partitions
    }
}

/// What of an execution operations go by, and only its submission says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionLabels {
    /// Which execution.
    pub id: ExecutionId,
    /// The user for whom it runs.
    pub requested_by: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// What is active, in figures of one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Depth {
    /// How many executions wait, by priority; none where nobody does.
    pub waiting: Vec<(Priority, u64)>,
    /// How many hold a slot.
    pub active: u64,
}

/// What operators ask; owners read what is open through
/// [`PartitionStore::open_operations`](crate::PartitionStore::open_operations).
#[async_trait]
pub trait OperationStore: Send + Sync {
    /// Stores an operation with an entry of the audit log, in one transaction. Where one of the same
    /// request is stored, nothing is written, and that one is returned. `None`, and nothing is written, where
    /// [`MAX_OPEN_OPERATIONS`] are open; those that begin at the same time may be a few more.
    ///
    /// # Errors
    /// When the store fails.
    async fn begin_operation(
        &self,
        new: &NewOperation,
    ) -> Result<Option<OperationRecord>, StoreError>;

    /// One operation.
    ///
    /// # Errors
    /// When the store fails.
    async fn find_operation(&self, id: OperationId) -> Result<Option<OperationRecord>, StoreError>;

    /// Up to `limit` operations, the newest first, before the one with the id `before`.
    ///
    /// # Errors
    /// When the store fails.
    async fn list_operations(
        &self,
        before: Option<OperationId>,
        limit: u32,
    ) -> Result<Vec<OperationRecord>, StoreError>;

    /// How many executions an operation would be about that began now. Each that waits is read, and
    /// where labels count, they are.
    ///
    /// # Errors
    /// When the store fails.
    async fn count_meant(
        &self,
        kind: OperationKind,
        filter: &OperationFilter,
    ) -> Result<u64, StoreError>;

    /// How many executions wait and hold slots, over all actions. Reads each of them.
    ///
    /// # Errors
    /// When the store fails.
    async fn depth(&self) -> Result<Depth, StoreError>;
}

/// An operation's kind as it is stored: its name, and what else it needs.
pub fn stored_kind(kind: OperationKind) -> (&'static str, Value) {
    let mut args = serde_json::to_value(kind).unwrap_or_default();
    if let Value::Object(args) = &mut args {
        args.remove("kind");
    }
    (kind.name(), args)
}

/// A row of operations or of their parts, as an adapter reads its columns.
pub trait OperationRow {
    /// Why something cannot be read.
    type Error;

    /// A column of text.
    ///
    /// # Errors
    /// When it is none.
    fn text(&self, column: &str) -> Result<Option<&str>, Self::Error>;

    /// A column of whole numbers.
    ///
    /// # Errors
    /// When it is none.
    fn number(&self, column: &str) -> Result<Option<i64>, Self::Error>;

    /// Names the request.
    ///
    /// # Errors
    /// When it is not stored as the adapter writes it.
    fn request_id(&self) -> Result<RequestId, Self::Error>;

    /// When it was asked for.
    ///
    /// # Errors
    /// When it is not stored as the adapter writes it.
    fn created(&self) -> Result<DateTime<Utc>, Self::Error>;

    /// It says what this program does not know: of a later release, or written by hand.
    fn unreadable(&self, words: String) -> Self::Error;
}

/// Reads an operation, with the counts of all of its parts.
///
/// # Errors
/// When a column cannot be read. What this program does not know hides nothing: the record says so.
pub fn read_record<R: OperationRow>(row: &R) -> Result<OperationRecord, R::Error> {
    Ok(OperationRecord {
        id: OperationId(needed(row, "id")?),
        request_id: row.request_id()?,
        what: read_what(row)?,
        who: needed_text(row, "who")?.to_owned(),
        reason: row.text("reason")?.map(str::to_owned),
        created: row.created()?,
        partitions: needed(row, "partitions")?,
        finished: needed(row, "finished")?,
        matched: needed(row, "matched")?,
        done: needed(row, "done")?,
        skipped: needed(row, "skipped")?,
    })
}

/// Reads a part of an operation that is open.
///
/// # Errors
/// When a column cannot be read, or this program knows no such operation.
pub fn read_part<R: OperationRow>(row: &R) -> Result<PartOfOperation, R::Error> {
    let place = |column: &str| {
        let id = row.number(column)?;
        Ok::<_, R::Error>(id.map(|id| ExecutionId(id).seq()))
    };
    Ok(PartOfOperation {
        operation: read_operation(row, "operation")?,
        partition: PartitionId(needed(row, "partition")?),
        progress: OperationProgress {
            upto: place("upto")?,
            cursor: place("cursor")?,
            matched: needed(row, "matched")?,
            done: needed(row, "done")?,
            skipped: needed(row, "skipped")?,
            finished: false,
        },
    })
}

fn read_operation<R: OperationRow>(row: &R, id: &str) -> Result<Operation, R::Error> {
    let (kind, filter) = read_what(row)?.map_err(|words| row.unreadable(words))?;
    Ok(Operation {
        id: OperationId(needed(row, id)?),
        kind,
        filter,
    })
}

/// What an operation does and to what; in words what is wrong with that, where this program does not know it.
fn read_what<R: OperationRow>(
    row: &R,
) -> Result<Result<(OperationKind, OperationFilter), String>, R::Error> {
    let kind = read_kind(needed_text(row, "kind")?, needed_text(row, "args")?);
    let filter = needed_text(row, "filter")?;
    let filter = serde_json::from_str(filter);
    Ok(kind.and_then(|kind| {
        let filter: OperationFilter =
            filter.map_err(|error| format!("its filter is not known: {error}"))?;
        // A filter that names nothing would mean every execution.
        let check = filter.check(kind);
        check.map_err(|refusal| format!("its filter is refused: {refusal}"))?;
        Ok((kind, filter))
    }))
}

fn needed_text<'a, R: OperationRow>(row: &'a R, column: &str) -> Result<&'a str, R::Error> {
    let text = row.text(column)?;
    text.ok_or_else(|| row.unreadable(format!("its `{column}` is missing")))
}

fn needed<R: OperationRow, T: TryFrom<i64>>(row: &R, column: &str) -> Result<T, R::Error> {
    let number = row.number(column)?;
    let fits = number.and_then(|number| T::try_from(number).ok());
    fits.ok_or_else(|| row.unreadable(format!("its `{column}` is {number:?}")))
}

fn read_kind(name: &str, args: &str) -> Result<OperationKind, String> {
    let read = || {
        let mut args: Value = serde_json::from_str(args)?;
        if let Value::Object(args) = &mut args {
            args.insert("kind".to_owned(), Value::String(name.to_owned()));
        }
        serde_json::from_value(args)
    };
    read()
        .map_err(|error: serde_json::Error| format!("an operation `{name}` is not known: {error}"))
}

/// The state of a part of an operation, as it is stored.
pub fn stored_state(progress: &OperationProgress) -> &'static str {
    match (progress.finished, progress.upto) {
        (true, _) => "done",
        (false, Some(_)) => "running",
        (false, None) => "pending",
    }
}

/// A place as it is stored: the execution that has it.
pub fn stored_place(partition: PartitionId, place: Option<Seq>) -> Option<i64> {
    place.map(|place| ExecutionId::new(partition, place).0)
}

/// What of the stored operations could not be read when they were looked at last: each look finds it again, and it is
/// worth a word when it changes.
#[derive(Debug, Default)]
pub struct Unread(Mutex<Vec<String>>);

impl Unread {
    /// What was not read this time, if it is not the same as last time; nothing where all was read.
    pub fn news(&self, found: Vec<String>) -> Option<String> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *known == found {
            return None;
        }
        let words = found.join("; ");
        *known = found;
        (!words.is_empty()).then_some(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_read_is_news_once() {
        let unread = Unread::default();
        let found = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(unread.news(found(&[])), None);
        assert_eq!(unread.news(found(&["a", "b"])).unwrap(), "a; b");
        assert_eq!(unread.news(found(&["a", "b"])), None);
        assert_eq!(unread.news(found(&["b"])).unwrap(), "b");
        assert_eq!(unread.news(found(&[])), None, "all is read");
        assert_eq!(unread.news(found(&["b"])).unwrap(), "b", "again");
    }
}
