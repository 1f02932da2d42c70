//! What a queue does by itself: wakes, expires, grants.

use std::ops::Bound;
use std::sync::Arc;

use attune_core::{
    Action, ActionId, DemandRule, EndCode, ExecutionId, OrderRule, Outcome, Seq, Status, WorkerId,
};
use attune_dispatch::Key;

use super::room::Room;
use super::{Effect, Grantee, Partition, Wait};
use crate::counters::Counter;
use crate::fact::Fact;
use crate::queue::{ActionQueue, Blocked, Grant, Millis, Waiting};
use crate::stored::{Change, End, PutBack, Transition};

/// What comes before a slot is given.
pub(super) enum Before {
    /// A wait for it.
    Waited(Wait),
    /// Another try, which has kept it; this is written of that.
    Kept(Box<PutBack>),
}

impl Partition {
    pub(super) fn tick(&mut self, now: Millis, out: &mut Vec<Effect>) {
        self.put_orphans_back(now, out);
        // What was accepted before is stored by now: a look-up finds it.
        self.accepted.clear();
        self.replaced.clear();
        self.room = Room::of(self.step_items, self.most_ends);
        // One more than are served, so that it shows when there are.
        for _ in 0..=self.step_items {
            let first = self.deadlines.first().copied();
            let Some((time, action_id)) = first.filter(|(time, _)| *time <= now) else {
                break;
            };
            self.deadlines.remove(&(time, action_id));
            self.scheduled.remove(&action_id);
            self.unserved.insert(action_id);
        }
        self.serve_turns(now, out);
    }

    /// Serves the queues that may have something to do, as many as one step may; the others have their
    /// turn later.
    pub(super) fn serve_turns(&mut self, now: Millis, out: &mut Vec<Effect>) {
        // Whoever used the room up last time comes last this time.
        let after = (Bound::Excluded(self.turn), Bound::Unbounded);
        let turns = self.unserved.range(after);
        let turns = turns.chain(self.unserved.range(..=self.turn));
        let turns: Vec<ActionId> = turns.take(self.step_items).copied().collect();
        let is_cut = turns.len() < self.unserved.len();
        let mut used_up_by = None;
        for action_id in turns {
            if self.room.is_used_up() {
                break;
            }
            self.unserved.remove(&action_id);
            self.serve(now, action_id, out);
            if self.room.is_tight() {
                used_up_by.get_or_insert(action_id);
            } else if is_cut {
                self.turn = action_id;
            }
        }
        self.turn = used_up_by.unwrap_or(self.turn);
    }

    /// Does for a queue what can be done now: wakes delayed executions, ends those that waited
    /// too long, grants free slots. The one place where slots are granted.
    pub(super) fn serve(&mut self, now: Millis, action_id: ActionId, out: &mut Vec<Effect>) {
        let Some(action) = self.actions.get(&action_id).cloned() else {
            return;
        };
        if !self.ending.is_empty() {
            self.end_kept(out);
        }
        let queues = self.queues.clone();
        let deadline = queues.with_existing(action_id, |queue| {
            queue.pass(now);
            let counts = queue.limits().counts_starts();
            self.room.wakes -= queue.wake_delayed(now, self.room.wakes);
            // While some are due and asleep nobody is granted a slot: they may stand before who is awake.
            self.begin_next_tries(now, queue, &action, out);
            self.hand_slots_on(now, queue, &action, out);
            let is_awake = !queue.has_due(now);
            let mut is_blocked = false;
            while is_awake && !self.room.is_used_up() {
                // Before every grant and after the last: who was granted may have stood before
                // others whose time was over already.
                self.expire(now, queue, action_id, out);
                // Of those who have waited too long the rest end in later rounds. Where whoever is next
                // is one of them, nobody gets a slot before it has ended.
                if self.room.expiries == 0 && queue.is_next_expired(now) {
                    break;
                }
                if queue.is_blocked() {
                    is_blocked = true;
                    break;
                }
                let Some(worker) = self.worker_for(&action, queue) else {
                    self.stand_in_line(queue, &action);
                    is_blocked = true;
                    break;
                };
                match queue.grant_next(now) {
                    Grant::Granted(granted) => {
                        queue.give_to(granted.execution_id, worker);
                        self.room.grants -= 1;
                        if counts {
                            self.counting.insert(action_id);
                        }
                        self.detector.granted(now, &action, queue, granted, out);
                        let key = (granted.execution_id, granted.attempt);
                        let wait = Wait {
                            priority: granted.priority,
                            waited: now - granted.eligible_at,
                        };
                        let before = Before::Waited(wait);
                        self.granted(now, (&action, &*queue), (key, worker), before, out);
                    }
                    Grant::Blocked(_) => {
                        is_blocked = true;
                        break;
                    }
                }
            }
            // The last one whose group was not known may just have ended: those ahead waited for that.
            self.hand_slots_on(now, queue, &action, out);
            self.call_back(queue, &action, out);
            let goes_on = is_awake && self.grant_ahead(now, queue, &action, out);
            let deadline = queue.next_deadline();
            let due = deadline.is_some_and(|time| time <= now);
            if due || goes_on || (!is_blocked && queue.blocked().is_none()) {
                self.unserved.insert(action_id);
            }
            deadline
        });
        out.push(Effect::Touched(action_id));
        // The last one whose group was not known may just have ended.
        if self.regrouping.contains(&action_id) {
            self.note_regrouping(action_id);
        }
        if let Some(time) = deadline.flatten() {
            self.schedule(action_id, time);
        }
    }

