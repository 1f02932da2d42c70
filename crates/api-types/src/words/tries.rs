//! What is tried again.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What is tried again. An execution whose try ended so gives its slot back, waits for the time of its
/// next try, and then stands at its old place.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// How often it may be tried in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_147_483_647_i64, default = 3)]
    pub max_attempts: Option<u32>,
    /// Which ends of a try are tried again; all of them when it is left out, but for `worker_lost` with
    /// `on_worker_lost: fail`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<Vec<TryEnd>>,
    /// How long it waits before.
    #[serde(default)]
    pub backoff: Backoff,
    /// Whether it keeps its slot while it waits, instead of giving it to the next.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold_slot: bool,
}

/// How an attempt ends that may be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TryEnd {
    /// With an error of its own.
    Failed,
    /// It ran longer than it may.
    TimedOut,
    /// Its worker was lost.
    WorkerLost,
}

/// How long an execution waits before it is tried again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Backoff {
    /// After the first try, in milliseconds.
    #[schema(minimum = 1, maximum = 86_400_000, default = 1000)]
    pub initial_ms: u64,
    /// After each further try, so many times as long.
    #[schema(minimum = 1, maximum = 100, default = 2)]
    pub factor: f64,
    /// At most so long, in milliseconds; at least `initial_ms`.
    #[schema(minimum = 1, maximum = 2_678_400_000_i64, default = 60_000)]
    pub max_ms: u64,
    /// By up to which share of itself a wait is shortened, so that what failed together does not come
    /// again together.
    #[schema(minimum = 0, maximum = 1, default = 0.2)]
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            initial_ms: 1_000,
            factor: 2.0,
            max_ms: 60_000,
            jitter: 0.2,
        }
    }
}
