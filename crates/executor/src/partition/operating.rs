//! Bulk operations: a page of executions at a time, in the commit that says how far they are.
//!
//! Who may be meant is known here, so a page is made from memory: nothing in the store is searched. What
//! only the submissions say (user and labels) is read for the executions of the page, by their ids. What
//! was granted or has ended meanwhile is passed over. Of who stands ahead of a slot nobody here knows whether its
//! worker has begun it: an operation that ends who waits has those called back first, and goes on when they have
//! come back, or have begun. Progress is written as it is afterwards, not by how
//! much it changed, in the same commit as what was done: so whoever takes over goes on where the last
//! commit ended, and the counts are what was done, whatever was written twice or never.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use attune_core::{
    Action, ActionId, ActionRef, Bug, ExecutionId, Moved, Operation, OperationId, OperationKind,
    OperationProgress, OperationWords, Outcome, PartOfOperation, Priority, Seq, Status, WorkerId,
};

use super::{Effect, Partition};
use crate::counters::Counter;
use crate::fact::Fact;
use crate::queue::{ActionQueue, Holder, Millis};
use crate::stored::StoredWords;

/// How many executions a page looks at to find those it is about, whether or not it is.
const LOOKED_AT: usize = 10_000;

/// The operations that are known here.
#[derive(Debug, Default)]
pub(super) struct Operations {
    open: BTreeMap<OperationId, Part>,
    /// The one of which a page came last, until it is over: an earlier number may be stored later, or be
    /// held off for a while, and two that took turns would leave some as the one says and some as the other.
    current: Option<OperationId>,
    /// Those that are over, and may be open still in a list that was read before they were.
    finished: BTreeSet<OperationId>,
}

/// An operation that is open here.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) operation: Arc<Operation>,
    pub(super) progress: OperationProgress,
}

impl Part {
    /// Whether an execution of an action may be meant, and is not dealt with yet.
    fn is_before(&self, id: ExecutionId, action_ref: &ActionRef) -> bool {
        let (filter, seq) = (&self.operation.filter, id.seq());
        self.progress.cursor.is_none_or(|cursor| cursor < seq)
            && self.progress.upto.is_none_or(|upto| seq <= upto)
            && (filter.ids.is_empty() || filter.ids.contains(&id))
            && filter.covers(action_ref)
    }
}

/// Executions that an operation may be about, the next ones after its cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Which operation.
    pub operation: OperationId,
    /// They, by rising id.
    pub ids: Vec<ExecutionId>,
    /// Everything up to this place is dealt with when they are.
    to: Seq,
    /// Whether nothing comes after them.
    is_last: bool,
    /// Whether it must be read what they say.
    pub needs_words: bool,
}

/// Where an execution stands that an operation comes to.
#[derive(Clone, Copy)]
enum Standing {
    Waits(Priority, bool),
    Holds(Holder),
}

/// What a page led to.
#[derive(Default)]
struct Done {
    done: Vec<ExecutionId>,
    skipped: Vec<ExecutionId>,
    touched: BTreeSet<ActionId>,
}

impl Partition {
    fn part(&self, operation: OperationId) -> Option<&Part> {
        self.operations.as_ref()?.open.get(&operation)
    }

    /// Whether an operation is known here, open or just finished.
    pub(crate) fn knows_operation(&self, operation: OperationId) -> bool {
        let known = self.operations.as_ref();
        known.is_some_and(|known| {
            known.open.contains_key(&operation) || known.finished.contains(&operation)
        })
    }

    /// The open operations by their turns, but for those that are held off: the first that has a [page](Self::page)
    /// goes on. They are done one after the other, by their numbers, so that of two over the same executions
    /// the later one has the last word; and one that has begun is brought to its end first.
    pub(crate) fn open_operations(
        &self,
        is_held_off: impl Fn(OperationId) -> bool,
    ) -> impl Iterator<Item = OperationId> {
        let known = self.operations.as_ref();
        let current = known.and_then(|known| known.current);
        let others = known.into_iter().flat_map(|known| known.open.keys());
        let others = others.copied().filter(move |id| Some(*id) != current);
        let in_turn = current.into_iter().chain(others);
        in_turn.filter(move |id| !is_held_off(*id))
    }

    /// Forgets operations that are finished, and stored as such: no list that is read from now on shows
    /// them as open.
    pub(crate) fn forget_finished(&mut self) {
        if let Some(known) = &mut self.operations {
            known.finished.clear();
        }
        self.operations.take_if(|known| known.open.is_empty());
    }

