//! What an owner has decided so far, kept as plain lists, and judged effect by effect.
//!
//! The core sorts, indexes and caches; this does not. It is built from the same rows, told the
//! same events, and looks through everything each time.

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{ActionId, Attempt, ExecutionId, Hold, OrderRule, Priority, Promise, Status};
use attune_executor::Fact;
use attune_executor::policy::QueueLimits;
use attune_executor::stored::StoredExecution;

use crate::lasting::Lasting;
use crate::oracle::{Rule, Violation};
use crate::results::Reports;

/// Milliseconds of an owner's wall clock.
pub(crate) type Millis = i64;

/// An execution as the decisions so far leave it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) action: ActionId,
    pub(crate) priority: Priority,
    pub(crate) holds: bool,
    pub(crate) attempt: Attempt,
    not_before: Option<Millis>,
    /// Since when it waits for a slot.
    since: Millis,
    accepted: Accepted,
}

/// When an execution was accepted, as its owner knows.
#[derive(Debug, Clone, Copy)]
enum Accepted {
    /// By this owner.
    Here(Millis),
    /// As it is written down by another owner, whose clock may have differed a little.
    Before(Millis),
    /// What is written down contradicts the order of acceptance: somebody's clock was wrong.
    Unsure,
}

/// By how much the clocks of two owners may differ when nobody's is wrong.
const CLOCKS_DIFFER: Millis = 1_000;

/// How many slots one step gives at most; the others have their turn in the next round.
const STEP: usize = 1_000;

/// What the owners are told by others.
pub(crate) struct Told<'a> {
    /// By workers.
    pub(crate) reports: &'a Reports,
    /// By the bus, of what can never be sent.
    pub(crate) lasting: &'a Lasting,
}

/// The decisions of one core.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    pub(crate) rows: BTreeMap<ExecutionId, Seen>,
    /// The bounds of each action as the owner knows them.
    pub(crate) bounds: BTreeMap<ActionId, QueueLimits>,
    /// The pools that take no dispatches.
    pub(crate) closed: BTreeSet<String>,
    /// How the queues are held that are or were.
    pub(crate) holds: BTreeMap<ActionId, Hold>,
    /// How many slots were given in the last part of the log.
    pub(crate) granted: usize,
    /// The last part of the log that was judged.
    pub(crate) judged: u64,
    /// What was found in it.
    pub(crate) found: Vec<Violation>,
}

impl Seen {
    /// Whether its time to wait for its first slot runs.
    fn may_expire(&self, now: Millis) -> bool {
        let is_delayed = self.not_before.is_some_and(|time| time > now);
        !self.holds && self.attempt == Attempt(0) && !is_delayed
    }
}

/// How long one may wait, in milliseconds.
pub(crate) fn longest_wait(limits: &QueueLimits) -> Millis {
    i64::from(limits.timeout_seconds) * 1000
}

/// Whether the first surely stands before the second by the rule of their action.
fn is_before(rule: OrderRule, first: (ExecutionId, &Seen), second: (ExecutionId, &Seen)) -> bool {
    let ((first_id, first), (second_id, second)) = (first, second);
    let by_place = first_id.seq() < second_id.seq();
    if first.priority == second.priority {
        return by_place;
    }
    match rule {
        OrderRule::Fifo => by_place,
        OrderRule::Priority => first.priority < second.priority,
        OrderRule::Ageing { step } => {
            let aged = |time: Millis, seen: &Seen| time + step * i64::from(seen.priority.rank());
            let (one, other, slack) = match (first.accepted, second.accepted) {
                (Accepted::Here(one), Accepted::Here(other)) => (one, other, 0),
                (
                    Accepted::Here(one) | Accepted::Before(one),
                    Accepted::Here(other) | Accepted::Before(other),
                ) => (one, other, CLOCKS_DIFFER),
                _ => return false,
            };
            let difference = aged(other, second) - aged(one, first);
            difference > slack || (difference == slack && slack == 0 && by_place)
        }
    }
}

impl Shadow {
    /// Takes in what a new owner has loaded; `since` tells since when each waits.
    pub(crate) fn recover(
        &mut self,
        now: Millis,
        since: &BTreeMap<ExecutionId, Millis>,
        rows: &[StoredExecution],
    ) {
        for row in rows {
            let waits = since.get(&row.id).copied().unwrap_or(Millis::MAX);
            // Its delay was over when it was granted before, whatever the clock shows now.
            let not_before = row.not_before.filter(|_| row.attempt == Attempt(0));
            let seen = Seen {
                action: row.action_id,
                priority: row.priority,
                holds: row.status.holds_slot(),
                attempt: row.attempt,
                not_before,
                since: waits.max(not_before.unwrap_or(Millis::MIN)),
                accepted: Accepted::Before(row.created),
            };
            self.rows.insert(row.id, seen);
        }
        self.doubt_times(now);
    }

