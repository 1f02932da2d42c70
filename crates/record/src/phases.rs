//! Where processes and faults stand, and the moment at which a decision is a fact.

use serde::{Deserialize, Serialize};

use crate::record::Record;

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

impl Record {
    /// The same record of an owner, this process, with the number and the time of the commit that
    /// made it true;
    /// kinds that owners do not commit stay as they are.
    #[must_use]
    pub fn committed(mut self, number: u64, now_ns: i64) -> Self {
        match &mut self {
            Self::Accepted { round, t_ns, .. }
            | Self::Grouped { round, t_ns, .. }
            | Self::Held { round, t_ns, .. }
            | Self::Granted { round, t_ns, .. }
            | Self::Ended { round, t_ns, .. }
            | Self::Revoked { round, t_ns, .. }
            | Self::Limit { round, t_ns, .. }
            | Self::Totals { round, t_ns, .. } => (*round, *t_ns) = (number, now_ns),
            Self::Acquired { pid, t_ns, .. } => {
                (*pid, *t_ns) = (Some(std::process::id()), now_ns);
            }
            Self::StaleCompletion { t_ns, .. } => *t_ns = now_ns,
            _ => {}
        }
        self
    }
}
