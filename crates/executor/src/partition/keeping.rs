//! Who keeps its slot between two tries (`policy.retry.hold_slot`). Its row says so, and until when, from the
//! commit of the end of its try on: whoever takes over gives its slot to nobody else. Nobody may run the
//! attempt that has ended; the next one is written, and told to the workers, when its time has come.

use std::sync::Arc;

use attune_core::{Action, ActionId, Attempt, ExecutionId, Outcome, Status};

use super::retry::Tried;
use super::serve::Before;
use super::{Effect, Partition};
use crate::counters::Counter;
use crate::fact::Fact;
use crate::happened::Happened;
use crate::queue::{ActionQueue, Holder, Millis};
use crate::stored::{Change, PutBack, Transition};

impl Partition {
    /// Lets an execution keep its slot after a try that was `tried`, until it is tried again.
    pub(super) fn keep(
        &mut self,
        now: Millis,
        action: &Action,
        execution_id: ExecutionId,
        holder: Holder,
        tried: Tried,
        out: &mut Vec<Effect>,
    ) {
        let (action_id, attempt) = (action.id, holder.attempt);
        let backoff = tried.rule.backoff.unwrap_or_default();
        let until = now.saturating_add(backoff.wait(execution_id, attempt, holder.tries()));
        let key = (execution_id, attempt);
        let unbegun = holder.unbegun;
        if !self.stay(action_id, key, (unbegun, Some(tried.words)), until, out) {
            return;
        }
        self.note(|| Fact::Retried {
            execution_id,
            action_id,
            attempt,
            end: tried.end,
            not_before: until,
            keeps_slot: true,
        });
        let what = Happened::Retried {
            execution_id,
            attempt,
            not_before: until,
        };
        self.happened(action, what, out);
    }

    /// Lets an execution keep its slot on whose next try never began: nobody gets in between, and that try comes
    /// again at once.
    pub(super) fn keep_on(
        &mut self,
        now: Millis,
        action_id: ActionId,
        execution_id: ExecutionId,
        holder: Holder,
        out: &mut Vec<Effect>,
    ) {
        let attempt = holder.attempt;
        // Not in this round: one commit changes a row once.
        let until = now.saturating_add(1);
        let unbegun = holder.unbegun.saturating_add(1);
        let key = (execution_id, attempt);
        if !self.stay(action_id, key, (unbegun, None), until, out) {
            return;
        }
        self.note(|| Fact::KeptOn {
            execution_id,
            action_id,
            attempt,
            until,
        });
        out.push(Effect::Count(Counter::Revoked));
    }

    /// Keeps a slot without running, from this attempt on; how many attempts have never begun by now, and why
    /// this one has ended, if it began. False when it holds no slot.
    fn stay(
        &mut self,
        action_id: ActionId,
        (execution_id, attempt): (ExecutionId, Attempt),
        (unbegun, last_error): (u16, Option<String>),
        until: Millis,
        out: &mut Vec<Effect>,
    ) -> bool {
        let begun = last_error.is_some();
        let keep = |queue: &mut ActionQueue| queue.keep(execution_id, attempt, begun, until);
        let holder = |queue: &mut ActionQueue| queue.holder(execution_id);
        let holder = self.queues.with_existing(action_id, holder).flatten();
        if self.queues.with_existing(action_id, keep) != Some(true) {
            return false;
        }
        if let Some(holder) = holder {
            self.free(execution_id, attempt, &holder);
        }
        out.push(Effect::Change(Change {
            put_back: Some(Box::new(PutBack {
                not_before: Some(until),
                unbegun,
                last_error,
                keeps_slot: true,
            })),
            ..Change::of(execution_id, attempt)
        }));
        true
    }

    /// Until when an execution keeps its slot without running.
    pub(super) fn kept_until(
        &self,
        action_id: ActionId,
        execution_id: ExecutionId,
    ) -> Option<Millis> {
        let until = |queue: &mut ActionQueue| queue.kept_until(execution_id);
        self.queues.with_existing(action_id, until).flatten()
    }

    /// Begins the next tries of those that keep their slots, as many as this step may.
    pub(super) fn begin_next_tries(
        &mut self,
        now: Millis,
        queue: &mut ActionQueue,
        action: &Arc<Action>,
        out: &mut Vec<Effect>,
    ) {
        while !self.room.is_used_up() && queue.first_kept(now).is_some() {
            let Some(worker) = self.worker_for(action, queue) else {
                self.stand_in_line(queue, action);
                break;
            };
            let Some(next) = queue.next_try(now, self.room.grants) else {
                break;
            };
            queue.give_to(next.execution_id, worker);
            self.room.grants -= 1;
            if queue.limits().counts_starts() {
                self.counting.insert(action.id);
            }
            let put_back = PutBack {
                not_before: Some(next.until),
                unbegun: next.unbegun,
                last_error: None,
                keeps_slot: false,
            };
            let key = (next.execution_id, next.attempt);
            let before = Before::Kept(Box::new(put_back));
            self.granted(now, (action, &*queue), (key, worker), before, out);
        }
    }

    /// Ends those who were asked to end and keep their slots without running: no worker will say so. Not before
    /// the newcomer for whom they go is accepted.
    pub(super) fn end_kept(&mut self, out: &mut Vec<Effect>) {
        for (action_id, execution_id, attempt) in std::mem::take(&mut self.ending) {
            let words = "cancelled while it waited for its next try".to_owned();
            let outcome = Arc::new(Outcome::of(Status::Cancelled, Some(words)));
            let counter = Counter::Cancelled;
            let key = (execution_id, attempt);
            self.end_holder(action_id, key, (outcome, None), counter, out);
            self.unserved.insert(action_id);
        }
    }

    /// Takes the slot from somebody who keeps it without running: it waits for its next try without one.
    pub(super) fn let_go(
        &mut self,
        action_id: ActionId,
        execution_id: ExecutionId,
        holder: Holder,
        until: Millis,
        out: &mut Vec<Effect>,
    ) {
        let attempt = holder.attempt;
        let back =
            |queue: &mut ActionQueue| queue.put_back(execution_id, attempt, true, Some(until));
        if self.queues.with_existing(action_id, back) != Some(true) {
            return;
        }
        self.note(|| Fact::Revoked {
            execution_id,
            action_id,
            attempt,
            until: Some(until),
            never_begun: false,
        });
        out.push(Effect::Change(Change {
            transition: Some(Transition::revoke()),
            put_back: Some(Box::new(PutBack {
                not_before: Some(until),
                unbegun: holder.unbegun,
                last_error: None,
                keeps_slot: false,
            })),
            ..Change::of(execution_id, attempt)
        }));
        out.push(Effect::Count(Counter::Revoked));
    }
}

#[cfg(test)]
#[path = "keeping_tests.rs"]
mod tests;
