//! Which worker runs whom: who stands in line for the workers of a pool, and what workers say of what they
//! were granted.
//!
//! A grant names a life of a worker that has room. Where none of the pool has any, the action stands in line
//! for the pool and holds no slot; whoever comes later stands behind, also when room is found meanwhile, so
//! that no action passes others by being busier than they are.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use attune_core::{Action, ActionId, Attempt, ExecutionId, WorkerId};
use attune_dispatch::Key;

use super::handing_on::may_stand_ahead;
use super::holders::Lost;
use super::{Effect, Partition};
use crate::fact::Fact;
use crate::queue::{ActionQueue, Holder, Millis};
use crate::stored::Change;

/// The actions that stand in line for each pool.
#[derive(Debug, Default)]
pub(super) struct Lines {
    by_pool: BTreeMap<String, VecDeque<ActionId>>,
    /// In which line each action stands.
    stands: BTreeMap<ActionId, String>,
}

impl Lines {
    /// Whether an action stands in a line.
    pub(super) fn has(&self, action_id: ActionId) -> bool {
        self.stands.contains_key(&action_id)
    }

    /// The pools for which somebody stands in line.
    pub(super) fn pools(&self) -> impl Iterator<Item = &str> {
        self.by_pool.keys().map(String::as_str)
    }

    fn push(&mut self, pool: &str, action_id: ActionId) {
        if self.stands.contains_key(&action_id) {
            return;
        }
        self.stands.insert(action_id, pool.to_owned());
        match self.by_pool.get_mut(pool) {
            Some(line) => line.push_back(action_id),
            None => {
                self.by_pool
                    .insert(pool.to_owned(), VecDeque::from([action_id]));
            }
        }
    }

    fn pop(&mut self, pool: &str) -> Option<ActionId> {
        let line = self.by_pool.get_mut(pool)?;
        let first = line.pop_front();
        if line.is_empty() {
            self.by_pool.remove(pool);
        }
        if let Some(action_id) = first {
            self.stands.remove(&action_id);
        }
        first
    }

    fn remove(&mut self, action_id: ActionId) -> Option<String> {
        let pool = self.stands.remove(&action_id)?;
        if let Some(line) = self.by_pool.get_mut(&pool) {
            line.retain(|other| *other != action_id);
            if line.is_empty() {
                self.by_pool.remove(&pool);
            }
        }
        Some(pool)
    }
}

impl Partition {
    /// A life of a worker that may be granted something now: of a pool for which somebody stands in line, only whose
    /// turn it is.
    pub(super) fn worker_of(&self, pool: &str) -> Option<WorkerId> {
        let roster = self.roster.lock();
        match self.turns_left {
            Some(0) => None,
            Some(_) => roster.choose(pool),
            None if roster.is_waited_for(pool) => None,
            None => roster.choose(pool),
        }
    }

    /// The same, for one of an action: where runs are short, rather whoever has most slots of it already, so that
    /// one comes to have all and hands them on.
    pub(super) fn worker_for(&self, action: &Action, queue: &ActionQueue) -> Option<WorkerId> {
        let pool = &action.spec.pool;
        let worker = self.worker_of(pool)?;
        match queue.gathers_at(self.cluster.lane_length) {
            Some((host, slots)) if may_stand_ahead(action, 1) => {
                self.roster.lock().choose_rather(pool, host, slots)
            }
            _ => Some(worker),
        }
    }

    /// Puts an action at the end of the line for its pool.
    pub(super) fn stand_in_line(&mut self, queue: &mut ActionQueue, action: &Action) {
        queue.set_pool_closed(true);
        let (pool, action_id) = (&action.spec.pool, action.id);
        if !self.lines.has(action_id) {
            self.note(|| Fact::Line {
                action_id,
                stands: true,
            });
        }
        self.lines.push(pool, action_id);
        self.roster.lock().wait_for(pool, self.id);
    }

    /// Takes an action out of the line, where it stands in another one than that of its pool.
    pub(super) fn leave_line_unless(&mut self, action_id: ActionId, pool: &str) {
        if self
            .lines
            .stands
            .get(&action_id)
            .is_some_and(|of| of != pool)
        {
            self.leave_line(action_id);
        }
    }

