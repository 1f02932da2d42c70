//! Queues.

use attune_core::ActionId;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::PauseView;

/// How a queue is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum HealthState {
    /// Nothing to do.
    Healthy,
    /// Fuller or slower than it should be.
    Degraded,
    /// Someone should look at it.
    Unhealthy,
}

/// The verdict on a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueHealth {
    /// The worst of the reasons.
    pub state: HealthState,
    /// Why it is not healthy, for people; empty when it is.
    pub reasons: Vec<String>,
}

/// A queue at one moment: now where the server can look into the memory of the executor that owns
/// it, else when the executor last told its figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueView {
    /// The action's ref.
    pub action_ref: String,
    /// The action.
    #[schema(value_type = i64)]
    pub action_id: ActionId,
    /// Executions that wait.
    pub queue_length: u64,
    /// Executions that hold a slot.
    pub active_count: u64,
    /// The limit; `null` is unlimited.
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
    /// When the figures were last written to the store; `null` when nothing was ever submitted.
    pub last_updated: Option<DateTime<Utc>>,
    /// The moment that the figures describe; `null` when nothing is known of the queue.
    #[serde(default)]
    pub as_of: Option<DateTime<Utc>>,
    /// How long ago that was, in milliseconds. The figures of a queue that nothing happens to stay
    /// right while they grow old.
    #[serde(default)]
    pub age_ms: Option<u64>,
    /// How many executions may wait.
    pub max_length: u32,
    /// How long an execution may wait, in seconds.
    pub timeout_seconds: u64,
    /// By what operators hold it: nothing is granted from it while there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pauses: Vec<PauseView>,
    /// The verdict.
    pub health: QueueHealth,
}

/// Queues that ever held something, the longest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueList {
    /// The queues.
    pub queues: Vec<QueueView>,
    /// How many there are in all.
    pub total: u64,
    /// What `cursor` of the next request must be; `null` at the end. A queue whose length changes
    /// between two pages may be in both or in none.
    #[serde(default)]
    pub next: Option<String>,
}
