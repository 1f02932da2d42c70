//! What operators hold: whole queues, from which nothing is granted until they are resumed.

use async_trait::async_trait;
use attune_core::{PauseMode, PauseTarget, Pauses, RequestId};
use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::actor::Actor;
use crate::audit::{NewAudit, What};
use crate::error::StoreError;

/// How many things may be held at once: owners read the whole set.
pub const MAX_PAUSES: usize = 1000;

/// Of how many targets it is known when they were resumed, and with it since when the waits count there: of those
/// that were resumed last.
pub const MAX_RESUMED: u16 = 10_000;

/// Something that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// What.
    pub target: PauseTarget,
    /// How.
    pub mode: PauseMode,
    /// Since when; for as long as the mode stays the same.
    pub since: DateTime<Utc>,
    /// Who said so last, as far as is known.
    pub who: String,
    /// Why, in the words of who said so.
    pub reason: Option<String>,
}

/// Everything that is held.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PauseSet {
    /// Rises with every change, in the order of the commits.
    pub version: i64,
    /// What is held, by scope and target.
    pub held: Vec<Pause>,
    /// When what is not held was resumed last.
    pub resumed: Vec<(PauseTarget, DateTime<Utc>)>,
}

impl PauseSet {
    /// What owners decide by.
    pub fn pauses(&self) -> Pauses {
        let held = self.held.iter().map(|it| (it.target.clone(), it.mode));
        let resumed = self.resumed.iter();
        Pauses {
            version: self.version,
            held: held.collect(),
            resumed: resumed
                .map(|(target, at)| (target.clone(), at.timestamp_millis()))
                .collect(),
        }
    }
}

/// What an operator asks for.
#[derive(Debug, Clone)]
pub struct PauseChange {
    /// Names the request in the audit log.
    pub request_id: RequestId,
    /// What is to be held, or no longer.
    pub target: PauseTarget,
    /// How; `None` resumes it.
    pub mode: Option<PauseMode>,
    /// Who asks.
    pub who: Actor,
    /// Why.
    pub reason: Option<String>,
}

impl PauseChange {
    /// Whether something that is so now would be the same afterwards: then nothing is written.
    pub fn changes_nothing(&self, now: Option<&Pause>) -> bool {
        match (now, self.mode) {
            (None, None) => true,
            (Some(now), Some(mode)) => {
                now.mode == mode && now.who == self.who.name && now.reason == self.reason
            }
            _ => false,
        }
    }

    /// The entry of the audit log, written in the same transaction.
    pub fn audit(&self, before: Option<&Pause>, after: Option<&Pause>) -> NewAudit {
        NewAudit {
            request_id: self.request_id,
            who: self.who.clone(),
            what: match self.mode {
                Some(PauseMode::Pause) => What::QueuesPause,
                Some(PauseMode::Drain) => What::QueuesDrain,
                None => What::QueuesResume,
            },
            target: self.target.to_string(),
            reason: self.reason.clone(),
            before: before.map(shown),
            after: after.map(shown),
        }
    }
}

fn shown(pause: &Pause) -> Value {
    json!({
        "mode": pause.mode,
        "since": pause.since,
        "who": pause.who,
        "reason": pause.reason,
    })
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PauseOutcome {
    /// It is so now; before it was `before`.
    Stored {
        /// As it was.
        before: Option<Pause>,
        /// As it is.
        after: Option<Pause>,
    },
    /// There is no such action or pack; nothing was written.
    NoTarget,
    /// As many as [`MAX_PAUSES`] are held; nothing was written.
    TooMany,
}

/// What operators ask; the set is read through [`PartitionStore::pauses`](crate::PartitionStore::pauses).
#[async_trait]
pub trait PauseStore: Send + Sync {
    /// Holds something or resumes it, with an entry of the audit log and a higher version of the
    /// set, in one transaction. What is so already is left as it is.
    ///
    /// # Errors
    /// When the store fails.
    async fn change_pause(&self, change: &PauseChange) -> Result<PauseOutcome, StoreError>;
}
