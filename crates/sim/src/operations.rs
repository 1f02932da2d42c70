//! Bulk operations, judged by what is stored: each comes to everybody who was meant and waits all the time,
//! once, and counts what it did, whoever dies in between.

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{
    ExecutionId, Operation, OperationFilter, OperationId, OperationKind, OperationProgress,
    PartOfOperation, PartitionId, Promise, RequestId, Status,
};
use attune_executor::Fact;
use attune_executor::round::Commit;

use crate::bus::Body;
use crate::groups::Words;
use crate::oracle::Violation;
use crate::store::{Row, Store};
use crate::world::World;

/// What an operation has done in one partition.
#[derive(Debug, Default)]
struct Part {
    /// Who was meant when it began and has waited since.
    meant: BTreeSet<ExecutionId>,
    touched: BTreeSet<ExecutionId>,
    last: OperationProgress,
}

/// What operations have done.
#[derive(Debug, Default)]
pub(crate) struct Operations(BTreeMap<(OperationId, PartitionId), Part>);

/// Whether an operation means an execution that is stored so.
fn is_meant(store: &Store, operation: &Operation, id: ExecutionId, row: &Row) -> bool {
    let filter = &operation.filter;
    let action = store.actions.iter().find(|action| action.id == row.action);
    let name = action.map_or("", |action| action.spec.action_ref.as_str());
    let (user, label) = Words::of(row.request).said();
    // Who stands ahead of a slot is its worker's, as who holds one: nobody else knows whether it has begun.
    let waits = row.status == Status::Queued && row.worker.is_none();
    let is_there = waits || operation.kind.includes_running();
    is_there
        && filter.action.as_ref().is_none_or(|it| it.as_str() == name)
        && filter
            .pack
            .as_ref()
            .is_none_or(|it| name.split('.').next() == Some(it))
        && (filter.user.is_none() || filter.user == user)
        && filter
            .labels
            .get("g")
            .is_none_or(|it| Some(it) == label.as_ref())
        && filter.priority.is_none_or(|it| it == row.priority)
        && (filter.ids.is_empty() || filter.ids.contains(&id))
}

/// What is stored of those that a commit touches, before it does.
pub(crate) fn before(store: &Store, commit: &Commit) -> BTreeMap<ExecutionId, Row> {
    let facts = commit.decided.iter().flat_map(|decided| &decided.facts);
    let touched = facts.filter_map(|fact| match fact {
        Fact::Operated { done, .. } => Some(done),
        _ => None,
    });
    let touched = touched.flatten();
    touched
        .filter_map(|id| Some((*id, store.active.get(id)?.clone())))
        .collect()
}

