//! What an acceptance leads to beside itself: who has waited too long ends first, then whoever must make
//! room, all in the commit of the acceptance.

use attune_core::{
    Action, ActionId, Attempt, Bug, EndCode, ExecutionId, Outcome, Reject, Status, Submission,
};

use attune_dispatch::Key;

use super::{Effect, Partition};
use crate::counters::Counter;
use crate::fact::Fact;
use crate::policy::limits_of;
use crate::queue::{ActionQueue, Arrival, Millis, Newcomer, Refused};
use crate::stored::Change;

/// How many of an action are replaced in one round at most, so that a commit has a bound: where more wait,
/// because the policy was another one, those that come later replace the others.
const MOST_REPLACED: usize = 1_000;
/// How many a newcomer replaces however many others have: nearly always there is one.
const EACH_REPLACES: usize = 8;

impl Partition {
    /// How many a newcomer of an action may replace.
    pub(super) fn may_replace(&self, action_id: ActionId) -> usize {
        let replaced = self.replaced.get(&action_id).copied().unwrap_or(0);
        let most = self.most_replaced.min(MOST_REPLACED);
        most.saturating_sub(replaced).max(EACH_REPLACES)
    }

    /// Takes a newcomer into the queue of its action; tells how many stand before it.
    pub(super) fn take_in(
        &mut self,
        now: Millis,
        action: &Action,
        submission: &Submission,
        newcomer: &Newcomer<'_>,
        out: &mut Vec<Effect>,
    ) -> Result<u64, Reject> {
        let queues = self.queues.clone();
        // Whether it starts at once is a matter of the workers, too.
        if !self.lines.has(action.id) && self.worker_of(&action.spec.pool).is_none() {
            queues.with_existing(action.id, |queue| self.stand_in_line(queue, action));
        }
        let limits = || limits_of(&action.spec, self.demands.get(&action.id), queues.config());
        let ended = out.len();
        let arrive = |queue: &mut ActionQueue| queue.arrive(newcomer);
        let mut arrived = queues.with_queue(action.id, limits, |queue| {
            if !queue.limits().overflows() {
                return Some(arrive(queue));
            }
            // Whoever is due stands before it, and nobody is to make room, or to be counted, who should
            // have ended by now.
            self.room.wakes -= queue.wake_delayed(now, self.room.wakes);
            None
        });
        if !matches!(arrived, Some(Ok(_))) {
            queues.with_existing(action.id, |queue| self.expire(now, queue, action.id, out));
            if arrived.is_none() || out.len() != ended {
                arrived = queues.with_existing(action.id, arrive);
            }
        }
        let may_move = out.len() != ended || self.unserved.contains(&action.id);
        let is_served = matches!(arrived, Some(Err(Refused::Full(_)))) && may_move;
        if is_served {
            // Whoever waits may have slots that nobody was given yet.
            self.serve(now, action.id, out);
            arrived = queues.with_existing(action.id, arrive);
        }
        match arrived {
            Some(Ok(arrival)) => {
                let before = arrival.before;
                self.make_room(action, newcomer.waiting.execution_id, arrival, out);
                Ok(before)
            }
            Some(Err(refused)) => {
                if out.len() != ended && !is_served {
                    self.serve(now, action.id, out);
                }
                let reject = reject(submission, refused);
                // A place comes free with the next slot, and so does one under a limit.
                let retry_after_seconds = match refused {
                    Refused::User { .. } => reject.retry_after_seconds,
                    _ => Some(self.place_comes_free(now, action)),
                };
                Err(Reject {
                    retry_after_seconds,
                    ..reject
                })
            }
            // The queue was made above.
            None => Err(Reject::unknown_action(&submission.action_ref)),
        }
    }

    /// Says what becomes of those in whose place `newcomer` is there, and of those who are asked to end.
    fn make_room(
        &mut self,
        action: &Action,
        newcomer: ExecutionId,
        arrival: Arrival,
        out: &mut Vec<Effect>,
    ) {
        let (action_id, order) = (action.id, action.spec.policy.order());
        for (waiting, code) in arrival.gone {
            let (words, counter) = match code {
                EndCode::Dropped => (
                    format!("the queue was full, and execution {newcomer} took its place"),
                    Counter::Dropped,
                ),
                _ => (
                    format!("execution {newcomer}, which came later, took its place"),
                    Counter::Replaced,
                ),
            };
            if code == EndCode::Replaced {
                *self.replaced.entry(action_id).or_default() += 1;
            }
            if code == EndCode::Replaced && Bug::ReplaceForgetsEnd.is_planted() {
                self.index.remove(&waiting.execution_id);
                continue;
            }
            let outcome = Outcome::coded(Status::Cancelled, code, words);
            let why = (counter, Some((newcomer, order)));
            self.end_waiting_for(action_id, waiting, outcome, why, out);
        }
        for key in arrival.asked {
            self.asked(action_id, key, Some(newcomer), out);
        }
    }

    /// Says that somebody who holds a slot is asked to end: its worker is told, and a later owner knows.
    pub(super) fn asked(
        &mut self,
        action_id: ActionId,
        (execution_id, attempt): (ExecutionId, Attempt),
        newcomer: Option<ExecutionId>,
        out: &mut Vec<Effect>,
    ) {
        self.note(|| Fact::Asked {
            execution_id,
            action_id,
            attempt,
            newcomer,
        });
        out.push(Effect::Change(Change {
            cancel_requested: true,
            ..Change::of(execution_id, attempt)
        }));
        if self.kept_until(action_id, execution_id).is_some() {
            return self.ending.push((action_id, execution_id, attempt));
        }
        self.cancel_run(action_id, (execution_id, attempt), out);
    }

    /// Tells the worker of whoever holds a slot to end it.
    pub(super) fn cancel_run(&self, action_id: ActionId, grant: Key, out: &mut Vec<Effect>) {
        let holder = |queue: &mut ActionQueue| queue.holder(grant.0);
        let holder = self.queues.with_existing(action_id, holder).flatten();
        if let Some(worker) = holder.and_then(|holder| holder.worker) {
            out.push(Effect::CancelRun { worker, grant });
        }
    }
}

/// A refusal, in the words of whoever asked.
fn reject(submission: &Submission, refused: Refused) -> Reject {
    let action_ref = &submission.action_ref;
    match refused {
        Refused::Full(full) => Reject::queue_full(full.max_length),
        Refused::Limit { limit } => Reject::limit_reached(format!(
            "`{action_ref}` has reached its limit ({limit}), and by its policy \
             (`policy.concurrency.on_limit: reject`) nobody waits for it"
        )),
        Refused::GroupLimit { limit } => Reject::limit_reached(format!(
            "its group of `{action_ref}` has reached its limit ({limit}), and by the policy of the \
             action (`policy.concurrency.on_limit: reject`) nobody waits for it"
        )),
        Refused::User { limit } => {
            let user = submission.requested_by.as_deref().unwrap_or_default();
            Reject::user_limit_reached(user, limit)
        }
    }
}

#[cfg(test)]
#[path = "overflow_tests.rs"]
mod tests;