    /// Times that contradict the order of acceptance, or lie ahead, tell nothing.
    fn doubt_times(&mut self, now: Millis) {
        let mut latest = BTreeMap::new();
        let mut wrong = BTreeSet::new();
        for seen in self.rows.values() {
            let Accepted::Before(time) = seen.accepted else {
                continue;
            };
            let last = latest.entry(seen.action).or_insert(time);
            if time < *last || time > now + CLOCKS_DIFFER / 2 {
                wrong.insert(seen.action);
            }
            *last = time.max(*last);
        }
        let rows = self.rows.values_mut();
        for seen in rows.filter(|seen| wrong.contains(&seen.action)) {
            seen.accepted = Accepted::Unsure;
        }
    }

    /// Takes in the bounds of actions, and how they are held.
    pub(crate) fn learn(&mut self, facts: &[Fact]) {
        for fact in facts {
            match fact {
                Fact::Bounds { action_id, limits } => {
                    self.bounds.insert(*action_id, *limits);
                }
                Fact::Paused { action_id, hold } => {
                    self.holds.insert(*action_id, *hold);
                }
                _ => {}
            }
        }
    }

    /// How the queue of an action is held.
    pub(crate) fn hold_of(&self, action: ActionId) -> Hold {
        self.holds.get(&action).copied().unwrap_or(Hold::NONE)
    }

    /// The limit of an action.
    pub(crate) fn limit(&self, action: ActionId) -> Option<u32> {
        self.bounds.get(&action)?.max_concurrent
    }

    fn holders(&self, action: ActionId) -> usize {
        self.rows
            .values()
            .filter(|seen| seen.action == action && seen.holds)
            .count()
    }

    /// Those that could be given a slot.
    fn eligible(
        &self,
        now: Millis,
        action: ActionId,
    ) -> impl Iterator<Item = (ExecutionId, &Seen)> {
        let rows = self.rows.iter().map(|(id, seen)| (*id, seen));
        rows.filter(move |(_, seen)| {
            seen.action == action && !seen.holds && seen.not_before.is_none_or(|time| time <= now)
        })
    }

    fn has_free_slot(&self, action: ActionId) -> bool {
        let limit = self.limit(action);
        limit.is_none_or(|limit| self.holders(action) < limit as usize)
    }

    /// Judges what was decided, in order.
    pub(crate) fn judge(
        &mut self,
        now: Millis,
        told: &Told<'_>,
        facts: &[Fact],
        out: &mut Vec<Violation>,
    ) {
        let granted = facts
            .iter()
            .filter(|fact| matches!(fact, Fact::Granted { .. }));
        self.granted = granted.count();
        for fact in facts {
            match fact {
                Fact::Bounds { .. } | Fact::Paused { .. } => {
                    self.learn(std::slice::from_ref(fact));
                }
                Fact::Accepted {
                    execution_id,
                    action_id,
                    priority,
                    not_before,
                    ..
                } => self.insert(now, *execution_id, *action_id, *priority, *not_before, out),
                Fact::Granted {
                    execution_id,
                    attempt,
                    ..
                } => self.grant(now, *execution_id, *attempt, out),
                Fact::Pool { name, closed: true } => {
                    self.closed.insert(name.clone());
                }
                Fact::Pool { name, .. } => {
                    self.closed.remove(name);
                }
                Fact::Revoked { execution_id, .. } => self.revoke(now, *execution_id, out),
                Fact::Ended {
                    execution_id,
                    status,
                    ..
                } => self.end(now, told, *execution_id, *status, out),
                Fact::Acquired { .. }
                | Fact::Held { .. }
                | Fact::Stale { .. }
                | Fact::Refused { .. }
                | Fact::Lost
                | Fact::Fenced
                | Fact::Totals { .. } => {}
            }
        }
    }

    fn insert(
        &mut self,
        now: Millis,
        id: ExecutionId,
        action: ActionId,
        priority: Priority,
        not_before: Option<Millis>,
        out: &mut Vec<Violation>,
    ) {
        let seen = Seen {
            action,
            priority,
            holds: false,
            attempt: Attempt(0),
            not_before,
            since: now.max(not_before.unwrap_or(now)),
            accepted: Accepted::Here(now),
        };
        let last = self.rows.last_key_value();
        if last.is_some_and(|(last, _)| *last >= id) {
            let words = format!("{id} is not the last in order");
            out.push(Violation::of(Promise::I3, words));
        }
        self.rows.insert(id, seen);
    }

