//! What the store refuses is written again.
//!
//! Nothing of it was written, and nothing of it can come late: the same is written again in the same
//! epoch, each partition by itself, after a pause that grows. Nothing else is decided about the
//! partition meanwhile, and its messages stay where they are.

use std::sync::Arc;

use attune_core::{Bug, Epoch, PartitionId};

use super::backoff::{Backoff, Chance};
use super::operating::REFUSALS;
use super::{Call, Failure, Notice, Owner, Purpose, Reply, Trouble};
use crate::counters::Counter;
use crate::queue::Millis;
use crate::round::{Commit, Round};

/// A round about one partition that the store refused, to be written again.
#[derive(Debug)]
pub(super) struct Rewrite {
    round: Box<Round>,
    /// When, unless it is being written.
    pub(super) at: Option<Millis>,
    /// When it was sent to the store last.
    sent: Millis,
    backoff: Backoff,
    /// How often it was refused.
    refusals: u32,
    pub(super) since: Millis,
    pub(super) why: String,
}

impl Rewrite {
    /// A round that is to be written at once, and why it was not.
    pub(super) fn new(now: Millis, round: Round, why: String) -> Self {
        Self {
            round: Box::new(round),
            at: Some(now),
            sent: now,
            backoff: Backoff::new(100, 2_000),
            refusals: 0,
            since: now,
            why,
        }
    }

    /// It was refused: it is to be written again in so many milliseconds.
    pub(super) fn put_off(
        &mut self,
        now: Millis,
        failure: &Failure,
        chance: &mut Chance,
    ) -> Millis {
        self.refusals += 1;
        let again_in = self.backoff.next_delay(chance);
        self.at = Some(now + again_in);
        self.why.clone_from(&failure.words);
        again_in
    }

    /// What keeps it from being written, for whoever looks at its partition.
    pub(super) fn trouble(&self, now: Millis) -> Option<(PartitionId, Epoch, Trouble)> {
        let (partition, epoch) = self.fence()?;
        let trouble = Trouble {
            for_ms: now - self.since,
            words: self.why.clone(),
        };
        Some((partition, epoch, trouble))
    }

    /// What is written.
    pub(super) fn commit(&self) -> Arc<Commit> {
        Arc::clone(&self.round.commit)
    }

    pub(super) fn round(&self) -> &Round {
        &self.round
    }

    pub(super) fn into_round(self) -> Round {
        *self.round
    }

    pub(super) fn wake_at(&self) -> Option<Millis> {
        self.at
    }

    /// The partition that it writes, and in which epoch.
    pub(super) fn fence(&self) -> Option<(PartitionId, Epoch)> {
        self.round.commit.batch.fences.first().copied()
    }
}

impl Owner {
    /// Nothing of a round was written, for a reason that may last; the store has said so after `took`
    /// milliseconds.
    pub(super) fn refused(&mut self, now: Millis, round: Round, failure: &Failure, took: Millis) {
        self.count(Counter::CommitRefused);
        if Bug::ReloadStorm.is_planted() {
            return self.unknown(now, &round, Reply::Failed(failure.clone()));
        }
        let mut unwritten = Vec::new();
        for mut round in round.split() {
            let partition = round.tells.keys().next().copied();
            let Some(partition) = partition.filter(|id| self.is_current(&round, *id)) else {
                continue;
            };
            if self.is_too_much(took, &round) {
                self.unknown(now, &round, Reply::Failed(failure.clone()));
                continue;
            }
            self.set_aside(now, partition, &mut round, failure);
            if round.is_empty() {
                unwritten.push(round);
                continue;
            }
            let mut rewrite = Rewrite::new(now, round, String::new());
            let again_in = rewrite.put_off(now, failure, &mut self.chance);
            self.say(Notice::CommitRefused {
                partitions: vec![partition],
                failure: failure.clone(),
                again_in,
            });
            self.rewrites.insert(partition, rewrite);
        }
        // Only now: whoever tells must know of which partitions nothing may be told.
        for round in unwritten {
            self.tell_unwritten(now, round);
        }
    }

    /// Whether a round may be more than the store can write in time: its partition is loaded again then, and
    /// decides in smaller ones. A page of an operation is tried again in parts besides.
    fn is_too_much(&mut self, took: Millis, round: &Round) -> bool {
        let is_so = self
            .steps
            .is_too_much(took, round.commit.executions().count());
        if is_so && !round.commit.batch.progress.is_empty() {
            self.divide_pages(&round.commit);
        }
        is_so
    }

    /// Writes again what was refused.
    pub(super) fn go_on_rewriting(&mut self, now: Millis) {
        let due: Vec<PartitionId> = self
            .rewrites
            .iter()
            .filter(|(_, rewrite)| rewrite.at.is_some_and(|at| at <= now))
            .map(|(partition, _)| *partition)
            .collect();
        if !self.is_trusted(now) {
            return;
        }
        for partition in due {
            if let Some(rewrite) = self.rewrites.get_mut(&partition)
                && let Some((partition, epoch)) = rewrite.fence()
            {
                (rewrite.at, rewrite.sent) = (None, now);
                let call = Call::Commit(rewrite.commit());
                self.call(Purpose::Rewrite(partition, epoch), call);
            }
        }
    }

    /// The store has answered what was written again in an epoch.
    pub(super) fn rewritten(
        &mut self,
        now: Millis,
        partition: PartitionId,
        epoch: Epoch,
        reply: Reply,
    ) {
        let rewrite = self.rewrites.get(&partition);
        // What is written in a later epoch is not what was answered.
        if rewrite.and_then(Rewrite::fence) != Some((partition, epoch)) {
            return;
        }
        let Some(mut rewrite) = self.rewrites.remove(&partition) else {
            return;
        };
        match reply {
            Reply::Committed(bodies) => {
                self.sweep.note(rewrite.round.commit.executions());
                self.operating.written(&rewrite.round.commit);
                self.tell(now, *rewrite.round, bodies);
            }
            Reply::Fenced(lost) => self.fenced(&rewrite.round, &lost),
            Reply::Failed(failure) if failure.refused => {
                self.count(Counter::CommitRefused);
                if self.is_too_much(now - rewrite.sent, &rewrite.round) {
                    return self.unknown(now, &rewrite.round, Reply::Failed(failure));
                }
                let again_in = rewrite.put_off(now, &failure, &mut self.chance);
                let commit = &rewrite.round.commit;
                if rewrite.refusals > REFUSALS && !commit.batch.progress.is_empty() {
                    // It may be the operation that the store does not take, and memory has carried it
                    // out: only loading again takes that back.
                    self.hold_operations_off(now, commit, &failure.words);
                    return self.unknown(now, &rewrite.round, Reply::Failed(failure));
                }
                self.say(Notice::CommitRefused {
                    partitions: vec![partition],
                    failure,
                    again_in,
                });
                self.rewrites.insert(partition, rewrite);
            }
            reply => self.unknown(now, &rewrite.round, reply),
        }
    }
}
