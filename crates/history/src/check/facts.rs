//! The records in a form that can be judged: small, because a history has millions.

mod runs;
mod submitted;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use attune_core::policy::FlowWeights;
use attune_core::{
    ActionId, ActionRef, Attempt, Demand, Epoch, ExecutionId, OrderRule, PartitionId, Priority,
    RequestId, Status, WorkerId,
};

use super::asked::Asked;
use super::decision::{Bounds, Counts, Decision, What};
use super::documents::Inheriting;
use super::operations::Operations;
use super::pauses::Pauses;
use super::policies::Policies;
use super::processes::Processes;
use super::rates::Rates;
use super::request::Request;
use super::starts::Starts;
use super::witnesses::Witnesses;
use super::{Promise, Violation, violation};
use attune_record::{FaultPhase, Record};

/// One attempt of an execution.
pub(super) type Key = (ExecutionId, Attempt);

/// What is known of an execution.
#[derive(Debug, Clone, Default)]
pub(super) struct Execution {
    pub(super) action: Option<ActionId>,
    pub(super) priority: Option<Priority>,
    pub(super) delayed: bool,
    /// When it was accepted, in milliseconds by the clock of its owner.
    pub(super) at: Option<i64>,
    /// What it demanded when it was accepted.
    pub(super) demand: Option<Demand>,
    pub(super) status_accepted: Option<Status>,
    /// The record of its acceptance by the owner.
    pub(super) accepted: Option<u32>,
    /// When that was.
    pub(super) accepted_ns: Option<i64>,
    /// The record in which a client was told, or the API knew.
    pub(super) told: Option<u32>,
    pub(super) ended: Option<(Attempt, Status, u32)>,
    /// A record shows how it left the queue for the first time.
    pub(super) leaves: bool,
}

/// A slot that was granted: the number of the grant, the limits and the order then, and to whom.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grant {
    pub(super) grant_no: i64,
    pub(super) bounds: Bounds,
    pub(super) order: OrderRule,
    /// Who may begin the attempt.
    pub(super) worker: Option<WorkerId>,
    pub(super) t_ns: i64,
    pub(super) record: u32,
}

/// Who saw a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Seen {
    Program { pid: u32, action_ref: u32 },
    Worker,
}

/// A start or an end of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    pub(super) key: Key,
    pub(super) seen: Seen,
    pub(super) is_end: bool,
    pub(super) t_ns: i64,
    pub(super) record: u32,
}

#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) records: u32,
    pub(super) decisions: BTreeMap<ActionId, Vec<Decision>>,
    pub(super) executions: HashMap<ExecutionId, Execution>,
    pub(super) requests: HashMap<RequestId, Request>,
    refs: HashMap<String, u32>,
    pub(super) grants: HashMap<Key, Grant>,
    /// The limits under which whoever stood ahead was given its slot, and when.
    handed_on: HashMap<Key, (i64, Bounds)>,
    /// The limits of each action that were said last.
    bounds: HashMap<ActionId, Bounds>,
    /// What the flow of each grant was worth, where slots were shared.
    pub(super) weights: HashMap<Key, FlowWeights>,
    /// When the owner recorded that an attempt held its slot no longer.
    pub(super) released: HashMap<Key, i64>,
    pub(super) marks: Vec<Mark>,
    pub(super) processes: Processes,
    pub(super) witnesses: Witnesses,
    pub(super) asked: Asked,
    pub(super) pauses: Pauses,
    pub(super) operations: Operations,
    pub(super) policies: Policies,
    pub(super) inheriting: Inheriting,
    pub(super) rates: Rates,
    pub(super) starts: Starts,
    /// The partition of each action.
    partitions: HashMap<ActionId, PartitionId>,
    /// Executions that went down with their worker.
    pub(super) taken_down: HashMap<ExecutionId, Vec<i64>>,
    epochs: BTreeMap<PartitionId, BTreeSet<Epoch>>,
    pub(super) faults: u64,
    pub(super) fence_rejections: u64,
    pub(super) duplicates_dropped: u64,
    pub(super) revoked: u64,
    /// Tries that ended so and were followed by another, and the records that say so.
    pub(super) retried: Vec<(ExecutionId, Attempt, Status, u32)>,
    /// Attempts that have ended and whose slot is kept for the next.
    pub(super) kept: HashSet<Key>,
    /// Answers of the API that something is accepted.
    pub(super) answers: u64,
    /// What can be seen from single records.
    pub(super) violations: Vec<Violation>,
}

