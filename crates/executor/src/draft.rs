//! Gathers the effects of one round into one batch for the store, and what is to be told after.
//!
//! A batch names each execution at most once, so changes of the same execution in one round are
//! folded: an execution that is accepted and granted is inserted as granted, one that is accepted
//! and ended goes straight to the history. The seeded simulator folds with the same code, so that
//! what it commits is what production would.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use attune_bus::{DeliveryTag, Settler};
use attune_core::{ActionId, Attempt, ExecutionId, OwnerId, PartitionId, Reject, Submission};
use attune_messages::v1::Answer;
use attune_store::{Batch, End, NewAudit, NewExecution, Outcome, Update};

use crate::event::{Counter, Dispatch, Effect};
use crate::partition_core::PartitionCore;

/// What follows the commit.
#[derive(Default)]
pub struct Tell {
    /// Executions that may run.
    pub dispatches: Vec<Dispatch>,
    /// The same, told again; their bodies are only in the store.
    pub redispatches: Vec<Dispatch>,
    /// Runs to be ended.
    pub cancels: Vec<(ExecutionId, Attempt)>,
    /// Who asked, and what to say.
    pub answers: Vec<(Arc<str>, Answer)>,
    /// Submissions that cannot even be recorded, and why.
    pub dead_letters: Vec<(Box<Submission>, Reject)>,
    /// What to count.
    pub counts: Vec<Counter>,
    /// The queues that changed.
    pub touched: BTreeSet<ActionId>,
    /// Deliveries that are done with, last of all.
    pub acks: Vec<(Settler, Vec<DeliveryTag>)>,
}

/// The effects of one round on one partition.
#[derive(Default)]
struct PartitionDraft {
    inserts: Vec<NewExecution>,
    /// Where in `inserts` an execution is.
    inserted: HashMap<ExecutionId, usize>,
    /// Ends of executions in `inserts`.
    instant: HashMap<ExecutionId, Outcome>,
    updates: BTreeMap<ExecutionId, Update>,
    ends: Vec<End>,
    ended: HashSet<ExecutionId>,
    audit: Vec<NewAudit>,
    tell: Tell,
}

/// The effects of one round, as they come.
#[derive(Default)]
pub struct Draft {
    partitions: BTreeMap<PartitionId, PartitionDraft>,
}

impl Draft {
    /// Adds the effects of one event.
    pub fn add(&mut self, partition: PartitionId, effects: Vec<Effect>) {
        if effects.is_empty() {
            return;
        }
        let draft = self.partitions.entry(partition).or_default();
        for effect in effects {
            draft.add(effect);
        }
    }

    /// Adds a delivery that is done with when the round is committed.
    pub fn add_ack(&mut self, partition: PartitionId, settler: &Settler, tag: DeliveryTag) {
        let acks = &mut self.partitions.entry(partition).or_default().tell.acks;
        match acks.last_mut() {
            Some((last, tags)) if Arc::ptr_eq(last, settler) => tags.push(tag),
            _ => acks.push((Arc::clone(settler), vec![tag])),
        }
    }

    /// The round, folded.
    pub fn into_round(self, owner: OwnerId) -> Round {
        let mut batch = Batch::new(owner);
        let (mut tells, mut audits) = (BTreeMap::new(), Vec::new());
        for (partition, draft) in self.partitions {
            let PartitionDraft {
                inserts,
                mut instant,
                updates,
                ends,
                ended,
                audit,
                mut tell,
                ..
            } = draft;
            let alive = |dispatch: &Dispatch| {
                let id = dispatch.execution_id;
                !instant.contains_key(&id) && !ended.contains(&id)
            };
            tell.dispatches.retain(alive);
            tell.redispatches.retain(alive);
            for new in inserts {
                match instant.remove(&new.id) {
                    Some(outcome) => batch.instant.push((new, outcome)),
                    None => batch.inserts.push(new),
                }
            }
            batch.updates.extend(updates.into_values());
            batch.ends.extend(ends);
            audits.push((partition, audit));
            tells.insert(partition, tell);
        }
        let mut round = Round {
            batch,
            tells,
            audits,
        };
        round.gather_audit();
        round
    }
}

/// One round, ready to be committed.
pub struct Round {
    /// Without fences and totals, which its owner adds.
    pub batch: Batch,
    tells: BTreeMap<PartitionId, Tell>,
    /// An entry does not say to which partition it belongs.
    audits: Vec<(PartitionId, Vec<NewAudit>)>,
}