    fn grant(&mut self, now: Millis, id: ExecutionId, attempt: Attempt, out: &mut Vec<Violation>) {
        let Some(seen) = self.rows.get(&id).cloned() else {
            let words = format!("{id} is granted a slot and was not waiting");
            return out.push(Violation::of(Promise::I5, words));
        };
        if seen.holds || attempt != seen.attempt.next() {
            let words = format!("{id} is granted attempt {attempt} after {}", seen.attempt);
            out.push(Violation::of(Promise::I5, words));
        }
        if self.hold_of(seen.action).mode.is_some() {
            let words = format!("{id} is granted a slot of {}, which is held", seen.action);
            out.push(Violation::of(Rule::Held, words));
        }
        if !self.has_free_slot(seen.action) {
            let words = format!("{id} is granted a slot of {} that is not free", seen.action);
            out.push(Violation::of(Promise::I2, words));
        }
        if seen.not_before.is_some_and(|time| time > now) {
            let words = format!("{id} is granted a slot before its time");
            out.push(Violation::of(Promise::I3, words));
        }
        let rule = self.bounds.get(&seen.action).map(|limits| limits.order);
        let rule = rule.unwrap_or_default();
        let mut eligible = self.eligible(now, seen.action);
        let passed = eligible.find(|other| is_before(rule, *other, (id, &seen)));
        if let Some((first, _)) = passed {
            let words = format!("{id} is granted a slot before {first} by {rule:?}");
            out.push(Violation::of(Promise::I3, words));
        }
        drop(eligible);
        if let Some(seen) = self.rows.get_mut(&id) {
            (seen.holds, seen.attempt) = (true, attempt);
        }
    }

    fn revoke(&mut self, now: Millis, id: ExecutionId, out: &mut Vec<Violation>) {
        let held = self.rows.get_mut(&id).filter(|seen| seen.holds);
        match held {
            // Its delay was over when it was granted, whatever the clock shows now.
            Some(seen) => (seen.holds, seen.since, seen.not_before) = (false, now, None),
            None => out.push(Violation::of(
                Promise::I5,
                format!("{id} loses a slot that it does not hold"),
            )),
        }
    }

    fn end(
        &mut self,
        now: Millis,
        told: &Told<'_>,
        id: ExecutionId,
        status: Status,
        out: &mut Vec<Violation>,
    ) {
        let Some(seen) = self.rows.remove(&id) else {
            let words = format!("{id} ends as {status} and had ended before");
            return out.push(Violation::of(Promise::I5, words));
        };
        let reported = seen.holds && told.reports.contains(id, seen.attempt, status);
        let by_run = matches!(
            status,
            Status::Succeeded | Status::Failed | Status::TimedOut
        );
        let unsendable = status == Status::Failed && told.lasting.unsendable.contains_key(&id);
        if by_run && !reported && !unsendable {
            let words = format!("{id} ends as {status}, and no run of its attempt said so");
            out.push(Violation::of(Promise::I5, words));
        }
        let hold = self.hold_of(seen.action);
        let waited = now.saturating_sub(seen.since.max(hold.waits_from));
        let most = self.bounds.get(&seen.action).map_or(0, longest_wait);
        if status == Status::Expired
            && (waited < most || !seen.may_expire(now) || hold.mode.is_some())
        {
            let words = format!("{id} expires after {waited} ms of {most}");
            out.push(Violation::of(Rule::Expiry, words));
        }
    }

    /// What must be true whenever a round has done with an event: no free slot beside someone
    /// who may have it, unless its pool, the one that `pool_of` names, takes no dispatches, or operators
    /// hold it, or as many slots were given as one step gives.
    pub(crate) fn settle(
        &self,
        now: Millis,
        pool_of: impl Fn(ActionId) -> String,
        out: &mut Vec<Violation>,
    ) {
        if self.granted >= STEP {
            return;
        }
        for action in self.bounds.keys() {
            let held = self.hold_of(*action).mode.is_some();
            if held || self.closed.contains(&pool_of(*action)) {
                continue;
            }
            if let Some((id, _)) = self.eligible(now, *action).next()
                && self.has_free_slot(*action)
            {
                let words = format!(
                    "{id} waits although a slot of {action} is free at {now}: {:?}",
                    self.rows.get(&id)
                );
                out.push(Violation::of(Promise::I6, words));
            }
        }
    }

    /// What must be true whenever time has passed: nobody has waited too long.
    pub(crate) fn pass(&self, now: Millis, out: &mut Vec<Violation>) {
        for (action, limits) in &self.bounds {
            let most = longest_wait(limits);
            let hold = self.hold_of(*action);
            if hold.mode.is_some() {
                continue;
            }
            let overdue = self.rows.iter().find(|(_, seen)| {
                seen.action == *action
                    && seen.may_expire(now)
                    && seen.since.max(hold.waits_from).saturating_add(most) < now
            });
            if let Some((id, seen)) = overdue {
                let words = format!("{id} waits {} ms of {most}", now - seen.since);
                out.push(Violation::of(Rule::Expiry, words));
            }
        }
    }
}
