//! What an owner has decided so far, kept as plain lists, and judged effect by effect.
//!
//! The core sorts, indexes and caches; this does not. It is built from the same rows, told the
//! same events, and looks through everything each time.

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{ActionId, Attempt, ExecutionId, Priority, Promise, Seq, Status};
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
}

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
    /// The limit and the waiting time, in milliseconds, of each action as the owner knows them.
    pub(crate) bounds: BTreeMap<ActionId, (Option<u32>, Millis)>,
    /// The pools that take no dispatches.
    pub(crate) closed: BTreeSet<String>,
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

fn order(id: ExecutionId, seen: &Seen) -> (Priority, Seq) {
    (seen.priority, id.seq())
}

impl Shadow {
    /// Takes in what a new owner has loaded; `since` tells since when each waits.
    pub(crate) fn recover(
        &mut self,
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
            };
            self.rows.insert(row.id, seen);
        }
    }

    /// Takes in the bounds of actions.
    pub(crate) fn learn(&mut self, facts: &[Fact]) {
        for fact in facts {
            if let Fact::Bounds { action_id, limits } = fact {
                self.bound(*action_id, *limits);
            }
        }
    }

    fn bound(&mut self, action_id: ActionId, limits: QueueLimits) {
        let timeout = i64::from(limits.timeout_seconds) * 1000;
        let bounds = (limits.max_concurrent, timeout);
        self.bounds.insert(action_id, bounds);
    }

    fn holders(&self, action: ActionId) -> usize {
        self.rows
            .values()
            .filter(|seen| seen.action == action && seen.holds)
            .count()
    }

    /// The first in order of those that could be given a slot.
    fn first_eligible(&self, now: Millis, action: ActionId) -> Option<ExecutionId> {
        let eligible = self.rows.iter().filter(|(_, seen)| {
            seen.action == action && !seen.holds && seen.not_before.is_none_or(|time| time <= now)
        });
        eligible
            .min_by_key(|(id, seen)| order(**id, seen))
            .map(|(id, _)| *id)
    }

    fn has_free_slot(&self, action: ActionId) -> bool {
        let limit = self.bounds.get(&action).and_then(|(limit, _)| *limit);
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
        for fact in facts {
            match fact {
                Fact::Bounds { action_id, limits } => self.bound(*action_id, *limits),
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
        if !self.has_free_slot(seen.action) {
            let words = format!("{id} is granted a slot of {} that is not free", seen.action);
            out.push(Violation::of(Promise::I2, words));
        }
        let first = self.first_eligible(now, seen.action);
        if first != Some(id) {
            let words = format!("{id} is granted a slot before {first:?}");
            out.push(Violation::of(Promise::I3, words));
        }
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
        let waited = now.saturating_sub(seen.since);
        let most = self.bounds.get(&seen.action).map_or(0, |(_, most)| *most);
        if status == Status::Expired && (waited < most || !seen.may_expire(now)) {
            let words = format!("{id} expires after {waited} ms of {most}");
            out.push(Violation::of(Rule::Expiry, words));
        }
    }

    /// What must be true whenever a round has done with an event: no free slot beside someone
    /// who may have it, unless its pool, the one that `pool_of` names, takes no dispatches.
    pub(crate) fn settle(
        &self,
        now: Millis,
        pool_of: impl Fn(ActionId) -> String,
        out: &mut Vec<Violation>,
    ) {
        for action in self.bounds.keys() {
            if self.closed.contains(&pool_of(*action)) {
                continue;
            }
            if let Some(id) = self.first_eligible(now, *action)
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
        for (action, (_, most)) in &self.bounds {
            let overdue = self.rows.iter().find(|(_, seen)| {
                seen.action == *action
                    && seen.may_expire(now)
                    && seen.since.saturating_add(*most) < now
            });
            if let Some((id, seen)) = overdue {
                let words = format!("{id} waits {} ms of {most}", now - seen.since);
                out.push(Violation::of(Rule::Expiry, words));
            }
        }
    }
}
