//! What becomes of executions that hold a slot: they end, or they wait again.

use std::sync::Arc;

use attune_core::policy::TryEnd;
use attune_core::{Action, ActionId, Attempt, Bug, ExecutionId, Outcome, Status};
use attune_dispatch::Key;

use super::retry::Tried;
use super::{Completion, Effect, Partition};
use crate::counters::Counter;
use crate::fact::Fact;
use crate::queue::{ActionQueue, Holder, Millis};
use crate::stored::End;

/// An attempt that will not give its slot back by itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lost<'a> {
    /// Whether it was begun.
    pub(super) begun: bool,
    /// Whether its execution may keep the slot, where its policy says so; also when this was a next try that
    /// never began.
    pub(super) keeps: bool,
    /// Why it will not, for people.
    pub(super) why: &'a str,
}

impl Partition {
    pub(super) fn complete(&mut self, now: Millis, completion: Completion, out: &mut Vec<Effect>) {
        let Completion {
            execution_id,
            attempt,
            action_id: named,
            outcome,
            worker,
            ran,
            ..
        } = completion;
        let counter = if outcome.status == Status::Cancelled {
            Counter::Cancelled
        } else {
            Counter::Completed
        };
        // The execution and its attempt say which slot it is, whatever action the worker names.
        let found = self.index.get(&execution_id).copied();
        // Whoever waits for its next try has ended its last one.
        let is_its = |queue: &mut ActionQueue| {
            let holder = queue.holder(execution_id);
            holder.is_some_and(|holder| holder.worker == Some(worker))
        };
        let ended = found
            .filter(|_| outcome.status.is_reportable())
            .filter(|action_id| self.queues.with_existing(*action_id, is_its) == Some(true))
            .filter(|action_id| self.kept_until(*action_id, execution_id).is_none());
        let ended = ended.and_then(|action_id| {
            let key = (execution_id, attempt);
            self.begun_ahead(action_id, key, out);
            let holder = self.retry(now, action_id, key, &outcome, out);
            let outcome = (outcome, ran);
            let end = || self.end_holder(action_id, key, outcome, counter, out);
            Some((action_id, holder.or_else(end)?))
        });
        let grant = (execution_id, attempt);
        out.push(Effect::Settled { worker, grant });
        let Some((action_id, holder)) = ended else {
            // Unknown, finished or another attempt: it changes nothing, however often it comes.
            if Bug::Counter.is_planted() {
                self.queues
                    .with_existing(named, |queue| queue.finish(execution_id, attempt, false));
            }
            self.note(|| Fact::Stale {
                execution_id,
                attempt,
            });
            out.push(Effect::Count(Counter::StaleCompletion));
            return;
        };
        self.note_run(now, action_id, holder);
        let since = holder.held_since.unwrap_or(now);
        let ran = ran.unwrap_or(now - since);
        self.queues
            .with_existing(action_id, |queue| queue.note_end(now, ran));
        self.serve(now, action_id, out);
    }

    /// Tells that somebody had begun who stands ahead of its slot: its worker has handed one on to it, and the
    /// end before it comes later.
    fn begun_ahead(&self, action_id: ActionId, key: Key, out: &mut Vec<Effect>) {
        let holder = |queue: &mut ActionQueue| queue.holder(key.0);
        let holder = self.queues.with_existing(action_id, holder).flatten();
        if holder.is_some_and(|holder| holder.is_ahead() && holder.attempt == key.1)
            && let Some(action) = self.actions.get(&action_id)
        {
            self.has_started(action, key, out);
        }
    }

