//! What owners decide, in a form that can be judged.

use attune_core::{Demand, Epoch, ExecutionId, OrderRule, Priority, Status};

use super::facts::Key;
use attune_record::Gone;

/// What an owner decided about the queue of one action.
#[derive(Debug, Clone)]
pub(super) struct Decision {
    pub(super) epoch: Epoch,
    /// The number of the record: within an epoch, later is higher.
    pub(super) record: u32,
    pub(super) t_ns: i64,
    pub(super) what: What,
}

#[derive(Debug, Clone)]
pub(super) enum What {
    Accepted(ExecutionId, Status),
    /// What it demands from now on.
    Grouped(ExecutionId, Demand),
    /// With the priority by which it stands in line from now on; none where it goes before all others.
    Moved(ExecutionId, Option<Priority>),
    /// With the time of its next try, if it only keeps its slot until then.
    Held(Key, Option<i64>),
    /// It stands ahead of a slot; with the limits and the order in force, where that is decided just now.
    Ahead(Key, Option<(Bounds, OrderRule)>),
    /// It has the slot ahead of which it stood.
    HandedOn(Key),
    /// With the limits and the order in force, and when it was decided by the owner's time.
    Granted(Key, Bounds, OrderRule, Option<i64>),
    /// With whoever was accepted in its place.
    Ended(Key, Status, Option<Gone>),
    /// With the time of its next try, if it waits for that.
    Revoked(Key, Option<i64>),
    /// Its try has ended, and it keeps its slot until this time.
    Kept(Key, i64),
    /// With how many may wait, if that is recorded.
    Bounds(Bounds, Option<u32>),
    Totals {
        counts: Box<Counts>,
        /// Whether nothing could be granted for want of room in the pool, because operators hold it, or
        /// because it was not known of all how they are grouped.
        held_up: bool,
        /// Whether the owner goes on with it in the next round.
        goes_on: bool,
    },
}

/// The limits of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Bounds {
    pub(super) limit: Option<u32>,
    pub(super) group_limit: Option<u32>,
    /// The rule by which executions demand different things of them.
    pub(super) demands: Option<i64>,
}

/// What a queue counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Counts {
    pub(super) enqueued: u64,
    pub(super) completed: u64,
    pub(super) cancelled: u64,
    pub(super) expired: u64,
    pub(super) waiting: u64,
    pub(super) active: u64,
}