    /// Ends those that waited too long.
    pub(super) fn expire(
        &mut self,
        now: Millis,
        queue: &mut ActionQueue,
        action_id: ActionId,
        out: &mut Vec<Effect>,
    ) {
        if !queue.has_expired(now) {
            return;
        }
        let timeout = queue.limits().timeout_seconds;
        let expired = queue.expire(now, self.room.expiries);
        self.room.expiries -= expired.len();
        for waiting in expired {
            let words = format!("waited longer than {timeout} s for a slot");
            let outcome = Outcome::coded(Status::Expired, EndCode::Expired, words);
            self.end_waiting(action_id, waiting, outcome, Counter::Expired, out);
        }
    }

    /// Says that an execution has ended which waited and was taken out of its queue.
    pub(super) fn end_waiting(
        &mut self,
        action_id: ActionId,
        waiting: Waiting,
        outcome: Outcome,
        counter: Counter,
        out: &mut Vec<Effect>,
    ) {
        let nobody = None;
        self.end_waiting_for(action_id, waiting, outcome, (counter, nobody), out);
    }

    /// The same, of somebody whose place a newcomer takes, by this order.
    pub(super) fn end_waiting_for(
        &mut self,
        action_id: ActionId,
        waiting: Waiting,
        outcome: Outcome,
        (counter, newcomer): (Counter, Option<(ExecutionId, OrderRule)>),
        out: &mut Vec<Effect>,
    ) {
        let execution_id = waiting.execution_id;
        let (status, code) = (outcome.status, outcome.code);
        let Ok(end) = End::of(execution_id, Status::Queued, Arc::new(outcome)) else {
            return;
        };
        self.index.remove(&execution_id);
        self.note(|| Fact::Ended {
            execution_id,
            action_id,
            attempt: waiting.attempt,
            status,
            code,
            newcomer,
        });
        out.push(Effect::End(end));
        out.push(Effect::Count(counter));
        let key = (execution_id, waiting.attempt);
        let newcomer = newcomer.map(|(id, _)| id);
        self.has_ended(action_id, key, (status, code), newcomer, out);
    }

    /// Says that an execution holds a slot from now on, in this attempt at this worker.
    #[inline]
    pub(super) fn granted(
        &mut self,
        now: Millis,
        (action, queue): (&Arc<Action>, &ActionQueue),
        ((execution_id, attempt), worker): (Key, WorkerId),
        before: Before,
        out: &mut Vec<Effect>,
    ) {
        self.turns_left = self.turns_left.map(|left| left.saturating_sub(1));
        let key = (execution_id, attempt);
        let (transition, put_back, counted, waited) = match before {
            Before::Waited(wait) => {
                let waited = wait.waited;
                (Transition::grant(), None, Effect::Granted(wait), waited)
            }
            Before::Kept(put_back) => {
                let counted = Effect::Count(Counter::Granted);
                (Transition::next_try(), Some(put_back), counted, 0)
            }
        };
        let change = Change {
            transition: Some(transition),
            put_back,
            ..Change::of(execution_id, attempt)
        };
        let grant = (self.next_grant_no(), None, waited);
        self.note_grant(now, (action, queue), (key, worker), grant, change, out);
        out.push(counted);
        self.has_started(action, key, out);
    }

    /// The number of the next grant: each is higher than all before it, also those of earlier owners.
    pub(super) fn next_grant_no(&mut self) -> i64 {
        let grant_no = Seq::new(self.epoch, self.next_grant).0;
        self.next_grant += 1;
        grant_no
    }

    /// Writes a grant down, and has it told: of a slot, or ahead of one of so many, after so long a wait.
    #[inline]
    pub(super) fn note_grant(
        &mut self,
        now: Millis,
        (action, queue): (&Arc<Action>, &ActionQueue),
        ((execution_id, attempt), worker): (Key, WorkerId),
        (grant_no, slots, waited): (i64, Option<u32>, Millis),
        change: Change,
        out: &mut Vec<Effect>,
    ) {
        let (key, ahead) = ((execution_id, attempt), slots.is_some());
        self.roster.lock().hold(worker, key, ahead);
        self.holding.insert(action.id);
        // Looked up for the log alone.
        let rules = self.log.is_some().then_some(&self.demands);
        let rule = rules.and_then(|rules| rules.get(&action.id));
        let demands = rule.map(DemandRule::mark);
        self.note(|| Fact::Granted {
            execution_id,
            action_id: action.id,
            attempt,
            grant_no,
            limit: action.spec.policy.concurrency.limit,
            order: action.spec.policy.order(),
            group_limit: action.spec.policy.concurrency.group_limit,
            demands,
            rate: queue.limits().rate(),
            interval: queue.limits().interval(),
            weights: queue.flow_weights(execution_id),
            at: now,
            worker,
            ahead,
        });
        out.push(Effect::Change(Change {
            grant_no: Some(grant_no),
            worker: Some(worker),
            ..change
        }));
        out.push(Effect::Dispatch(Grantee {
            execution_id,
            attempt,
            action: Arc::clone(action),
            worker,
            slots,
            at: now,
            waited,
        }));
    }

    /// Why nobody of an action is given a slot right now; `None` when somebody is, or when the
    /// action is not known.
    pub fn blocked(&self, action_id: ActionId) -> Option<Blocked> {
        let blocked = |queue: &mut ActionQueue| queue.blocked();
        self.queues.with_existing(action_id, blocked).flatten()
    }

    /// Sees to it that a tick comes no later than the queue's next deadline.
    fn schedule(&mut self, action_id: ActionId, time: Millis) {
        let scheduled = self.scheduled.get(&action_id).copied();
        if scheduled.is_some_and(|scheduled| scheduled <= time) {
            return;
        }
        if let Some(later) = self.scheduled.insert(action_id, time) {
            self.deadlines.remove(&(later, action_id));
        }
        self.deadlines.insert((time, action_id));
    }
}
