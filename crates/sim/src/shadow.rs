//! What an owner has decided so far, kept as plain lists, and judged effect by effect.
//!
//! The core sorts, indexes and caches; this does not. It is built from the same rows, told the
//! same events, and looks through everything each time.

mod ahead;
mod arriving;
mod granting;
mod idle;
mod keeping;
mod settling;
mod turns;

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{
    ActionId, Asker, Attempt, Demand, EndCode, ExecutionId, GroupKey, Hold, OrderRule, Priority,
    Promise, Status, WorkerId,
};
use attune_executor::Fact;
use attune_executor::policy::QueueLimits;
use attune_executor::stored::StoredExecution;

use crate::groups::{Group, Grouping, Words};
use crate::lasting::Lasting;
use crate::oracle::{Rule, Violation};
use crate::results::Reports;
use crate::retries::Retries;
use arriving::Leaving;

/// Milliseconds of an owner's wall clock.
pub(crate) type Millis = i64;

/// An execution as the decisions so far leave it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) action: ActionId,
    pub(crate) priority: Priority,
    /// Whether it goes before all others of its action.
    pub(crate) front: bool,
    pub(crate) holds: bool,
    /// Whether it is granted to a worker ahead of its slot.
    pub(crate) ahead: bool,
    /// The number of that grant.
    grant_no: i64,
    /// To which life of a worker it is granted.
    worker: Option<WorkerId>,
    pub(crate) attempt: Attempt,
    not_before: Option<Millis>,
    /// Since when it waits for a slot.
    since: Millis,
    accepted: Accepted,
    /// What was asked for.
    pub(crate) words: Words,
    /// What its owner believes that it demands.
    demand: Option<Demand>,
    /// Who has asked for it, where it is counted how many of theirs wait.
    asker: Option<Asker>,
    /// Whether it is asked to end.
    asked: bool,
    /// Until when it keeps its slot without running.
    kept: Option<Millis>,
    /// Whether its attempt began in the slot of the one before it.
    pub(crate) goes_on: bool,
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

/// What the owners are told by others.
pub(crate) struct Told<'a> {
    /// By workers.
    pub(crate) reports: &'a Reports,
    /// By the bus, of what can never be sent.
    pub(crate) lasting: &'a Lasting,
    /// By clients, operators and the actions, of who is to be tried again.
    pub(crate) retries: &'a Retries,
}

