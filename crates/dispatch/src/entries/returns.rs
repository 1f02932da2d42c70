//! What a life gives back of what it has not begun.

use std::collections::{BTreeSet, VecDeque};

use attune_core::{ActionId, Bug};

use super::lanes::Lane;
use super::{Entries, GIVEN_BACK_AFTER, State};
use crate::section::{Granted, Key, Millis};

impl<G: Granted> Entries<G> {
    /// Gives back everything that waits.
    pub fn give_back_all(&mut self, why: &'static str) {
        let lanes = self.lanes.values_mut();
        let ahead: Vec<Key> = lanes.flat_map(Lane::take_all).collect();
        let order = std::mem::take(&mut self.order);
        for key in ahead.into_iter().chain(order) {
            self.give_back(key, why);
        }
    }

    /// Gives back what has waited for long because all slots are taken, with everything of the same actions
    /// that waits: one from the middle would be overtaken. `left` slots are taken by runs of which nothing is held
    /// any more, and which have not ended.
    pub fn give_back_late(&mut self, now: Millis, left: usize) {
        if self.order.is_empty() || self.running + left < self.slots {
            return;
        }
        let mut late = BTreeSet::new();
        for key in &self.order {
            if let Some(entry) = self.entries.get_mut(key)
                && let State::Waiting { since, .. } = &mut entry.state
            {
                *since = now.min(*since);
                if now - *since >= GIVEN_BACK_AFTER {
                    late.extend(entry.action_id);
                }
            }
        }
        if late.is_empty() {
            return;
        }
        self.give_back_of(&late, "all slots of its worker are taken");
    }

    /// Gives back what waits of these actions.
    pub(super) fn give_back_of(&mut self, actions: &BTreeSet<ActionId>, why: &'static str) {
        // First what stands behind: else it would be handed on.
        let mut behind = VecDeque::new();
        for action_id in actions {
            if let Some(lane) = self.lanes.get_mut(action_id) {
                behind.append(&mut lane.take_all());
            }
        }
        if Bug::PartialReturn.is_planted() {
            behind.pop_back();
        }
        let order = std::mem::take(&mut self.order);
        for key in behind.iter().chain(&order) {
            let action_id = self.entries.get(key).and_then(|entry| entry.action_id);
            if action_id.is_some_and(|action_id| actions.contains(&action_id)) {
                self.give_back(*key, why);
            }
        }
        self.order = order;
        self.tidy();
    }

    pub(super) fn give_back(&mut self, key: Key, why: &'static str) {
        if let Some(entry) = self.entries.get_mut(&key)
            && let State::Waiting { is_ahead, .. } = entry.state
        {
            entry.state = State::Returned { why: why.into() };
            let action_id = entry.action_id;
            self.waiting -= 1;
            self.returned += 1;
            if !is_ahead {
                self.has_ended(&key, action_id);
            }
            self.has_returned(key.0.partition());
        }
    }
}
