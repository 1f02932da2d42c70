//! How far something is that is recorded more than once.

use serde::{Deserialize, Serialize};

/// Where a role of a process stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessPhase {
    /// It begins.
    Began,
    /// It is told to stop, and brings what it does to an end.
    Stopping,
    /// It has ended well: nothing that it recorded is lost.
    Ended,
}

/// Where a fault stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultPhase {
    /// It is made. A fault that is over at once, like a kill, has no other phase.
    Begin,
    /// It is made good.
    End,
}
