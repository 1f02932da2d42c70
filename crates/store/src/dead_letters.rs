//! Messages that nobody could use, until they are put back or are old.

use std::time::Duration;

use async_trait::async_trait;
use attune_core::RequestId;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::StoreError;

/// A message to be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDeadLetter {
    /// Names the message; the same message has one letter, however often it is added.
    pub message_id: Uuid,
    /// Why nobody could use it.
    pub reason: String,
    /// Where it came from: the routing key under which it goes back.
    pub source: String,
    /// The message, or its beginning.
    pub body: Vec<u8>,
    /// How long the message was; more than `body` holds when it was cut.
    pub bytes: u64,
}

/// A message as it is kept, without its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Rises with every message that comes for the first time, with gaps.
    pub id: i64,
    /// Names the message.
    pub message_id: Uuid,
    /// Why nobody could use it, the last time it came.
    pub reason: String,
    /// Where it came from, the last time it came.
    pub source: String,
    /// How long the message was, in bytes.
    pub bytes: u64,
    /// Whether only its beginning is kept, so that it cannot be put back.
    pub truncated: bool,
    /// How often it has come.
    pub arrivals: u64,
    /// When it came last.
    pub received_at: DateTime<Utc>,
    /// When it was put back, unless it has come again since.
    pub requeued_at: Option<DateTime<Utc>>,
    /// Who put it back.
    pub requeued_by: Option<String>,
}

/// Which letters to list; an empty filter is all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeadLetterFilter {
    /// Only those from there.
    pub source: Option<String>,
    /// Only those with exactly this reason.
    pub reason: Option<String>,
    /// Only those that were put back (`true`), or only those that were not (`false`).
    pub requeued: Option<bool>,
}

/// A letter was put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requeue {
    /// Which letter.
    pub id: i64,
    /// Its [`DeadLetter::arrivals`] when it was read: one that has come again since is a letter
    /// that still waits, and is not marked.
    pub arrivals: u64,
    /// Names the command, for the audit log.
    pub request_id: RequestId,
    /// Who did it, as far as is known.
    pub who: String,
    /// Why, in their words.
    pub reason: Option<String>,
}

impl Requeue {
    /// Names what [`begin_requeue`](DeadLetterStore::begin_requeue) writes down, in the audit log.
    pub fn intent_id(&self) -> RequestId {
        self.request_id.of_item(1)
    }
}

/// How long dead letters are kept. The oldest go first, whether they were put back or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadLetterRetention {
    /// Since they came last.
    pub age: Duration,
    /// How many bytes all bodies may have together; each letter counts [`LETTER_OVERHEAD`] more.
    pub bytes: u64,
}

/// What a letter counts beside its body, in bytes, so that empty ones are bounded too.
pub const LETTER_OVERHEAD: u64 = 512;

/// What the collector of dead letters and the API ask.
#[async_trait]
pub trait DeadLetterStore: Send + Sync {
    /// Keeps messages. One that is there already, put back or not, waits again, with the reason
    /// and body that it has now; so adding twice what was added once leaves one letter.
    ///
    /// # Errors
    /// When the store fails.
    async fn add_dead_letters(&self, letters: &[NewDeadLetter]) -> Result<(), StoreError>;

    /// Up to `limit` letters, those that came first last, before the letter with the id `before`.
    ///
    /// # Errors
    /// When the store fails.
    async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, StoreError>;

    /// The letter with this id, and its body.
    ///
    /// # Errors
    /// When the store fails.
    async fn find_dead_letter(&self, id: i64) -> Result<Option<(DeadLetter, Vec<u8>)>, StoreError>;

    /// Writes to the audit log that a letter is about to be put back
    /// ([`DEAD_LETTER_REQUEUE_BEGUN`](crate::audit::what::DEAD_LETTER_REQUEUE_BEGUN)): to be called
    /// before anything is done, so that nothing is done that nobody has answered for. `false`, and
    /// nothing written, when the letter is gone, was marked before, or has come again.
    ///
    /// # Errors
    /// When the store fails.
    async fn begin_requeue(&self, requeue: &Requeue) -> Result<bool, StoreError>;

    /// Notes that a letter was put back, with an entry in the audit log
    /// ([`DEAD_LETTER_REQUEUE`](crate::audit::what::DEAD_LETTER_REQUEUE)); `false` when it is
    /// gone, was marked before, or has come again. To be called once the broker has confirmed the
    /// message: a crash in between leaves a letter that waits and can be put back again.
    ///
    /// # Errors
    /// When the store fails.
    async fn mark_requeued(&self, requeue: &Requeue) -> Result<bool, StoreError>;

    /// Removes what is older or more than `keep`; gives how many letters went.
    ///
    /// # Errors
    /// When the store fails.
    async fn prune_dead_letters(&self, keep: DeadLetterRetention) -> Result<u64, StoreError>;
}
