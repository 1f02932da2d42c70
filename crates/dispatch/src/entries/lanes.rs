//! What is granted ahead of its slot: consecutive executions of one action at one worker, which hands their
//! slots on by itself.
//!
//! An owner grants ahead only where this life has all slots of the action. So the next of a lane begins here as soon
//! as one of them has ended, without a word of the owner, and in the order of the grants.

use std::collections::VecDeque;

use attune_core::{ActionId, Bug};

use super::{Entries, State};
use crate::section::{Granted, Key, Millis};

/// What waits of one action for its runs to end.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// How many of the action may run at once.
    slots: usize,
    /// How many of it run, or wait for a slot of the life alone.
    open: usize,
    /// Those behind them, in the order of their grants; and some that wait no longer.
    ahead: VecDeque<Key>,
}

impl Lane {
    /// Everything that stands in it.
    pub(super) fn take_all(&mut self) -> VecDeque<Key> {
        std::mem::take(&mut self.ahead)
    }
}

impl<G: Granted> Entries<G> {
    /// Whether a new grant waits in the lane of its action; `slots` says how many of it may run where it is
    /// granted ahead. One that is not was granted where each before it has a slot, too.
    pub(super) fn joins_lane(&mut self, key: Key, action_id: ActionId, slots: Option<u32>) -> bool {
        if slots.is_some() && !self.lanes.contains_key(&action_id) {
            let open = self.open_of(action_id);
            let lane = Lane {
                open,
                ..Lane::default()
            };
            self.lanes.insert(action_id, lane);
        }
        let Some(lane) = self.lanes.get_mut(&action_id) else {
            return false;
        };
        lane.slots = slots.map_or(usize::MAX, |slots| slots as usize);
        if Bug::LaneOver.is_planted() {
            lane.slots = lane.slots.saturating_add(1);
        }
        self.open_next(action_id);
        let Some(lane) = self.lanes.get_mut(&action_id) else {
            return false;
        };
        if lane.open < lane.slots {
            lane.open += 1;
            return false;
        }
        lane.ahead.push_back(key);
        true
    }

    /// How many of an action run, or wait for a slot of the life.
    fn open_of(&self, action_id: ActionId) -> usize {
        let is_open = |state: &State<G>| match state {
            State::Waiting { is_ahead, .. } => !is_ahead,
            State::Running { .. } => true,
            State::Ended | State::Returned { .. } => false,
        };
        let entries = self.entries.values();
        let open = entries.filter(|entry| entry.action_id == Some(action_id));
        open.filter(|entry| is_open(&entry.state)).count()
    }

    /// A run of an action has ended, or what waited for a slot does no longer: the next of its lane waits for a
    /// slot now.
    pub(super) fn hand_on(&mut self, action_id: ActionId) {
        let Some(lane) = self.lanes.get_mut(&action_id) else {
            return;
        };
        lane.open = lane.open.saturating_sub(1);
        self.open_next(action_id);
        let is_over = |lane: &Lane| lane.open == 0 && lane.ahead.is_empty();
        if self.lanes.get(&action_id).is_some_and(is_over) {
            self.lanes.remove(&action_id);
        }
    }

    /// Whoever stands first in a lane waits for a slot of the life, while fewer of its action do or run than may.
    fn open_next(&mut self, action_id: ActionId) {
        let Some(lane) = self.lanes.get_mut(&action_id) else {
            return;
        };
        while lane.open < lane.slots
            && let Some(key) = lane.ahead.pop_front()
        {
            let entry = self.entries.get_mut(&key);
            let Some(State::Waiting {
                since, is_ahead, ..
            }) = entry.map(|entry| &mut entry.state)
            else {
                continue;
            };
            (*since, *is_ahead) = (Millis::MAX, false);
            lane.open += 1;
            *self.unended.entry(key.0.partition()).or_default() += 1;
            self.order.push_back(key);
        }
    }
}