    /// Takes in operations that are open in the store. One that has not begun here begins: what is
    /// accepted from now on is not meant.
    pub(super) fn begin_operations(
        &mut self,
        now: Millis,
        parts: Vec<PartOfOperation>,
        out: &mut Vec<Effect>,
    ) {
        let newest = Seq(Seq::new(self.epoch, self.next_place).0 - 1);
        for part in parts {
            let id = part.operation.id;
            // What is known is newer than what was read.
            if part.partition != self.id || part.progress.finished || self.knows_operation(id) {
                continue;
            }
            let mut part = Part {
                operation: Arc::new(part.operation),
                progress: part.progress,
            };
            if part.progress.upto.is_none() {
                part.progress.upto = Some(newest);
                self.note_progress(&part, &Done::default(), out);
            }
            let known = self.operations.get_or_insert_default();
            if part.progress.cursor.is_some() {
                known.current.get_or_insert(id);
            }
            known.open.insert(id, part);
        }
        let is_wanted = |action_id: &ActionId| {
            let has_lane = |queue: &mut ActionQueue| queue.has_lane();
            let action = self.actions.get(action_id);
            action.is_some_and(|action| self.wants_lanes_of(action))
                && self.queues.with_existing(*action_id, has_lane) == Some(true)
        };
        let wanted: Vec<ActionId> = self.holding.iter().copied().filter(is_wanted).collect();
        // Who is served calls them back.
        self.unserved.extend(wanted);
        self.serve_turns(now, out);
    }

    /// Whether an operation is open that ends those of an action who wait: nobody of it stands ahead then.
    pub(super) fn wants_lanes_of(&self, action: &Action) -> bool {
        let open = self.operations.iter().flat_map(|known| &known.open);
        let mut operations = open.map(|(_, part)| &part.operation);
        operations.any(|operation| {
            calls_back(operation.kind) && operation.filter.covers(&action.spec.action_ref)
        })
    }

    /// The next executions that an operation may be about, up to `max` of them; `None` while the next of them
    /// stands ahead of a slot and is called back, or is an earlier operation's that waits for such a one and is
    /// not held off. Of two that end who waits it does not matter which comes first.
    pub(crate) fn page(
        &self,
        operation: OperationId,
        max: usize,
        is_held_off: impl Fn(OperationId) -> bool,
    ) -> Option<Page> {
        let part = self.part(operation)?;
        let earlier = self.operations.iter();
        let earlier = earlier.flat_map(|known| known.open.range(..operation));
        let earlier: Vec<&Part> = earlier
            .filter(|(id, _)| !part.operation.kind.ends() && !is_held_off(**id))
            .map(|(_, part)| part)
            .filter(|part| calls_back(part.operation.kind))
            .collect();
        let (filter, progress) = (&part.operation.filter, &part.progress);
        let upto = progress.upto?;
        let from = progress.cursor.unwrap_or(Seq(0));
        let mut page = Page {
            operation,
            ids: Vec::new(),
            to: upto,
            is_last: true,
            needs_words: filter.needs_words(),
        };
        if from >= upto {
            return Some(page);
        }
        let place = |seq| ExecutionId::new(self.id, seq);
        let range = (Bound::Excluded(place(from)), Bound::Included(place(upto)));
        let known: Box<dyn Iterator<Item = (ExecutionId, ActionId)>> = if filter.ids.is_empty() {
            Box::new(self.index.range(range).map(|(id, action)| (*id, *action)))
        } else {
            let named = filter.ids.range(range);
            Box::new(named.filter_map(|id| Some((*id, *self.index.get(id)?))))
        };
        let mut covered: HashMap<ActionId, bool> = HashMap::new();
        for (looked_at, (id, action_id)) in known.enumerate() {
            if page.ids.len() == max || looked_at == LOOKED_AT {
                page.is_last = false;
                break;
            }
            page.to = id.seq();
            let covers = || {
                let action = self.actions.get(&action_id);
                action.is_some_and(|action| filter.covers(&action.spec.action_ref))
            };
            if *covered.entry(action_id).or_insert_with(covers)
                && let Some(standing) = self.standing(action_id, id)
            {
                let action = || self.actions.get(&action_id);
                let is_meant_by = |earlier: &&Part| {
                    action().is_some_and(|action| earlier.is_before(id, &action.spec.action_ref))
                };
                if is_awaited(&part.operation, id, standing) || earlier.iter().any(is_meant_by) {
                    (page.to, page.is_last) = (before(id), false);
                    break;
                }
                if is_meant(&part.operation, id, standing) {
                    page.ids.push(id);
                }
            }
        }
        if page.is_last {
            page.to = upto;
        }
        (page.is_last || page.to > from).then_some(page)
    }

