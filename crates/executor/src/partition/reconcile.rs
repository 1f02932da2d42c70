//! Compares memory with the store, in both directions, and with the leases of the workers: who
//! holds a slot, and who waits. Every difference is mended, counted and told with its cause.
//!
//! Whoever holds a slot in memory is looked for in the store at every look. Who holds one in the
//! store only is found with all that waits, range by range.
//!
//! The store is read beside the decisions, not between them. What was decided while it was read
//! is left out of the comparison; the next pass looks at it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use attune_core::{ActionId, Attempt, ExecutionId, Status};

use super::holders::Lost;
use super::{Effect, Partition, restore};
use crate::counters::Counter;
use crate::fact::Fact;
use crate::notice::Notice;
use crate::queue::{ActionQueue, Millis};
use crate::stored::{StoredExecution, StoredSlot};

impl Partition {
    /// Compares everything in a range of ids.
    pub(super) fn reconcile_range(
        &mut self,
        now: Millis,
        (after, last): (Option<ExecutionId>, Option<ExecutionId>),
        rows: &[StoredExecution],
        changed: &HashSet<ExecutionId>,
        out: &mut Vec<Effect>,
    ) {
        let stored: BTreeMap<ExecutionId, &StoredExecution> =
            rows.iter().map(|row| (row.id, row)).collect();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let to = last.map_or(Bound::Unbounded, Bound::Included);
        let known: Vec<(ExecutionId, ActionId)> = self
            .index
            .range((from, to))
            .map(|(id, action_id)| (*id, *action_id))
            .collect();
        let mut mended = BTreeSet::new();
        for (id, action_id) in known {
            let is_there = stored.contains_key(&id) || changed.contains(&id);
            if !is_there && self.forget_waiting(action_id, id, out) {
                mended.insert(action_id);
            }
        }
        for (id, row) in stored {
            if changed.contains(&id) || !self.actions.contains_key(&row.action_id) {
                continue;
            }
            if row.is_granted() {
                if self.holds(id).is_none() {
                    self.hold_missing(now, row, out);
                    mended.insert(row.action_id);
                }
            } else if !self.has_place(row) {
                self.restore_missing(now, row, out);
                mended.insert(row.action_id);
            }
        }
        self.settle_mended(now, mended, out);
    }

    /// Drops one that waits in memory only; holders are compared with the slots.
    fn forget_waiting(
        &mut self,
        action_id: ActionId,
        id: ExecutionId,
        out: &mut Vec<Effect>,
    ) -> bool {
        let forget = |queue: &mut ActionQueue| queue.forget_waiting(id.seq());
        if self.queues.with_existing(action_id, forget) != Some(true) {
            return false;
        }
        self.index.remove(&id);
        self.askers.forget(id);
        let what = "it waited in memory only and is forgotten";
        self.mended_waiting(action_id, id, what, Counter::WaitingLeakMended, out);
        true
    }

    /// Whether a stored execution waits or holds a slot in memory. The queue itself is asked: what
    /// is only said to be there is never granted.
    fn has_place(&self, row: &StoredExecution) -> bool {
        let has_place = |queue: &mut ActionQueue| {
            queue.is_waiting(row.id.seq()) || queue.holder(row.id).is_some()
        };
        self.queues.with_existing(row.action_id, has_place) == Some(true)
    }

    fn restore_missing(&mut self, now: Millis, row: &StoredExecution, out: &mut Vec<Effect>) {
        self.queues
            .with_existing(row.action_id, |queue| restore(queue, now, row));
        self.index.insert(row.id, row.action_id);
        self.askers.restore(row);
        let what = "it waited in the store only and has its place now";
        self.mended_waiting(
            row.action_id,
            row.id,
            what,
            Counter::WaitingMissingMended,
            out,
        );
    }

