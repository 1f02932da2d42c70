//! Compares memory with the store, in both directions, and with the leases of the workers: who
//! holds a slot, and who waits. Every difference is mended, counted and logged with its cause.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use attune_core::{Action, ActionId, ExecutionId, Priority, Status};
use attune_store::{ActiveRow, SlotRow};

use crate::action_queue::{Holder, Millis};
use crate::event::{Counter, Dispatch, Effect, ReconcileBounds};
use crate::partition_core::PartitionCore;

impl PartitionCore {
    /// The actions whose waiting executions must be compared one by one: memory and store have
    /// different numbers of them, or different holders.
    pub(crate) fn differing(
        &self,
        stored: &HashMap<ActionId, u64>,
        slots: &[SlotRow],
    ) -> Vec<ActionId> {
        let mut held: HashMap<ActionId, Vec<&SlotRow>> = HashMap::new();
        for row in slots {
            held.entry(row.action_id).or_default().push(row);
        }
        let differs = |id: &ActionId| {
            let rows = held.get(id).map(Vec::as_slice).unwrap_or_default();
            let waiting = stored.get(id).copied().unwrap_or_default();
            self.queues.with_existing(*id, |queue| {
                queue.len() as u64 != waiting
                    || queue.active_count() != rows.len()
                    || rows.iter().any(|row| queue.holder(row.id).is_none())
            })
        };
        let ids = self.actions.keys().copied();
        ids.filter(|id| differs(id) == Some(true)).collect()
    }

    /// The rows are all that wait of these actions, read while nothing was being decided.
    /// Nothing is granted before the slots have been compared as well.
    pub(crate) fn reconcile_waiting(
        &mut self,
        now: Millis,
        actions: &[ActionId],
        rows: &[ActiveRow],
        out: &mut Vec<Effect>,
    ) {
        for action_id in actions {
            let Some(action) = self.actions.get(action_id).map(Arc::clone) else {
                continue;
            };
            let stored: BTreeMap<ExecutionId, &ActiveRow> = rows
                .iter()
                .filter(|row| row.action_id == *action_id)
                .map(|row| (row.id, row))
                .collect();
            let queues = self.queues.clone();
            queues.with_existing(*action_id, |queue| {
                let known = queue.waiting_ids();
                for id in known.iter().filter(|id| !stored.contains_key(id)) {
                    queue.forget_waiting(id.seq());
                    log_waiting(&action, *id, "it waited in memory only and is forgotten");
                    out.push(Effect::Count(Counter::WaitingLeakMended));
                }
                for (id, row) in stored.iter().filter(|(id, _)| !known.contains(id)) {
                    if queue.forget_holder(*id) {
                        log_waiting(&action, *id, "it held a slot in memory only");
                        out.push(Effect::Count(Counter::SlotLeakMended));
                    }
                    queue.restore(now, row);
                    log_waiting(
                        &action,
                        *id,
                        "it waited in the store only and has its place now",
                    );
                    out.push(Effect::Count(Counter::WaitingMissingMended));
                }
            });
            self.mended.insert(*action_id);
        }
    }

    /// The rows were read while nothing was being decided, so that every difference is real.
    pub(crate) fn reconcile(
        &mut self,
        now: Millis,
        slots: &[SlotRow],
        bounds: ReconcileBounds,
        out: &mut Vec<Effect>,
    ) {
        let mut changed = std::mem::take(&mut self.mended);
        self.drop_leaked(slots, &mut changed, out);
        self.add_missing(now, slots, &mut changed, out);
        for action_id in &changed {
            // What was mended came or went without being counted.
            self.queues
                .with_existing(*action_id, |queue| queue.balance());
        }
        self.watch_stored(now, slots, out);
        for row in slots {
            if self.follow_up(row, bounds, out) {
                changed.insert(row.action_id);
            }
        }
        for action_id in changed {
            self.serve(now, action_id, out);
        }
    }

