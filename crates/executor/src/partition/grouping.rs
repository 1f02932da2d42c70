//! What executions demand whose action groups them by something else than when they were accepted.

use std::collections::BTreeSet;

use attune_core::{ActionId, ExecutionId};

use super::{Effect, Partition};
use crate::fact::Fact;
use crate::queue::{ActionQueue, Millis};
use crate::stored::StoredWords;

impl Partition {
    /// Up to `max` executions that must be read before their queues go on, by action and id.
    pub(crate) fn unknown(&self, max: usize) -> Vec<ExecutionId> {
        let mut unknown = Vec::new();
        for action_id in &self.regrouping {
            self.queues.with_existing(*action_id, |queue| {
                unknown.extend(queue.unknown().take(max - unknown.len()));
            });
            if unknown.len() == max {
                break;
            }
        }
        unknown
    }

    /// Remembers a queue that stands still until the groups of all its executions are known.
    pub(super) fn note_regrouping(&mut self, action_id: ActionId) {
        let unknown = |queue: &mut ActionQueue| queue.unknown().next().is_some();
        match self.queues.with_existing(action_id, unknown) {
            Some(true) => self.regrouping.insert(action_id),
            _ => self.regrouping.remove(&action_id),
        };
    }

    /// Takes in what executions say that were there before they were grouped so.
    pub(super) fn assign(&mut self, now: Millis, words: Vec<StoredWords>, out: &mut Vec<Effect>) {
        let mut assigned = BTreeSet::new();
        for stored in words {
            let execution_id = stored.id;
            let Some(action_id) = self.index.get(&execution_id).copied() else {
                continue;
            };
            let Some(rule) = self.demands.get(&action_id) else {
                continue;
            };
            let demand = rule.demand_anew(&stored.words());
            let assign = |queue: &mut ActionQueue| queue.assign(execution_id, &demand);
            if self.queues.with_existing(action_id, assign) == Some(true) {
                assigned.insert(action_id);
                self.note(|| Fact::Grouped {
                    execution_id,
                    action_id,
                    demand,
                });
            }
        }
        for action_id in assigned {
            self.note_regrouping(action_id);
            self.serve(now, action_id, out);
        }
    }
}
