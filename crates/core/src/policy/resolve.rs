//! Which policy is in force of an action, and what holds for a user: the one place that says so, for
//! owners, for the API and for whoever explains.
//!
//! *Behaviour* is taken field by field: from the action, else from the document of its pack, else from
//! the one of all actions; what none of them says follows from the executor's settings. *Limits* are
//! never taken from another scope.

use std::collections::BTreeMap;

use super::retry::{Backoff, TryEnd, TryEnds};
use super::{
    ActionDefaults, ActionPolicy, Content, PolicyTarget, Priorities, QueueBounds, Retry, UserPolicy,
};
use crate::action::{ActionRef, ActionSpec, MAX_ATTEMPTS, OnWorkerLost};

/// Every document that is in force, but for those of actions, which stand in the actions themselves.
/// There are few, and who has the whole set cannot miss a part of a change.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PolicySet {
    /// Rises with every change, in the order in which changes were stored; 0 before the first.
    pub version: i64,
    /// What all actions inherit.
    pub global: Option<ActionDefaults>,
    /// What the actions of a pack inherit, before that.
    pub packs: BTreeMap<String, ActionDefaults>,
    /// What is said of users; `*` of those without a document.
    pub users: BTreeMap<String, UserPolicy>,
}

/// What of an action others can complete.
#[derive(Debug, Clone, PartialEq)]
pub struct Behaviour {
    /// Its policy.
    pub policy: ActionPolicy,
    /// What else says what is tried again.
    pub on_worker_lost: Option<OnWorkerLost>,
    /// Likewise.
    pub max_attempts: Option<u32>,
}

impl ActionSpec {
    /// What of it others can complete.
    #[must_use]
    pub fn behaviour(&self) -> Behaviour {
        Behaviour {
            policy: self.policy.clone(),
            on_worker_lost: self.on_worker_lost,
            max_attempts: self.max_attempts,
        }
    }

    /// With another behaviour.
    #[must_use]
    pub fn with(mut self, behaviour: Behaviour) -> Self {
        self.policy = behaviour.policy;
        self.on_worker_lost = behaviour.on_worker_lost;
        self.max_attempts = behaviour.max_attempts;
        self
    }
}

impl PolicySet {
    /// Takes a document in, or out; what is said about an action stands in the action.
    pub fn put(&mut self, target: &PolicyTarget, content: Option<Content>) {
        match (target, content) {
            (PolicyTarget::Global, Some(Content::Defaults(defaults))) => {
                self.global = Some(*defaults);
            }
            (PolicyTarget::Global, _) => self.global = None,
            (PolicyTarget::Pack(pack), Some(Content::Defaults(defaults))) => {
                self.packs.insert(pack.clone(), *defaults);
            }
            (PolicyTarget::Pack(pack), _) => {
                self.packs.remove(pack);
            }
            (PolicyTarget::User(user), Some(Content::User(policy))) => {
                self.users.insert(user.clone(), policy);
            }
            (PolicyTarget::User(user), _) => {
                self.users.remove(user);
            }
            (PolicyTarget::Action(_), _) => {}
        }
    }

    /// What is said of a user: by a document of its own, else by the one of every user. Nothing of
    /// whoever names no user.
    #[must_use]
    pub fn user(&self, name: Option<&str>) -> Option<&UserPolicy> {
        let own = self.users.get(name?);
        own.or_else(|| self.users.get(PolicyTarget::EVERY_USER))
    }

    /// Whose defaults an action has, the nearest first.
    fn defaults_of(&self, action_ref: &ActionRef) -> impl Iterator<Item = &ActionDefaults> {
        let pack = match self.packs.is_empty() {
            true => None,
            false => self.packs.get(action_ref.pack()),
        };
        pack.into_iter().chain(&self.global)
    }

    /// What is in force of an action that says this itself; `None` where it is no more than that.
    #[must_use]
    pub fn resolve(&self, action_ref: &ActionRef, own: &Behaviour) -> Option<Behaviour> {
        let mut layers = self.defaults_of(action_ref).peekable();
        layers.peek()?;
        let mut whole = own.clone();
        let mut retry = RetryWords::of(own);
        for layer in layers {
            inherit(&mut whole.policy, layer);
            retry.inherit(layer);
        }
        retry.write(own, &mut whole);
        (whole != *own).then_some(whole)
    }

    /// The bounds that are in force of the queue of an action that says these itself.
    #[must_use]
    pub fn bounds(&self, action_ref: &ActionRef, own: QueueBounds) -> QueueBounds {
        let mut bounds = own;
        for layer in self.defaults_of(action_ref) {
            inherit_bounds(&mut bounds, layer);
        }
        bounds
    }