    /// The worker that has not said whether it has begun the next execution that an operation is about, and the action
    /// of that one.
    pub(crate) fn waits_for(&self, operation: OperationId) -> Option<(WorkerId, ActionRef)> {
        let part = self
            .part(operation)
            .filter(|part| calls_back(part.operation.kind))?;
        let mut held = self.holding.iter().filter_map(|action_id| {
            let action = self.actions.get(action_id)?;
            let is_covered = part.operation.filter.covers(&action.spec.action_ref);
            let from = |queue: &mut ActionQueue| queue.recalled_from();
            let worker = self.queues.with_existing(*action_id, from).flatten()?;
            is_covered.then(|| (worker, action.spec.action_ref.clone()))
        });
        held.next()
    }

    fn standing(&self, action_id: ActionId, id: ExecutionId) -> Option<Standing> {
        let standing = |queue: &mut ActionQueue| {
            let waits = queue.standing(id.seq());
            let waits = waits.map(|(priority, front)| Standing::Waits(priority, front));
            waits.or_else(|| queue.holder(id).map(Standing::Holds))
        };
        self.queues.with_existing(action_id, standing).flatten()
    }

    /// Does what an operation does to those of a page that it is about; `words` is what they say, where
    /// that had to be read.
    pub(super) fn operate(
        &mut self,
        now: Millis,
        page: Page,
        words: Vec<StoredWords>,
        out: &mut Vec<Effect>,
    ) {
        let id = page.operation;
        let known = self.operations.as_mut();
        let Some(mut part) = known.and_then(|known| known.open.remove(&id)) else {
            return;
        };
        let mut done = self.operate_on(&mut part, page, words, out);
        let touched = std::mem::take(&mut done.touched);
        // Where nothing was found nothing is written: whoever takes over looks there once more.
        if part.progress.finished || !done.done.is_empty() || !done.skipped.is_empty() {
            self.note_progress(&part, &done, out);
        }
        let known = self.operations.get_or_insert_default();
        known.current = (!part.progress.finished).then_some(id);
        if part.progress.finished {
            known.finished.insert(id);
        } else {
            known.open.insert(id, part);
        }
        for action_id in touched {
            self.serve(now, action_id, out);
        }
    }

    fn operate_on(
        &mut self,
        part: &mut Part,
        page: Page,
        words: Vec<StoredWords>,
        out: &mut Vec<Effect>,
    ) -> Done {
        let operation = Arc::clone(&part.operation);
        let words: BTreeMap<ExecutionId, StoredWords> =
            words.into_iter().map(|words| (words.id, words)).collect();
        let (mut done, mut to, mut is_last) = (Done::default(), page.to, page.is_last);
        for id in &page.ids {
            let action_id = self.index.get(id).copied();
            let standing = action_id.and_then(|action_id| self.standing(action_id, *id));
            if page.needs_words {
                let Some(words) = words.get(id) else {
                    if standing.is_none() {
                        // It had ended before it could be read.
                        continue;
                    }
                    // What was not answered is asked for again.
                    (to, is_last) = (before(*id), false);
                    break;
                };
                let says = OperationWords {
                    user: words.requested_by.as_deref(),
                    labels: &words.labels,
                };
                if !operation.filter.matches(says) {
                    continue;
                }
            }
            if standing.is_some_and(|standing| is_awaited(&operation, *id, standing)) {
                // Nobody who is meant is granted ahead while the operation is open, and the page was made of who
                // was not. Should it be so all the same, a program that runs is not to be ended.
                (to, is_last) = (before(*id), false);
                break;
            }
            let standing = standing.filter(|standing| is_meant(&operation, *id, *standing));
            match action_id.zip(standing) {
                Some((action_id, standing))
                    if self.do_to(&operation, action_id, *id, standing, out) =>
                {
                    done.done.push(*id);
                    done.touched.insert(action_id);
                }
                _ => done.skipped.push(*id),
            }
        }
        if let Some(last) = page.ids.last()
            && page.ids.len() > 1
            && Bug::PageTwice.is_planted()
        {
            (to, is_last) = (to.min(Seq(last.seq().0 - 1)), false);
        }
        let progress = &mut part.progress;
        progress.cursor = progress.cursor.max(Some(to));
        progress.finished = is_last;
        progress.done += done.done.len() as u64;
        progress.skipped += done.skipped.len() as u64;
        progress.matched = progress.done + progress.skipped;
        done
    }

