//! Waiting longer and longer, with jitter that follows from a seed: the same owner waits the same
//! times when the same things happen to it.

use crate::leases::mix;
use crate::queue::Millis;

/// Chance that follows from a seed.
#[derive(Debug, Clone)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number from `from` to `to`.
    pub(super) fn between(&mut self, from: Millis, to: Millis) -> Millis {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let span = u64::try_from(to - from + 1).unwrap_or(1).max(1);
        from + Millis::try_from(mix(self.0) % span).unwrap_or(0)
    }
}

/// How long to wait before the next try.
#[derive(Debug, Clone)]
pub(super) struct Backoff {
    next: Millis,
    max: Millis,
}

impl Backoff {
    pub(super) fn new(first: Millis, max: Millis) -> Self {
        Self { next: first, max }
    }

    /// Half of the time to all of it, and twice the time for the next.
    pub(super) fn next_delay(&mut self, chance: &mut Chance) -> Millis {
        let delay = chance.between(self.next / 2, self.next);
        self.next = (self.next * 2).min(self.max);
        delay
    }
}
