//! Gathers the effects of one round into one batch for the store, and what is to be told after.
//!
//! A batch names each execution at most once, so changes of the same execution in one round are
//! folded: an execution that is accepted and granted is inserted as granted, one that is accepted
//! and ended goes straight to the history. The seeded simulator folds with the same code, so that
//! what it commits is what production would.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use attune_core::policy::EventKind;
use attune_core::{
    ActionId, ActionRef, ExecutionId, Moved, OperationId, OperationProgress, Outcome, OwnerId,
    PartitionId, WorkerId,
};
use attune_dispatch::Key;

use crate::ById;
use crate::counters::Counter;
use crate::fact::Decided;
use crate::happened::ActionEvent;
use crate::notice::Notice;
use crate::owner::DeliveryId;
use crate::partition::{Answer, Effect, Grantee, Letter, Partition, Wait};
use crate::queue::Millis;
use crate::stored::{Audit, Batch, Change, End, NewExecution, PutBack};

/// What follows the commit.
#[derive(Debug, Default)]
pub struct Tell {
    /// Executions that may run.
    pub dispatches: Vec<Grantee>,
    /// The actions of which workers are to give everything back that waits.
    pub recalls: Vec<(WorkerId, ActionId)>,
    /// Runs to be ended, and at which worker.
    pub cancels: Vec<(WorkerId, Key)>,
    /// What became of grants is written down, for their workers.
    pub settled: Vec<(WorkerId, Key)>,
    /// Who asked, and what to say.
    pub answers: Vec<(Arc<str>, Answer)>,
    /// What to count, and how often.
    pub counts: BTreeMap<Counter, u64>,
    /// How long those have waited who were given a slot.
    pub waits: Vec<Wait>,
    /// What has happened, for whoever listens.
    pub events: Vec<ActionEvent>,
    /// What people should read.
    pub notices: Vec<Notice>,
    /// The queues that changed.
    pub touched: BTreeSet<ActionId>,
    /// Memory has followed the store.
    pub is_mended: bool,
    /// Deliveries that are done with, last of all.
    pub acks: Vec<DeliveryId>,
    /// What follows from letters and entries of the audit log: nothing of it is told before they
    /// are stored, which may be later than the executions of the round.
    pub beside: Option<Box<Tell>>,
}

impl Tell {
    fn count(&mut self, counter: Counter) {
        *self.counts.entry(counter).or_default() += 1;
    }

    /// What follows from what stands beside the executions.
    fn beside(&mut self) -> &mut Self {
        self.beside.get_or_insert_default()
    }

    /// What follows when all of it is stored.
    pub(crate) fn whole(mut self) -> Self {
        let Some(beside) = self.beside.take() else {
            return self;
        };
        for (counter, times) in beside.counts {
            *self.counts.entry(counter).or_default() += times;
        }
        self.events.extend(beside.events);
        self.notices.extend(beside.notices);
        self.answers.extend(beside.answers);
        self.acks.extend(beside.acks);
        self
    }
}

/// The effects of one round on one partition.
#[derive(Default)]
struct PartitionDraft {
    inserts: Vec<NewExecution>,
    /// Where in `inserts` an execution is.
    inserted: ById<ExecutionId, usize>,
    /// Ends of executions in `inserts`.
    instant: ById<ExecutionId, Arc<Outcome>>,
    changes: BTreeMap<ExecutionId, Change>,
    moves: BTreeMap<ExecutionId, Moved>,
    ends: Vec<End>,
    progress: BTreeMap<OperationId, OperationProgress>,
    /// The version of the policy set that is new in it.
    policies: Option<i64>,
    ended: HashSet<ExecutionId>,
    audit: Vec<Audit>,
    letters: Vec<Letter>,
    /// What memory has learnt from the store.
    mended: BTreeSet<ExecutionId>,
    tell: Tell,
}

/// The effects of one round, as they come.
#[derive(Default)]
pub struct Draft {
    partitions: BTreeMap<PartitionId, PartitionDraft>,
}

impl Draft {
    /// Adds the effects of one event.
    pub fn add(&mut self, partition: PartitionId, effects: impl IntoIterator<Item = Effect>) {
        let mut effects = effects.into_iter().peekable();
        if effects.peek().is_none() {
            return;
        }
        let draft = self.partitions.entry(partition).or_default();
        for effect in effects {
            draft.add(effect);
        }
    }

