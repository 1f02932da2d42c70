//! What a queue can tell about itself.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::ids::{ActionId, WorkerId};

/// How much has gone through a queue over its life, restarts included.
///
/// At every commit `enqueued = completed + cancelled + expired + waiting + active`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueueTotals {
    /// Executions that were accepted.
    pub enqueued: u64,
    /// Executions that succeeded, failed, timed out or were abandoned.
    pub completed: u64,
    /// Executions that were cancelled, waiting or running.
    pub cancelled: u64,
    /// Executions that waited longer than their queue allows.
    pub expired: u64,
}

/// A queue at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStats {
    /// The action whose queue it is.
    pub action_id: ActionId,
    /// Executions that wait.
    pub queue_length: u64,
    /// Executions that hold a slot.
    pub active_count: u64,
    /// The limit; `None` is unlimited.
    pub max_concurrent: Option<u32>,
    /// Since when the execution waits that has waited longest: when it was accepted, or when its delay
    /// ended. None of those that may not start yet counts.
    pub oldest_enqueued_at: Option<DateTime<Utc>>,
    /// Executions accepted over the queue's life.
    pub total_enqueued: u64,
    /// Executions that succeeded, failed, timed out or were abandoned over the queue's life.
    pub total_completed: u64,
    /// Executions cancelled over the queue's life.
    #[serde(default)]
    pub total_cancelled: u64,
    /// Executions that waited too long over the queue's life.
    #[serde(default)]
    pub total_expired: u64,
    /// That workers have given executions of it back for want of a key, while any of them has not begun since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacks_key: Option<LacksKey>,
}

/// Executions that workers have given back because they lack the key with which parameters are sealed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LacksKey {
    /// The id of the key that was missing last: the part of its line in `secrets.key_file` before the colon.
    pub key: String,
    /// The life of a worker that lacked it last.
    pub worker: WorkerId,
    /// When that was, by the clock by which the owner of the queue decides.
    pub last_at: DateTime<Utc>,
    /// How many executions were given back so, and have not begun since.
    pub executions: u64,
}
