//! Judges the promises I1 to I8 and I10 to I12 from the records of all processes, and from the rows that the
//! store has in the end.
//!
//! The rules are such that a system which keeps its promises is never accused, although records
//! may be missing: a process that is killed takes the records of its last moments with it. What
//! an owner recorded of an epoch is therefore a *beginning* of what it committed, and the next
//! epoch starts from what its owner says it found ([`Record::Held`]). Decisions are put in order
//! by epoch, and within an epoch by their place in the file, never by their times.
//!
//! The modules hold the rules of each promise: `submissions` (I1, I3 as clients see it), `queue`
//! (I2, I3, I4, I6, I7, I10 as the owner decided), `programs` (I2, I3, I5 as programs saw it
//! themselves), `outcomes` (I4 and I5 as the store has it), `witnesses` (I5 and I7 as listeners
//! and the stats persister saw it), `times` (I4: how long things took), `asked` (I1, I2, I3 by
//! what clients and the API said), `pauses` (I2: what operators hold), `rates` (I8), `operations` (I11), `policies` and `documents` (I12),
//! `rounds` (I6: owners that do nothing), `starts` (I5: who begins what).

mod asked;
mod decision;
mod documents;
mod facts;
mod free_slots;
mod operations;
mod outcomes;
mod pauses;
mod policies;
mod processes;
mod programs;
mod queue;
#[cfg(test)]
mod random;
mod rates;
mod request;
mod rounds;
mod starts;
mod submissions;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_asked;
#[cfg(test)]
mod tests_gone;
#[cfg(test)]
mod tests_groups;
#[cfg(test)]
mod tests_operations;
#[cfg(test)]
mod tests_order;
#[cfg(test)]
mod tests_pauses;
#[cfg(test)]
mod tests_policies;
#[cfg(test)]
mod tests_rates;
#[cfg(test)]
mod tests_retries;
#[cfg(test)]
mod tests_shares;
#[cfg(test)]
mod tests_starts;
#[cfg(test)]
mod tests_waits;
#[cfg(test)]
mod tests_witnesses;
mod times;
mod witnesses;
#[cfg(test)]
mod world;
#[cfg(test)]
mod world_workers;

use std::collections::BTreeMap;

use attune_core::{ActionId, Attempt, ExecutionId, Promise, QueueTotals, RequestId, Status};
use attune_record::Record;
use serde::{Deserialize, Serialize};

use self::facts::Facts;
use crate::percentile::percentile;

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub promise: Promise,
    /// What is wrong, for people.
    pub what: String,
    /// The records that show it: their numbers, in the order in which they were added, from 0.
    pub records: Vec<u32>,
}

/// A line of what the store has in the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FinalLine {
    /// An execution, active or finished.
    Row(FinalRow),
    /// What the queue of an action has counted over its life.
    Totals {
        /// Which action.
        action_id: ActionId,
        /// The counts.
        #[serde(flatten)]
        totals: QueueTotals,
    },
}

/// An execution as the store has it in the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinalRow {
    /// Which execution.
    pub id: ExecutionId,
    /// Its action.
    pub action_id: ActionId,
    /// Where it stands.
    pub status: Status,
    /// Its last attempt.
    pub attempt: Attempt,
    /// The request that led to it.
    #[serde(default)]
    pub request_id: Option<RequestId>,
}

/// How often the rules had something to judge that not every history holds: where one is 0, the
/// history says nothing about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Judged {
    /// Answers of the API that a submission is accepted.
    pub answers: u64,
    /// Requests that the API refused every time.
    pub refusals: u64,
    /// Ends that only a worker can have reported.
    pub completions: u64,
    /// Snapshots of queues held against what their owners counted.
    pub stats: u64,
    /// Attempts whose worker died.
    pub deaths: u64,
    /// Partitions that need an owner after the last fault.
    pub partitions: u64,
    /// Submissions that the broker has confirmed, looked for in the store.
    pub confirms: u64,
    /// Executions whose client said how they were to wait.
    pub priorities: u64,
    /// Starts of runs held against the limits that were asked for.
    pub limits: u64,
    /// Grants held against the orders that were asked for.
    pub orders: u64,
    /// Executions that were put back and granted again.
    pub retries: u64,
    /// Work held against the rounds of its owner.
    pub rounds: u64,
    /// Work that somebody handed over half a minute before, in calm.
    pub waits: u64,
    /// Times of owning a queue with half a minute of calm in them.
    pub calms: u64,
    /// Times in which operators held an action.
    pub pauses: u64,
    /// Operations, in each of their partitions.
    pub operations: u64,
    /// Versions of the policy set under which partitions decided.
    pub policies: u64,
    /// Acceptances and grants held against what documents say in such a version.
    pub documents: u64,
    /// Starts held against a rate or an interval, and acceptances against a quota.
    pub rates: u64,
    /// Grants held against the turns of others who waited.
    pub shares: u64,
    /// Attempts that began, held against who was to begin them.
    pub starts: u64,
}

