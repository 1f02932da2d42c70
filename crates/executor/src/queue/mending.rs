//! How a queue becomes what is stored.

use attune_core::{Bug, Demand, ExecutionId, Priority, Seq};

use super::action_queue::ActionQueue;
use super::entry::{Holder, Millis, Waiting};

/// What takeovers and the reconciler bring into a queue to make it what is stored. None of it
/// counts as an end: [`balance`](ActionQueue::balance) sets the totals right once everything is
/// mended.
impl ActionQueue {
    /// Puts an execution that is stored as waiting back at its place; totals know it already.
    pub fn restore_waiting(
        &mut self,
        priority: Priority,
        mut waiting: Waiting,
        demand: Option<&Demand>,
        not_before: Option<Millis>,
    ) {
        let (limits, load) = self.parts();
        waiting.share = load.share(limits, waiting.execution_id, demand);
        match not_before {
            Some(time) => load.put_off(priority, waiting, time),
            None => load.wait(limits, priority, waiting),
        }
    }

    /// Gives an execution that is stored as holding a slot its slot, whatever the limit is now; or its place ahead
    /// of one.
    pub fn restore_holder(
        &mut self,
        execution_id: ExecutionId,
        mut holder: Holder,
        demand: Option<&Demand>,
    ) {
        let (limits, load) = self.parts();
        load.release(limits, execution_id);
        if !Bug::UngroupedHolders.is_planted() {
            holder.share = load.share(limits, execution_id, demand);
        }
        load.hold(limits, execution_id, holder);
        if holder.is_ahead() {
            self.restore_ahead(execution_id);
        }
    }

    /// Drops an execution that waits; false when it does not.
    pub fn forget_waiting(&mut self, seq: Seq) -> bool {
        self.remove(seq).is_some()
    }

    /// Drops a holder; false when it holds no slot.
    pub fn forget_holder(&mut self, execution_id: ExecutionId) -> bool {
        let (limits, load) = (&self.limits, self.load.as_mut());
        let forgotten = load.is_some_and(|load| load.release(limits, execution_id).is_some());
        self.shrink();
        forgotten
    }

    /// Raises the totals until everything that entered is accounted for: what is gone without a
    /// trace counts as completed, what appeared without having entered as entered.
    pub fn balance(&mut self) {
        let present = (self.len() + self.active_count()) as u64;
        let totals = &mut self.totals;
        let known = totals.completed + totals.cancelled + totals.expired + present;
        totals.completed += totals.enqueued.saturating_sub(known);
        totals.enqueued = totals.enqueued.max(known);
    }
}