    /// Ends an execution that is granted in this attempt, and tells how it was; nothing happens when it is
    /// not.
    pub(super) fn end_holder(
        &mut self,
        action_id: ActionId,
        (execution_id, attempt): Key,
        (outcome, ran): (Arc<Outcome>, Option<Millis>),
        counter: Counter,
        out: &mut Vec<Effect>,
    ) -> Option<Holder> {
        let (status, code) = (outcome.status, outcome.code);
        // A worker may have begun it meanwhile; every end of a holder is an end of a run too.
        let mut end = End::of(execution_id, Status::Requested, outcome).ok()?;
        end.ran = ran;
        let cancelled = status == Status::Cancelled;
        let finish = |queue: &mut ActionQueue| {
            let holder = queue.holder(execution_id)?;
            queue
                .finish(execution_id, attempt, cancelled)
                .then_some(holder)
        };
        let holder = self.queues.with_existing(action_id, finish).flatten()?;
        self.free(execution_id, attempt, &holder);
        self.index.remove(&execution_id);
        self.note(|| Fact::Ended {
            execution_id,
            action_id,
            attempt,
            status,
            code,
            newcomer: None,
        });
        out.push(Effect::End(end));
        out.push(Effect::Count(counter));
        let key = (execution_id, attempt);
        self.has_ended(action_id, key, (status, code), None, out);
        Some(holder)
    }

    /// Ends an attempt that can never be told to a worker.
    pub(super) fn give_up(
        &mut self,
        now: Millis,
        execution_id: ExecutionId,
        attempt: Attempt,
        why: String,
        out: &mut Vec<Effect>,
    ) {
        let Some(action_id) = self.index.get(&execution_id).copied() else {
            return;
        };
        if self.kept_until(action_id, execution_id).is_some() {
            return;
        }
        let outcome = Arc::new(Outcome::failed(why));
        let counter = Counter::Undispatchable;
        let key = (execution_id, attempt);
        let ended = self.end_holder(action_id, key, (outcome, None), counter, out);
        if ended.is_some() {
            self.serve(now, action_id, out);
        }
    }

    /// Takes the slot back from an attempt that will not give it back by itself, as the action's
    /// policy says, and tells where the execution stands then. What was never `begun` waits again
    /// whatever the policy says.
    pub(super) fn take_back(
        &mut self,
        now: Millis,
        action: &Action,
        execution_id: ExecutionId,
        holder: Holder,
        lost: &Lost<'_>,
        out: &mut Vec<Effect>,
    ) -> Status {
        let (attempt, why) = (holder.attempt, lost.why);
        if let Some(until) = self.kept_until(action.id, execution_id) {
            self.let_go(action.id, execution_id, holder, until, out);
            return Status::Queued;
        }
        if !lost.begun && lost.keeps && !holder.is_ahead() && is_next_try(action, holder) {
            self.keep_on(now, action.id, execution_id, holder, out);
            return Status::Requested;
        }
        let words = || format!("{why} in attempt {attempt}");
        let (status, words, counter) = if holder.cancel_requested {
            let words = format!("cancelled; {why}");
            (Status::Cancelled, words, Counter::Cancelled)
        } else {
            let tried = Tried::of(action, holder, TryEnd::WorkerLost, words);
            if holder.is_ahead() && lost.begun {
                // Whether it had begun nobody knows, so it counts as a try. One that takes its workers along shall
                // cost the others no more: until one has ended nobody is granted ahead.
                self.queues
                    .with_existing(action.id, |queue| queue.bar_lane());
            }
            if tried.is_some() || !lost.begun {
                let is_free = Bug::LostFree.is_planted() && holder.is_ahead();
                let mut tried = tried.filter(|_| lost.begun && !is_free);
                let keeps =
                    |tried: &Tried| lost.keeps && tried.rule.hold_slot && !holder.is_ahead();
                if let Some(tried) = tried.take_if(|tried| keeps(tried)) {
                    self.keep(now, action, execution_id, holder, tried, out);
                    out.push(Effect::Count(Counter::Retried));
                    return Status::Requested;
                }
                let never_begun = !lost.begun;
                self.put_back(now, action, execution_id, holder, (tried, never_begun), out);
                out.push(Effect::Count(Counter::Revoked));
                return Status::Queued;
            }
            (Status::Abandoned, words(), Counter::Abandoned)
        };
        let outcome = Arc::new(Outcome::of(status, Some(words)));
        let key = (execution_id, attempt);
        self.end_holder(action.id, key, (outcome, None), counter, out);
        status
    }
}

/// Whether somebody holds its slot for a try that follows another one in it.
fn is_next_try(action: &Action, holder: Holder) -> bool {
    action.spec.retry().hold_slot && holder.tries() > 1 && !holder.cancel_requested
}