    /// The executions that it changes so far, in the store or in memory alone.
    pub(crate) fn executions(&self) -> impl Iterator<Item = ExecutionId> + '_ {
        self.partitions.values().flat_map(|draft| {
            let inserted = draft.inserted.keys();
            inserted
                .chain(draft.changes.keys())
                .chain(draft.moves.keys())
                .chain(&draft.ended)
                .chain(&draft.mended)
                .copied()
        })
    }

    /// Adds the effects of a delivery, which is done with when they are stored.
    pub fn add_delivery(
        &mut self,
        partition: PartitionId,
        delivery: DeliveryId,
        effects: Vec<Effect>,
    ) {
        let draft = self.partitions.entry(partition).or_default();
        let stands_beside = effects.iter().any(Effect::stands_beside);
        for effect in effects {
            match effect {
                Effect::Answer { reply_to, answer } if stands_beside => {
                    draft.tell.beside().answers.push((reply_to, answer));
                }
                Effect::Event(event)
                    if stands_beside && event.what.kind() == EventKind::Rejected =>
                {
                    draft.tell.beside().events.push(*event);
                }
                effect => draft.add(effect),
            }
        }
        let tell = if stands_beside {
            draft.tell.beside()
        } else {
            &mut draft.tell
        };
        tell.acks.push(delivery);
    }

    /// The round, folded; `at` is the time that is written down for it.
    pub fn into_round(self, owner: OwnerId, at: Millis) -> Round {
        let mut batch = Batch::new(owner, at);
        let mut tells = BTreeMap::new();
        for (partition, draft) in self.partitions {
            let PartitionDraft {
                inserts,
                mut instant,
                changes,
                moves,
                ends,
                progress,
                policies,
                ended,
                audit,
                letters,
                mut tell,
                ..
            } = draft;
            let alive = |grantee: &Grantee| {
                let id = grantee.execution_id;
                !instant.contains_key(&id) && !ended.contains(&id)
            };
            tell.dispatches.retain(alive);
            for new in inserts {
                match instant.remove(&new.id) {
                    Some(outcome) => batch.instant.push((new, outcome)),
                    None => batch.inserts.push(new),
                }
            }
            batch.changes.extend(changes.into_values());
            batch.moves.extend(moves.into_values());
            batch.ends.extend(ends);
            let progress = progress.into_iter();
            let progress = progress.map(|(operation, progress)| (partition, operation, progress));
            batch.progress.extend(progress);
            batch
                .policies
                .extend(policies.map(|version| (partition, version)));
            batch.audit.extend(audit);
            let letters = letters.into_iter().map(|letter| (partition, letter));
            batch.letters.extend(letters);
            tells.insert(partition, tell);
        }
        let decided = Vec::new();
        Round {
            commit: Arc::new(Commit { batch, decided }),
            tells,
        }
    }
}

/// What one round writes, and what was decided in it.
#[derive(Debug, Clone)]
pub struct Commit {
    /// Everything that is written.
    pub batch: Batch,
    /// What was decided, by partition, while somebody wants to check it.
    pub decided: Vec<Decided>,
}

impl Commit {
    /// What it says about those partitions that `keep` names.
    pub(crate) fn only(&self, keep: impl Fn(PartitionId) -> bool) -> Self {
        let mut part = self.clone();
        let batch = &mut part.batch;
        batch.fences.retain(|(partition, _)| keep(*partition));
        batch.inserts.retain(|new| keep(new.id.partition()));
        batch.instant.retain(|(new, _)| keep(new.id.partition()));
        batch.changes.retain(|change| keep(change.id.partition()));
        batch.moves.retain(|moved| keep(moved.id.partition()));
        batch.ends.retain(|end| keep(end.id.partition()));
        batch.progress.retain(|(partition, ..)| keep(*partition));
        batch.policies.retain(|(partition, _)| keep(*partition));
        batch
            .audit
            .retain(|audit| audit.partition().is_none_or(&keep));
        batch.letters.retain(|(partition, _)| keep(*partition));
        batch.totals.retain(|(partition, ..)| keep(*partition));
        batch.meters.retain(|meter| keep(meter.partition));
        part.decided.retain(|decided| keep(decided.partition));
        part
    }

    /// The executions that it writes.
    pub fn executions(&self) -> impl Iterator<Item = ExecutionId> + '_ {
        let new = self.batch.inserts.iter().map(|new| new.id);
        let instant = self.batch.instant.iter().map(|(new, _)| new.id);
        let changed = self.batch.changes.iter().map(|change| change.id);
        let moved = self.batch.moves.iter().map(|moved| moved.id);
        let ended = self.batch.ends.iter().map(|end| end.id);
        new.chain(instant).chain(changed).chain(moved).chain(ended)
    }
}