impl Round {
    /// Makes the commit check the epoch of each partition that it writes, and carry the totals of
    /// each queue that it changes. `owned` finds the partitions that this owner has; what was
    /// decided about others is dropped.
    pub fn fence<'a>(&mut self, owned: impl Fn(PartitionId) -> Option<&'a PartitionCore>) {
        let (mut fences, mut totals, mut foreign) = (Vec::new(), Vec::new(), Vec::new());
        for (partition, touched) in self.touched() {
            let Some(core) = owned(partition) else {
                foreign.push(partition);
                continue;
            };
            fences.push((partition, core.epoch()));
            totals.extend(touched.iter().map(|id| (*id, core.totals(*id))));
        }
        for partition in foreign {
            self.drop_partition(partition);
        }
        self.batch.fences = fences;
        self.batch.totals = totals;
    }

    /// Forgets a partition that is no longer owned: its messages come again, to its owner.
    pub fn drop_partition(&mut self, partition: PartitionId) {
        self.tells.remove(&partition);
        self.audits.retain(|(owner, _)| *owner != partition);
        self.gather_audit();
        self.batch
            .inserts
            .retain(|new| new.id.partition() != partition);
        self.batch
            .instant
            .retain(|(new, _)| new.id.partition() != partition);
        self.batch
            .updates
            .retain(|update| update.id.partition() != partition);
        self.batch
            .ends
            .retain(|end| end.id.partition() != partition);
    }

    fn gather_audit(&mut self) {
        let entries = self.audits.iter().flat_map(|(_, entries)| entries);
        self.batch.audit = entries.cloned().collect();
    }

    /// Whether it changes nothing and acknowledges nothing. Acknowledging alone is checked by a
    /// commit too: an owner that lost its partition must not make messages vanish.
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty() && self.tells.values().all(|tell| tell.acks.is_empty())
    }

    /// The queues that the round changed, by partition.
    pub fn touched(&self) -> impl Iterator<Item = (PartitionId, &BTreeSet<ActionId>)> {
        self.tells
            .iter()
            .map(|(partition, tell)| (*partition, &tell.touched))
    }

    /// What is to be told, with the bodies of the executions that this round accepted.
    pub fn into_tell(self) -> (Tell, HashMap<ExecutionId, Submission>) {
        let mut all = Tell::default();
        for tell in self.tells.into_values() {
            all.dispatches.extend(tell.dispatches);
            all.redispatches.extend(tell.redispatches);
            all.cancels.extend(tell.cancels);
            all.answers.extend(tell.answers);
            all.dead_letters.extend(tell.dead_letters);
            all.counts.extend(tell.counts);
            all.touched.extend(tell.touched);
            all.acks.extend(tell.acks);
        }
        let bodies = self
            .batch
            .inserts
            .into_iter()
            .map(|new| (new.id, new.submission))
            .collect();
        (all, bodies)
    }
}

impl PartitionDraft {
    fn add(&mut self, effect: Effect) {
        match effect {
            Effect::Insert(new) => {
                self.inserted.insert(new.id, self.inserts.len());
                self.inserts.push(*new);
            }
            Effect::Update(update) => self.update(update),
            Effect::End(end) => self.end(*end),
            Effect::Dispatch(dispatch) => self.tell.dispatches.push(dispatch),
            Effect::Redispatch(dispatch) => self.tell.redispatches.push(dispatch),
            Effect::CancelRun {
                execution_id,
                attempt,
            } => {
                self.tell.cancels.push((execution_id, attempt));
            }
            Effect::Answer { reply_to, answer } => self.tell.answers.push((reply_to, answer)),
            Effect::DeadLetter { submission, reject } => {
                self.tell.dead_letters.push((submission, reject));
            }
            Effect::Audit(entry) => self.audit.push(*entry),
            Effect::Touched(action_id) => {
                self.tell.touched.insert(action_id);
            }
            Effect::Count(counter) => self.tell.counts.push(counter),
        }
    }

    fn update(&mut self, update: Update) {
        if let Some(index) = self.inserted.get(&update.id) {
            // Only a grant can follow an acceptance in the same round: nobody knows the id of
            // the execution yet, so nobody can ask to cancel it.
            let new = &mut self.inserts[*index];
            new.status = update.status.unwrap_or(new.status);
            new.attempt = update.attempt;
            new.grant_no = update.grant_no.or(new.grant_no);
            return;
        }
        match self.updates.get_mut(&update.id) {
            Some(earlier) => {
                earlier.status = update.status.or(earlier.status);
                earlier.attempt = update.attempt;
                earlier.grant_no = update.grant_no.or(earlier.grant_no);
                earlier.cancel_requested |= update.cancel_requested;
            }
            None => {
                self.updates.insert(update.id, update);
            }
        }
    }

    fn end(&mut self, end: End) {
        if self.inserted.contains_key(&end.id) {
            self.instant.insert(end.id, end.outcome);
            return;
        }
        self.updates.remove(&end.id);
        self.ended.insert(end.id);
        self.ends.push(end);
    }
}
