//! Executions that are granted ahead of their slots (ADR 50): who is, who has its slot, who is called back.
//!
//! Whoever stands ahead is stored as waiting, with its worker, and its next attempt; the commit that records the end
//! before it records its slot. Where that one and its own end come in the same round, it is written once.

use std::sync::Arc;

use attune_core::policy::TryEnd;
use attune_core::{Action, ActionId, ActionRef, Bug, WorkerId};
use attune_dispatch::Key;

use super::{Effect, Partition, Wait};
use crate::fact::Fact;
use crate::queue::{ActionQueue, Millis};
use crate::stored::{Change, Transition};

impl Partition {
    /// Gives slots that are free to those who stand ahead of them: their worker has begun them, or will.
    pub(super) fn hand_slots_on(
        &mut self,
        now: Millis,
        queue: &mut ActionQueue,
        action: &Arc<Action>,
        out: &mut Vec<Effect>,
    ) {
        while let Some((execution_id, holder)) = queue.hand_on(now) {
            let Some(worker) = holder.worker else {
                continue;
            };
            self.detector
                .handed_on(now, action, queue, execution_id, out);
            let attempt = holder.attempt;
            self.roster
                .lock()
                .hold(worker, (execution_id, attempt), false);
            self.note(|| Fact::HandedOn {
                execution_id,
                action_id: action.id,
                attempt,
            });
            out.push(Effect::Change(Change {
                transition: Some(Transition::grant()),
                worker: Some(worker),
                // A change says all marks of its execution.
                cancel_requested: holder.cancel_requested,
                ..Change::of(execution_id, attempt)
            }));
            out.push(Effect::Granted(Wait {
                priority: holder.priority,
                waited: now - holder.eligible_at,
            }));
            self.has_started(action, (execution_id, attempt), out);
        }
    }

    /// Calls those back who stand ahead, where they may not begin before others, or not at all, or not ahead, or where
    /// an operation ends who waits.
    pub(super) fn call_back(
        &mut self,
        queue: &mut ActionQueue,
        action: &Action,
        out: &mut Vec<Effect>,
    ) {
        if !queue.has_lane() {
            return;
        }
        let is_wanted =
            !may_stand_ahead(action, queue.tries_ahead()) || self.wants_lanes_of(action);
        if let Some(worker) = queue.recall(is_wanted) {
            let action_id = action.id;
            out.push(Effect::Recall { worker, action_id });
        }
    }

    /// Grants the next in order to the worker that has all slots of the action, ahead of them; whether more may
    /// be, and this step has no room for it.
    pub(super) fn grant_ahead(
        &mut self,
        now: Millis,
        queue: &mut ActionQueue,
        action: &Arc<Action>,
        out: &mut Vec<Effect>,
    ) -> bool {
        while let Some((worker, slots)) = queue.sequencer(self.cluster.lane_length) {
            let tries = queue.next_tries();
            if !tries.is_some_and(|tries| self.may_lead((action, tries), worker, slots)) {
                return false;
            }
            if self.room.is_used_up() {
                return true;
            }
            self.expire(now, queue, action.id, out);
            if self.room.expiries == 0 && queue.is_next_expired(now) {
                return true;
            }
            let grant_no = self.next_grant_no();
            let Some(granted) = queue.grant_ahead(now, worker, grant_no) else {
                continue;
            };
            self.room.grants -= 1;
            self.detector.granted(now, action, queue, granted, out);
            let key = (granted.execution_id, granted.attempt);
            let change = Change::of(granted.execution_id, granted.attempt);
            let waited = now - granted.eligible_at;
            let queue = &*queue;
            self.note_grant(
                now,
                (action, queue),
                (key, worker),
                (grant_no, Some(slots), waited),
                change,
                out,
            );
        }
        false
    }

    /// Whether a worker may be granted an execution of an action ahead, with so many tries: where nobody else waits
    /// for its slots.
    fn may_lead(&self, (action, tries): (&Action, u32), worker: WorkerId, slots: u32) -> bool {
        let pool = &action.spec.pool;
        let roster = self.roster.lock();
        may_stand_ahead(action, tries)
            && !self.wants_lanes_of(action)
            && !self.expects_from(worker)
            && !roster.is_waited_for(pool)
            && roster.may_lead(worker, pool, slots)
    }

    /// A queue of an action that is meant which is held although somebody stands ahead of a slot of it, and the
    /// worker that may begin that one.
    pub(crate) fn held_lane(
        &self,
        is_meant: impl Fn(&ActionRef) -> bool,
    ) -> Option<(WorkerId, ActionRef)> {
        self.lane(|action, queue| {
            let worker = queue.lane_worker();
            let is_held = queue.held().mode.is_some();
            worker.filter(|_| is_held && is_meant(&action.spec.action_ref))
        })
    }

    /// A queue of an action that is meant in which somebody stands ahead of a slot by other rules than those of now,
    /// and the worker that may begin that one.
    pub(crate) fn outdated_lane(
        &self,
        is_meant: impl Fn(&ActionRef) -> bool,
    ) -> Option<(WorkerId, ActionRef)> {
        self.lane(|action, queue| {
            let worker = match may_stand_ahead(action, queue.tries_ahead()) {
                true => queue.outdated_lane(),
                false => queue.lane_worker(),
            };
            worker.filter(|_| is_meant(&action.spec.action_ref))
        })
    }

    fn lane(
        &self,
        find: impl Fn(&Action, &ActionQueue) -> Option<WorkerId>,
    ) -> Option<(WorkerId, ActionRef)> {
        if Bug::PauseEarly.is_planted() {
            return None;
        }
        let mut lanes = self.holding.iter().filter_map(|action_id| {
            let action = self.actions.get(action_id)?;
            let find = |queue: &mut ActionQueue| find(action, queue);
            let worker = self.queues.with_existing(*action_id, find).flatten()?;
            Some((worker, action.spec.action_ref.clone()))
        });
        lanes.next()
    }

    /// The actions of which a life was told to give everything back, and has not yet.
    pub(crate) fn recalled_from(&self, worker: WorkerId) -> Vec<ActionId> {
        let is_recalled = |action_id: &ActionId| {
            let from = |queue: &mut ActionQueue| queue.recalled_from();
            self.queues.with_existing(*action_id, from).flatten() == Some(worker)
        };
        let holding = self.holding.iter().copied();
        holding.filter(is_recalled).collect()
    }

    /// Whether a life stands ahead with this grant.
    pub(crate) fn is_ahead(&self, worker: WorkerId, grant: Key) -> bool {
        self.held_by(worker, grant)
            .is_some_and(|(_, holder)| holder.is_ahead())
    }
}

/// Whether an execution of an action may stand ahead that has begun so often with its next try; with 1, whether any
/// may. Where one is lost with its worker, begun or not, it must be run again, for nobody knows which had begun; and
/// none may be that has failed.
pub(super) fn may_stand_ahead(action: &Action, tries: u32) -> bool {
    let rule = action.spec.retry();
    !rule.hold_slot
        && rule.tries_again(TryEnd::WorkerLost, tries)
        && !rule.on.contains(TryEnd::Failed)
        && !rule.on.contains(TryEnd::TimedOut)
}

#[cfg(test)]
#[path = "handing_on_tests.rs"]
mod tests;