/// One round: what is written, and what follows.
#[derive(Debug)]
pub struct Round {
    /// What is written; shared with whoever writes it.
    pub commit: Arc<Commit>,
    /// What follows, by partition.
    pub tells: BTreeMap<PartitionId, Tell>,
}

impl Round {
    /// Makes the commit check the epoch of a partition that it writes, and carry the totals of
    /// each queue that it changes and the log of what was decided.
    pub fn seal(&mut self, partition: &mut Partition) {
        let id = partition.id();
        let Some(tell) = self.tells.get(&id) else {
            return;
        };
        let commit = Arc::make_mut(&mut self.commit);
        commit.batch.fences.push((id, partition.epoch()));
        let at = commit.batch.at;
        commit.batch.meters.extend(partition.counted(at));
        for action_id in &tell.touched {
            let totals = partition.totals(*action_id);
            commit.batch.totals.push((id, *action_id, totals));
            partition.note_totals(*action_id);
        }
        let decided = partition.take_log();
        let decided = decided.filter(|decided| !decided.facts.is_empty());
        commit.decided.extend(decided);
    }

    /// Whether it changes nothing and acknowledges nothing. Acknowledging alone is checked by a
    /// commit too: an owner that lost its partition must not make messages vanish. So is what memory follows
    /// the store in: it may be what the next owner has written there.
    pub fn is_empty(&self) -> bool {
        let silent = self
            .tells
            .values()
            .all(|tell| tell.acks.is_empty() && tell.beside.is_none() && !tell.is_mended);
        self.commit.batch.is_empty() && silent
    }

    /// Has workers told nothing about a partition that was lost meanwhile: whoever serves it now compares.
    pub(crate) fn tell_no_workers(&mut self, of: PartitionId) {
        if let Some(tell) = self.tells.get_mut(&of) {
            tell.dispatches.clear();
            tell.recalls.clear();
            tell.cancels.clear();
            tell.settled.clear();
        }
    }

    /// Takes what stands beside the executions of a partition, and what follows from it, into a
    /// round of its own. Memory knows nothing of it, so the rest can be written without it.
    pub(crate) fn take_beside(&mut self, of: PartitionId) -> Option<Self> {
        let tell = self.tells.get_mut(&of)?.beside.take()?;
        let commit = Arc::make_mut(&mut self.commit);
        let mut batch = Batch::new(commit.batch.owner, commit.batch.at);
        let fences = commit.batch.fences.iter().copied();
        batch.fences = fences.filter(|(partition, _)| *partition == of).collect();
        let audit = commit.batch.audit.iter().cloned();
        (batch.audit, commit.batch.audit) =
            audit.partition(|audit| audit.partition().is_none_or(|partition| partition == of));
        let letters = commit.batch.letters.iter().cloned();
        (batch.letters, commit.batch.letters) =
            letters.partition(|(partition, _)| *partition == of);
        let commit = Arc::new(Commit {
            batch,
            decided: Vec::new(),
        });
        Some(Self {
            commit,
            tells: BTreeMap::from([(of, *tell)]),
        })
    }

    /// Whether it writes every letter and entry of the audit log that another one writes.
    pub(crate) fn has_beside_of(&self, other: &Self) -> bool {
        let (mine, others) = (&self.commit.batch, &other.commit.batch);
        let same = |one: &Letter, two: &Letter| {
            (one.request_id, one.digest) == (two.request_id, two.digest)
        };
        let has_letter = |letter: &Letter| mine.letters.iter().any(|(_, it)| same(it, letter));
        others.letters.iter().all(|(_, letter)| has_letter(letter))
            && others.audit.iter().all(|entry| mine.audit.contains(entry))
    }

    /// What follows from another one, whose rows it writes itself, follows from this one.
    pub(crate) fn follow(&mut self, other: Self) {
        for (partition, tell) in other.tells {
            let mine = self.tells.entry(partition).or_default();
            mine.answers.extend(tell.answers);
            mine.acks.extend(tell.acks);
        }
    }

    /// What it says about one partition alone.
    pub(crate) fn split(mut self) -> Vec<Self> {
        let tells = std::mem::take(&mut self.tells);
        let parts = tells.into_iter().map(|(partition, tell)| Self {
            commit: Arc::new(self.commit.only(|of| of == partition)),
            tells: BTreeMap::from([(partition, tell)]),
        });
        parts.collect()
    }

    /// Forgets partitions that have another owner: their messages come again, to that owner.
    pub(crate) fn drop_partitions(&mut self, lost: &[PartitionId]) {
        self.commit = Arc::new(self.commit.only(|of| !lost.contains(&of)));
        self.tells.retain(|partition, _| !lost.contains(partition));
    }
}

