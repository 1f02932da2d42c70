//! Who is of one group, where a newcomer takes the place of others of its group. Without groups all
//! executions of the action are rivals.

use std::collections::BTreeSet;

use attune_core::{ExecutionId, Seq};

use crate::policy::Group;

/// Who waits and who holds a slot, by group. Who waits for the time that it came with is not among them.
#[derive(Debug, Clone, Default)]
pub(super) struct Rivals {
    waiting: BTreeSet<(Group, Seq)>,
    holding: BTreeSet<(Group, ExecutionId)>,
}

impl Rivals {
    pub(super) fn wait(&mut self, group: Group, seq: Seq) {
        self.waiting.insert((group, seq));
    }

    pub(super) fn stop_waiting(&mut self, group: Group, seq: Seq) {
        self.waiting.remove(&(group, seq));
    }

    pub(super) fn hold(&mut self, group: Group, id: ExecutionId) {
        self.stop_waiting(group, id.seq());
        self.holding.insert((group, id));
    }

    pub(super) fn give_back(&mut self, group: Group, id: ExecutionId) {
        self.holding.remove(&(group, id));
    }

    /// The group of somebody is known from now on.
    pub(super) fn assign(&mut self, id: ExecutionId, group: Group) {
        if self.waiting.remove(&(Group::NONE, id.seq())) {
            self.waiting.insert((group, id.seq()));
        }
        if self.holding.remove(&(Group::NONE, id)) {
            self.holding.insert((group, id));
        }
    }

    /// Who of a group waits for a slot, or to be tried again; by sequence.
    pub(super) fn waiting(&self, group: Group) -> impl Iterator<Item = Seq> + '_ {
        let range = (group, Seq(i64::MIN))..=(group, Seq(i64::MAX));
        self.waiting.range(range).map(|(_, seq)| *seq)
    }

    /// Who of a group holds a slot, the oldest first.
    pub(super) fn holding(&self, group: Group) -> impl Iterator<Item = ExecutionId> + '_ {
        let range = (group, ExecutionId(i64::MIN))..=(group, ExecutionId(i64::MAX));
        self.holding.range(range).map(|(_, id)| *id)
    }
}