impl Operations {
    /// A batch was written; `before` is what was stored of those that it touches.
    pub(crate) fn judge(
        &mut self,
        store: &Store,
        before: &BTreeMap<ExecutionId, Row>,
        commit: &Commit,
    ) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut moved: BTreeSet<ExecutionId> =
            commit.batch.moves.iter().map(|moved| moved.id).collect();
        for decided in &commit.decided {
            for fact in &decided.facts {
                let Fact::Operated {
                    operation,
                    progress,
                    done,
                    skipped,
                    ..
                } = fact
                else {
                    continue;
                };
                let Some(operation) = store.operations.get(operation) else {
                    continue;
                };
                let key = (operation.id, decided.partition);
                let page = Page {
                    operation,
                    progress,
                    done,
                    skipped,
                };
                let part = self.0.entry(key).or_default();
                let words = part.take(store, before, commit, key.1, &page);
                found.extend(words.map(|words| {
                    let words = format!("operation {} in {}: {words}", key.0, key.1);
                    Violation::of(Promise::I11, words)
                }));
                for id in done {
                    moved.remove(id);
                }
            }
        }
        for (partition, operation, stored) in &commit.batch.progress {
            let said = self.0.get(&(*operation, *partition)).map(|part| part.last);
            if said != Some(*stored) {
                let words = format!(
                    "operation {operation} in {partition}: {stored:?} is stored, and {said:?} was decided"
                );
                found.push(Violation::of(Promise::I11, words));
            }
        }
        if let Some(id) = moved.first() {
            let words = format!("{id} is moved, and no operation has done that");
            found.push(Violation::of(Promise::I11, words));
        }
        self.forget_gone(store, commit);
        for part in self.0.values() {
            if part.last.finished
                && let Some(id) = part.meant.difference(&part.touched).next()
            {
                let words = format!("{id} was meant and waited all the time, and is left out");
                found.push(Violation::of(Promise::I11, words));
            }
        }
        found
    }

    /// Those that were granted a slot, have ended or stand elsewhere are meant no longer.
    fn forget_gone(&mut self, store: &Store, commit: &Commit) {
        let batch = &commit.batch;
        let granted = batch.changes.iter().filter(|it| it.worker.is_some());
        let gone = granted.map(|change| change.id);
        let gone = gone.chain(batch.moves.iter().map(|moved| moved.id));
        let gone: BTreeSet<ExecutionId> = gone.collect();
        for part in self.0.values_mut().filter(|part| !part.last.finished) {
            part.meant
                .retain(|id| store.active.contains_key(id) && !gone.contains(id));
        }
    }

    /// Everything was healed long ago.
    pub(crate) fn end(store: &Store) -> Option<Violation> {
        let open = store.progress.iter().find(|(_, it)| !it.finished);
        open.map(|((partition, operation), progress)| {
            let words =
                format!("operation {operation} goes on in {partition} for ever: {progress:?}");
            Violation::of(Promise::I11, words)
        })
    }
}

/// A page, as its owner says that it was carried out.
struct Page<'a> {
    operation: &'a Operation,
    progress: &'a OperationProgress,
    done: &'a [ExecutionId],
    skipped: &'a [ExecutionId],
}

impl Part {
    /// Takes in a page; what is wrong with it.
    fn take(
        &mut self,
        store: &Store,
        before: &BTreeMap<ExecutionId, Row>,
        commit: &Commit,
        partition: PartitionId,
        page: &Page<'_>,
    ) -> Option<String> {
        let (operation, now) = (page.operation, *page.progress);
        let last = std::mem::replace(&mut self.last, now);
        let upto = now.upto?;
        if last.upto.is_none() {
            let mine = store.active.iter();
            let mine = mine.filter(|(id, _)| id.partition() == partition && id.seq() <= upto);
            let meant = mine.filter(|(id, row)| is_meant(store, operation, **id, row));
            self.meant = meant.map(|(id, _)| *id).collect();
        } else if last.upto != now.upto || last.cursor > now.cursor || last.finished {
            return Some(format!("it went from {last:?} to {now:?}"));
        }
        for id in page.done.iter().chain(page.skipped) {
            if !self.touched.insert(*id) {
                return Some(format!("it came to {id} twice"));
            }
            if id.seq() > upto {
                return Some(format!("{id} came after it had begun"));
            }
        }
        for id in page.done {
            let row = before.get(id);
            let is_meant = row.is_some_and(|row| match came_back(commit, *id) {
                true => is_meant(store, operation, *id, &waiting(row)),
                false => is_meant(store, operation, *id, row),
            });
            if !is_meant {
                return Some(format!("{id} is not meant, or did not wait: {row:?}"));
            }
            if !is_done(operation, commit, *id) {
                return Some(format!("it says that it was done to {id}, and it was not"));
            }
        }
        let many = (
            last.done + page.done.len() as u64,
            last.skipped + page.skipped.len() as u64,
        );
        let is_counted = (now.done, now.skipped) == many && now.matched == many.0 + many.1;
        (!is_counted || self.touched.len() as u64 != now.matched).then(|| {
            let (done, skipped) = (page.done.len(), page.skipped.len());
            format!("{done} were done and {skipped} skipped from {last:?} to {now:?}")
        })
    }
}

