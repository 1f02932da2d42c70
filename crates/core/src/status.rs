//! The states of an execution and the one `match` that moves between them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where an execution stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Accepted; waits for a slot.
    Queued,
    /// Holds a slot; no worker has claimed it yet.
    Requested,
    /// Holds a slot; a worker has claimed it.
    Running,
    /// Ended as it should.
    Succeeded,
    /// Ended with an error of its own.
    Failed,
    /// Ran longer than it may and was ended.
    TimedOut,
    /// Cancelled before or while it ran.
    Cancelled,
    /// Waited longer than its queue allows.
    Expired,
    /// Refused, but recorded because its sender had been told that the message is safe.
    Rejected,
    /// Its worker died and the policy does not try again.
    Abandoned,
}

/// What can happen to an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Move {
    /// It is given a slot.
    Grant,
    /// A worker claims it.
    Claim,
    /// Its worker is gone; it goes back to its place in the queue.
    Revoke,
    /// Its try has ended, and it keeps its slot for the next one.
    Keep,
    /// It ends with this status.
    End(Status),
}

/// A move that the state does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an execution that is {from} cannot take the move {by:?}")]
pub struct IllegalMove {
    /// The state it is in.
    pub from: Status,
    /// The move that was asked for.
    pub by: Move,
}

impl Status {
    /// All of them, in the order of an execution's life.
    pub const ALL: [Self; 10] = [
        Self::Queued,
        Self::Requested,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::TimedOut,
        Self::Cancelled,
        Self::Expired,
        Self::Rejected,
        Self::Abandoned,
    ];

    /// The state machine: the state that `by` leads to. The tables mirror it in CHECKs.
    ///
    /// # Errors
    /// [`IllegalMove`] for every move that is not drawn here.
    pub fn after(self, by: Move) -> Result<Self, IllegalMove> {
        use Status::{
            Abandoned, Cancelled, Expired, Failed, Queued, Requested, Running, Succeeded, TimedOut,
        };
        match (self, by) {
            (Queued, Move::Grant) => Ok(Requested),
            (Queued, Move::End(end @ (Cancelled | Expired))) => Ok(end),
            (Requested, Move::Claim) => Ok(Running),
            (Requested | Running, Move::Revoke) => Ok(Queued),
            (Requested | Running, Move::Keep) => Ok(Requested),
            (
                Requested | Running,
                Move::End(end @ (Succeeded | Failed | TimedOut | Cancelled | Abandoned)),
            ) => Ok(end),
            (from, by) => Err(IllegalMove { from, by }),
        }
    }

    /// Whether nothing more can happen to it.
    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Queued | Self::Requested | Self::Running)
    }

    /// Whether it holds a slot.
    pub fn holds_slot(self) -> bool {
        matches!(self, Self::Requested | Self::Running)
    }

    /// Whether a worker may report it as the outcome of a run.
    pub fn is_reportable(self) -> bool {
        matches!(
            self,
            Self::Succeeded | Self::Failed | Self::TimedOut | Self::Cancelled
        )
    }

    /// Its name on the wire and in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Requested => "requested",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Rejected => "rejected",
            Self::Abandoned => "abandoned",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A word that is not a status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a status; use queued, requested, running, succeeded, failed, timed_out, cancelled, expired, rejected or abandoned"
)]
pub struct UnknownStatus(String);

impl FromStr for Status {
    type Err = UnknownStatus;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|status| status.as_str() == text)
            .ok_or_else(|| UnknownStatus(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for status in Status::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
        }
    }

    #[test]
    fn nothing_leaves_a_terminal_state() {
        let moves = [Move::Grant, Move::Claim, Move::Revoke, Move::Keep]
            .into_iter()
            .chain(Status::ALL.into_iter().map(Move::End));
        for by in moves {
            for from in Status::ALL
                .into_iter()
                .filter(|status| status.is_terminal())
            {
                assert_eq!(from.after(by), Err(IllegalMove { from, by }));
            }
        }
    }

    #[test]
    fn the_straight_path_holds_a_slot_in_the_middle() {
        let requested = Status::Queued.after(Move::Grant).unwrap();
        let running = requested.after(Move::Claim).unwrap();
        assert!(requested.holds_slot() && running.holds_slot());
        assert_eq!(
            running.after(Move::End(Status::Succeeded)),
            Ok(Status::Succeeded)
        );
        assert!(Status::Queued.after(Move::End(Status::Succeeded)).is_err());
    }
}
