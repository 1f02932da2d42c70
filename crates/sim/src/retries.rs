//! Who is tried again: as often as its action says, and not before its time; and who is not, has no
//! try left. Judged by what was planned and asked for, with arithmetic of its own.

use std::collections::{BTreeMap, BTreeSet};

use attune_core::policy::{RetryRule, TryEnd};
use attune_core::{ActionId, Attempt, ExecutionId, Status};
use attune_executor::Fact;

use crate::oracle::{Key, Rule, Violation};
use crate::shadow::Millis;

/// What is known of tries from outside.
#[derive(Debug, Default)]
pub(crate) struct Retries {
    rules: BTreeMap<ActionId, RetryRule>,
    /// Whom somebody has asked to end.
    cancelled: BTreeSet<ExecutionId>,
    /// Attempts that are said to have never begun, or count so.
    unbegun: BTreeSet<Key>,
}

impl Retries {
    /// The rules of a run, which never change in it.
    pub(crate) fn of(rules: impl Iterator<Item = (ActionId, RetryRule)>) -> Self {
        Self {
            rules: rules.collect(),
            ..Self::default()
        }
    }

    /// Somebody asks to end an execution.
    pub(crate) fn cancel(&mut self, id: ExecutionId) {
        self.cancelled.insert(id);
    }

    /// Notes which attempts owners count as never begun.
    pub(crate) fn note(&mut self, facts: &[Fact]) {
        for fact in facts {
            if let Fact::Revoked {
                execution_id,
                attempt,
                never_begun: true,
                ..
            }
            | Fact::KeptOn {
                execution_id,
                attempt,
                ..
            } = fact
            {
                self.unbegun.insert((*execution_id, *attempt));
            }
        }
    }

    /// The fewest tries that an attempt can be the last of.
    fn least_tries(&self, (id, attempt): Key) -> u32 {
        let before = self.unbegun.range((id, Attempt(0))..(id, attempt)).count();
        u32::try_from(attempt.0)
            .unwrap_or(0)
            .saturating_sub(u32::try_from(before).unwrap_or(0))
    }

    /// Judges what was decided about a try; `said` tells whether a worker has said of it that it ended
    /// so.
    pub(crate) fn judge(
        &self,
        now: Millis,
        fact: &Fact,
        said: impl Fn(ExecutionId, Attempt, Status) -> bool,
    ) -> Option<Violation> {
        match fact {
            Fact::Retried {
                execution_id,
                action_id,
                attempt,
                end,
                not_before,
                keeps_slot,
            } => {
                let rule = self.rules.get(action_id)?;
                let tries = self.least_tries((*execution_id, *attempt));
                let most = u32::try_from(attempt.0).unwrap_or(0);
                let (least, most) = (shortest(rule, tries)?, longest(rule, most)?);
                let wait = not_before - now;
                let problem = if !rule.on.contains(*end) || tries >= rule.max_attempts {
                    "and its action does not say so".to_owned()
                } else if !(least..=most).contains(&wait) {
                    format!("in {wait} ms, and its action says {least} to {most}")
                } else if *end != TryEnd::WorkerLost && !said(*execution_id, *attempt, end.status())
                {
                    "and its worker has not said so".to_owned()
                } else if *keeps_slot != rule.hold_slot
                    && (*keeps_slot || *end != TryEnd::WorkerLost)
                {
                    // Of a lost worker an operator may have taken the slot back.
                    format!("its slot is kept: {keeps_slot}, and its action says otherwise")
                } else {
                    return None;
                };
                let words = format!(
                    "{execution_id} is tried again after attempt {attempt}, {end:?}, {problem}"
                );
                Some(Violation::of(Rule::Retry, words))
            }
            Fact::Revoked {
                execution_id,
                action_id,
                attempt,
                until: None,
                ..
            } => {
                let (rule, key) = (self.rules.get(action_id)?, (*execution_id, *attempt));
                let is_next = self.unbegun.contains(&key) && self.least_tries(key) > 1;
                let lets_go = rule.hold_slot && is_next && !self.cancelled.contains(execution_id);
                let words = format!(
                    "{execution_id} gives its slot away with attempt {attempt}, which never began, between \
                     two tries"
                );
                lets_go.then(|| Violation::of(Rule::Retry, words))
            }
            Fact::Ended {
                execution_id,
                action_id,
                attempt,
                status,
                ..
            } => {
                let rule = self.rules.get(action_id)?;
                let end = match status {
                    Status::Failed if said(*execution_id, *attempt, *status) => TryEnd::Failed,
                    Status::TimedOut => TryEnd::TimedOut,
                    Status::Abandoned => TryEnd::WorkerLost,
                    _ => return None,
                };
                let tries = u32::try_from(attempt.0).unwrap_or(0);
                let is_due = rule.on.contains(end) && tries < rule.max_attempts;
                let words = format!("{execution_id} ends as {status} with attempt {attempt}");
                (is_due && !self.cancelled.contains(execution_id))
                    .then(|| Violation::of(Rule::Retry, format!("{words}, and has tries left")))
            }
            _ => None,
        }
    }
}

/// The longest wait after so many tries.
fn longest(rule: &RetryRule, tries: u32) -> Option<Millis> {
    let backoff = rule.backoff?;
    let mut wait = backoff.initial_ms as f64;
    for _ in 1..tries {
        wait = (wait * backoff.factor.0).min(backoff.max_ms as f64);
    }
    Some(wait.ceil() as Millis)
}

/// The shortest.
fn shortest(rule: &RetryRule, tries: u32) -> Option<Millis> {
    let whole = longest(rule, tries)? as f64;
    let shortened = whole * (1.0 - rule.backoff?.jitter.0);
    Some((shortened.floor() as Millis - 1).max(1))
}