/// What a history shows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Findings {
    /// Records read.
    pub records: u64,
    /// Faults that were made.
    pub faults: u64,
    /// Executions that the records name.
    pub executions: u64,
    /// Times a partition changed hands after its first owner.
    pub takeovers: u64,
    /// Commits refused because their owner was one no more.
    pub fence_rejections: u64,
    /// Completions dropped because their attempt held no slot.
    pub duplicates_dropped: u64,
    /// Runs that were judged.
    pub runs: u64,
    /// Runs whose end nobody saw.
    pub unended: u64,
    /// Slots that were taken back.
    pub revoked: u64,
    /// What was put among the dead letters by listeners.
    pub dead_letters: u64,
    /// How long the slots of dead workers stayed with them, in nanoseconds.
    pub slots_freed_ns: Vec<i64>,
    /// How long partitions had no owner, in nanoseconds.
    pub unowned_ns: Vec<i64>,
    /// How much there was to judge.
    pub judged: Judged,
    /// What was broken, by promise.
    pub violations: Vec<Violation>,
}

impl Findings {
    /// How often each promise was broken.
    pub fn count(&self, promise: Promise) -> u64 {
        let broken = self.violations.iter();
        broken.filter(|broken| broken.promise == promise).count() as u64
    }

    /// The one line that programs read.
    pub fn summary(&self) -> serde_json::Value {
        let violations: BTreeMap<String, u64> = Promise::ALL
            .iter()
            .map(|promise| (promise.to_string(), self.count(*promise)))
            .collect();
        serde_json::json!({
            "faults": self.faults,
            "executions": self.executions,
            "takeovers": self.takeovers,
            "fence_rejections": self.fence_rejections,
            "duplicates_dropped": self.duplicates_dropped,
            "violations": violations,
            "slots_freed_ms": figures(&self.slots_freed_ns),
            "unowned_ms": figures(&self.unowned_ns),
            "judged": self.judged,
        })
    }
}

/// Some times in milliseconds: how many, and what most and all of them do not exceed.
fn figures(nanos: &[i64]) -> serde_json::Value {
    let at = |share| percentile(nanos, share).map(|nanos| nanos / 1_000_000);
    serde_json::json!({
        "count": nanos.len(), "p50": at(0.5), "p99": at(0.99), "max": at(1.0),
    })
}

/// Collects records and judges them.
#[derive(Debug, Default)]
pub struct Checker {
    facts: Facts,
    rows: Option<Vec<FinalRow>>,
    totals: BTreeMap<ActionId, QueueTotals>,
}

impl Checker {
    /// Nothing has happened yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a record. Those of one process must come in the order in which it wrote them.
    pub fn add(&mut self, record: &Record) {
        self.facts.add(record);
    }

    /// Adds something that the store has in the end. With the first of these the rows are taken
    /// as complete: what is accepted and not among them is lost.
    pub fn add_final(&mut self, line: FinalLine) {
        let rows = self.rows.get_or_insert_default();
        match line {
            FinalLine::Row(row) => rows.push(row),
            FinalLine::Totals { action_id, totals } => {
                self.totals.insert(action_id, totals);
            }
        }
    }

    /// Judges. Takes O(n log n) time for n records.
    pub fn judge(self) -> Findings {
        let Self {
            mut facts,
            rows,
            totals,
        } = self;
        let mut broken = std::mem::take(&mut facts.violations);
        let mut judged = Judged {
            answers: facts.answers,
            ..Judged::default()
        };
        submissions::judge(&facts, rows.as_deref(), &mut judged, &mut broken);
        witnesses::judge(&facts, &mut judged, &mut broken);
        starts::judge(&facts, &mut judged, &mut broken);
        asked::judge(&facts, rows.as_deref(), &mut judged, &mut broken);
        pauses::judge(&facts, &mut judged, &mut broken);
        operations::judge(&facts, &mut judged, &mut broken);
        policies::judge(&facts, &mut judged, &mut broken);
        rounds::judge(&facts, &mut judged, &mut broken);
        judged.rates = rates::judge(&facts, &mut broken);
        let times = times::judge(&facts, &mut judged, &mut broken);
        free_slots::judge(&facts, &mut judged, &mut broken);
        queue::judge(&mut facts, rows.is_some(), &mut judged, &mut broken);
        let runs = programs::judge(&facts, &mut broken);
        judged.limits = runs.limits;
        outcomes::judge(&facts, rows.as_deref(), &totals, &mut broken);
        broken.sort_by_key(|violation| violation.promise);
        Findings {
            records: u64::from(facts.records),
            faults: facts.faults,
            executions: facts.executions.len() as u64,
            takeovers: facts.takeovers(),
            fence_rejections: facts.fence_rejections,
            duplicates_dropped: facts.duplicates_dropped,
            runs: runs.judged,
            unended: runs.unended,
            revoked: facts.revoked,
            dead_letters: facts.witnesses.dead_letters,
            slots_freed_ns: times.slots_freed,
            unowned_ns: times.unowned,
            judged,
            violations: broken,
        }
    }
}

/// Judges records that are in memory.
pub fn check(records: &[Record], rows: Option<impl IntoIterator<Item = FinalLine>>) -> Findings {
    let mut checker = Checker::new();
    for record in records {
        checker.add(record);
    }
    if let Some(rows) = rows {
        checker.rows = Some(Vec::new());
        for line in rows {
            checker.add_final(line);
        }
    }
    checker.judge()
}

fn violation(promise: Promise, what: String, records: impl IntoIterator<Item = u32>) -> Violation {
    let mut records: Vec<u32> = records.into_iter().collect();
    records.sort_unstable();
    records.dedup();
    Violation {
        promise,
        what,
        records,
    }
}
