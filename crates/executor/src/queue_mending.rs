//! What takeovers and the reconciler bring into a queue to make it what is stored. None of it counts as an
//! end: [`balance`](ActionQueue::balance) sets the totals right once everything is mended.

use std::collections::BTreeSet;

use attune_core::{ExecutionId, Priority, Seq};
use attune_store::ActiveRow;

use crate::action_queue::{ActionQueue, Holder, Millis, Waiting};

impl ActionQueue {
    /// Puts an execution that is stored as waiting back at its place; totals know it already.
    pub fn restore_waiting(
        &mut self,
        priority: Priority,
        waiting: Waiting,
        not_before: Option<Millis>,
    ) {
        match not_before {
            Some(time) => self.delay(priority, waiting, time),
            None => {
                self.insert(priority, waiting);
            }
        }
    }

    /// Gives an execution that is stored as holding a slot its slot, whatever the limit is now.
    pub fn restore_holder(&mut self, execution_id: ExecutionId, holder: Holder) {
        self.add_holder(execution_id, holder);
    }

    /// Takes a stored execution in, as it is stored: as a holder, whatever the limit is now, or
    /// at its place in the order. Totals know it already.
    pub(crate) fn restore(&mut self, now: Millis, row: &ActiveRow) {
        let age = Millis::try_from(row.age.as_millis()).unwrap_or(Millis::MAX);
        let (seq, enqueued_at) = (row.id.seq(), now.saturating_sub(age));
        if row.status.holds_slot() {
            let holder = Holder {
                attempt: row.attempt,
                priority: row.priority,
                seq,
                enqueued_at,
                cancel_requested: row.cancel_requested,
            };
            self.restore_holder(row.id, holder);
            return;
        }
        let not_before = row.not_before.map(|time| time.timestamp_millis());
        let waiting = Waiting {
            execution_id: row.id,
            seq,
            // The time it was not eligible does not count as waiting for a slot.
            enqueued_at: not_before.map_or(enqueued_at, |time| time.max(enqueued_at)),
            attempt: row.attempt,
            delayed: row.not_before.is_some(),
        };
        self.restore_waiting(row.priority, waiting, not_before.filter(|time| *time > now));
    }

    /// The ids of all that wait, delayed ones included.
    pub(crate) fn waiting_ids(&self) -> BTreeSet<ExecutionId> {
        self.waiting().map(|waiting| waiting.execution_id).collect()
    }

    /// Drops an execution that waits; false when it does not.
    pub(crate) fn forget_waiting(&mut self, seq: Seq) -> bool {
        let forgotten = self.remove(seq).is_some();
        self.rest();
        forgotten
    }

    /// Drops a holder; false when it holds no slot.
    pub(crate) fn forget_holder(&mut self, execution_id: ExecutionId) -> bool {
        let forgotten = self.remove_holder(execution_id);
        self.rest();
        forgotten
    }

    /// Raises the totals until everything that entered is accounted for: what is gone without a
    /// trace counts as completed, what appeared without having entered as entered.
    pub(crate) fn balance(&mut self) {
        let present = (self.len() + self.active_count()) as u64;
        let totals = self.totals_mut();
        let known = totals.completed + totals.cancelled + totals.expired + present;
        totals.completed += totals.enqueued.saturating_sub(known);
        totals.enqueued = totals.enqueued.max(known);
    }
}