    /// Counts a slot that is held in the store only: what runs must not be joined by too many.
    fn hold_missing(&mut self, now: Millis, row: &StoredExecution, out: &mut Vec<Effect>) {
        let (execution_id, action_id, attempt) = (row.id, row.action_id, row.attempt);
        self.queues.with_existing(action_id, |queue| {
            queue.forget_waiting(execution_id.seq());
            restore(queue, now, row);
        });
        self.index.insert(execution_id, action_id);
        self.askers.restore(row);
        self.holding.insert(action_id);
        self.hold_stored(row);
        let what = "it was held in the store only and counts from now on";
        self.mended_slot(action_id, execution_id, attempt, what, out);
        out.push(Effect::Count(Counter::SlotMissingMended));
        let kept_until = row.kept_until;
        let ahead = row.ahead().is_some();
        self.note(|| Fact::Held {
            execution_id,
            action_id,
            attempt,
            kept_until,
            ahead,
        });
    }

    fn mended_waiting(
        &self,
        action_id: ActionId,
        execution_id: ExecutionId,
        what: &'static str,
        counter: Counter,
        out: &mut Vec<Effect>,
    ) {
        out.push(Effect::Notice(Notice::WaitingDiffers {
            execution_id,
            action_ref: self.ref_of(action_id),
            what,
        }));
        out.push(Effect::Mended(execution_id));
        out.push(Effect::Count(counter));
    }

    fn ref_of(&self, action_id: ActionId) -> String {
        let action = self.actions.get(&action_id);
        action.map_or_else(String::new, |action| {
            action.spec.action_ref.as_str().to_owned()
        })
    }

    /// What was mended came or went without being counted.
    fn settle_mended(&mut self, now: Millis, mended: BTreeSet<ActionId>, out: &mut Vec<Effect>) {
        for action_id in mended {
            self.queues
                .with_existing(action_id, |queue| queue.balance());
            // What was brought in may have been accepted under another rule.
            self.note_regrouping(action_id);
            self.serve(now, action_id, out);
        }
    }

    /// Whoever is granted to a worker in memory.
    pub(crate) fn held(&self) -> Vec<ExecutionId> {
        let mut held = Vec::new();
        for action_id in &self.holding {
            self.queues.with_existing(*action_id, |queue| {
                held.extend(queue.holders().map(|(id, _)| id));
            });
        }
        held
    }

    /// Compares everything that holds a slot in memory.
    pub(super) fn reconcile(
        &mut self,
        now: Millis,
        slots: &[StoredSlot],
        changed: &HashSet<ExecutionId>,
        out: &mut Vec<Effect>,
    ) {
        let mut mended = BTreeSet::new();
        self.drop_leaked(slots, changed, &mut mended, out);
        self.add_missing(now, slots, changed, &mut mended, out);
        self.settle_mended(now, mended, out);
        self.watch_stored(now, slots, out);
        let mut freed = BTreeSet::new();
        for row in slots.iter().filter(|row| !changed.contains(&row.id)) {
            if self.follow_up(now, row, out) {
                freed.insert(row.action_id);
            }
        }
        for action_id in freed {
            self.serve(now, action_id, out);
        }
    }

