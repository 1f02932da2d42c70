//! What newcomers may lead to when a limit is reached or the queue is full, told once more in the
//! plainest words: owners are judged by this, and not by the rules that they decide by.

use attune_core::ActionPolicy;
use attune_core::policy::{OnFull, OnLimit};

use crate::rng::Rng;

/// What becomes of newcomers of an action for whom there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Overflow {
    /// When a limit is reached.
    pub on_limit: OnLimit,
    /// When as many wait as may.
    pub on_full: OnFull,
    /// How many one user may have.
    pub per_user: Option<u32>,
}

impl Overflow {
    /// Draws one.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let on_limit = rng.pick(&[
            OnLimit::Wait,
            OnLimit::Wait,
            OnLimit::Reject,
            OnLimit::CancelRunning,
            OnLimit::ReplaceWaiting,
        ]);
        Self {
            on_limit,
            on_full: match on_limit.replaces() {
                true => OnFull::Reject,
                false => rng.pick(&[OnFull::Reject, OnFull::DropOldest, OnFull::DropOldest]),
            },
            per_user: rng.chance(400).then(|| rng.pick(&[1, 2, 4])),
        }
    }

    /// Writes it down as somebody would who wants it.
    pub(crate) fn write(self, policy: &mut ActionPolicy) {
        policy.concurrency.on_limit = Some(self.on_limit);
        policy.queue.on_full = Some(self.on_full);
        policy.per_user_limit = self.per_user;
    }
}
