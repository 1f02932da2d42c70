//! Why an execution does not run yet: a question that changes nothing.

use std::sync::Arc;

use attune_core::{Action, ActionId, ExecutionId, Explanation, Reject, RejectCode, RequestId};

use super::{Accepted, Answer, Effect, Partition};
use crate::policy::{Ran, RunTimes};
use crate::queue::{ActionQueue, Blocked, Holder, Millis};

/// The longest that whoever finds a queue full is told to wait, in seconds.
const LONGEST_RETRY_AFTER: f64 = 300.0;

impl Partition {
    /// Says what keeps an execution from a slot, if somebody waits for the answer.
    pub(super) fn explain(
        &self,
        now: Millis,
        request_id: RequestId,
        execution_id: ExecutionId,
        reply_to: Option<Arc<str>>,
        out: &mut Vec<Effect>,
    ) {
        let Some(reply_to) = reply_to else { return };
        let (outcome, explanation) = match self.explanation(now, execution_id) {
            Ok(explanation) => {
                let accepted = Accepted {
                    execution_id: Some(execution_id),
                    ..Accepted::default()
                };
                (Ok(accepted), Some(Arc::new(explanation)))
            }
            Err(reject) => (Err(reject), None),
        };
        let answer = Answer {
            request_id,
            outcome,
            explanation,
        };
        out.push(Effect::Answer { reply_to, answer });
    }

    /// What keeps an execution from a slot.
    ///
    /// # Errors
    /// [`Reject`] when it neither waits here nor holds a slot.
    pub fn explanation(
        &self,
        now: Millis,
        execution_id: ExecutionId,
    ) -> Result<Explanation, Reject> {
        if execution_id.partition() != self.id {
            let words = format!(
                "execution {execution_id} does not belong to partition {}",
                self.id
            );
            return Err(Reject::new(RejectCode::WrongPartition, words));
        }
        let action_id = self.index.get(&execution_id);
        let action = action_id.and_then(|action_id| self.actions.get(action_id));
        let explained = action.and_then(|action| {
            let (pool, times) = (&action.spec.pool, self.run_times.get(&action.id));
            let explain = |queue: &mut ActionQueue| queue.explain(now, execution_id, pool, times);
            self.queues.with_existing(action.id, explain).flatten()
        });
        let explained = explained.map(|said| Explanation {
            policy_version: Some(self.policies.version),
            ..said
        });
        explained.ok_or_else(|| {
            let words = format!("execution {execution_id} neither waits nor runs");
            Reject::new(RejectCode::AlreadyEnded, words)
        })
    }

    /// Remembers for how long somebody held its slot who gives it back, and whether it comes back for another.
    pub(super) fn note_run(&mut self, now: Millis, action_id: ActionId, holder: Holder) {
        let Some(since) = holder.held_since else {
            return;
        };
        let back = |queue: &mut ActionQueue| queue.delayed_until(holder.seq);
        let back = self.queues.with_existing(action_id, back).flatten();
        let back = back.map(|until| until - now);
        let times = self.run_times.entry(action_id).or_default();
        let ran = Ran {
            held: now - since,
            priority: holder.priority,
            accepted: holder.enqueued_at,
            back,
        };
        times.note(now, ran);
    }

    /// When a place comes free in a full queue, in seconds: when the next of those that wait starts, because a
    /// slot comes free, its rate has room again, or its time has come.
    pub(super) fn place_comes_free(&self, now: Millis, action: &Action) -> u32 {
        if self.is_paused(action.id) {
            return Reject::HELD_RETRY_AFTER;
        }
        let opens = |queue: &mut ActionQueue| (queue.blocked(), queue.starts_are_free_at());
        let opens = self.queues.with_existing(action.id, opens);
        let (blocked, rate_until) = opens.unwrap_or_default();
        let until = match blocked {
            // No slot is wanted.
            Some(Blocked::Rate { until } | Blocked::Delayed { until }) => until.saturating_sub(now),
            _ => {
                let times = self.run_times.get(&action.id);
                let limit = action.spec.policy.concurrency.limit;
                let times = times.zip(limit);
                let slot = times.map_or(0.0, |(times, limit)| next_end(times, limit)) as Millis;
                slot.max(rate_until.map_or(0, |until| until.saturating_sub(now)))
            }
        };
        let seconds = (until as f64 / 1_000.0).ceil();
        seconds.clamp(1.0, LONGEST_RETRY_AFTER) as u32
    }
}

/// How long it takes until one of so many slots comes free, in milliseconds.
fn next_end(times: &RunTimes, limit: u32) -> f64 {
    times.mean() / f64::from(limit.max(1))
}
