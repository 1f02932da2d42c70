//! The log of decisions, while somebody wants one.

use attune_core::ActionId;

use super::Partition;
use crate::fact::{Decided, Fact};
use crate::policy::QueueLimits;
use crate::queue::ActionQueue;
use crate::queue::Blocked;

impl Partition {
    /// Keeps a log of decisions from now on; whoever wants it must [take](Self::take_log) it
    /// with every round.
    pub fn keep_log(&mut self) {
        self.log = Some(Vec::new());
    }

    /// What was decided since it was last taken, in order; `None` when nobody wants to know.
    pub fn take_log(&mut self) -> Option<Decided> {
        let facts = std::mem::take(self.log.as_mut()?);
        self.logged += 1;
        Some(Decided {
            partition: self.id,
            epoch: self.epoch,
            number: self.logged,
            facts,
            goes_on: !self.unserved.is_empty() || self.is_any_due(),
        })
    }

    /// Whether more queues had something to do by now than the step has come to.
    fn is_any_due(&self) -> bool {
        let first = self.deadlines.first();
        first.is_some_and(|(time, _)| *time <= self.now)
    }

    pub(super) fn note(&mut self, fact: impl FnOnce() -> Fact) {
        if let Some(log) = &mut self.log {
            log.push(fact());
        }
    }

    /// Notes the bounds of an action unless they are those of its queue.
    pub(super) fn note_bounds(&mut self, action_id: ActionId, limits: &QueueLimits) {
        let is_known = |queue: &mut ActionQueue| queue.limits() == limits;
        if self.queues.with_existing(action_id, is_known) != Some(true) {
            let limits = limits.clone();
            self.note(|| Fact::Bounds { action_id, limits });
        }
    }

    /// Notes a queue as it is at the end of a round.
    pub(crate) fn note_totals(&mut self, action_id: ActionId) {
        if self.log.is_some()
            && let Some(stats) = self.stats(action_id)
        {
            let pool_closed = self.lines.has(action_id);
            let paused = self.is_paused(action_id);
            let regrouping = self.regrouping.contains(&action_id);
            let scheduled = self.scheduled.get(&action_id);
            let is_due = scheduled.is_some_and(|time| *time <= self.now);
            let goes_on = is_due || self.unserved.contains(&action_id);
            let rate_until = match self.blocked(action_id) {
                // Nobody starts before that either.
                Some(Blocked::Rate { until } | Blocked::Key { until }) => Some(until),
                _ => None,
            };
            self.note(|| Fact::Totals {
                stats,
                pool_closed,
                paused,
                regrouping,
                goes_on,
                rate_until,
            });
        }
    }
}