impl Facts {
    pub(super) fn takeovers(&self) -> u64 {
        let epochs = self.epochs.values();
        epochs.map(|epochs| epochs.len() as u64 - 1).sum()
    }

    /// Whether the end of an execution may have happened without a record: its partition has had
    /// another owner since it was accepted, so that the one before may have been killed.
    pub(super) fn may_have_lost_the_end(&self, id: ExecutionId) -> bool {
        let epoch = id.seq().epoch();
        let epochs = self.epochs.get(&id.partition());
        epochs.is_none_or(|epochs| epochs.last() != Some(&epoch))
    }

    /// The limits under which an attempt was given the slot in which it started then: those of its grant, or, of
    /// one that was granted ahead, those of the moment in which its owner handed it the slot. Where a worker has
    /// handed it on by itself, before its owner did, nobody else had come in between.
    pub(super) fn limits_of(&self, key: Key, start_ns: i64) -> Option<Bounds> {
        let handed_on = self.handed_on.get(&key);
        let handed_on = handed_on.filter(|(t_ns, _)| *t_ns <= start_ns);
        let at_its_grant = || Some(self.grants.get(&key)?.bounds);
        handed_on.map(|(_, bounds)| *bounds).or_else(at_its_grant)
    }

    /// When an attempt that was granted ahead had its slot at the earliest, as far as that is known: it had none
    /// before somebody else's run had ended.
    pub(super) fn slot_given_ns(&self, key: Key, start_ns: i64) -> Option<i64> {
        let handed_on = self.handed_on.get(&key);
        handed_on.map(|(t_ns, _)| (*t_ns).min(start_ns))
    }

    /// Whether all that the owners of an execution decided is recorded: each of them, since it was accepted, has
    /// recorded that it was one no longer.
    pub(super) fn knows_all_decisions(&self, id: ExecutionId) -> bool {
        let first = id.seq().epoch();
        let Some(epochs) = self.epochs.get(&id.partition()) else {
            return false;
        };
        let mut next = first.0;
        for epoch in epochs.range(first..) {
            if epoch.0 != next || !self.processes.gave_up(id.partition(), *epoch) {
                return false;
            }
            next += 1;
        }
        next > first.0
    }

    pub(super) fn execution(&self, id: ExecutionId) -> Option<&Execution> {
        self.executions.get(&id)
    }

    /// The partition of an action, when an execution of it is known.
    pub(super) fn partition_of(&self, action: ActionId) -> Option<PartitionId> {
        self.partitions.get(&action).copied()
    }

    /// The refs of actions, as far as somebody named them who applied or submitted them.
    pub(super) fn action_refs(&self) -> BTreeMap<ActionId, ActionRef> {
        let names: HashMap<u32, &String> = self.refs.iter().map(|(it, n)| (*n, it)).collect();
        let submitted = self.requests.values().filter_map(|request| {
            let name = *names.get(&request.queue?.0)?;
            Some((self.execution(request.execution?.0)?.action?, name))
        });
        let named = self.asked.actions().chain(submitted);
        named
            .filter_map(|(id, name)| Some((id, name.parse().ok()?)))
            .collect()
    }

    /// What an execution demands under a rule, if a record tells.
    pub(super) fn demand(&self, id: ExecutionId, rule: i64) -> Option<Demand> {
        let first = || self.execution(id).and_then(|known| known.demand);
        let regrouped = self.rates.regrouped.get(&(id, rule)).copied();
        regrouped
            .or_else(first)
            .filter(|demand| demand.rule == rule)
    }