    fn leave_line(&mut self, action_id: ActionId) {
        if let Some(pool) = self.lines.remove(action_id) {
            self.has_turn(action_id, &pool);
        }
    }

    /// An action stands in line no longer.
    fn has_turn(&mut self, action_id: ActionId, pool: &str) {
        self.queues
            .with_existing(action_id, |queue| queue.set_pool_closed(false));
        self.note(|| Fact::Line {
            action_id,
            stands: false,
        });
        self.note_line(pool);
    }

    fn note_line(&self, pool: &str) {
        if !self.lines.by_pool.contains_key(pool) {
            self.roster.lock().wait_no_longer(pool, self.id);
        }
    }

    /// The pools for which somebody stands in line here.
    pub(crate) fn waited_for(&self) -> impl Iterator<Item = &str> {
        self.lines.pools()
    }

    /// Whether it may grant more in this round.
    pub(crate) fn may_grant(&self) -> bool {
        !self.room.is_used_up()
    }

    /// Serves whoever stands first in line for a pool: one slot, or all that are free where nobody else
    /// waits for one.
    pub(super) fn serve_line(&mut self, now: Millis, pool: &str, out: &mut Vec<Effect>) {
        let Some(action_id) = self.lines.pop(pool) else {
            return;
        };
        self.has_turn(action_id, pool);
        let is_alone = !self.roster.lock().is_waited_for(pool);
        self.turns_left = Some(if is_alone { usize::MAX } else { 1 });
        self.serve(now, action_id, out);
        self.turns_left = None;
    }

    /// Whose slot a grant is, and of which action, where this life holds it.
    pub(super) fn held_by(
        &self,
        worker: WorkerId,
        (execution_id, attempt): Key,
    ) -> Option<(Arc<Action>, Holder)> {
        let action = self.actions.get(self.index.get(&execution_id)?)?;
        let holder = self
            .queues
            .with_existing(action.id, |queue| queue.holder(execution_id))??;
        let is_its = holder.attempt == attempt && holder.worker == Some(worker);
        is_its.then(|| (Arc::clone(action), holder))
    }

    /// Whether a life holds this grant.
    pub(crate) fn is_granted_to(&self, worker: WorkerId, grant: Key) -> bool {
        self.held_by(worker, grant).is_some()
    }

    /// The action of a grant that a life holds.
    pub(crate) fn action_of(&self, worker: WorkerId, grant: Key) -> Option<ActionId> {
        self.held_by(worker, grant).map(|(action, _)| action.id)
    }

    /// Whether a life holds this grant and is to end it.
    pub(crate) fn is_asked_to_end(&self, worker: WorkerId, grant: Key) -> bool {
        self.held_by(worker, grant)
            .is_some_and(|(_, holder)| holder.cancel_requested)
    }

    /// So many events of each life will say in this round that something has come back.
    pub(crate) fn expects(&mut self, returns: BTreeMap<WorkerId, usize>) {
        self.expected = returns;
    }

    /// Whether something will come back from a life in this round.
    pub(super) fn expects_from(&self, worker: WorkerId) -> bool {
        self.expected.contains_key(&worker)
    }

    /// A worker lacks the keys of what it was granted, and gives it back.
    pub(super) fn note_keyless(
        &mut self,
        now: Millis,
        worker: WorkerId,
        grants: Vec<(Key, Arc<str>)>,
    ) {
        for (grant, key) in grants {
            let Some((action, _)) = self.held_by(worker, grant) else {
                continue;
            };
            let lives = self.roster.lock().lives_of(&action.spec.pool);
            let note =
                |queue: &mut ActionQueue| queue.note_keyless(now, grant.0, (worker, key), lives);
            if self.queues.with_existing(action.id, note) == Some(true) {
                self.resting.insert(action.id);
            }
        }
    }

    /// Workers have come: they may have the keys for want of which queues rest.
    pub(crate) fn rest_no_more(&mut self) {
        for action_id in std::mem::take(&mut self.resting) {
            self.queues
                .with_existing(action_id, |queue| queue.rest_no_more());
            self.unserved.insert(action_id);
        }
    }

