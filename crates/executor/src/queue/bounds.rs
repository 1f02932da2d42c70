//! How the bounds of a queue change, and what it must find out again then.

use attune_core::{Demand, ExecutionId};

use super::action_queue::ActionQueue;
use crate::policy::{Member, QueueLimits};

impl ActionQueue {
    /// Changes its bounds. Raising the limit makes room for [`grant_next`](Self::grant_next);
    /// lowering it takes no slot away: the queue drains down to it. Where executions demand by another
    /// rule than before, the queue stands still until it [knows](Self::assign) the group of each.
    pub fn set_limits(&mut self, limits: QueueLimits) {
        let earlier = std::mem::replace(&mut self.limits, limits);
        if let Some(meters) = &mut self.meters {
            meters.change(&earlier, &self.limits);
        }
        let (limits, Some(load)) = (&self.limits, &mut self.load) else {
            return;
        };
        // Rates may open earlier than they did.
        if let Some(kept) = &mut load.kept {
            kept.settle();
        }
        let is_moved = earlier.order != limits.order
            || earlier.group_limit() != limits.group_limit()
            || earlier.rate() != limits.rate()
            || earlier.fairness() != limits.fairness();
        if earlier.demands() != limits.demands() {
            load.regroup(limits);
            load.find_rivals(limits);
            return;
        }
        if earlier.on_limit() != limits.on_limit() {
            load.find_rivals(limits);
        }
        if let Some(groups) = load.groups.as_mut().filter(|_| is_moved) {
            groups.rearrange(limits);
        }
    }

    /// Executions whose group must be found out before anybody is granted a slot, by rising id.
    pub(crate) fn unknown(&self) -> impl Iterator<Item = ExecutionId> + '_ {
        let groups = self.load.iter().filter_map(|load| load.groups.as_ref());
        groups.flat_map(|groups| groups.unknown().iter().copied())
    }

    /// Says what an execution demands whose group was not known; false when that is not asked.
    pub(crate) fn assign(&mut self, execution_id: ExecutionId, demand: &Demand) -> bool {
        let (limits, Some(load)) = (&self.limits, &mut self.load) else {
            return false;
        };
        let Some(groups) = load.groups.as_mut().filter(|groups| {
            limits.demands() == Some(demand.rule) && groups.unknown().contains(&execution_id)
        }) else {
            return false;
        };
        let share = groups.share(execution_id, Some(demand), limits.demands());
        let seq = execution_id.seq();
        load.assign(execution_id, share);
        let Some(groups) = &mut load.groups else {
            return false;
        };
        if let Some(holder) = load.active.get(execution_id) {
            if !holder.is_ahead() {
                groups.take(limits, share);
            }
        } else if let Some((priority, waiting)) = load.order.set_share(seq, share) {
            let member = Member {
                lane: waiting.lane(priority),
                seq,
                cost: share.cost,
                enqueued_at: waiting.enqueued_at,
            };
            groups.wait(limits, share.group, member);
        } else if !load.delayed.set_share(seq, share) {
            groups.leave(execution_id, share.group);
        }
        true
    }
}
