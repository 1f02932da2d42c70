//! Who begins an attempt (I5).
//!
//! The commit that grants a slot names the life of a worker, and nobody else begins the attempt.
//!
//! *To whom.* The worker that has taken an attempt is the one that its grant names. Nobody takes one twice, and
//! no two workers take the same. Of a grant that names nobody, as earlier releases recorded them, nothing is said.
//!
//! *Granted before.* Whatever has begun was granted, or a later owner found it in its slot. That is judged where
//! no record of a grant can be lost: each owner since the execution was accepted has recorded that it was one no
//! longer. It began no earlier than its owner recorded the grant, because an owner tells nobody of a round before
//! that; a later owner has nothing begun that it found.
//!
//! *Not taken back before.* Nothing begins whose end only its worker can have told, and whose owner has recorded
//! that end. Whose slot was taken back without a word of its worker, which was lost or was told by nobody yet,
//! does not begin after [`PATIENCE`] of calm: by then the worker knows, or it is none.
//!
//! *Never begun.* What its owner gave back as never begun never begins, before or after. Only what a program
//! wrote at its start counts here, an end that a worker recorded of a run, or a start that it recorded without
//! any end: a worker that cannot start a program takes an attempt, records that it begins it and the end of
//! that, and gives it back.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use attune_core::{Status, WorkerId};
use attune_record::Record;

use super::facts::{Facts, Key, Seen};
use super::rounds::PATIENCE;
use super::times::due;
use super::{Judged, Promise, Violation, violation};

/// What a worker has taken.
#[derive(Debug, Clone, Copy)]
struct Taken {
    worker: WorkerId,
    t_ns: i64,
    record: u32,
}

#[derive(Debug, Default)]
pub(super) struct Starts {
    /// Who took each attempt first.
    taken: HashMap<Key, Taken>,
    /// What owners found in their slots.
    held: HashSet<Key>,
    /// What was given back as never begun, and the records that say so.
    never_begun: BTreeMap<Key, u32>,
}

impl Starts {
    /// Whether a worker has taken an attempt to be begun.
    pub(super) fn has_begun(&self, key: Key) -> bool {
        self.taken.contains_key(&key) && !self.never_begun.contains_key(&key)
    }

    /// Adds a record; those of other kinds change nothing. Gives back what it breaks at once.
    pub(super) fn add(&mut self, number: u32, record: &Record) -> Option<Violation> {
        match record {
            Record::Taken {
                execution_id,
                attempt,
                worker,
                t_ns,
                ..
            } => {
                let key = (*execution_id, *attempt);
                let taken = Taken {
                    worker: *worker,
                    t_ns: *t_ns,
                    record: number,
                };
                let first = *self.taken.entry(key).or_insert(taken);
                if first.record != number {
                    let by = if first.worker == *worker {
                        "twice"
                    } else {
                        "by two workers"
                    };
                    let what =
                        format!("attempt {attempt} of execution {execution_id} was taken {by}");
                    return Some(violation(Promise::I5, what, [first.record, number]));
                }
            }
            Record::Held {
                execution_id,
                attempt,
                ..
            } => {
                self.held.insert((*execution_id, *attempt));
            }
            Record::Revoked {
                execution_id,
                attempt,
                never_begun: true,
                ..
            } => {
                let key = (*execution_id, *attempt);
                self.never_begun.entry(key).or_insert(number);
            }
            _ => {}
        }
        None
    }
}

pub(super) fn judge(facts: &Facts, judged: &mut Judged, broken: &mut Vec<Violation>) {
    let troubles = facts.processes.troubles();
    let reported = reported(facts);
    for (key, (t_ns, record)) in first_starts(facts) {
        judge_grant(facts, key, (t_ns, record), judged, broken);
        let Some(released) = facts.released.get(&key).filter(|t| **t < t_ns) else {
            continue;
        };
        let (id, attempt) = key;
        if let Some((status, end)) = reported.get(&key) {
            let what = format!("attempt {attempt} of execution {id} began after it had {status}");
            broken.push(violation(Promise::I5, what, [*end, record]));
            continue;
        }
        let tenure = facts.processes.tenure_of(key);
        let due = tenure.and_then(|tenure| due(*released, PATIENCE, tenure, &troubles));
        if due.is_some_and(|due| due < t_ns) {
            let what = format!(
                "attempt {attempt} of execution {id} began {} s of calm after its slot was taken back",
                PATIENCE / 1_000_000_000
            );
            broken.push(violation(Promise::I5, what, [record]));
        }
    }
    judge_never_begun(facts, broken);
}