    /// All that executions have ever demanded, by action.
    pub(super) fn demands(&self) -> impl Iterator<Item = (ActionId, Demand)> + '_ {
        let first = self.executions.iter();
        let first = first.filter_map(|(_, known)| Some((known.action?, known.demand?)));
        let later = self.rates.regrouped.iter();
        first.chain(
            later.filter_map(|((id, _), demand)| Some((self.execution(*id)?.action?, *demand))),
        )
    }

    /// The names of users in whose favour something was asked for.
    pub(super) fn names(&self) -> HashMap<u32, &str> {
        let names = self.refs.iter();
        names
            .map(|(name, number)| (*number, name.as_str()))
            .collect()
    }

    fn intern(&mut self, action_ref: &str) -> u32 {
        if let Some(number) = self.refs.get(action_ref) {
            return *number;
        }
        let number = u32::try_from(self.refs.len()).unwrap_or(u32::MAX);
        self.refs.insert(action_ref.to_owned(), number);
        number
    }

    fn of_action(&mut self, id: ExecutionId, action: ActionId) -> &mut Execution {
        self.partitions.entry(action).or_insert(id.partition());
        let execution = self.executions.entry(id).or_default();
        execution.action = Some(action);
        execution
    }

    fn decide(&mut self, action_id: ActionId, decision: Decision) {
        let decisions = self.decisions.entry(action_id).or_default();
        decisions.push(decision);
    }

    /// A request became an execution; it must not become another.
    fn became(&mut self, request_id: RequestId, id: ExecutionId, record: u32) {
        let request = self.requests.entry(request_id).or_default();
        let (known, first) = *request.execution.get_or_insert((id, record));
        if known != id {
            let what = format!("request {request_id} became execution {known} and {id}");
            self.violations
                .push(violation(Promise::I1, what, [first, record]));
        }
    }

    fn mark(&mut self, key: Key, seen: Seen, is_end: bool, t_ns: i64, record: u32) {
        self.marks.push(Mark {
            key,
            seen,
            is_end,
            t_ns,
            record,
        });
    }

    pub(super) fn add(&mut self, record: &Record) {
        let number = self.records;
        self.records += 1;
        self.processes.add(number, record);
        self.asked.add(number, record);
        self.pauses.add(number, record);
        self.operations.add(number, record);
        self.policies.add(number, record);
        self.inheriting.add(record);
        let broken = self.witnesses.add(number, record);
        self.violations.extend(broken);
        let broken = self.starts.add(number, record);
        self.violations.extend(broken);
        match record {
            Record::Answered { .. }
            | Record::SubmitInvoke { .. }
            | Record::SubmitOk { .. }
            | Record::SubmitFail { .. }
            | Record::SubmitInfo { .. } => self.add_submission(number, record),
            Record::Acquired { .. }
            | Record::Lost(_)
            | Record::Fenced(_)
            | Record::StaleCompletion { .. }
            | Record::Fault { .. } => self.add_event(record),
            Record::Start { .. }
            | Record::End { .. }
            | Record::ProgramStart { .. }
            | Record::ProgramEnd { .. }
            | Record::ProcessExit { .. } => self.add_run(number, record),
            _ => self.add_decision(number, record),
        }
    }

    fn add_event(&mut self, record: &Record) {
        match record {
            Record::Acquired {
                partition, epoch, ..
            } => {
                self.epochs.entry(*partition).or_default().insert(*epoch);
            }
            Record::Fenced(_) => self.fence_rejections += 1,
            Record::StaleCompletion { .. } => self.duplicates_dropped += 1,
            Record::Fault { phase, .. } => self.faults += u64::from(*phase == FaultPhase::Begin),
            _ => {}
        }
    }

    fn add_decision(&mut self, number: u32, record: &Record) {
        self.rates.add(number, record);
        let (action_id, epoch, t_ns, what) = match record {
            Record::Accepted {
                execution_id,
                action_id,
                priority,
                request_id,
                status,
                delayed,
                at,
                demand,
                epoch,
                t_ns,
                ..
            } => {
                let execution = self.of_action(*execution_id, *action_id);
                execution.demand = *demand;
                execution.priority = Some(*priority);
                execution.delayed = *delayed;
                execution.at = *at;
                execution.status_accepted = Some(*status);
                execution.accepted.get_or_insert(number);
                execution.accepted_ns.get_or_insert(*t_ns);
                self.became(*request_id, *execution_id, number);
                (
                    action_id,
                    epoch,
                    t_ns,
                    What::Accepted(*execution_id, *status),
                )
            }
            Record::Grouped(one) => {
                self.of_action(one.execution_id, one.action_id);
                let what = What::Grouped(one.execution_id, one.demand);
                (&one.action_id, &one.epoch, &one.t_ns, what)
            }
            Record::HandedOn(one) => {
                self.of_action(one.execution_id, one.action_id);
                let key = (one.execution_id, one.attempt);
                if let Some(bounds) = self.bounds.get(&one.action_id) {
                    self.handed_on.insert(key, (one.t_ns, *bounds));
                }
                let what = What::HandedOn(key);
                (&one.action_id, &one.epoch, &one.t_ns, what)
            }
            Record::Moved(moved) => {
                self.of_action(moved.execution_id, moved.action_id);
                let lane = (!moved.front).then_some(moved.priority);
                let what = What::Moved(moved.execution_id, lane);
                (&moved.action_id, &moved.epoch, &moved.t_ns, what)
            }
            Record::Held {
                execution_id,
                action_id,
                attempt,
                kept_until,
                ahead,
                epoch,
                t_ns,
                ..
            } => {
                self.of_action(*execution_id, *action_id);
                let key = (*execution_id, *attempt);
                if kept_until.is_some() {
                    self.kept.insert((*execution_id, *attempt));
                }
                let what = match ahead {
                    true => What::Ahead(key, None),
                    false => What::Held(key, *kept_until),
                };
                (action_id, epoch, t_ns, what)
            }
            Record::Granted {
                execution_id,
                action_id,
                attempt,
                grant_no,
                limit,
                order,
                group_limit,
                demands,
                weights,
                at,
                worker,
                ahead,
                epoch,
                t_ns,
                ..
            } => {
                let bounds = Bounds {
                    limit: *limit,
                    group_limit: *group_limit,
                    demands: *demands,
                };
                let key = (*execution_id, *attempt);
                self.of_action(key.0, *action_id).leaves |= *attempt == Attempt(1);
                self.bounds.insert(*action_id, bounds);
                let grant = Grant {
                    grant_no: *grant_no,
                    bounds,
                    order: *order,
                    worker: *worker,
                    t_ns: *t_ns,
                    record: number,
                };
                self.grants.insert(key, grant);
                if let Some(weights) = weights {
                    self.weights.insert(key, weights.clone());
                }
                let what = match ahead {
                    true => What::Ahead(key, Some((bounds, *order))),
                    false => What::Granted(key, bounds, *order, *at),
                };
                (action_id, epoch, t_ns, what)
            }
            Record::Ended {
                execution_id,
                action_id,
                attempt,
                status,
                gone,
                epoch,
                t_ns,
                ..
            } => {
                let key = (*execution_id, *attempt);
                self.released.entry(key).or_insert(*t_ns);
                let execution = self.of_action(key.0, *action_id);
                execution.leaves |= *attempt == Attempt(0);
                let (_, _, first) = *execution.ended.get_or_insert((*attempt, *status, number));
                if first != number {
                    let what = format!("execution {execution_id} ended twice");
                    self.violations
                        .push(violation(Promise::I5, what, [first, number]));
                }
                let what = What::Ended(key, *status, *gone);
                (action_id, epoch, t_ns, what)
            }
            Record::Revoked {
                execution_id,
                action_id,
                attempt,
                retried,
                epoch,
                t_ns,
                ..
            } => {
                let key = (*execution_id, *attempt);
                if let Some(retried) = retried {
                    let status = retried.end.status();
                    self.retried.push((key.0, key.1, status, number));
                }
                self.revoked += 1;
                self.released.entry(key).or_insert(*t_ns);
                self.of_action(key.0, *action_id);
                let what = match retried {
                    Some(retried) if retried.keeps_slot => {
                        self.kept.insert(key);
                        What::Kept(key, retried.not_before)
                    }
                    _ => What::Revoked(key, retried.map(|retried| retried.not_before)),
                };
                (action_id, epoch, t_ns, what)
            }
            Record::Limit {
                action_id,
                limit,
                group_limit,
                demands,
                max_length,
                epoch,
                t_ns,
                ..
            } => {
                let bounds = Bounds {
                    limit: *limit,
                    group_limit: *group_limit,
                    demands: *demands,
                };
                self.bounds.insert(*action_id, bounds);
                (action_id, epoch, t_ns, What::Bounds(bounds, *max_length))
            }
            Record::Totals {
                action_id,
                enqueued,
                completed,
                cancelled,
                expired,
                waiting,
                active,
                pool_closed,
                paused,
                regrouping,
                goes_on,
                rate_until,
                epoch,
                t_ns,
                ..
            } => {
                let counts = Counts {
                    enqueued: *enqueued,
                    completed: *completed,
                    cancelled: *cancelled,
                    expired: *expired,
                    waiting: *waiting,
                    active: *active,
                };
                let what = What::Totals {
                    counts: Box::new(counts),
                    held_up: *pool_closed || *paused || *regrouping || rate_until.is_some(),
                    goes_on: *goes_on,
                };
                (action_id, epoch, t_ns, what)
            }
            _ => return,
        };
        let decision = Decision {
            epoch: *epoch,
            record: number,
            t_ns: *t_ns,
            what,
        };
        self.decide(*action_id, decision);
    }
}
