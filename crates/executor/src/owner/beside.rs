//! What stands beside the executions of a round, dead letters and entries of the audit log, when
//! the store refuses it.
//!
//! As a rule it is part of the commit of its round. A table that takes nothing must not stop what
//! is decided about executions, so a round that the store refuses is written without it, and it is
//! set aside: it is written by itself, after the rest, again and again, and so is what later rounds
//! add to it.
//! Until it is stored its messages are not acknowledged and nobody is answered: whoever owns the
//! partition next gets the messages again, and decides about them anew.

use std::collections::{BTreeMap, VecDeque};

use attune_core::{Bug, Epoch, PartitionId};

use super::rewriting::Rewrite;
use super::{Call, Failure, Notice, Owner, Purpose, Reply, Trouble};
use crate::queue::Millis;
use crate::round::Round;

/// What was set aside, by partition, in the order in which it came. The first is written, the others
/// follow it.
#[derive(Debug, Default)]
pub(super) struct Beside(BTreeMap<PartitionId, VecDeque<Rewrite>>);

impl Beside {
    /// The partition has another owner, or comes back in another epoch: its messages come again.
    pub(super) fn forget(&mut self, partition: PartitionId) {
        self.0.remove(&partition);
    }

    /// Takes out of a round what stands beside its executions, for partitions of which something is
    /// aside already: it would only be refused once more.
    pub(super) fn take_from(&mut self, now: Millis, round: &mut Round) {
        for (partition, aside) in &mut self.0 {
            if let Some(more) = round.take_beside(*partition) {
                add(aside, now, more);
            }
        }
    }

    /// What cannot be stored, for each partition that it concerns.
    pub(super) fn troubles(
        &self,
        now: Millis,
    ) -> impl Iterator<Item = (PartitionId, Epoch, Trouble)> + '_ {
        let first = self.0.values().filter_map(VecDeque::front);
        first.filter_map(move |rewrite| rewrite.trouble(now))
    }
}

/// Adds a round to a line. After a lost connection the broker gives back what is not acknowledged, and it
/// is decided again: what waits already and is written by the new round, too, goes along with that.
fn add(line: &mut VecDeque<Rewrite>, now: Millis, mut round: Round) {
    let why = line.back().map(|last| last.why.clone());
    let mut since = now;
    let mut rest = VecDeque::with_capacity(line.len() + 1);
    for earlier in line.drain(..) {
        // What is being written stays as it is.
        if earlier.wake_at().is_some() && round.has_beside_of(earlier.round()) {
            since = since.min(earlier.since);
            round.follow(earlier.into_round());
        } else {
            rest.push_back(earlier);
        }
    }
    let mut rewrite = Rewrite::new(now, round, why.unwrap_or_default());
    rewrite.since = since;
    rest.push_back(rewrite);
    *line = rest;
}

impl Owner {
    /// Sets aside what stands beside the executions of a round about one partition that the store
    /// has refused.
    pub(super) fn set_aside(
        &mut self,
        now: Millis,
        of: PartitionId,
        round: &mut Round,
        failure: &Failure,
    ) {
        if Bug::WriteTogether.is_planted() {
            return;
        }
        if let Some(beside) = round.take_beside(of) {
            let rewrite = Rewrite::new(now, beside, failure.words.clone());
            self.beside.0.entry(of).or_default().push_back(rewrite);
            self.could_not_keep(failure.clone());
        }
    }

    /// Whether everything that was decided about executions of a partition is stored. What was set
    /// aside waits for that: the message that is acknowledged after it may hold both.
    fn has_written(&self, partition: PartitionId) -> bool {
        !self.rewrites.contains_key(&partition) && !self.rounds.touches(partition)
    }

    /// When something that was set aside is written.
    pub(super) fn beside_at(&self) -> Option<Millis> {
        self.next_beside().map(|(at, _)| at)
    }

    /// The partition whose turn it is to have something written, and when. One at a time: a table that
    /// somebody has locked holds each try up for as long as the store waits for locks, and rounds need
    /// its connections.
    fn next_beside(&self) -> Option<(Millis, PartitionId)> {
        let first = |line: &VecDeque<Rewrite>| line.front().map(Rewrite::wake_at);
        let mut under_way = self.beside.0.values().filter_map(first);
        if under_way.any(|at| at.is_none()) {
            return None;
        }
        let aside = self.beside.0.iter();
        let aside = aside.filter(|(partition, _)| self.has_written(**partition));
        aside
            .filter_map(|(partition, line)| Some((line.front()?.wake_at()?, *partition)))
            .min()
    }

    /// Writes what was set aside.
    pub(super) fn go_on_with_beside(&mut self, now: Millis) {
        if self.beside.0.is_empty() || !self.is_trusted(now) {
            return;
        }
        let Some((_, partition)) = self.next_beside().filter(|(at, _)| *at <= now) else {
            return;
        };
        let line = self.beside.0.get_mut(&partition);
        if let Some(first) = line.and_then(VecDeque::front_mut)
            && let Some((partition, epoch)) = first.fence()
        {
            first.at = None;
            let call = Call::Commit(first.commit());
            self.call(Purpose::Beside(partition, epoch), call);
        }
    }

    /// The store has answered what was set aside in an epoch.
    pub(super) fn beside_written(
        &mut self,
        now: Millis,
        partition: PartitionId,
        epoch: Epoch,
        reply: Reply,
    ) {
        let Some(aside) = self.beside.0.get_mut(&partition) else {
            return;
        };
        let is_current = |first: &mut Rewrite| first.fence() == Some((partition, epoch));
        let Some(mut first) = aside.pop_front_if(is_current) else {
            return;
        };
        let failure = match reply {
            Reply::Committed(_) => {
                // What waited behind it has not been refused since.
                aside.iter_mut().for_each(|next| next.since = now);
                if aside.is_empty() {
                    self.beside.forget(partition);
                }
                return self.tell_round(now, first.into_round(), Vec::new());
            }
            Reply::Fenced(lost) => return self.fenced(&first.into_round(), &lost),
            Reply::Failed(failure) => failure,
            reply => return self.unknown(now, &first.into_round(), reply),
        };
        // Also when its outcome is unknown: a row that is written twice is one row.
        first.put_off(now, &failure, &mut self.chance);
        aside.push_front(first);
        self.could_not_keep(failure);
    }

    fn could_not_keep(&mut self, failure: Failure) {
        self.say(Notice::StoreFailed {
            call: "keep dead letters or entries of the audit log",
            failure,
        });
    }
}