impl PartitionDraft {
    fn add(&mut self, effect: Effect) {
        match effect {
            Effect::Insert(new) => {
                self.inserted.insert(new.id, self.inserts.len());
                self.inserts.push(new);
            }
            Effect::Change(change) => self.change(change),
            Effect::Move(moved) => {
                self.moves.insert(moved.id, moved);
            }
            Effect::Progress {
                operation,
                progress,
            } => {
                self.progress.insert(operation, progress);
            }
            Effect::GoesBy(version) => self.policies = Some(version),
            Effect::End(end) => self.end(end),
            Effect::Dispatch(dispatch) => self.tell.dispatches.push(dispatch),
            Effect::CancelRun { worker, grant } => self.tell.cancels.push((worker, grant)),
            Effect::Recall { worker, action_id } => self.tell.recalls.push((worker, action_id)),
            Effect::Settled { worker, grant } => self.tell.settled.push((worker, grant)),
            Effect::Answer { reply_to, answer } => self.tell.answers.push((reply_to, answer)),
            Effect::DeadLetter(letter) => self.dead_letter(letter),
            Effect::Audit(entry) => {
                self.tell.beside();
                self.audit.push(entry);
            }
            Effect::Event(event) => self.tell.events.push(*event),
            Effect::Notice(notice) => self.tell.notices.push(notice),
            Effect::Touched(action_id) => {
                self.tell.touched.insert(action_id);
            }
            Effect::Count(counter) => self.tell.count(counter),
            Effect::Granted(wait) => {
                self.tell.count(Counter::Granted);
                self.tell.waits.push(wait);
            }
            Effect::Mended(id) => {
                self.mended.insert(id);
                self.tell.is_mended = true;
            }
        }
    }

    fn dead_letter(&mut self, letter: Letter) {
        let tell = self.tell.beside();
        tell.count(Counter::LetterKept);
        // Whoever wrote it chose how long it is.
        let action_ref = &letter.submission.action_ref;
        let shown = action_ref.floor_char_boundary(ActionRef::MAX_BYTES);
        tell.notices.push(Notice::LetterKept {
            action_ref: action_ref[..shown].to_owned(),
            reason: letter.reject.to_string(),
        });
        self.letters.push(letter);
    }

    fn change(&mut self, change: Change) {
        if let Some(index) = self.inserted.get(&change.id) {
            // Only grants can follow an acceptance in the same round, ahead of a slot and with one, and the
            // wish that it ends: of somebody who guesses the id, or because another one takes its place.
            let new = &mut self.inserts[*index];
            new.cancel_requested |= change.cancel_requested;
            if let Some(transition) = change.transition {
                new.status = transition.to();
                new.attempt = change.attempt;
                new.grant_no = change.grant_no.or(new.grant_no);
                new.worker = change.worker;
            } else if change.grants_ahead() {
                (new.attempt, new.worker) = (change.attempt, change.worker);
                new.grant_no = change.grant_no;
            }
            return;
        }
        match self.changes.get_mut(&change.id) {
            Some(earlier) => {
                let is_other = change.transition.is_some() || change.put_back.is_some();
                let changes_holder = is_other || change.worker.is_some();
                earlier.transition = change.transition.or(earlier.transition);
                earlier.attempt = change.attempt;
                earlier.grant_no = change.grant_no.or(earlier.grant_no);
                earlier.cancel_requested |= change.cancel_requested;
                earlier.put_back = put_back_after(earlier.put_back.take(), change.put_back);
                if changes_holder {
                    // Of an attempt that was put back nothing has started, and nobody runs it.
                    (earlier.worker, earlier.started) = (change.worker, change.started);
                } else {
                    earlier.started = change.started.or(earlier.started);
                }
            }
            None => {
                self.changes.insert(change.id, change);
            }
        }
    }

    fn end(&mut self, end: End) {
        if self.inserted.contains_key(&end.id) {
            self.instant.insert(end.id, end.outcome);
            return;
        }
        self.changes.remove(&end.id);
        self.moves.remove(&end.id);
        self.ended.insert(end.id);
        self.ends.push(end);
    }
}

/// What is written of somebody who was put back twice: why its last try ended that did.
fn put_back_after(
    earlier: Option<Box<PutBack>>,
    later: Option<Box<PutBack>>,
) -> Option<Box<PutBack>> {
    let (Some(earlier), Some(mut later)) = (&earlier, later.clone()) else {
        return later.or(earlier);
    };
    later.last_error = later.last_error.or_else(|| earlier.last_error.clone());
    Some(later)
}
