//! Why executions wait, as the core says it.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::PauseMode;

/// Where an execution stands in order: whoever has the smaller key goes first, and of two with the same
/// key whoever has the smaller sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrderKey {
    /// What the order of its action makes of its priority and of when it was accepted; the
    /// smallest number for one that was moved to the front.
    pub key: i64,
    /// Its place in the order of its partition.
    pub seq: i64,
}

/// Something that keeps an execution from a slot. Later releases have more kinds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Reason {
    /// It was asked for not before a time.
    Delayed {
        /// That time.
        until: DateTime<Utc>,
    },
    /// A try of it has ended, and the next comes after a back-off.
    Backoff {
        /// When that is over.
        until: DateTime<Utc>,
    },
    /// Operators hold its queue; `pauses` says who.
    Paused {
        /// How.
        mode: PauseMode,
    },
    /// By what executions are grouped has changed, and the groups of some are not known yet.
    Regrouping {
        /// How many are left.
        unknown: u64,
    },
    /// No worker of the pool that would run it has a free slot at the moment, or others stand before it in line for one.
    PoolClosed {
        /// Which pool.
        pool: String,
    },
    /// The limit of its action has no room for it and for who waits before it.
    Limit(Lack),
    /// The limit of its group has no room for it and for who waits before it there.
    GroupLimit(Lack),
    /// As many have started as may in a time; `until` is the next start that is allowed, whoever has it.
    Rate {
        /// That time.
        until: DateTime<Utc>,
        /// How many go before it for the same rate, those among them that keep their slots until their next try.
        /// Absent where nobody does.
        #[serde(default, skip_serializing_if = "is_zero")]
        ahead: u64,
    },
    /// Slots are shared, and it is another one's turn: on the highest level on which the two differ that one
    /// holds fewer slots for its weight, or equally many and was served longer ago.
    Turn {
        /// How much of the limit its own flow holds.
        holds: u64,
        /// The weight of its flow.
        weight: u64,
        /// How much the flow holds whose turn it is.
        next_holds: u64,
        /// The weight of that flow.
        next_weight: u64,
        /// Which execution of it is next.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        next: Option<i64>,
        /// Whether it is the turn within a group that both are of, where that has no room for both. Absent
        /// where it is not.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        in_group: bool,
    },
    /// Workers lack the key with which its parameters are sealed, and gave it back, or gave back what stands before
    /// it: its queue rests before they are tried again.
    Key {
        /// The id of the key.
        key: String,
        /// How often it was given back; 0 where others were, which stand before it.
        #[serde(default)]
        times: u64,
        /// The life of a worker that lacked it last.
        worker: Uuid,
        /// The name of that worker, where it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        worker_name: Option<String>,
        /// When that was.
        last_at: DateTime<Utc>,
        /// Until when its queue rests, while it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        until: Option<DateTime<Utc>>,
    },
    /// There is room for it: its turn comes in the next round of its owner.
    NextRound,
    /// Something that a later release knows.
    #[serde(other)]
    Other,
}

/// A limit that has no room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lack {
    /// How much of it there is.
    pub capacity: u64,
    /// How much of it is taken.
    pub used: u64,
    /// How much of it this execution takes.
    pub cost: u64,
    /// How many wait before it that take of the same limit first: those who lack room in a group of their own
    /// are not among them.
    pub ahead: u64,
    /// Slots are shared: those of its own flow are counted in `ahead`, and those of higher priority. Absent
    /// where they are not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_shared: bool,
    /// Who holds it, by rising id; at most 20.
    pub holders: Vec<LimitHolder>,
    /// How many hold it that are not named.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_holders: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Who holds a part of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LimitHolder {
    /// Which execution.
    pub execution_id: i64,
    /// Which attempt of it.
    pub attempt: i32,
    /// How much it takes.
    pub cost: u64,
    /// Since when; not known of those that an owner before this one granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub since: Option<DateTime<Utc>>,
    /// Nothing runs in it: it is kept until the next try, which begins then at the earliest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub kept_until: Option<DateTime<Utc>>,
}

/// When an execution is given a slot, as far as can be told: in four of five cases between `earliest` and
/// `latest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Estimate {
    /// As likely earlier as later.
    pub starts_at: DateTime<Utc>,
    /// With nine chances in ten not before this.
    pub earliest: DateTime<Utc>,
    /// With nine chances in ten not after this.
    pub latest: DateTime<Utc>,
    /// By what this is known.
    pub basis: Basis,
}

/// How long executions of the action have held their slots, from the grant to the end, by the clock of the
/// owner: the newest 200 count most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Basis {
    /// How many there were since the owner took its queue over, at most 200.
    pub samples: u32,
    /// The mean, in milliseconds.
    pub mean_ms: u64,
    /// The standard deviation, in milliseconds.
    pub deviation_ms: u64,
    /// How long ago the last one ended, in milliseconds.
    pub age_ms: u64,
}

/// Why it cannot be told when an execution is given a slot. Later releases have more kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum NoEstimate {
    /// Nobody knows when operators resume the queue.
    Paused,
    /// Nobody knows when a worker of the pool has a free slot.
    PoolClosed,
    /// It goes on in a moment.
    Regrouping,
    /// Who waits by then is not known yet.
    Delayed,
    /// Too few have ended since its owner took the queue over.
    FewSamples {
        /// How many have.
        samples: u32,
        /// How many are needed.
        needed: u32,
    },
    /// Executions that go before it come faster than slots come free.
    Overtaken,
    /// It waits for its rate, whatever else it waits for.
    Rate,
    /// Slots are shared: who comes by then decides about its turn as well.
    Turns,
    /// Nobody knows when a worker has the key with which its parameters are sealed.
    Key,
    /// Something that a later release knows.
    #[serde(other)]
    Other,
}