/// The decisions of one core.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    pub(crate) rows: BTreeMap<ExecutionId, Seen>,
    /// The bounds of each action as the owner knows them.
    pub(crate) bounds: BTreeMap<ActionId, QueueLimits>,
    /// The pools that take no dispatches.
    pub(crate) closed: BTreeSet<ActionId>,
    /// How the queues are held that are or were.
    pub(crate) holds: BTreeMap<ActionId, Hold>,
    /// The last part of the log that was judged.
    pub(crate) judged: u64,
    /// What was found in it.
    pub(crate) found: Vec<Violation>,
    /// The key of each group, by the mark of the rule.
    pub(crate) keys: BTreeMap<(i64, Group), GroupKey>,
    /// Behind whom executions were granted ahead, to the same worker.
    pub(crate) behind: BTreeMap<(ExecutionId, Attempt), Vec<(ExecutionId, Attempt)>>,
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
    if first.front || second.front {
        return first.front && (!second.front || by_place);
    }
    if first.priority == second.priority {
        return by_place;
    }
    match rule {
        OrderRule::Fifo => by_place,
        OrderRule::Priority => first.priority < second.priority,
        OrderRule::Ageing { step } => {
            let aged = |time: Millis, seen: &Seen| {
                time + i64::from(step) * i64::from(seen.priority.rank())
            };
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
    /// Takes in what a new owner has loaded; `since` tells since when each waits, and `words` what was
    /// asked for.
    pub(crate) fn recover(
        &mut self,
        now: Millis,
        since: &BTreeMap<ExecutionId, Millis>,
        rows: &[StoredExecution],
        words: impl Fn(ExecutionId) -> Words,
    ) {
        for row in rows {
            let waits = since.get(&row.id).copied().unwrap_or(Millis::MAX);
            // Its first delay was over when it was granted before, whatever the clock shows now.
            let is_first = row.attempt == Attempt(0);
            let not_before = row.not_before.filter(|_| is_first || row.retried);
            let seen = Seen {
                action: row.action_id,
                priority: row.priority,
                front: row.front,
                holds: row.status.holds_slot(),
                ahead: !row.status.holds_slot() && row.worker.is_some(),
                grant_no: row.grant_no.unwrap_or_default(),
                worker: row.worker,
                attempt: row.attempt,
                not_before,
                since: waits.max(not_before.unwrap_or(Millis::MIN)),
                accepted: Accepted::Before(row.created),
                words: words(row.id),
                demand: row.demand,
                asker: row.asker,
                asked: row.cancel_requested,
                kept: row.kept_until,
                goes_on: false,
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
                    self.bounds.insert(*action_id, limits.clone());
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

    /// Those that could be given a slot.
    fn eligible(
        &self,
        now: Millis,
        action: ActionId,
    ) -> impl Iterator<Item = (ExecutionId, &Seen)> {
        let rows = self.rows.iter().map(|(id, seen)| (*id, seen));
        rows.filter(move |(_, seen)| {
            let waits = seen.action == action && !seen.holds && !seen.ahead;
            waits && seen.not_before.is_none_or(|time| time <= now)
        })
    }

    /// By what executions of an action are grouped.
    fn grouping(&self, action: ActionId) -> Grouping {
        Grouping::of(self.demands(action))
    }

    fn demands(&self, action: ActionId) -> Option<i64> {
        self.bounds.get(&action)?.demands()
    }

    /// Executions of an action that its owner must ask for before it grants anything: it has accepted
    /// them by another rule than the one in force.
    fn unknown(&self, action: ActionId) -> impl Iterator<Item = (ExecutionId, &Seen)> {
        let rows = self.rows.iter().map(|(id, seen)| (*id, seen));
        rows.filter(move |(_, seen)| seen.action == action && self.is_unknown(seen))
    }

    /// Whether an execution was accepted by another rule than the one in force.
    fn is_unknown(&self, seen: &Seen) -> bool {
        let rule = self.demands(seen.action);
        rule.is_some() && seen.demand.map(|demand| demand.rule) != rule
    }

    /// Whether an owner knows by what everything of an action is grouped.
    pub(crate) fn is_grouped(&self, action: ActionId) -> bool {
        self.unknown(action).next().is_none()
    }

    /// What the holders take of the limit of an action, or those of one of its groups of that group's.
    fn used(&self, action: ActionId, of: Option<Group>) -> u64 {
        let grouping = self.grouping(action);
        let holders = self.rows.values();
        let holders = holders.filter(|seen| seen.action == action && seen.holds);
        let of_group =
            holders.filter(|seen| of.is_none_or(|group| grouping.group(seen.words) == group));
        of_group.map(|seen| grouping.cost(seen.words)).sum()
    }

    /// Whether a limit has room for one more, who runs alone if it takes more than there is.
    fn has_room(&self, seen: &Seen, in_group: bool) -> bool {
        let grouping = self.grouping(seen.action);
        let limits = self.bounds.get(&seen.action);
        let (limit, of) = if in_group {
            let limit = limits.and_then(|limits| limits.group_limit());
            (limit, Some(grouping.group(seen.words)))
        } else {
            (self.limit(seen.action), None)
        };
        let used = self.used(seen.action, of);
        let cost = grouping.cost(seen.words);
        limit.is_none_or(|limit| used + cost <= u64::from(limit) || (used == 0 && limit > 0))
    }

    /// Those of a group that may be the first of it: nobody there surely stands before them.
    fn heads<'a>(
        &self,
        rule: OrderRule,
        waiting: &[(ExecutionId, &'a Seen)],
        group: Group,
    ) -> Vec<(ExecutionId, &'a Seen)> {
        let Some((_, first)) = waiting.first() else {
            return Vec::new();
        };
        let grouping = self.grouping(first.action);
        let of_group = waiting.iter().copied();
        let of_group: Vec<_> = of_group
            .filter(|(_, seen)| grouping.group(seen.words) == group)
            .collect();
        let is_passed = |one: (ExecutionId, &Seen)| {
            let mut others = of_group.iter();
            others.any(|other| other.0 != one.0 && is_before(rule, *other, one))
        };
        let heads = of_group.iter().copied();
        heads.filter(|one| !is_passed(*one)).collect()
    }

    /// Whether whoever is first in a group surely has room in it.
    fn group_has_room(
        &self,
        rule: OrderRule,
        waiting: &[(ExecutionId, &Seen)],
        group: Group,
    ) -> bool {
        let mut heads = self.heads(rule, waiting, group).into_iter();
        heads.all(|(_, head)| self.has_room(head, true))
    }

    /// Takes in what an owner believes that somebody demands.
    fn demand(&mut self, id: ExecutionId, demand: Option<Demand>, out: &mut Vec<Violation>) {
        let Some(seen) = self.rows.get_mut(&id) else {
            return;
        };
        seen.demand = demand;
        let Some(demand) = demand else { return };
        let (words, grouping) = (seen.words, Grouping::of(Some(demand.rule)));
        let group = (demand.rule, grouping.group(words));
        let key = *self.keys.entry(group).or_insert(demand.group);
        let mut others = self.keys.iter();
        let is_shared = others
            .any(|(other, key)| *other != group && other.0 == demand.rule && *key == demand.group);
        if key != demand.group || is_shared || u64::from(demand.cost) != grouping.cost(words) {
            let words = format!("{id} says {words:?}, and is believed to demand {demand:?}");
            out.push(Violation::of(Promise::I2, words));
        }
    }

    /// Judges what was decided, in order.
    pub(crate) fn judge(
        &mut self,
        now: Millis,
        told: &Told<'_>,
        facts: &[Fact],
        out: &mut Vec<Violation>,
    ) {
        let mut leaving = Leaving::default();
        for fact in facts {
            out.extend(told.retries.judge(now, fact, |id, attempt, status| {
                told.reports.contains(id, attempt, status)
            }));
            match fact {
                Fact::Paused { .. } => self.learn(std::slice::from_ref(fact)),
                Fact::Bounds { action_id, limits } => {
                    let earlier = self.bounds.insert(*action_id, limits.clone());
                    let earlier = earlier.map_or(limits.demands(), |it| it.demands());
                    if earlier != limits.demands() {
                        let keeps_users = earlier.and(limits.demands()).is_some();
                        self.forget_demands(*action_id, keeps_users);
                    }
                }
                Fact::Accepted {
                    execution_id,
                    action_id,
                    priority,
                    not_before,
                    request_id,
                    demand,
                    status,
                    asker,
                    ..
                } => {
                    let row = (*execution_id, *action_id, *priority);
                    self.insert(now, row, *not_before, Words::of(*request_id), out);
                    if let Some(seen) = self.rows.get_mut(execution_id) {
                        seen.asker = *asker;
                    }
                    if *status != Status::Rejected {
                        self.demand(*execution_id, *demand, out);
                        let leaving = std::mem::take(&mut leaving);
                        self.arrived(now, *execution_id, leaving, facts, out);
                    }
                }
                Fact::Asked {
                    execution_id,
                    newcomer,
                    ..
                } => {
                    if let Some(seen) = self.rows.get_mut(execution_id) {
                        seen.asked = true;
                    }
                    leaving.asked.extend(newcomer.map(|_| *execution_id));
                }
                Fact::Refused {
                    request_id,
                    action_id: Some(action_id),
                    code,
                } => self.refused(now, *action_id, Words::of(*request_id), *code, out),
                Fact::Ended {
                    execution_id,
                    status,
                    code: Some(code @ (EndCode::Dropped | EndCode::Replaced)),
                    ..
                } => {
                    leaving.gone.extend(self.leave(*execution_id, *code, out));
                    self.end(now, told, *execution_id, *status, out);
                }
                Fact::Grouped {
                    execution_id,
                    demand,
                    ..
                } => self.demand(*execution_id, Some(*demand), out),
                Fact::Moved(moved) => self.move_one(moved, out),
                Fact::Granted {
                    execution_id,
                    attempt,
                    grant_no,
                    worker,
                    ahead: true,
                    ..
                } => {
                    let grant = (*attempt, *grant_no, *worker);
                    self.grant_ahead(now, *execution_id, grant, out);
                }
                Fact::Granted {
                    execution_id,
                    attempt,
                    worker,
                    ..
                } => self.grant(now, *execution_id, (*attempt, *worker), out),
                Fact::HandedOn {
                    execution_id,
                    attempt,
                    ..
                } => self.hand_on(*execution_id, *attempt, out),
                Fact::Line {
                    action_id,
                    stands: true,
                } => {
                    self.closed.insert(*action_id);
                }
                Fact::Line { action_id, .. } => {
                    self.closed.remove(action_id);
                }
                Fact::Revoked {
                    execution_id,
                    until,
                    ..
                } => self.put_back(now, *execution_id, *until, out),
                Fact::KeptOn {
                    execution_id,
                    until: not_before,
                    ..
                }
                | Fact::Retried {
                    execution_id,
                    not_before,
                    keeps_slot: true,
                    ..
                } => self.keep(*execution_id, *not_before, out),
                Fact::Retried {
                    execution_id,
                    not_before,
                    ..
                } => self.put_back(now, *execution_id, Some(*not_before), out),
                Fact::Ended {
                    execution_id,
                    status,
                    ..
                } => self.end(now, told, *execution_id, *status, out),
                Fact::Acquired { .. }
                | Fact::Held { .. }
                | Fact::Stale { .. }
                | Fact::Refused { .. }
                | Fact::Policies { .. }
                | Fact::Lost
                | Fact::Fenced
                | Fact::Operated { .. }
                | Fact::Totals { .. } => {}
            }
        }
        leaving.must_be_over(out);
    }
}