/// When each attempt began, as far as anybody saw it, and the record that says so.
fn first_starts(facts: &Facts) -> BTreeMap<Key, (i64, u32)> {
    let marks = facts.marks.iter().filter(|mark| !mark.is_end);
    let marks = marks.map(|mark| (mark.key, (mark.t_ns, mark.record)));
    let taken = facts.starts.taken.iter();
    let taken = taken.map(|(key, taken)| (*key, (taken.t_ns, taken.record)));
    let mut first: BTreeMap<Key, (i64, u32)> = BTreeMap::new();
    for (key, start) in marks.chain(taken) {
        let known = first.entry(key).or_insert(start);
        *known = start.min(*known);
    }
    first
}

/// Attempts whose end only their workers can have told, how they ended, and the records of their owners.
fn reported(facts: &Facts) -> HashMap<Key, (Status, u32)> {
    let ended = facts.executions.iter().filter_map(|(id, known)| {
        let (attempt, status, record) = known.ended?;
        Some((*id, attempt, status, record))
    });
    ended
        .chain(facts.retried.iter().copied())
        .filter(|(.., status, _)| is_of_worker(*status))
        .map(|(id, attempt, status, record)| ((id, attempt), (status, record)))
        .collect()
}

/// Whether only a worker can know that a run ended so.
fn is_of_worker(status: Status) -> bool {
    matches!(
        status,
        Status::Succeeded | Status::Failed | Status::TimedOut
    )
}

fn judge_grant(
    facts: &Facts,
    key: Key,
    (t_ns, record): (i64, u32),
    judged: &mut Judged,
    broken: &mut Vec<Violation>,
) {
    let (id, attempt) = key;
    let Some(grant) = facts.grants.get(&key) else {
        let is_missing = !facts.starts.held.contains(&key) && facts.knows_all_decisions(id);
        judged.starts += u64::from(is_missing);
        if is_missing {
            let what = format!("attempt {attempt} of execution {id} began, and nobody granted it");
            broken.push(violation(Promise::I5, what, [record]));
        }
        return;
    };
    let Some(worker) = grant.worker else { return };
    judged.starts += 1;
    let taken = facts.starts.taken.get(&key);
    if let Some(taken) = taken.filter(|taken| taken.worker != worker) {
        let what = format!(
            "attempt {attempt} of execution {id} was granted to worker {worker}, and {} has taken it",
            taken.worker
        );
        broken.push(violation(Promise::I5, what, [grant.record, taken.record]));
    }
    if t_ns < grant.t_ns {
        let what = format!("attempt {attempt} of execution {id} began before it was granted");
        broken.push(violation(Promise::I5, what, [grant.record, record]));
    }
}

fn judge_never_begun(facts: &Facts, broken: &mut Vec<Violation>) {
    let given_back = &facts.starts.never_begun;
    let ends = facts.marks.iter().filter(|mark| mark.is_end);
    let ended: BTreeSet<Key> = ends.map(|mark| mark.key).collect();
    let mut begun: BTreeMap<Key, u32> = BTreeMap::new();
    for mark in &facts.marks {
        let shows_it = match mark.seen {
            Seen::Program { .. } => true,
            // Whoever finds that no program can be started notes the end of that. A start without an end was cut off
            // by a kill, and it was written down before that it begins.
            Seen::Worker if !mark.is_end => !ended.contains(&mark.key),
            Seen::Worker => {
                let status = facts.witnesses.ends.get(&mark.key);
                status.is_some_and(|status| is_of_worker(*status))
            }
        };
        if shows_it && given_back.contains_key(&mark.key) {
            begun.entry(mark.key).or_insert(mark.record);
        }
    }
    for ((id, attempt), record) in begun {
        let what = format!(
            "attempt {attempt} of execution {id} was begun, and given back as one that never was"
        );
        let given_back = given_back.get(&(id, attempt)).copied();
        broken.push(violation(
            Promise::I5,
            what,
            given_back.into_iter().chain([record]),
        ));
    }
}