    /// Releases slots that are held in memory only: nothing in the store will ever free them.
    fn drop_leaked(
        &mut self,
        slots: &[StoredSlot],
        changed: &HashSet<ExecutionId>,
        mended: &mut BTreeSet<ActionId>,
        out: &mut Vec<Effect>,
    ) {
        let stored: HashMap<ExecutionId, Attempt> =
            slots.iter().map(|row| (row.id, row.attempt)).collect();
        let mut leaked: Vec<(ActionId, ExecutionId, Attempt)> = Vec::new();
        self.holding.retain(|action_id| {
            let granted = self.queues.with_existing(*action_id, |queue| {
                let held = queue.holders().filter(|(id, holder)| {
                    stored.get(id) != Some(&holder.attempt) && !changed.contains(id)
                });
                leaked.extend(held.map(|(id, holder)| (*action_id, id, holder.attempt)));
                queue.granted_count()
            });
            granted.is_some_and(|granted| granted > 0)
        });
        for (action_id, execution_id, attempt) in leaked {
            let forgotten = self.queues.with_existing(action_id, |queue| {
                let holder = queue.holder(execution_id);
                queue.forget_holder(execution_id);
                holder
            });
            if let Some(holder) = forgotten.flatten() {
                self.free(execution_id, attempt, &holder);
            }
            self.index.remove(&execution_id);
            self.askers.forget(execution_id);
            let what = "it was held in memory only and is released";
            self.mended_slot(action_id, execution_id, attempt, what, out);
            out.push(Effect::Count(Counter::SlotLeakMended));
            self.note(|| Fact::Revoked {
                execution_id,
                action_id,
                attempt,
                until: None,
                never_begun: false,
            });
            mended.insert(action_id);
        }
    }

    /// Counts slots that another attempt holds in the store.
    fn add_missing(
        &mut self,
        now: Millis,
        slots: &[StoredSlot],
        changed: &HashSet<ExecutionId>,
        mended: &mut BTreeSet<ActionId>,
        out: &mut Vec<Effect>,
    ) {
        for row in slots.iter().filter(|row| !changed.contains(&row.id)) {
            let known = self.actions.contains_key(&row.action_id);
            if known && self.holds(row.id).is_none() {
                self.hold_missing(now, &row.execution(), out);
                mended.insert(row.action_id);
            }
        }
    }

    fn mended_slot(
        &self,
        action_id: ActionId,
        execution_id: ExecutionId,
        attempt: Attempt,
        what: &'static str,
        out: &mut Vec<Effect>,
    ) {
        out.push(Effect::Notice(Notice::SlotDiffers {
            execution_id,
            attempt,
            action_ref: self.ref_of(action_id),
            what,
        }));
        out.push(Effect::Mended(execution_id));
    }

    /// Lets the detector look at what the store shows.
    fn watch_stored(&mut self, now: Millis, slots: &[StoredSlot], out: &mut Vec<Effect>) {
        let mut by_action: BTreeMap<ActionId, Vec<&StoredSlot>> = BTreeMap::new();
        for row in slots.iter().filter(|row| row.status.holds_slot()) {
            by_action.entry(row.action_id).or_default().push(row);
        }
        for (action_id, rows) in by_action {
            let action = self.actions.get(&action_id);
            let stats = self.queues.get_queue_stats(action_id);
            if let (Some(action), Some(stats)) = (action, stats) {
                self.detector.stored(now, action, &rows, stats, out);
            }
        }
    }

    /// Does what one stored slot asks for; true when its queue may have more to do.
    fn follow_up(&mut self, now: Millis, row: &StoredSlot, out: &mut Vec<Effect>) -> bool {
        let Some(action) = self.actions.get(&row.action_id).map(Arc::clone) else {
            return false;
        };
        let holder = self
            .queues
            .with_existing(row.action_id, |queue| queue.holder(row.id));
        let Some(holder) = holder.flatten().filter(|held| held.attempt == row.attempt) else {
            return false;
        };
        let (execution_id, attempt) = (row.id, row.attempt);
        match row.status {
            // Unless somebody knows that it never began, it may have.
            _ if row.worker_over && row.worker.is_some() => {
                out.push(Effect::Notice(Notice::WorkerLost {
                    execution_id,
                    attempt,
                    worker: row.worker,
                }));
                let lost = Lost {
                    begun: !row.never_begun,
                    keeps: true,
                    why: "its worker was lost",
                };
                self.take_back(now, &action, execution_id, holder, &lost, out);
                true
            }
            Status::Running if row.cancel_requested => {
                self.cancel_run(action.id, (execution_id, attempt), out);
                false
            }
            _ => false,
        }
    }
}