    /// A spec with the policy that is in force of it.
    #[must_use]
    pub fn in_force(&self, spec: &ActionSpec) -> ActionSpec {
        match self.resolve(&spec.action_ref, &spec.behaviour()) {
            Some(behaviour) => spec.clone().with(behaviour),
            None => spec.clone(),
        }
    }
}

/// Completes what a policy does not say.
fn inherit(policy: &mut ActionPolicy, from: &ActionDefaults) {
    inherit_bounds(&mut policy.queue, from);
    // Limits are an action's own: one that has none has nothing that this could be about.
    let concurrency = &mut policy.concurrency;
    if concurrency.limit.or(concurrency.group_limit).is_some() {
        let on_limit = &mut concurrency.on_limit;
        *on_limit = on_limit.or(from.concurrency.on_limit);
    }
    let Priorities {
        default,
        max,
        rules,
        ageing_seconds,
    } = &mut policy.priority;
    *default = default.or(from.priority.default);
    *max = max.or(from.priority.max);
    *ageing_seconds = ageing_seconds.or(from.priority.ageing_seconds);
    // Rules belong together: the first that is for somebody decides.
    if rules.is_empty() {
        *rules = from.priority.rules.clone();
    }
}

fn inherit_bounds(queue: &mut QueueBounds, from: &ActionDefaults) {
    let QueueBounds {
        max_length,
        timeout_seconds,
        ordering,
        on_full,
    } = queue;
    *max_length = max_length.or(from.queue.max_length);
    *timeout_seconds = timeout_seconds.or(from.queue.timeout_seconds);
    *ordering = ordering.or(from.queue.ordering);
    *on_full = on_full.or(from.queue.on_full);
}

/// What is said of trying again, with the fields that were there before `policy.retry`. These are stored
/// as they are in force, so one that has its default says nothing.
struct RetryWords {
    max_attempts: Option<u32>,
    on: Option<TryEnds>,
    backoff: Option<Backoff>,
    /// It says by itself that nothing is tried again that a lost worker ran.
    fails_lost: bool,
    /// Some document says something.
    inherits: bool,
}

impl RetryWords {
    fn of(own: &Behaviour) -> Self {
        let written = own.policy.retry;
        let max_attempts = own.max_attempts.filter(|most| *most != MAX_ATTEMPTS);
        Self {
            max_attempts: written.and_then(|it| it.max_attempts).or(max_attempts),
            on: written.and_then(|it| it.on),
            backoff: written.map(|it| it.backoff),
            fails_lost: own.on_worker_lost == Some(OnWorkerLost::Fail),
            inherits: false,
        }
    }

    fn inherit(&mut self, from: &ActionDefaults) {
        let retry = from.retry;
        let says = (
            retry.max_attempts.is_some(),
            retry.on.is_some(),
            retry.backoff.is_some(),
        );
        let takes = (
            says.0 && self.max_attempts.is_none(),
            says.1 && self.on.is_none(),
            says.2 && self.backoff.is_none(),
        );
        self.inherits |= takes.0 || takes.1 || takes.2;
        self.max_attempts = self.max_attempts.or(retry.max_attempts);
        self.on = self.on.or(retry.on.map(|on| self.kept(on)));
        self.backoff = self.backoff.or(retry.backoff);
    }

    /// What is inherited of the ends that are tried again.
    fn kept(&self, on: TryEnds) -> TryEnds {
        let all = Vec::from(on).into_iter();
        all.filter(|end| !(self.fails_lost && *end == TryEnd::WorkerLost))
            .collect()
    }

    /// Writes it into a behaviour, where something is inherited.
    fn write(self, own: &Behaviour, whole: &mut Behaviour) {
        if !self.inherits {
            return;
        }
        let usual = || {
            let others = [TryEnd::Failed, TryEnd::TimedOut, TryEnd::WorkerLost];
            self.kept(others.into_iter().collect())
        };
        let on = self.on.unwrap_or_else(usual);
        let max_attempts = self.max_attempts.or(own.max_attempts);
        whole.policy.retry = Some(Retry {
            max_attempts,
            on: Some(on),
            backoff: self.backoff.unwrap_or_default(),
            // An action says that for itself alone.
            hold_slot: own.policy.retry.is_some_and(|retry| retry.hold_slot),
        });
        whole.max_attempts = max_attempts;
        whole.on_worker_lost = Some(match on.contains(TryEnd::WorkerLost) {
            true => OnWorkerLost::Retry,
            false => OnWorkerLost::Fail,
        });
    }
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
