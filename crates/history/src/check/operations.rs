//! Bulk operations, by what owners and the API recorded of them.
//!
//! *I11.* In each partition an operation comes to an execution at most once, and to none that was accepted
//! after it began there; its counts rise by what each page did, and never fall, over owners too. What it
//! says to have cleared, or cancelled where it leaves alone what runs, has ended as cancelled, and its worker had not
//! begun it; what it says to have moved was moved, and what another one says to have
//! cancelled has ended as cancelled or had held a slot, so that it was asked to end. When whole queues were
//! cleared, nobody who was meant is given its first slot afterwards. When the API says that it is over, the
//! counts that it shows are those of all partitions.
//!
//! An owner that was killed may have committed pages that it did not record: between two owners the counts
//! may have risen by more, and what the API shows may be more than the records of such a partition do.

use std::collections::{BTreeMap, HashMap, HashSet};

use attune_core::{
    Attempt, ExecutionId, OperationId, OperationKind, OperationProgress, PartitionId, RequestId,
    Status,
};
use attune_record::{Operated, OperationAsked, OperationTold, Record};

use super::decision::What;
use super::facts::{Facts, Key};
use super::{Judged, Promise, Violation, violation};

/// What was recorded of operations.
#[derive(Debug, Default)]
pub(super) struct Operations {
    pages: BTreeMap<(OperationId, PartitionId), Vec<(Operated, u32)>>,
    asked: HashMap<RequestId, OperationAsked>,
    told: Vec<(OperationTold, u32)>,
    /// Whoever was moved.
    pub(super) moved: HashSet<ExecutionId>,
    /// Somebody may have been moved without a record of it.
    pub(super) may_move: bool,
}

fn moves(kind: OperationKind) -> bool {
    matches!(
        kind,
        OperationKind::Reprioritise { .. } | OperationKind::MoveToFront
    )
}

impl Operations {
    /// Adds a record; those of other kinds change nothing.
    pub(super) fn add(&mut self, number: u32, record: &Record) {
        match record {
            Record::Operated(page) => {
                let key = (page.operation, page.partition);
                let pages = self.pages.entry(key).or_default();
                pages.push((Operated::clone(page), number));
            }
            Record::OperationAsked(asked) => {
                self.may_move |= moves(asked.what);
                self.asked
                    .insert(asked.request_id, OperationAsked::clone(asked));
            }
            Record::OperationTold(told) => self.told.push((told.clone(), number)),
            Record::Moved(moved) => {
                self.may_move = true;
                self.moved.insert(moved.execution_id);
            }
            _ => {}
        }
    }

    /// Whether an operation was asked for that ends who waits and leaves alone what runs.
    fn leaves_running(&self, operation: OperationId) -> bool {
        let told = self.told.iter().find(|(it, _)| it.operation == operation);
        let asked = told.and_then(|(told, _)| self.asked.get(&told.request_id));
        asked.is_some_and(|asked| !asked.what.includes_running())
    }
}

pub(super) fn judge(facts: &Facts, judged: &mut Judged, broken: &mut Vec<Violation>) {
    let operations = &facts.operations;
    let held = held(facts);
    let mut over: BTreeMap<OperationId, Vec<OperationProgress>> = BTreeMap::new();
    for ((operation, partition), pages) in &operations.pages {
        let mut pages: Vec<&(Operated, u32)> = pages.iter().collect();
        pages.sort_by_key(|(page, record)| (page.epoch, *record));
        judged.operations += 1;
        let found = judge_pages(*operation, *partition, &pages);
        let leaves_running = operations.leaves_running(*operation);
        broken.extend(found.or_else(|| judge_done(facts, &held, leaves_running, &pages)));
        let last = pages.last().map(|(page, _)| page.progress);
        over.entry(*operation).or_default().extend(last);
    }
    for (told, record) in &operations.told {
        broken.extend(judge_told(told, *record, over.get(&told.operation)));
        let asked = operations.asked.get(&told.request_id);
        if let Some(asked) = asked.filter(|asked| asked.what == OperationKind::Clear) {
            broken.extend(judge_cleared(facts, told, asked));
        }
    }
}

/// The pages of an operation in one partition, in their order.
fn judge_pages(
    operation: OperationId,
    partition: PartitionId,
    pages: &[&(Operated, u32)],
) -> Option<Violation> {
    let mut touched: HashMap<ExecutionId, u32> = HashMap::new();
    let mut before: Option<(&Operated, u32)> = None;
    for (page, record) in pages.iter().map(|page| (&page.0, page.1)) {
        let accuse = |what: String, other: Option<u32>| {
            let what = format!("operation {operation} in partition {partition}: {what}");
            let records = other.into_iter().chain([record]);
            Some(violation(Promise::I11, what, records))
        };
        let now = &page.progress;
        for id in page.done.iter().chain(&page.skipped) {
            if let Some(first) = touched.insert(*id, record) {
                return accuse(format!("it came to execution {id} twice"), Some(first));
            }
            if id.partition() != partition || now.upto.is_none_or(|upto| id.seq() > upto) {
                return accuse(format!("execution {id} was not there when it began"), None);
            }
        }
        let (done, skipped) = (page.done.len() as u64, page.skipped.len() as u64);
        if now.matched != now.done + now.skipped {
            return accuse("its counts do not add up".to_owned(), None);
        }
        let Some((earlier, number)) = before.replace((page, record)) else {
            if now.done < done || now.skipped < skipped {
                return accuse("it counts less than it did".to_owned(), None);
            }
            continue;
        };
        let then = &earlier.progress;
        if then.finished || now.upto != then.upto || now.cursor < then.cursor {
            return accuse("it went back".to_owned(), Some(number));
        }
        let rise = (
            now.done.checked_sub(then.done),
            now.skipped.checked_sub(then.skipped),
        );
        let is_right = match rise {
            (Some(one), Some(other)) if page.epoch == earlier.epoch => {
                (one, other) == (done, skipped)
            }
            // Pages of an owner that was killed may have no record.
            (Some(one), Some(other)) => one >= done && other >= skipped,
            _ => false,
        };
        if !is_right {
            let words = "its counts did not rise by what it did";
            return accuse(words.to_owned(), Some(number));
        }
    }
    None
}

