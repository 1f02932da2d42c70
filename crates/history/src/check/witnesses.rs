//! What listeners, workers and the stats persister recorded, held against what owners decided.
//!
//! *I5.* The completions of an attempt that were handed over to its owner all say the same. When
//! an owner records that an attempt ended, and was tried again or not, in a way that only a worker can know (it succeeded,
//! failed, or ran too long), a completion that says so was handed over, or its worker recorded
//! such an end of the run. When neither is recorded, that is judged only where the record cannot
//! be lost: every listener has ended well, or the worker that the attempt is with has.
//!
//! *I7.* Of the snapshots of a queue that were written, none counts less than one before it, in
//! the order of their versions. Each says what the owner of its epoch recorded of the queue after
//! some round. That is judged where later records of that epoch show that none is missing.

use std::collections::{BTreeMap, HashMap, HashSet};

use attune_core::{ActionId, Attempt, Epoch, ExecutionId, Seq, Status};

use super::decision::{Counts, What};
use super::facts::{Facts, Key};
use super::{Judged, Promise, Violation, violation};
use attune_record::Record;

/// A snapshot that was written.
#[derive(Debug, Clone, Copy)]
struct Written {
    version: i64,
    counts: Counts,
    record: u32,
}

/// A completion that was handed over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Forwarded {
    pub(super) status: Status,
    pub(super) t_ns: i64,
    pub(super) record: u32,
}

#[derive(Debug, Default)]
pub(super) struct Witnesses {
    /// The first of each attempt.
    pub(super) forwarded: HashMap<Key, Forwarded>,
    /// How runs ended, as their workers recorded it.
    pub(super) ends: HashMap<Key, Status>,
    written: BTreeMap<ActionId, Vec<Written>>,
    pub(super) dead_letters: u64,
}

impl Witnesses {
    /// Adds a record; those of other kinds change nothing. Gives back what it breaks at once.
    pub(super) fn add(&mut self, number: u32, record: &Record) -> Option<Violation> {
        match record {
            Record::Forwarded {
                execution_id,
                attempt,
                status,
                t_ns,
            } => {
                let key = (*execution_id, *attempt);
                let first = self.forwarded.entry(key).or_insert(Forwarded {
                    status: *status,
                    t_ns: *t_ns,
                    record: number,
                });
                first.t_ns = first.t_ns.min(*t_ns);
                if first.status != *status {
                    let what = format!(
                        "attempt {attempt} of execution {execution_id} was handed over as {} \
                         and as {status}",
                        first.status
                    );
                    return Some(violation(Promise::I5, what, [first.record, number]));
                }
            }
            Record::End {
                execution_id,
                attempt,
                status: Some(status),
                ..
            } => {
                self.ends.insert((*execution_id, *attempt), *status);
            }
            Record::DeadLettered { .. } => self.dead_letters += 1,
            Record::StatsWritten {
                action_id,
                version,
                enqueued,
                completed,
                cancelled,
                expired,
                waiting,
                active,
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
                self.written.entry(*action_id).or_default().push(Written {
                    version: *version,
                    counts,
                    record: number,
                });
            }
            _ => {}
        }
        None
    }
}

/// Must come before the decisions are replayed.
pub(super) fn judge(facts: &Facts, judged: &mut Judged, broken: &mut Vec<Violation>) {
    judge_outcomes(facts, judged, broken);
    for (action, written) in &facts.witnesses.written {
        judge_stats(facts, *action, written, judged, broken);
    }
}

/// Whether who tells how an attempt ended surely has told it, were it so.
pub(super) fn would_have_told(facts: &Facts, key: Key) -> bool {
    facts.processes.all_ended_well("completion-listener") || facts.processes.worker_ended_well(key)
}

