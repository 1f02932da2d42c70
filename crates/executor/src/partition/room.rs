//! How much one step does by itself, over all queues: what is left waits for the next round, so that
//! other events and other partitions have their turn.

/// What every event may do, however much its round has done: the slot that it freed is handed on.
const AT_LEAST: usize = 8;

/// How much may still be done in this round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// How many delayed executions may be woken.
    pub(super) wakes: usize,
    /// How many executions may be ended that waited too long.
    pub(super) expiries: usize,
    /// How many slots may be granted.
    pub(super) grants: usize,
}

impl Room {
    /// The room of a step that may do `items` of each, and end so many.
    pub(super) fn of(items: usize, expiries: usize) -> Self {
        Self {
            wakes: items,
            expiries: items.min(expiries),
            grants: items,
        }
    }

    /// The room of an event that comes after others in a round. What it wakes has time.
    pub(super) fn for_event(self) -> Self {
        Self {
            wakes: self.wakes,
            expiries: self.expiries.max(AT_LEAST),
            grants: self.grants.max(AT_LEAST),
        }
    }

    /// Whether nobody can be given a slot any more.
    pub(super) fn is_used_up(self) -> bool {
        self.grants == 0
    }

    /// Whether something was left undone perhaps.
    pub(super) fn is_tight(self) -> bool {
        self.is_used_up() || self.expiries == 0 || self.wakes == 0
    }
}