    /// Grants come back that never began, and never will: they wait again at their places.
    pub(super) fn take_returned(
        &mut self,
        now: Millis,
        worker: WorkerId,
        grants: impl IntoIterator<Item = (Key, Arc<str>)>,
        is_told: bool,
        out: &mut Vec<Effect>,
    ) {
        if let Some(events) = self.expected.get_mut(&worker) {
            *events -= 1;
            if *events == 0 {
                self.expected.remove(&worker);
            }
        }
        let mut actions = BTreeSet::new();
        for (grant, why) in grants {
            if let Some((action, holder)) = self.held_by(worker, grant) {
                let lost = Lost {
                    begun: false,
                    keeps: true,
                    why: &why,
                };
                self.take_back(now, &action, grant.0, holder, &lost, out);
                actions.insert(action.id);
            }
            // Also what changed nothing: whoever says it says it until it is settled.
            if is_told {
                out.push(Effect::Settled { worker, grant });
            }
        }
        for action_id in actions {
            self.serve(now, action_id, out);
        }
    }

    /// Runs that have lasted for a while are written down as running.
    pub(super) fn note_started(
        &mut self,
        worker: WorkerId,
        runs: Vec<(Key, Millis)>,
        out: &mut Vec<Effect>,
    ) {
        for (grant, since) in runs {
            let Some((action, holder)) = self.held_by(worker, grant) else {
                continue;
            };
            if holder.is_ahead() {
                // The end before it comes first; what still runs then is said again.
                continue;
            }
            let (id, attempt) = grant;
            let is_new = self
                .queues
                .with_existing(action.id, |queue| queue.note_started(id));
            if is_new == Some(true) {
                out.push(Effect::Change(Change {
                    started: Some(since),
                    // A change says all marks of its execution.
                    cancel_requested: holder.cancel_requested,
                    ..Change::of(id, attempt)
                }));
            }
        }
    }

    /// Executions that hold a slot and that no worker was named for, as an earlier release granted them: nobody
    /// can begin them any more.
    pub(super) fn put_orphans_back(&mut self, now: Millis, out: &mut Vec<Effect>) {
        for (action_id, execution_id) in std::mem::take(&mut self.orphans) {
            let Some(action) = self.actions.get(&action_id).cloned() else {
                continue;
            };
            let holder = |queue: &mut ActionQueue| queue.holder(execution_id);
            let holder = self.queues.with_existing(action_id, holder).flatten();
            let Some(holder) = holder.filter(|holder| holder.worker.is_none()) else {
                continue;
            };
            let lost = Lost {
                begun: false,
                keeps: true,
                why: "no worker was named for it",
            };
            self.take_back(now, &action, execution_id, holder, &lost, out);
            self.unserved.insert(action_id);
        }
    }

    /// Everything that is granted to a life of a worker, in order.
    pub(crate) fn granted_to(&self, worker: WorkerId) -> Vec<Key> {
        let held = self.roster.lock().held_by(worker);
        let mine = held.into_iter();
        mine.filter(|(id, _)| id.partition() == self.id).collect()
    }

    /// To whom something was granted of which nothing was heard for so long.
    pub(crate) fn unheard_of(&self, since: Millis) -> BTreeSet<WorkerId> {
        let mut unheard = BTreeSet::new();
        for action_id in &self.holding {
            self.queues.with_existing(*action_id, |queue| {
                let silent = queue.holders().filter(|(_, holder)| {
                    !holder.started
                        && !holder.is_ahead()
                        && holder.held_since.is_none_or(|at| at < since)
                });
                unheard.extend(silent.filter_map(|(_, holder)| holder.worker));
            });
        }
        unheard
    }

    /// A life holds no longer what it held of an execution.
    pub(super) fn free(&self, execution_id: ExecutionId, attempt: Attempt, holder: &Holder) {
        if let Some(worker) = holder.worker {
            self.roster.lock().free(worker, (execution_id, attempt));
        }
    }
}

#[cfg(test)]
#[path = "workers_tests.rs"]
mod tests;
