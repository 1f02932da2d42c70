//! Who is of one group, where a newcomer takes the place of others of its group. Without groups all
//! executions of the action are rivals. By whose starts they count and whose turn it is makes no difference.

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{ExecutionId, GroupKey, Seq};

use super::entry::Holder;

/// Of whom somebody is a rival: a group; `None` where executions demand nothing of their own, or it is not
/// known yet what.
pub(super) type Rivalry = Option<GroupKey>;

/// Who waits and who holds a slot, by group. Who waits for the time that it came with is not among them.
#[derive(Debug, Clone, Default)]
pub(super) struct Rivals {
    waiting: BTreeSet<(Rivalry, Seq)>,
    /// Who holds a slot and is not asked to end.
    holding: BTreeSet<(Rivalry, ExecutionId)>,
    /// What those take of the limits who are asked to end, so that nobody is looked at again for whom all
    /// is said.
    ending: BTreeMap<Rivalry, u64>,
}

impl Rivals {
    pub(super) fn wait(&mut self, group: Rivalry, seq: Seq) {
        self.waiting.insert((group, seq));
    }

    pub(super) fn stop_waiting(&mut self, group: Rivalry, seq: Seq) {
        self.waiting.remove(&(group, seq));
    }

    pub(super) fn hold(&mut self, group: Rivalry, id: ExecutionId, holder: &Holder) {
        self.stop_waiting(group, id.seq());
        if holder.cancel_requested {
            *self.ending.entry(group).or_default() += u64::from(holder.share.cost);
        } else {
            self.holding.insert((group, id));
        }
    }

    pub(super) fn give_back(&mut self, group: Rivalry, id: ExecutionId, holder: &Holder) {
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
    pub(super) fn ask(&mut self, group: Rivalry, id: ExecutionId, holder: &Holder) {
        self.holding.remove(&(group, id));
        self.hold(group, id, holder);
    }

    /// The group of somebody who may wait is known from now on.
    pub(super) fn assign(&mut self, seq: Seq, group: Rivalry) {
        if self.waiting.remove(&(None, seq)) {
            self.waiting.insert((group, seq));
        }
    }

    /// Who of a group waits for a slot, or to be tried again; by sequence.
    pub(super) fn waiting(&self, group: Rivalry) -> impl Iterator<Item = Seq> + '_ {
        let range = (group, Seq(i64::MIN))..=(group, Seq(i64::MAX));
        self.waiting.range(range).map(|(_, seq)| *seq)
    }

    /// Who of a group holds a slot and is not asked to end, the oldest first.
    pub(super) fn holding(&self, group: Rivalry) -> impl Iterator<Item = ExecutionId> + '_ {
        let range = (group, ExecutionId(i64::MIN))..=(group, ExecutionId(i64::MAX));
        self.holding.range(range).map(|(_, id)| *id)
    }

    /// What those of a group take of the limits who are asked to end.
    pub(super) fn ending(&self, group: Rivalry) -> u64 {
        self.ending.get(&group).copied().unwrap_or_default()
    }
}