    /// Releases slots that are held in memory only: nothing in the store will ever free them.
    fn drop_leaked(
        &mut self,
        slots: &[SlotRow],
        changed: &mut BTreeSet<ActionId>,
        out: &mut Vec<Effect>,
    ) {
        let stored: HashMap<ExecutionId, &SlotRow> =
            slots.iter().map(|row| (row.id, row)).collect();
        let mut released = Vec::new();
        for (action_id, action) in &self.actions {
            self.queues.with_existing(*action_id, |queue| {
                let leaked: Vec<(ExecutionId, Holder)> = queue
                    .holders()
                    .filter(|(id, holder)| {
                        stored
                            .get(id)
                            .is_none_or(|row| row.attempt != holder.attempt)
                    })
                    .collect();
                for (execution_id, holder) in leaked {
                    queue.forget_holder(execution_id);
                    let row = stored.get(&execution_id);
                    tracing::error!(
                        execution.id = %execution_id,
                        execution.attempt = %holder.attempt,
                        "action.ref" = %action.spec.action_ref,
                        stored.attempt = ?row.map(|row| row.attempt),
                        "a slot was held in memory only; it is released"
                    );
                    out.push(Effect::Count(Counter::SlotLeakMended));
                    changed.insert(*action_id);
                    released.push((*action_id, execution_id, holder.attempt));
                }
            });
        }
        for (action_id, execution_id, attempt) in released {
            self.log_revoked(action_id, execution_id, attempt);
        }
    }

    /// Counts slots that are held in the store only: what runs must not be joined by too many.
    fn add_missing(
        &mut self,
        now: Millis,
        slots: &[SlotRow],
        changed: &mut BTreeSet<ActionId>,
        out: &mut Vec<Effect>,
    ) {
        for row in slots {
            let Some(action) = self.actions.get(&row.action_id) else {
                continue;
            };
            let missing = self.queues.with_existing(row.action_id, |queue| {
                if queue.holder(row.id).is_some() {
                    return false;
                }
                let holder = Holder {
                    attempt: row.attempt,
                    priority: Priority::Normal,
                    seq: row.id.seq(),
                    enqueued_at: now,
                    cancel_requested: row.cancel_requested,
                };
                queue.forget_waiting(row.id.seq());
                queue.restore_holder(row.id, holder);
                true
            });
            if missing == Some(true) {
                tracing::error!(
                    execution.id = %row.id,
                    execution.attempt = %row.attempt,
                    "action.ref" = %action.spec.action_ref,
                    status = %row.status,
                    "a slot was held in the store only; it counts from now on"
                );
                out.push(Effect::Count(Counter::SlotMissingMended));
                self.log_held(row.action_id, row.id, row.attempt);
                changed.insert(row.action_id);
            }
        }
    }

    /// Lets the detector look at what the store shows.
    fn watch_stored(&mut self, now: Millis, slots: &[SlotRow], out: &mut Vec<Effect>) {
        let mut by_action: BTreeMap<ActionId, Vec<&SlotRow>> = BTreeMap::new();
        for row in slots {
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
    fn follow_up(&mut self, row: &SlotRow, bounds: ReconcileBounds, out: &mut Vec<Effect>) -> bool {
        let Some(action) = self.actions.get(&row.action_id).map(Arc::clone) else {
            return false;
        };
        let holder = self
            .queues
            .with_existing(row.action_id, |queue| queue.holder(row.id));
        let Some(holder) = holder.flatten() else {
            return false;
        };
        let millis =
            |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        match row.status {
            Status::Running if millis(row.worker_lost_for) > bounds.worker_grace => {
                tracing::warn!(
                    execution.id = %row.id,
                    execution.attempt = %row.attempt,
                    worker.id = ?row.worker,
                    lost_for_ms = millis(row.worker_lost_for),
                    "the lease of a worker has ended; its slot is taken back"
                );
                self.take_back(&action, row.id, holder, "its worker was lost", out);
                true
            }
            Status::Running if row.cancel_requested => {
                out.push(Effect::CancelRun {
                    execution_id: row.id,
                    attempt: row.attempt,
                });
                false
            }
            Status::Requested if bounds.is_forgotten(millis(row.held_for)) => {
                out.push(Effect::Count(Counter::Redispatched));
                out.push(Effect::Redispatch(Dispatch {
                    execution_id: row.id,
                    attempt: row.attempt,
                    action,
                }));
                false
            }
            _ => false,
        }
    }
}

fn log_waiting(action: &Action, execution_id: ExecutionId, words: &str) {
    tracing::error!(
        execution.id = %execution_id,
        "action.ref" = %action.spec.action_ref,
        "memory and store differ on an execution: {words}"
    );
}
