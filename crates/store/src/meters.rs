//! What is counted for limits: rates, intervals and quotas.

use attune_core::PartitionId;
use chrono::{DateTime, Utc};

/// Names a row of what was counted, in its partition: the limit and the key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MeterPlace {
    /// For which limit.
    pub limit_id: String,
    /// For whom.
    pub key: [u8; 16],
}

/// What was counted for a limit and a key, to be written in place of what stands there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meter {
    /// The partition, of which the batch has a fence.
    pub partition: PartitionId,
    /// For which limit and for whom.
    pub place: MeterPlace,
    /// What was counted, in a form that owners know.
    pub state: Vec<u8>,
    /// From when on it says nothing any more; it may be removed some time later.
    pub expires_at: DateTime<Utc>,
}

/// What was counted, as a new owner loads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeterRow {
    /// For which limit and for whom.
    pub place: MeterPlace,
    /// [`Meter::state`].
    pub state: Vec<u8>,
    /// When that was written, by the clock of the store.
    pub written_at: DateTime<Utc>,
}

/// A page of what was counted in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeterPage {
    /// The rows, by their places.
    pub rows: Vec<MeterRow>,
    /// Where the next page goes on, when this one is full.
    pub next: Option<MeterPlace>,
}
