//! Compares who holds a slot in memory with who holds one in the store, in both directions, and
//! with the leases of the workers. Every difference is mended and counted.

use std::collections::HashMap;
use std::sync::Arc;

use attune_core::{ActionId, ExecutionId, Status};
use attune_store::SlotRow;

use crate::action_queue::{Holder, Millis};
use crate::event::{Counter, Dispatch, Effect, ReconcileBounds};
use crate::partition_core::PartitionCore;

impl PartitionCore {
    /// The rows were read while nothing was being decided, so that every difference is real.
    pub(crate) fn reconcile(
        &mut self,
        now: Millis,
        slots: &[SlotRow],
        bounds: ReconcileBounds,
        out: &mut Vec<Effect>,
    ) {
        let stored: HashMap<ExecutionId, &SlotRow> =
            slots.iter().map(|row| (row.id, row)).collect();
        let mut changed: Vec<ActionId> = self.drop_leaked(&stored, out);
        for row in slots {
            if self.compare(now, row, bounds, out) {
                changed.push(row.action_id);
            }
        }
        changed.sort_unstable();
        changed.dedup();
        for action_id in changed {
            self.serve(now, action_id, out);
        }
    }

    /// Releases slots that are held in memory only: nothing in the store will ever free them.
    fn drop_leaked(
        &mut self,
        stored: &HashMap<ExecutionId, &SlotRow>,
        out: &mut Vec<Effect>,
    ) -> Vec<ActionId> {
        let mut changed = Vec::new();
        let actions: Vec<ActionId> = self.actions.keys().copied().collect();
        for action_id in actions {
            let leaked = self.queues.with_existing(action_id, |queue| {
                let leaked: Vec<(ExecutionId, Holder)> = queue
                    .holders()
                    .filter(|(id, holder)| {
                        stored
                            .get(id)
                            .is_none_or(|row| row.attempt != holder.attempt)
                    })
                    .collect();
                for (id, holder) in &leaked {
                    queue.finish(*id, holder.attempt, false);
                }
                leaked
            });
            for (execution_id, holder) in leaked.unwrap_or_default() {
                tracing::error!(
                    execution.id = %execution_id,
                    execution.attempt = %holder.attempt,
                    action.id = %action_id,
                    "a slot was held in memory only; it is released"
                );
                self.log_revoked(action_id, execution_id, holder.attempt);
                out.push(Effect::Count(Counter::SlotLeakMended));
                changed.push(action_id);
            }
        }
        changed
    }

    /// Looks at one stored slot; true when its queue may have more to do.
    fn compare(
        &mut self,
        now: Millis,
        row: &SlotRow,
        bounds: ReconcileBounds,
        out: &mut Vec<Effect>,
    ) -> bool {
        let Some(action) = self.actions.get(&row.action_id).map(Arc::clone) else {
            return false;
        };
        let holder = self.queues.with_existing(row.action_id, |queue| {
            if let Some(holder) = queue.holder(row.id) {
                return (holder, false);
            }
            let holder = Holder {
                attempt: row.attempt,
                priority: attune_core::Priority::Normal,
                seq: row.id.seq(),
                enqueued_at: now,
                cancel_requested: row.cancel_requested,
            };
            queue.restore_holder(row.id, holder);
            (holder, true)
        });
        let Some((holder, missing)) = holder else {
            return false;
        };
        if missing {
            tracing::error!(
                execution.id = %row.id,
                execution.attempt = %row.attempt,
                "action.ref" = %action.spec.action_ref,
                "a slot was held in the store only; it counts from now on"
            );
            self.log_held(action.id, row.id, row.attempt);
            out.push(Effect::Count(Counter::SlotMissingMended));
        }
        let millis =
            |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let dispatch = || Dispatch {
            execution_id: row.id,
            attempt: row.attempt,
            action: Arc::clone(&action),
        };
        match row.status {
            Status::Running if millis(row.worker_lost_for) > bounds.worker_grace => {
                tracing::warn!(
                    execution.id = %row.id,
                    execution.attempt = %row.attempt,
                    worker.id = ?row.worker,
                    lost_for_ms = millis(row.worker_lost_for),
                    "the lease of a worker has ended; its slot is taken back"
                );
                self.lose_worker(&action, row.id, holder, out);
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
                out.push(Effect::Redispatch(dispatch()));
                false
            }
            _ => false,
        }
    }
}