fn judge_outcomes(facts: &Facts, judged: &mut Judged, broken: &mut Vec<Violation>) {
    let mut ended: Vec<(ExecutionId, Attempt, Status, u32)> = facts
        .executions
        .iter()
        .filter_map(|(id, known)| {
            let (attempt, status, record) = known.ended?;
            Some((*id, attempt, status, record))
        })
        .chain(facts.retried.iter().copied())
        .filter(|(.., status, _)| {
            matches!(
                status,
                Status::Succeeded | Status::Failed | Status::TimedOut
            )
        })
        .collect();
    ended.sort_unstable();
    for (id, attempt, status, record) in ended {
        let key = (id, attempt);
        let forwarded = facts.witnesses.forwarded.get(&key);
        let witnessed = forwarded.is_some_and(|said| said.status == status)
            || facts.witnesses.ends.get(&key) == Some(&status);
        if witnessed {
            judged.completions += 1;
        } else if would_have_told(facts, key) {
            judged.completions += 1;
            let what = format!(
                "attempt {attempt} of execution {id} ended as {status}, which nobody reported"
            );
            let records = forwarded.map(|said| said.record);
            broken.push(violation(
                Promise::I5,
                what,
                records.into_iter().chain([record]),
            ));
        }
    }
}

/// How much a queue has counted over its life; it rises with every change of one of these.
fn progress(counts: &Counts) -> u64 {
    counts.enqueued + counts.completed + counts.cancelled + counts.expired
}

/// What the owners recorded of one queue, by epoch.
#[derive(Default)]
struct Said {
    counts: HashSet<Counts>,
    /// The least and the most of them.
    range: Option<(u64, u64)>,
}

fn judge_stats(
    facts: &Facts,
    action: ActionId,
    written: &[Written],
    judged: &mut Judged,
    broken: &mut Vec<Violation>,
) {
    let mut written = written.to_vec();
    written.sort_unstable_by_key(|row| (row.version, row.record));
    for pair in written.windows(2) {
        let [before, after] = [pair[0].counts, pair[1].counts];
        let falls = after.enqueued < before.enqueued
            || after.completed < before.completed
            || after.cancelled < before.cancelled
            || after.expired < before.expired;
        // One version is one snapshot, however often it is written.
        let differs = pair[0].version == pair[1].version && before != after;
        if falls || differs {
            let what = format!("action {action}: what was written as its counts goes back");
            broken.push(violation(
                Promise::I7,
                what,
                pair.iter().map(|row| row.record),
            ));
        }
    }
    let mut all: BTreeMap<Epoch, Said> = BTreeMap::new();
    for decision in facts.decisions.get(&action).into_iter().flatten() {
        if let What::Totals { counts, .. } = &decision.what {
            let said = all.entry(decision.epoch).or_default();
            let now = progress(counts);
            let (first, last) = said.range.unwrap_or((now, now));
            said.range = Some((first.min(now), last.max(now)));
            said.counts.insert(**counts);
        }
    }
    let partition = facts.partition_of(action);
    written.dedup_by_key(|row| row.version);
    for row in written {
        let epoch = Seq(row.version).epoch();
        let Some((said, (first, last))) = all.get(&epoch).and_then(|it| Some((it, it.range?)))
        else {
            continue;
        };
        // What an owner has loaded and not changed yet is what an earlier one has counted last,
        // and may not have recorded.
        if progress(&row.counts) <= first && !said.counts.contains(&row.counts) {
            let earlier = || all.range(..epoch).map(|(_, said)| said);
            let recorded = earlier().filter_map(|said| said.range).map(|range| range.1);
            let is_known = earlier().any(|said| said.counts.contains(&row.counts));
            if is_known
                || recorded
                    .max()
                    .is_none_or(|last| last <= progress(&row.counts))
            {
                continue;
            }
        }
        let was_given_up =
            partition.is_some_and(|partition| facts.processes.gave_up(partition, epoch));
        if !was_given_up && last <= progress(&row.counts) {
            continue;
        }
        judged.stats += 1;
        if !said.counts.contains(&row.counts) {
            let what = format!(
                "action {action}: {:?} was written, which its owner of epoch {epoch} never counted",
                row.counts
            );
            broken.push(violation(Promise::I7, what, [row.record]));
        }
    }
}
