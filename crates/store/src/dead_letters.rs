//! Messages that nobody could use, until they are put back or are old.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use attune_core::RequestId;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::actor::Actor;
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
    /// Who had sent it: the user of the broker, as far as it vouches for one.
    pub sender: Option<String>,
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
    /// Who had sent it, the last time it came: the user of the broker, as far as it vouches for one.
    #[serde(default)]
    pub sender: Option<String>,
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
    pub who: Actor,
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

impl DeadLetterRetention {
    /// 30 days, 256 MiB.
    pub const USUAL: Self = Self {
        age: Duration::from_secs(30 * 24 * 3600),
        bytes: 256 * 1024 * 1024,
    };
}

/// Tells a store when to look whether it has more letters than it may: a look reads all of them, so
/// not after each one, and the upkeep's hour is too long when letters pour in.
#[derive(Debug)]
pub struct LetterGauge {
    keep: DeadLetterRetention,
    /// Bytes that were added since the last look.
    added: AtomicU64,
    looking: AtomicBool,
}

impl LetterGauge {
    /// A look is due after each of so many parts of the bytes that all letters may have.
    const PARTS: u64 = 64;
    /// A century.
    const ANY_AGE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

    /// For letters of which `keep` is kept. The first letter makes a look due: nobody knows how many
    /// there are.
    pub fn new(keep: DeadLetterRetention) -> Self {
        Self {
            keep,
            added: AtomicU64::new(keep.bytes / Self::PARTS),
            looking: AtomicBool::new(false),
        }
    }

    /// Counts letters that were added. When a look is due: what is to be kept, and the caller prunes
    /// and says that it is [`done`](Self::done). One caller at a time does so. How old they are is
    /// left to the upkeep, which asks first whether the clock is right.
    pub fn added(&self, letters: &[NewDeadLetter]) -> Option<DeadLetterRetention> {
        if letters.is_empty() {
            return None;
        }
        let bytes = letters
            .iter()
            .map(|letter| letter.body.len() as u64 + LETTER_OVERHEAD)
            .sum();
        let before = self.added.fetch_add(bytes, Ordering::Relaxed);
        let due = before.saturating_add(bytes) >= self.keep.bytes / Self::PARTS;
        if !due || self.looking.swap(true, Ordering::AcqRel) {
            return None;
        }
        self.added.store(0, Ordering::Relaxed);
        Some(DeadLetterRetention {
            age: Self::ANY_AGE,
            ..self.keep
        })
    }

    /// The look that was due is over; `true` when so much was added meanwhile that the caller has to
    /// look again. After one that failed, the next letter makes the next look due.
    pub fn done(&self, succeeded: bool) -> bool {
        let part = self.keep.bytes / Self::PARTS;
        if !succeeded {
            self.added.fetch_add(part, Ordering::Relaxed);
        } else if self.added.load(Ordering::Relaxed) >= part {
            self.added.store(0, Ordering::Relaxed);
            return true;
        }
        self.looking.store(false, Ordering::Release);
        false
    }
}

/// What the collector of dead letters and the API ask.
#[async_trait]
pub trait DeadLetterStore: Send + Sync {
    /// Keeps messages. One that is there already, put back or not, waits again, with the reason
    /// and body that it has now; so adding twice what was added once leaves one letter. When they
    /// are more than the store may have, those that came first go, not only with the upkeep
    /// ([`LetterGauge`]).
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
    /// ([`DEAD_LETTER_REQUEUE_BEGUN`](crate::What::DeadLetterRequeueBegun)): to be called
    /// before anything is done, so that nothing is done that nobody has answered for. `false`, and
    /// nothing written, when the letter is gone, was marked before, or has come again.
    ///
    /// # Errors
    /// When the store fails.
    async fn begin_requeue(&self, requeue: &Requeue) -> Result<bool, StoreError>;

    /// Notes that a letter was put back, with an entry in the audit log
    /// ([`DEAD_LETTER_REQUEUE`](crate::What::DeadLetterRequeue)); `false` when it is
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

#[cfg(test)]
mod tests {
    use super::*;

    fn letters(bytes: usize) -> Vec<NewDeadLetter> {
        vec![NewDeadLetter {
            message_id: Uuid::nil(),
            reason: String::new(),
            source: String::new(),
            body: vec![0; bytes - 512],
            bytes: 0,
            sender: None,
        }]
    }

    #[test]
    fn a_look_is_due_at_first_and_after_each_part_by_one_caller() {
        let keep = DeadLetterRetention {
            bytes: 64 * 1_000,
            ..DeadLetterRetention::USUAL
        };
        let gauge = LetterGauge::new(keep);
        // Their age is the upkeep's to judge.
        let due = Some(DeadLetterRetention {
            age: LetterGauge::ANY_AGE,
            ..keep
        });
        assert_eq!(gauge.added(&[]), None);
        assert_eq!(gauge.added(&letters(512)), due, "the first letter");
        assert_eq!(gauge.added(&letters(1_000)), None, "somebody looks");
        assert!(gauge.done(true), "enough came meanwhile");
        assert!(!gauge.done(true));
        assert_eq!(gauge.added(&letters(600)), None, "less than a part");
        assert_eq!(gauge.added(&letters(600)), due);
        assert!(!gauge.done(false));
        assert_eq!(gauge.added(&letters(512)), due, "it had failed");
        assert!(!gauge.done(true));
    }
}