/// What it did is what was decided.
fn judge_done(
    facts: &Facts,
    (held, ahead): &(HashSet<ExecutionId>, HashSet<Key>),
    leaves_running: bool,
    pages: &[&(Operated, u32)],
) -> Option<Violation> {
    pages.iter().find_map(|(page, record)| {
        let cancelled = |id: &ExecutionId| {
            let (attempt, status, _) = facts.execution(*id)?.ended?;
            (status == Status::Cancelled).then_some((*id, attempt))
        };
        let is_cancelled = |id: &ExecutionId| cancelled(id).is_some();
        let has_waited = |id: &ExecutionId| {
            cancelled(id).is_some_and(|key| !(ahead.contains(&key) && facts.starts.has_begun(key)))
        };
        let is_right = |id: &ExecutionId| match page.what.as_str() {
            "clear" => has_waited(id),
            "cancel" if leaves_running => has_waited(id),
            "cancel" => is_cancelled(id) || held.contains(id),
            "reprioritise" | "move_to_front" => facts.operations.moved.contains(id),
            _ => true,
        };
        let wrong = page.done.iter().find(|id| !is_right(id))?;
        let what = format!(
            "operation {} says `{}` of execution {wrong}, and that was not decided",
            page.operation, page.what
        );
        Some(violation(Promise::I11, what, [*record]))
    })
}

/// Whoever has held a slot or stood ahead of one, and the attempts that were granted ahead and not taken back; none
/// where no operation has ended anybody.
fn held(facts: &Facts) -> (HashSet<ExecutionId>, HashSet<Key>) {
    let mut pages = facts.operations.pages.values().flatten();
    if !pages.any(|(page, _)| ["cancel", "clear"].contains(&page.what.as_str())) {
        return Default::default();
    }
    let decisions = facts.decisions.values().flatten();
    let mut ahead = HashSet::new();
    for decision in decisions.clone() {
        match decision.what {
            What::Ahead(key, _) => drop(ahead.insert(key)),
            What::Revoked(key, _) => drop(ahead.remove(&key)),
            _ => {}
        }
    }
    let held = decisions
        .clone()
        .filter_map(|decision| match decision.what {
            What::Held((id, _), _) | What::Ahead((id, _), _) | What::Granted((id, _), ..) => {
                Some(id)
            }
            _ => None,
        });
    (held.collect(), ahead)
}

/// What the API shows in the end is what the owners counted.
fn judge_told(
    told: &OperationTold,
    record: u32,
    parts: Option<&Vec<OperationProgress>>,
) -> Option<Violation> {
    let parts = parts?;
    let sum = |pick: fn(&OperationProgress) -> u64| parts.iter().map(pick).sum::<u64>();
    let counted = (sum(|part| part.matched), sum(|part| part.done));
    let is_whole = parts.iter().all(|part| part.finished);
    let shown = (told.matched, told.done);
    // Of a partition without a record nothing is known.
    let is_right = shown.0 >= counted.0 && shown.1 >= counted.1;
    let is_whole = is_whole && parts.len() == told.partitions as usize;
    (!is_right || (is_whole && shown != counted)).then(|| {
        let what = format!(
            "operation {} is told to have matched {} and done {}, and its owners counted {} and {}",
            told.operation, shown.0, shown.1, counted.0, counted.1
        );
        violation(Promise::I11, what, [record])
    })
}

/// After whole queues were cleared nobody who was meant is given its first slot.
fn judge_cleared(facts: &Facts, told: &OperationTold, asked: &OperationAsked) -> Option<Violation> {
    let refs = facts.action_refs();
    let covered = facts.decisions.iter().filter(|(action, _)| {
        let action_ref = refs.get(action);
        asked.filter.all || action_ref.is_some_and(|it| asked.filter.covers(it))
    });
    covered.into_iter().find_map(|(action, decisions)| {
        let key = (told.operation, facts.partition_of(*action)?);
        let pages = facts.operations.pages.get(&key)?;
        let (last, record) = pages.iter().find(|(page, _)| page.progress.finished)?;
        let upto = last.progress.upto?;
        let first = Attempt(1);
        let granted = decisions.iter().find_map(|decision| match decision.what {
            What::Granted((id, attempt), ..)
                if attempt == first
                    && id.seq() <= upto
                    && (decision.epoch, decision.record) > (last.epoch, *record) =>
            {
                Some((id, decision.record))
            }
            _ => None,
        });
        let (id, grant) = granted?;
        let what = format!(
            "execution {id} of action {action} waited before operation {} cleared its queue, and was \
             given a slot after it",
            told.operation
        );
        Some(violation(Promise::I11, what, [*record, grant]))
    })
}