/// Whether a slot is taken back from an execution in this very commit: it waits again when the page comes to it,
/// whatever is stored so far.
fn came_back(commit: &Commit, id: ExecutionId) -> bool {
    let mut facts = commit.decided.iter().flat_map(|part| &part.facts);
    facts.any(|fact| matches!(fact, Fact::Revoked { execution_id, .. } if *execution_id == id))
}

/// The same execution once its slot is taken back.
fn waiting(row: &Row) -> Row {
    let mut row = row.clone();
    (row.status, row.worker) = (Status::Queued, None);
    row
}

/// Whether a commit does to an execution what an operation says.
fn is_done(operation: &Operation, commit: &Commit, id: ExecutionId) -> bool {
    let batch = &commit.batch;
    let mut ends = batch.ends.iter();
    let ended = ends.any(|end| end.id == id && end.outcome.status == Status::Cancelled);
    let mut changes = batch.changes.iter();
    let asked = changes.any(|change| change.id == id && change.cancel_requested);
    let mut moves = batch.moves.iter();
    // One that expires in the same round has no place any more.
    let is_gone = batch.ends.iter().any(|end| end.id == id);
    match operation.kind {
        OperationKind::Cancel {
            include_running: true,
        } => ended || asked || is_gone,
        OperationKind::Clear | OperationKind::Cancel { .. } => ended,
        OperationKind::Reprioritise { priority } => {
            is_gone || moves.any(|it| it.id == id && it.priority == priority && !it.front)
        }
        OperationKind::MoveToFront => is_gone || moves.any(|it| it.id == id && it.front),
    }
}

impl Store {
    /// What is open in these partitions.
    pub(crate) fn open_operations(&self, partitions: &[PartitionId]) -> Vec<PartOfOperation> {
        let parts = self.progress.iter();
        let open = parts.filter(|((partition, _), progress)| {
            partitions.contains(partition) && !progress.finished
        });
        let open = open.filter_map(|((partition, id), progress)| {
            Some(PartOfOperation {
                operation: self.operations.get(id)?.clone(),
                partition: *partition,
                progress: *progress,
            })
        });
        open.collect()
    }
}

impl World {
    /// Somebody asks for an operation, and tells the owners that it concerns.
    pub(crate) fn operate(&mut self, kind: OperationKind, filter: &OperationFilter) {
        *self.seen.faults.entry(kind.name()).or_default() += 1;
        let id = OperationId(self.store.operations.len() as i64 + 1);
        let operation = Operation {
            id,
            kind,
            filter: filter.clone(),
        };
        let partitions = filter.partitions(self.plan.partitions);
        let active = self.store.active.iter();
        let meant = active.filter(|(id, row)| is_meant(&self.store, &operation, **id, row));
        let left_out = meant
            .map(|(id, _)| *id)
            .find(|id| !partitions.contains(&id.partition()));
        if let Some(id) = left_out {
            let words = format!("{id} is meant, and the operation is not for its partition");
            self.oracle
                .blame(self.now, Violation::of(Promise::I11, words));
        }
        self.store.operations.insert(id, operation);
        for partition in partitions {
            let progress = OperationProgress::default();
            self.store.progress.insert((partition, id), progress);
            // Some die before they have told all of them.
            if (self.now + i64::from(partition.0)) % 4 == 0 {
                *self.seen.faults.entry("untold-operation").or_default() += 1;
                continue;
            }
            let request_id = RequestId(self.fresh());
            let body = |reply_to| Body::Operations(request_id, reply_to);
            self.add_ask(0, partition, request_id, false, body);
        }
    }

    /// Whoever is asked to end by an operation need not be tried again.
    pub(crate) fn note_operated(&mut self, facts: &[Fact]) {
        for fact in facts {
            if let Fact::Operated {
                kind: "cancel",
                done,
                ..
            } = fact
            {
                done.iter().for_each(|id| self.retries.cancel(*id));
            }
        }
    }
}
