//! Who is of one group, where a newcomer takes the place of others of its group. Without groups all
//! executions of the action are rivals.

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{ExecutionId, Seq};

use super::entry::Holder;
use crate::policy::Group;

/// Who waits and who holds a slot, by group. Who waits for the time that it came with is not among them.
#[derive(Debug, Clone, Default)]
pub(super) struct Rivals {
    waiting: BTreeSet<(Group, Seq)>,
    /// Who holds a slot and is not asked to end.
    holding: BTreeSet<(Group, ExecutionId)>,
    /// What those take of the limits who are asked to end, so that nobody is looked at again for whom all
    /// is said.
    ending: BTreeMap<Group, u64>,
}

impl Rivals {
    pub(super) fn wait(&mut self, group: Group, seq: Seq) {
        self.waiting.insert((group, seq));
    }

    pub(super) fn stop_waiting(&mut self, group: Group, seq: Seq) {
        self.waiting.remove(&(group, seq));
    }

    pub(super) fn hold(&mut self, id: ExecutionId, holder: &Holder) {
        let group = holder.share.group;
        self.stop_waiting(group, id.seq());
        if holder.cancel_requested {
            *self.ending.entry(group).or_default() += u64::from(holder.share.cost);
        } else {
            self.holding.insert((group, id));
        }
    }

    pub(super) fn give_back(&mut self, id: ExecutionId, holder: &Holder) {
        let group = holder.share.group;
        if !holder.cancel_requested {
            self.holding.remove(&(group, id));
        } else if let Some(cost) = self.ending.get_mut(&group) {
            *cost = cost.saturating_sub(u64::from(holder.share.cost));
            if *cost == 0 {
                self.ending.remove(&group);
            }
        }
    }

    /// Somebody who holds a slot is asked to end, as it says now.
    pub(super) fn ask(&mut self, id: ExecutionId, holder: &Holder) {
        self.holding.remove(&(holder.share.group, id));
        self.hold(id, holder);
    }

    /// The group of somebody who may wait is known from now on.
    pub(super) fn assign(&mut self, seq: Seq, group: Group) {
        if self.waiting.remove(&(Group::NONE, seq)) {
            self.waiting.insert((group, seq));
        }
    }

    /// Who of a group waits for a slot, or to be tried again; by sequence.
    pub(super) fn waiting(&self, group: Group) -> impl Iterator<Item = Seq> + '_ {
        let range = (group, Seq(i64::MIN))..=(group, Seq(i64::MAX));
        self.waiting.range(range).map(|(_, seq)| *seq)
    }

    /// Who of a group holds a slot and is not asked to end, the oldest first.
    pub(super) fn holding(&self, group: Group) -> impl Iterator<Item = ExecutionId> + '_ {
        let range = (group, ExecutionId(i64::MIN))..=(group, ExecutionId(i64::MAX));
        self.holding.range(range).map(|(_, id)| *id)
    }

    /// What those of a group take of the limits who are asked to end.
    pub(super) fn ending(&self, group: Group) -> u64 {
        self.ending.get(&group).copied().unwrap_or_default()
    }
}
