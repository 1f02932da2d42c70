//! Who is in a queue, and what is said of it.

use attune_core::{Attempt, Bug, ExecutionId, Priority, Seq, WorkerId};

use crate::policy::Share;

/// Milliseconds since 1970.
pub type Millis = i64;

/// An execution that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Its place in the order.
    pub seq: Seq,
    /// When it was accepted.
    pub enqueued_at: Millis,
    /// Since when it waits for a slot: since it was accepted, or since its delay was over.
    pub eligible_at: Millis,
    /// How often it has held a slot so far.
    pub attempt: Attempt,
    /// How many of these grants never began.
    pub unbegun: u16,
    /// Whether it became eligible later than it was accepted, or was moved by an operator, so that later
    /// ones may rightly have been granted before it.
    pub delayed: bool,
    /// Whether it goes before all others of its action, because an operator said so.
    pub front: bool,
    /// What it takes of the limits; the queue finds that out from what it demands.
    pub share: Share,
}

impl Waiting {
    /// In which lane it stands: of its priority, or before all of them.
    pub(crate) fn lane(&self, priority: Priority) -> Option<Priority> {
        (!self.front).then_some(priority)
    }

    /// The attempt of its next grant.
    pub(crate) fn next_attempt(&self) -> Attempt {
        if Bug::SameAttempt.is_planted() && self.unbegun > 0 {
            return self.attempt;
        }
        self.attempt.next()
    }

    /// Since when its wait counts against the longest that is allowed. Who has held a slot and waits again
    /// does not expire: its first slot came in time.
    pub(crate) fn wait_counts_from(&self) -> Option<Millis> {
        (self.attempt == Attempt(0)).then_some(self.eligible_at)
    }
}

/// An execution that is granted to a worker: it holds a slot, or stands ahead of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The attempt that holds it.
    pub attempt: Attempt,
    /// How many grants of its execution never began.
    pub unbegun: u16,
    /// Its priority, for when it must wait again.
    pub priority: Priority,
    /// Its place in the order, likewise.
    pub seq: Seq,
    /// When it was accepted.
    pub enqueued_at: Millis,
    /// Since when it waited for a slot.
    pub eligible_at: Millis,
    /// Since when it holds its slot; not known of those that an owner before this one granted.
    pub held_since: Option<Millis>,
    /// Whether it shall be ended.
    pub cancel_requested: bool,
    /// Whether it goes before all others, likewise.
    pub front: bool,
    /// What it takes of the limits, likewise.
    pub share: Share,
    /// Which life of a worker may run it; nobody while it keeps its slot between two tries.
    pub worker: Option<WorkerId>,
    /// Whether that one has said that it runs.
    pub started: bool,
    /// The number of its grant, where it holds no slot yet: its worker has all of them, and hands one on to it.
    pub ahead: Option<i64>,
}

impl Holder {
    /// Whether it is granted, and holds no slot yet.
    pub fn is_ahead(&self) -> bool {
        self.ahead.is_some()
    }

    /// How it would wait, from another attempt on.
    pub(crate) fn waiting(&self, execution_id: ExecutionId) -> Waiting {
        Waiting {
            execution_id,
            seq: self.seq,
            enqueued_at: self.enqueued_at,
            eligible_at: self.eligible_at,
            attempt: self.attempt,
            unbegun: self.unbegun,
            delayed: false,
            front: self.front,
            share: self.share,
        }
    }

    /// How many tries of its execution have begun, this one among them.
    pub fn tries(&self) -> u32 {
        let grants = u32::try_from(self.attempt.0).unwrap_or(0);
        grants.saturating_sub(self.unbegun.into())
    }
}

/// The queue holds as many waiting executions as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("Queue full (max length: {max_length})")]
pub struct QueueFull {
    /// How many may wait.
    pub max_length: u32,
}

/// A slot that was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// The attempt that holds the slot.
    pub attempt: Attempt,
    /// As it was for [`Waiting::delayed`].
    pub delayed: bool,
    /// With which priority it waited.
    pub priority: Priority,
    /// As it was for [`Waiting::eligible_at`].
    pub eligible_at: Millis,
}

/// What an attempt to give a slot led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// The first in order holds a slot now.
    Granted(Granted),
    /// Nobody was given a slot.
    Blocked(Blocked),
}

impl Grant {
    /// The slot that was given, if one was.
    pub fn granted(self) -> Option<Granted> {
        match self {
            Self::Granted(granted) => Some(granted),
            Self::Blocked(_) => None,
        }
    }
}

/// Why nobody is given a slot. What is added here is said to who waits as well: as a
/// [`Reason`](attune_core::explain::Reason), by `explaining.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocked {
    /// Nobody waits.
    Empty,
    /// All that wait are delayed.
    Delayed {
        /// When the first of them becomes eligible.
        until: Millis,
    },
    /// As many hold a slot as may.
    Limit {
        /// How many may.
        limit: u32,
    },
    /// Others stand ahead of slots of an action that has no limit any more: they have them first, as soon as
    /// their groups have room.
    Line,
    /// All that wait lack room in the limit of their group.
    Groups,
    /// As many have started lately as may: of all together, or of those for whom each that waits counts,
    /// unless it lacks room in the limit of its group.
    Rate {
        /// When the first of them may start.
        until: Millis,
    },
    /// By what executions are grouped has changed, and the groups of some are not known yet.
    Regrouping,
    /// No worker of the pool that would run it has room.
    PoolClosed,
    /// Its workers lack a key: it rests before they are tried again.
    Key {
        /// Until when.
        until: Millis,
    },
    /// Operators hold the queue.
    Paused,
}
