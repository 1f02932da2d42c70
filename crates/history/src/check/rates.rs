//! How often executions start, and how many are accepted.
//!
//! *I8.* Of those for whom starts are counted together no more are granted in any stretch of the window
//! than the rate in force at the last of them allows, by the time of the owner; and so with the interval.
//! Times of two owners are compared as far as their clocks agree: how a clock stands to that of the machine
//! shows in the decision that was recorded soonest. Nor may a program have begun before its rate allows it:
//! by its own time, less the time that the quickest commit of an owner may have taken. Where the window, or
//! for whom is counted, has ever been another, nothing is said: what was counted before may be forgotten.
//!
//! Of those that a quota counts together no more are accepted in a window of the calendar than it allows
//! at the last of them, and none when that is over.

use std::collections::{BTreeMap, HashMap, HashSet};

use attune_core::{ActionId, Demand, Epoch, ExecutionId, GroupKey, PartitionId};
use attune_record::{QuotaInForce, RateInForce, Record};

use super::facts::{Facts, Key, Seen};
use super::{Promise, Violation, violation};

/// By how much times of two owners may differ besides, in nanoseconds.
const CLOCKS: i64 = 200_000_000;
/// How long the quickest commit of an owner may have taken, likewise.
const COMMIT: i64 = 1_000_000_000;

const MS: i64 = 1_000_000;

/// A grant of an action whose starts are counted.
#[derive(Debug, Clone, Copy)]
struct Start {
    key: Key,
    epoch: Epoch,
    record: u32,
    /// In nanoseconds, by the time of the owner.
    at_ns: i64,
    demands: Option<i64>,
    rate: Option<RateInForce>,
    interval_ms: Option<i64>,
}

/// An acceptance that a quota has counted.
#[derive(Debug, Clone, Copy)]
struct Acceptance {
    epoch: Epoch,
    record: u32,
    at: Option<i64>,
    quota: QuotaInForce,
}

/// By what acceptances are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Together {
    action_id: ActionId,
    mark: i64,
    key: GroupKey,
    /// Its end as well, because an hour begins with its day.
    window: (i64, i64),
}

/// What the records say of rates.
#[derive(Debug, Default)]
pub(super) struct Rates {
    starts: BTreeMap<ActionId, Vec<Start>>,
    accepted: BTreeMap<Together, Vec<Acceptance>>,
    /// By how much the clock of an owner is ahead of the machine's, at least.
    ahead: HashMap<(PartitionId, Epoch), i64>,
    /// What executions demand that were grouped anew, by the rule.
    pub(super) regrouped: HashMap<(ExecutionId, i64), Demand>,
}

impl Rates {
    pub(super) fn add(&mut self, number: u32, record: &Record) {
        match record {
            Record::Accepted {
                execution_id,
                action_id,
                at,
                quotas,
                epoch,
                t_ns,
                ..
            } => {
                self.see_clock(*execution_id, *epoch, *at, *t_ns);
                for quota in quotas {
                    let together = Together {
                        action_id: *action_id,
                        mark: quota.mark,
                        key: quota.key,
                        window: (quota.window, quota.until),
                    };
                    self.accepted.entry(together).or_default().push(Acceptance {
                        epoch: *epoch,
                        record: number,
                        at: *at,
                        quota: *quota,
                    });
                }
            }
            Record::Grouped(one) => {
                let place = (one.execution_id, one.demand.rule);
                self.regrouped.insert(place, one.demand);
            }
            Record::Granted {
                execution_id,
                attempt,
                action_id,
                demands,
                rate,
                interval_ms,
                at: Some(at),
                epoch,
                t_ns,
                ..
            } => {
                self.see_clock(*execution_id, *epoch, Some(*at), *t_ns);
                if rate.is_none() && interval_ms.is_none() {
                    return;
                }
                self.starts.entry(*action_id).or_default().push(Start {
                    key: (*execution_id, *attempt),
                    epoch: *epoch,
                    record: number,
                    at_ns: at.saturating_mul(MS),
                    demands: *demands,
                    rate: *rate,
                    interval_ms: *interval_ms,
                });
            }
            _ => {}
        }
    }

    /// Whose group was found out anew, by another rule than it was accepted under.
    pub(super) fn who_was_regrouped(&self) -> HashSet<ExecutionId> {
        self.regrouped.keys().map(|(id, _)| *id).collect()
    }

    fn see_clock(&mut self, id: ExecutionId, epoch: Epoch, at: Option<i64>, t_ns: i64) {
        if let Some(at) = at {
            let ahead = at.saturating_mul(MS).saturating_sub(t_ns);
            let seen = self.ahead.entry((id.partition(), epoch)).or_insert(ahead);
            *seen = ahead.max(*seen);
        }
    }
}

