//! Nobody waits beside room, and nobody who waits holds anything (I9). When all is calm, who may start and
//! has room in all its limits starts by the event that made the room, or at the time from which on there is
//! room: nobody has to come and look.
//!
//! Room is worked out from what is stored and from when it was, by the right clock: slots from the rows, rates
//! and intervals from the commits of the starts. What an owner cannot know as well as that counts against
//! nobody: a start counts from the answer to its commit, and from the takeover for whoever did not make it.

use std::collections::BTreeMap;

use attune_core::{ActionId, Attempt, Epoch, PartitionId, Promise, Status};

use crate::groups::Words;
use crate::oracle::Violation;
use crate::plan::Time;
use crate::trace::Note;
use crate::world::World;

/// How long who may start may wait when nothing is wrong and nobody of its action is given a slot: a round, and
/// what owners look at in between.
const BOUND: Time = 2_000;
/// How long the answer to a commit may take when nothing is wrong.
const ANSWERED_IN: Time = 1_000;

/// What is remembered of each action.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    /// Since when its owner serves it and nothing is wrong, and the epoch.
    calm: BTreeMap<ActionId, (Time, Epoch)>,
    /// Since when somebody waits beside room.
    since: BTreeMap<ActionId, Time>,
}

impl Idle {
    /// Somebody of an action was given a slot, or a round has done for it as much as one may, and says that the next
    /// one goes on. Whether that ever leads to a slot is for `progress`.
    pub(crate) fn went_on(&mut self, action: ActionId) {
        self.since.remove(&action);
    }
}

impl World {
    /// Sees whether anybody of an action waits beside room; `is_calm` tells that its owner serves it and nothing
    /// is wrong.
    pub(crate) fn watch_idle(&mut self, number: usize, is_calm: bool) {
        let action = self.store.actions[number].id;
        let partition = self.store.actions[number].partition;
        let epoch = Epoch(self.store.leases[usize::from(partition.0)].epoch);
        if !is_calm || self.is_lease_stuck(partition) {
            self.flow.idle.calm.remove(&action);
            self.flow.idle.since.remove(&action);
            return;
        }
        let calm = self
            .flow
            .idle
            .calm
            .entry(action)
            .or_insert((self.now, epoch));
        if calm.1 != epoch {
            *calm = (self.now, epoch);
        }
        let since = calm.0;
        let Some(words) = self.is_idle(number, (since, epoch)) else {
            self.flow.idle.since.remove(&action);
            return;
        };
        let since = *self.flow.idle.since.entry(action).or_insert(self.now);
        if self.now - since > BOUND {
            let words = format!("{words}, and nothing is wrong since {since} ms");
            let violation = Violation::of(Promise::I9, words);
            self.note(Note::Broken(violation.rule));
            self.oracle.blame(self.now, violation);
        }
    }

    /// Whether nothing can be decided about a partition, or nothing is: its lease cannot be renewed. Where
    /// the store takes long to say so, other leases of the same owner run out meanwhile, and it cannot say
    /// that it lets them go.
    fn is_lease_stuck(&self, partition: PartitionId) -> bool {
        let owner_of = |it: PartitionId| self.store.leases[usize::from(it.0)].owner;
        let mut slow = self.lasting.slow_leases(self.now);
        self.lasting.is_unread(partition, self.now)
            || self.lasting.is_broken_lease(partition, self.now)
            || slow.any(|it| owner_of(it) == owner_of(partition))
    }

    fn is_idle(&self, number: usize, (calm, epoch): (Time, Epoch)) -> Option<String> {
        let stored = &self.store.actions[number];
        let owner = self.store.leases[usize::from(stored.partition.0)].owner?;
        let owner = &self.owners[self.owner_of(owner)?];
        let shadow = self.shadows.get(&(stored.partition, epoch))?;
        // Who was not told that it is resumed has time to see it.
        if shadow.hold_of(stored.id).mode.is_some() {
            return None;
        }
        let starts = &self.plan.actions[number].starts;
        let is_open = |words: Words| {
            let slack = (calm, ANSWERED_IN);
            self.rates
                .is_surely_open(stored.id, starts, words, self.now, slack)
        };
        let now = owner.wall(self.now);
        let id = shadow.has_room_and_waits(now, stored.id, &is_open)?;
        Some(format!(
            "{id} may start and has room in all limits of {}",
            stored.id
        ))
    }

    /// What is stored of those that wait: no slot, no time until which a slot is kept, and a worker where they are
    /// granted ahead of their slots, in an attempt of their own.
    pub(crate) fn judge_waiting(&mut self) {
        let rows = self.store.active.iter();
        let mut rows = rows.filter(|(_, row)| row.status == Status::Queued);
        let holding = rows.find(|(_, row)| {
            row.kept_until.is_some() || (row.worker.is_some() && row.attempt == Attempt(0))
        });
        let Some((id, row)) = holding else { return };
        let words = format!(
            "{id} waits and holds something: worker {:?}, kept until {:?}",
            row.worker, row.kept_until
        );
        self.oracle
            .blame(self.now, Violation::of(Promise::I9, words));
    }
}
