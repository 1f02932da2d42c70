//! What operators hold: whole queues, from which nobody is granted a slot until they are resumed.

use std::sync::Arc;

use attune_core::{Action, ActionId, Bug, Hold, PauseMode, Pauses, Reject};

use super::{Effect, Partition, unless_wrong};
use crate::fact::Fact;
use crate::happened::Happened;
use crate::queue::Millis;

impl Partition {
    /// The version of the set by which it goes.
    pub(crate) fn pauses_version(&self) -> i64 {
        self.pauses.version
    }

    /// Takes in what is held when the partition is taken over.
    pub(super) fn recover_pauses(&mut self, pauses: Arc<Pauses>) {
        self.pauses = pauses;
        if Bug::ResumeForgotten.is_planted() {
            Arc::make_mut(&mut self.pauses).resumed.clear();
        }
        if Bug::PauseForgotten.is_planted() {
            self.pauses = Arc::new(Pauses {
                version: self.pauses.version,
                ..Pauses::default()
            });
        }
    }

    /// Holds the queue of an action as the pauses say; whether that is a change.
    pub(super) fn hold(&mut self, now: Millis, action: &Action, out: &mut Vec<Effect>) -> bool {
        let (action_id, mut hold) = (action.id, self.pauses.hold_of(&action.spec.action_ref));
        let resumed_at = unless_wrong(now, hold.waits_from);
        let mut earlier = None;
        let set = self.queues.with_existing(action_id, |queue| {
            let Hold { mode, waits_from } = queue.held();
            earlier = mode;
            // A resume by a clock that was wrong counts from when it was seen, and from no later time when
            // something else is paused or resumed.
            let is_known = resumed_at != hold.waits_from && waits_from != i64::MIN;
            hold.waits_from = if is_known { waits_from } else { resumed_at };
            // What is held no longer is resumed now at the earliest, even where nobody wrote down when.
            if mode.is_some() && hold.mode.is_none() {
                hold.waits_from = hold.waits_from.max(now);
            }
            queue.set_hold(hold).then(|| queue.held())
        });
        let changed = set.flatten();
        if let Some(hold) = changed {
            self.note(|| Fact::Paused { action_id, hold });
            match hold.mode {
                Some(mode) if earlier != Some(mode) => {
                    self.happened(action, Happened::Paused { mode }, out);
                }
                None if earlier.is_some() => self.happened(action, Happened::Resumed, out),
                _ => {}
            }
        }
        changed.is_some()
    }

    /// Goes by another set from now on. What was resumed is served at once, as far as one step goes.
    pub(super) fn set_pauses(&mut self, now: Millis, pauses: Arc<Pauses>, out: &mut Vec<Effect>) {
        if pauses.version <= self.pauses.version {
            return;
        }
        self.pauses = pauses;
        let actions: Vec<Arc<Action>> = self.actions.values().cloned().collect();
        for action in actions {
            if self.hold(now, &action, out) {
                self.unserved.insert(action.id);
            }
        }
        self.serve_turns(now, out);
    }

    /// Whether operators hold the queue of an action.
    pub(super) fn is_paused(&self, action_id: ActionId) -> bool {
        self.hold_of(action_id).mode.is_some()
    }

    fn hold_of(&self, action_id: ActionId) -> Hold {
        let action = self.actions.get(&action_id);
        action.map_or(Hold::NONE, |it| self.pauses.hold_of(&it.spec.action_ref))
    }

    /// A queue that is drained takes nothing new.
    pub(super) fn check_draining(&self, action: &Action) -> Result<(), Reject> {
        let hold = self.pauses.hold_of(&action.spec.action_ref);
        match hold.mode {
            Some(PauseMode::Drain) => Err(Reject::queue_draining(action.spec.action_ref.as_str())),
            Some(PauseMode::Pause) | None => Ok(()),
        }
    }
}
