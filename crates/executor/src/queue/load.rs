//! Who waits and who holds a slot, in the order and in the groups of an action.

use std::collections::BTreeMap;

use attune_core::{Demand, ExecutionId, Priority};

use super::delayed::Delayed;
use super::entry::{Holder, Waiting};
use crate::policy::{Groups, Member, Order, QueueLimits, Share};

/// Who waits and who holds a slot.
#[derive(Debug, Clone, Default)]
pub(super) struct Load {
    pub(super) order: Order,
    pub(super) delayed: Delayed,
    pub(super) active: BTreeMap<ExecutionId, Holder>,
    /// There where executions demand different things.
    pub(super) groups: Option<Box<Groups>>,
}

impl Load {
    pub(super) fn new(limits: &QueueLimits) -> Self {
        Self {
            groups: limits.demands().map(|_| Box::default()),
            ..Self::default()
        }
    }

    /// What an execution takes of the limits.
    pub(super) fn share(
        &mut self,
        limits: &QueueLimits,
        id: ExecutionId,
        demand: Option<&Demand>,
    ) -> Share {
        let Some(groups) = &mut self.groups else {
            return Share::default();
        };
        groups.share(
            id,
            demand.filter(|demand| Some(demand.rule) == limits.demands()),
        )
    }

    /// Somebody waits for a slot from now on.
    pub(super) fn wait(&mut self, limits: &QueueLimits, priority: Priority, waiting: Waiting) {
        let enqueued_at = self.order.insert(priority, waiting);
        if let Some(groups) = &mut self.groups {
            let member = Member {
                lane: waiting.lane(priority),
                seq: waiting.seq,
                cost: waiting.share.cost,
                enqueued_at,
            };
            groups.wait(limits, waiting.share.group, member);
        }
    }

    /// Somebody who waited for a slot is gone.
    pub(super) fn let_go(
        &mut self,
        limits: &QueueLimits,
        (priority, waiting): (Priority, Waiting),
    ) {
        if let Some(groups) = &mut self.groups {
            let group = waiting.share.group;
            groups.stop_waiting(limits, group, (waiting.lane(priority), waiting.seq));
            groups.leave(waiting.execution_id, group);
        }
    }

    /// Somebody holds a slot from now on.
    pub(super) fn hold(&mut self, limits: &QueueLimits, id: ExecutionId, holder: Holder) {
        self.active.insert(id, holder);
        if let Some(groups) = &mut self.groups {
            groups.take(limits, holder.share);
        }
    }

    /// Takes the slot from whoever holds it; it is in its group still.
    pub(super) fn give_back(&mut self, limits: &QueueLimits, id: ExecutionId) -> Option<Holder> {
        let holder = self.active.remove(&id)?;
        if let Some(groups) = &mut self.groups {
            groups.give_back(limits, holder.share);
        }
        Some(holder)
    }

    /// Takes the slot from whoever holds it, and forgets it.
    pub(super) fn release(&mut self, limits: &QueueLimits, id: ExecutionId) -> Option<Holder> {
        let holder = self.give_back(limits, id)?;
        if let Some(groups) = &mut self.groups {
            groups.leave(id, holder.share.group);
        }
        Some(holder)
    }

    /// Executions demand by another rule from now on: nobody's group is known.
    pub(super) fn regroup(&mut self, limits: &QueueLimits) {
        self.order.forget_shares();
        self.delayed.forget_shares();
        let holders = self.active.values_mut();
        holders.for_each(|holder| holder.share = Share::default());
        self.groups = limits.demands().map(|_| {
            let waiting = self.order.iter().chain(self.delayed.iter());
            let waiting = waiting.map(|waiting| waiting.execution_id);
            let all = waiting.chain(self.active.keys().copied());
            Box::new(Groups::of_unknown(all.collect()))
        });
    }
}