/// Returns how many starts and acceptances were judged.
pub(super) fn judge(facts: &Facts, broken: &mut Vec<Violation>) -> u64 {
    let begun = begun(facts);
    let mut judged = 0;
    for (action_id, starts) in &facts.rates.starts {
        let mut starts = starts.clone();
        starts.sort_unstable_by_key(|start| (start.epoch, start.record));
        let judge = Judge {
            facts,
            begun: &begun,
            action_id: *action_id,
        };
        judged += judge.rate(&starts, broken);
        judged += judge.interval(&starts, broken);
    }
    for (Together { action_id, .. }, acceptances) in &facts.rates.accepted {
        let mut acceptances = acceptances.clone();
        acceptances.sort_unstable_by_key(|it| (it.epoch, it.record));
        for (index, it) in acceptances.iter().enumerate() {
            judged += 1;
            let count = index + 1;
            let max = it.quota.max;
            if count > max as usize {
                let what = format!(
                    "acceptance number {count} of action {action_id} in the window of a quota of {max}"
                );
                let first = acceptances[index - max as usize].record;
                broken.push(violation(Promise::I8, what, [first, it.record]));
            }
            if it.at.is_some_and(|at| at >= it.quota.until) {
                let what = format!(
                    "an execution of action {action_id} is counted for a window that was over"
                );
                broken.push(violation(Promise::I8, what, [it.record]));
            }
        }
    }
    judged
}

/// When each attempt began: by its program, or by its worker where that wrote nothing.
fn begun(facts: &Facts) -> HashMap<Key, (i64, u32)> {
    let mut begun: HashMap<Key, (bool, i64, u32)> = HashMap::new();
    for mark in facts.marks.iter().filter(|mark| !mark.is_end) {
        let its = (mark.seen == Seen::Worker, mark.t_ns, mark.record);
        let known = begun.entry(mark.key).or_insert(its);
        *known = its.min(*known);
    }
    let begun = begun.into_iter();
    begun
        .map(|(key, (_, at, record))| (key, (at, record)))
        .collect()
}

struct Judge<'a> {
    facts: &'a Facts,
    begun: &'a HashMap<Key, (i64, u32)>,
    action_id: ActionId,
}

impl Judge<'_> {
    fn rate(&self, starts: &[Start], broken: &mut Vec<Violation>) -> u64 {
        let Some(first) = starts.iter().find_map(|start| start.rate) else {
            return 0;
        };
        let is_same =
            |rate: RateInForce| (rate.window_ms, rate.mark) == (first.window_ms, first.mark);
        if !starts.iter().all(|start| start.rate.is_some_and(is_same)) {
            return 0;
        }
        let mut of_key: BTreeMap<GroupKey, Vec<Start>> = BTreeMap::new();
        for start in starts {
            if let Some(key) = self.key(start, first.mark) {
                of_key.entry(key).or_default().push(*start);
            }
        }
        for starts in of_key.values() {
            self.judge(
                starts,
                first.window_ms,
                |start| start.rate.map(|rate| rate.max),
                broken,
            );
        }
        starts.len() as u64
    }

    fn interval(&self, starts: &[Start], broken: &mut Vec<Violation>) -> u64 {
        let Some(interval) = starts.iter().find_map(|start| start.interval_ms) else {
            return 0;
        };
        if !starts
            .iter()
            .all(|start| start.interval_ms == Some(interval))
        {
            return 0;
        }
        self.judge(starts, interval, |_| Some(1), broken);
        starts.len() as u64
    }

    /// For whom a start counts, if that is known.
    fn key(&self, start: &Start, mark: i64) -> Option<GroupKey> {
        if mark == 0 {
            return Some(GroupKey::default());
        }
        let (id, _) = start.key;
        let rule = start.demands?;
        self.facts.demand(id, rule).map(|demand| demand.rate)
    }

    fn judge(
        &self,
        starts: &[Start],
        window_ms: i64,
        max: impl Fn(&Start) -> Option<u32>,
        broken: &mut Vec<Violation>,
    ) {
        let window = window_ms.saturating_mul(MS);
        for (index, start) in starts.iter().enumerate() {
            let max = max(start).unwrap_or(u32::MAX);
            let Some(before) = index.checked_sub(max as usize).map(|at| &starts[at]) else {
                continue;
            };
            let unsure = self.unsure(before, start);
            let (id, _) = start.key;
            let what = |by: &str| {
                let action = self.action_id;
                format!(
                    "execution {id} starts as number {} of action {action} within {window_ms} ms by \
                     {by}, and {max} may",
                    u64::from(max) + 1
                )
            };
            if start.at_ns - before.at_ns < window - unsure {
                let records = [before.record, start.record];
                broken.push(violation(Promise::I8, what("its owner's time"), records));
            } else if let Some((begun, record)) = self.begun.get(&start.key)
                && *begun < self.decided(before) + window - unsure - COMMIT
            {
                let records = [before.record, start.record, *record];
                broken.push(violation(
                    Promise::I8,
                    what("the time of its program"),
                    records,
                ));
            }
        }
    }

    fn ahead(&self, start: &Start) -> i64 {
        let place = (start.key.0.partition(), start.epoch);
        self.facts.rates.ahead.get(&place).copied().unwrap_or(0)
    }

    /// When a start was decided, by the clock of the machine; later than it was, by the quickest commit.
    fn decided(&self, start: &Start) -> i64 {
        start.at_ns - self.ahead(start)
    }

    /// By how much less than the window may lie between two starts by the times of their owners.
    fn unsure(&self, before: &Start, after: &Start) -> i64 {
        if before.epoch == after.epoch {
            return 0;
        }
        (self.ahead(before) - self.ahead(after)).max(0) + CLOCKS
    }
}
