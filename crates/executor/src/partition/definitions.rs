//! What is known of actions: their definitions, and the policies that are in force of them.
//!
//! An action is kept with what it inherits from the policy set. What it says itself is kept beside it only
//! where that differs, so that another set can be applied to it.

use std::sync::Arc;

use attune_core::{Action, ActionId, Behaviour, Bug, DemandRule, Marks, PolicySet};

use super::{Effect, Partition};
use crate::fact::Fact;
use crate::happened::Happened;
use crate::policy::{QueueLimits, limits_of};
use crate::queue::Millis;

impl Partition {
    /// The version of the policy set that is written down as the one by which it decides.
    pub(crate) fn goes_by(&self) -> i64 {
        self.goes_by
    }

    /// Takes in the policy set when the partition is taken over, before its actions.
    pub(super) fn recover_policies(&mut self, policies: Arc<PolicySet>) {
        self.policies = policies;
        let set_version = self.policies.version;
        if set_version > 0 {
            self.note(|| Fact::Policies { set_version });
        }
    }

    /// Goes by another set from now on. Nothing is decided by it here: the tick of the round serves what
    /// may go on.
    pub(super) fn set_policies(
        &mut self,
        now: Millis,
        policies: Arc<PolicySet>,
        out: &mut Vec<Effect>,
    ) {
        if policies.version > self.policies.version {
            self.policies = policies;
            let set_version = self.policies.version;
            self.note(|| Fact::Policies { set_version });
            self.apply_policies(now, out);
        }
        if self.goes_by < self.policies.version {
            self.goes_by = self.policies.version;
            out.push(Effect::GoesBy(self.goes_by));
        }
    }

    fn apply_policies(&mut self, now: Millis, out: &mut Vec<Effect>) {
        let mut ids: Vec<ActionId> = self.actions.keys().copied().collect();
        ids.sort_unstable();
        if Bug::PoliciesLate.is_planted() && !ids.is_empty() {
            ids.remove(0);
        }
        for id in ids {
            let Some(action) = self.actions.get(&id).cloned() else {
                continue;
            };
            let own = self.own_of(&action);
            let action_ref = &action.spec.action_ref;
            let whole = self.policies.resolve(action_ref, &own);
            if whole.as_ref().unwrap_or(&own) == &action.spec.behaviour() {
                continue;
            }
            let mut written = Action::clone(&action);
            written.spec = written.spec.with(own);
            self.define(now, written, out);
            self.unserved.insert(id);
        }
    }

    /// What an action says itself.
    pub(super) fn own_of(&self, action: &Action) -> Behaviour {
        match self.own.get(&action.id) {
            Some(own) => Behaviour::clone(own),
            None => action.spec.behaviour(),
        }
    }

    /// An action with what it inherits; what it says itself is remembered where that differs.
    pub(super) fn whole(&mut self, mut action: Action) -> Action {
        let own = action.spec.behaviour();
        match self.policies.resolve(&action.spec.action_ref, &own) {
            Some(whole) => {
                self.own.insert(action.id, Box::new(own));
                action.spec = action.spec.with(whole);
            }
            None => {
                self.own.remove(&action.id);
            }
        }
        action
    }

    /// Takes over how an action is defined, as its author writes it.
    pub(super) fn learn(&mut self, now: Millis, action: Action, out: &mut Vec<Effect>) {
        let known = self.actions.get(&action.id);
        // Read before something that was learnt since.
        if known.is_some_and(|known| known.version > action.version) {
            return;
        }
        let id = action.id;
        // Another program takes another time.
        if known.is_some_and(|known| known.spec.run != action.spec.run) {
            self.run_times.remove(&id);
        }
        self.define(now, action, out);
        // A raised limit wakes waiters now, not when the next slot comes free.
        self.serve(now, id, out);
    }

    fn define(&mut self, now: Millis, action: Action, out: &mut Vec<Effect>) {
        let action = self.whole(action);
        let earlier = self.actions.get(&action.id).map(limit_of);
        let limits = self.limits_for(&action);
        self.note_bounds(action.id, &limits);
        let action = self.remember(action);
        let limit = limit_of(&action);
        if let Some(earlier) = earlier.filter(|earlier| *earlier != limit) {
            self.happened(&action, Happened::LimitChanged { earlier, limit }, out);
        }
        self.detector.changed(action.id);
        self.leave_line_unless(action.id, &action.spec.pool);
        self.queues.with_queue(
            action.id,
            || limits.clone(),
            |queue| queue.set_limits(limits.clone()),
        );
        self.hold(now, &action, out);
        self.note_regrouping(action.id);
    }

    /// The bounds of an action's queue, and how its executions demand them.
    pub(super) fn limits_for(&mut self, action: &Action) -> QueueLimits {
        let rule = DemandRule::of(&action.spec);
        let limits = limits_of(&action.spec, rule.as_ref(), self.queues.config());
        match rule {
            Some(rule) => self.demands.insert(action.id, rule),
            None => self.demands.remove(&action.id),
        };
        limits
    }

    pub(super) fn remember(&mut self, action: Action) -> Arc<Action> {
        let action = Arc::new(action);
        self.learn_quotas(&action);
        self.definition_bytes
            .insert(action.id, action.spec.dispatch_bytes());
        match action.spec.parameters.as_ref().and_then(Marks::of) {
            Some(marks) => drop(self.marks.insert(action.id, marks)),
            None => drop(self.marks.remove(&action.id)),
        }
        self.refs
            .insert(action.spec.action_ref.as_str().to_owned(), action.id);
        self.actions.insert(action.id, Arc::clone(&action));
        action
    }
}

fn limit_of(action: &Arc<Action>) -> Option<u32> {
    action.spec.policy.concurrency.limit
}
