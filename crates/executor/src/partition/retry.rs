//! What is tried again: an execution whose try has ended gives its slot back and waits at its old
//! place, for as long as the policy of its action says.

use attune_core::policy::{RetryRule, TryEnd};
use attune_core::{Action, ActionId, Attempt, ExecutionId, Outcome};

use super::{Effect, Partition};
use crate::counters::Counter;
use crate::fact::Fact;
use crate::happened::Happened;
use crate::queue::{ActionQueue, Holder, Millis};
use crate::stored::{Change, PutBack, Transition};

/// How many bytes are kept of why a try ended.
const MOST_WORDS: usize = 1_000;

/// A try that has ended, and that is followed by another.
#[derive(Debug)]
pub(super) struct Tried {
    pub(super) end: TryEnd,
    pub(super) rule: RetryRule,
    /// Why it ended, for people.
    pub(super) words: String,
}

impl Tried {
    /// Nothing where the policy of the action does not try again, or whoever holds the slot shall end.
    pub(super) fn of(
        action: &Action,
        holder: Holder,
        end: TryEnd,
        words: impl FnOnce() -> String,
    ) -> Option<Self> {
        let rule = action.spec.retry();
        let again = !holder.cancel_requested && rule.tries_again(end, holder.tries());
        again.then(|| {
            let mut words = words();
            words.truncate(words.floor_char_boundary(MOST_WORDS));
            Self { end, rule, words }
        })
    }
}

impl Partition {
    /// Puts an execution back whose run ended so, as its worker says, and tells how it held its slot; nothing
    /// happens where it ends with that, or the attempt holds no slot.
    pub(super) fn retry(
        &mut self,
        now: Millis,
        action_id: ActionId,
        (execution_id, attempt): (ExecutionId, Attempt),
        outcome: &Outcome,
        out: &mut Vec<Effect>,
    ) -> Option<Holder> {
        let end = TryEnd::reported(outcome.status)?;
        let action = self.actions.get(&action_id).cloned()?;
        let holder = |queue: &mut ActionQueue| queue.holder(execution_id);
        let holder = self.queues.with_existing(action_id, holder).flatten();
        let holder = holder.filter(|holder| holder.attempt == attempt)?;
        let tried = Tried::of(&action, holder, end, || words_of(outcome))?;
        out.push(Effect::Count(Counter::Retried));
        if tried.rule.hold_slot && !holder.is_ahead() {
            self.keep(now, &action, execution_id, holder, tried, out);
            // Its slot is held on: for how long, its end says.
            return Some(Holder {
                held_since: None,
                ..holder
            });
        }
        self.put_back(
            now,
            &action,
            execution_id,
            holder,
            (Some(tried), false),
            out,
        );
        Some(holder)
    }

    /// Puts an execution back at its place: after a try that was `tried`, or because nothing of the
    /// attempt has begun, or nobody knows whether it has.
    pub(super) fn put_back(
        &mut self,
        now: Millis,
        action: &Action,
        execution_id: ExecutionId,
        holder: Holder,
        (tried, never_begun): (Option<Tried>, bool),
        out: &mut Vec<Effect>,
    ) {
        let (action_id, attempt) = (action.id, holder.attempt);
        let begun = tried.is_some();
        let backoff = tried.as_ref().and_then(|tried| tried.rule.backoff);
        let wait = backoff.map(|backoff| backoff.wait(execution_id, attempt, holder.tries()));
        let not_before = wait.map(|wait| now.saturating_add(wait));
        let back =
            |queue: &mut ActionQueue| queue.put_back(execution_id, attempt, begun, not_before);
        if self.queues.with_existing(action_id, back) != Some(true) {
            return;
        }
        self.free(execution_id, attempt, &holder);
        self.note(|| match tried.as_ref().zip(not_before) {
            Some((tried, not_before)) => Fact::Retried {
                execution_id,
                action_id,
                attempt,
                end: tried.end,
                not_before,
                keeps_slot: false,
            },
            None => Fact::Revoked {
                execution_id,
                action_id,
                attempt,
                until: None,
                never_begun,
            },
        });
        if let Some(not_before) = not_before {
            let what = Happened::Retried {
                execution_id,
                attempt,
                not_before,
            };
            self.happened(action, what, out);
        }
        let put_back = PutBack {
            not_before,
            unbegun: holder.unbegun.saturating_add(u16::from(!begun)),
            last_error: tried.map(|tried| tried.words),
            keeps_slot: false,
        };
        out.push(Effect::Change(Change {
            transition: Some(Transition::revoke()),
            put_back: Some(Box::new(put_back)),
            ..Change::of(execution_id, attempt)
        }));
    }
}

/// Why a run ended, where its worker says nothing, too.
fn words_of(outcome: &Outcome) -> String {
    match (&outcome.error, outcome.exit_code) {
        (Some(error), _) => error.clone(),
        (None, Some(code)) => format!("{} with exit code {code}", outcome.status),
        (None, None) => outcome.status.to_string(),
    }
}

#[cfg(test)]
#[path = "retry_tests.rs"]
mod tests;