    /// Does it to one execution; false when there is nothing to be done.
    fn do_to(
        &mut self,
        operation: &Operation,
        action_id: ActionId,
        id: ExecutionId,
        standing: Standing,
        out: &mut Vec<Effect>,
    ) -> bool {
        match (operation.kind, standing) {
            (OperationKind::Clear | OperationKind::Cancel { .. }, Standing::Waits(..)) => {
                let take = |queue: &mut ActionQueue| queue.cancel_waiting(id.seq());
                let Some(waiting) = self.queues.with_existing(action_id, take).flatten() else {
                    return false;
                };
                let words = format!(
                    "cancelled while it waited for a slot, by operation {}",
                    operation.id
                );
                let outcome = Outcome::of(Status::Cancelled, Some(words));
                self.end_waiting(action_id, waiting, outcome, Counter::Cancelled, out);
                true
            }
            (kind, Standing::Holds(holder)) if is_ended_by(kind, holder) => {
                !holder.cancel_requested && self.ask_to_end(action_id, id, out)
            }
            (OperationKind::Reprioritise { priority }, Standing::Waits(earlier, front)) => {
                (earlier, front) != (priority, false)
                    && self.move_one(action_id, id, priority, false, out)
            }
            (OperationKind::MoveToFront, Standing::Waits(priority, front)) => {
                !front && self.move_one(action_id, id, priority, true, out)
            }
            (_, Standing::Holds(_)) => false,
        }
    }

    /// Marks one that holds a slot as to be ended, and has its worker told; false when it holds none.
    pub(super) fn ask_to_end(
        &mut self,
        action_id: ActionId,
        execution_id: ExecutionId,
        out: &mut Vec<Effect>,
    ) -> bool {
        let mark = |queue: &mut ActionQueue| queue.request_cancel(execution_id);
        let Some(attempt) = self.queues.with_existing(action_id, mark).flatten() else {
            return false;
        };
        self.asked(action_id, (execution_id, attempt), None, out);
        true
    }

    fn move_one(
        &mut self,
        action_id: ActionId,
        id: ExecutionId,
        priority: Priority,
        front: bool,
        out: &mut Vec<Effect>,
    ) -> bool {
        let move_it = |queue: &mut ActionQueue| queue.move_waiting(id.seq(), priority, front);
        if self.queues.with_existing(action_id, move_it) != Some(true) {
            return false;
        }
        let moved = Moved {
            id,
            action_id,
            priority,
            front,
        };
        self.note(|| Fact::Moved(moved));
        out.push(Effect::Move(moved));
        true
    }

    /// Says how far an operation is from now on.
    fn note_progress(&mut self, part: &Part, done: &Done, out: &mut Vec<Effect>) {
        let (operation, progress) = (part.operation.id, part.progress);
        let kind = part.operation.kind.name();
        self.note(|| Fact::Operated {
            operation,
            kind,
            progress,
            done: done.done.clone(),
            skipped: done.skipped.clone(),
        });
        out.push(Effect::Progress {
            operation,
            progress,
        });
        self.operation_is_over(part, out);
    }
}

/// The place before that of an execution.
fn before(id: ExecutionId) -> Seq {
    Seq(id.seq().0 - 1)
}

/// Whether operations of a kind end who waits and leave alone what runs.
fn calls_back(kind: OperationKind) -> bool {
    kind.ends() && !kind.includes_running() && !Bug::EndsAhead.is_planted()
}

/// Whether an operation cannot be done to an execution before its worker has said whether it has begun.
fn is_awaited(operation: &Operation, id: ExecutionId, standing: Standing) -> bool {
    let Standing::Holds(holder) = standing else {
        return false;
    };
    holder.is_ahead() && calls_back(operation.kind) && operation.filter.admits(id, holder.priority)
}

/// Whether an operation ends somebody who is granted to a worker.
fn is_ended_by(kind: OperationKind, holder: Holder) -> bool {
    kind.includes_running() || (holder.is_ahead() && Bug::EndsAhead.is_planted() && kind.ends())
}

/// Whether an operation is about an execution that stands so, as far as that is known without its words.
fn is_meant(operation: &Operation, id: ExecutionId, standing: Standing) -> bool {
    let priority = match standing {
        Standing::Waits(priority, _) => priority,
        Standing::Holds(holder) if !is_ended_by(operation.kind, holder) => return false,
        Standing::Holds(holder) => holder.priority,
    };
    operation.filter.admits(id, priority)
}

#[cfg(test)]
#[path = "operating_tests.rs"]
mod tests;
