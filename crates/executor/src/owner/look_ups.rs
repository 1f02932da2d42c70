//! What the store is asked before a round decides, and what becomes of work whose look-up fails.
//!
//! A look-up may fail for one partition alone: a row of it cannot be read. So the commands of those that
//! were asked about together wait, and are asked about again one partition at a time, each after a pause
//! that grows, while those of all others go on together. What needs no look-up goes on everywhere: runs
//! end, slots become free and are granted.

mod unheard;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use attune_core::{ActionRef, Bug, Epoch, PartitionId, RequestGap, RequestId};

use self::unheard::Unheard;
use super::backoff::Backoff;
use super::{Delivered, Notice, Owner, Reply, Trouble, Work};
use crate::queue::Millis;

/// A partition whose last look-up failed.
#[derive(Debug)]
struct Unread {
    since: Millis,
    words: String,
    /// When it is looked up again.
    at: Millis,
    backoff: Backoff,
}

/// The partitions whose commands cannot be looked up.
#[derive(Debug, Default)]
pub(super) struct LookUps {
    unread: BTreeMap<PartitionId, Unread>,
    /// When the last look-up was asked for.
    asked: Millis,
    /// The last round looked one partition up alone.
    was_alone: bool,
    unheard: Unheard,
    /// How often a gap was asked for.
    gaps: u64,
}

impl LookUps {
    /// The partition that the next round looks up again, by itself, of those with commands; and whether
    /// one may: never two in a row while others `wait`, as their look-ups may fail slowly.
    fn due(
        &self,
        now: Millis,
        wait: bool,
        has_commands: impl Fn(PartitionId) -> bool,
    ) -> Option<PartitionId> {
        if self.was_alone && wait {
            return None;
        }
        let due = self.unread.iter();
        let due = due.filter(|(id, unread)| unread.at <= now && has_commands(**id));
        due.min_by_key(|(_, unread)| unread.at).map(|(id, _)| *id)
    }

    /// Around which request id the store is to tell a gap at this time.
    pub(super) fn around(wall: Millis) -> RequestId {
        Unheard::around(wall)
    }

    /// The number of a question for a gap, which is asked when a partition was taken.
    pub(super) fn ask_for_gap(&mut self) -> u64 {
        self.gaps += 1;
        self.gaps
    }

    /// The store has told the gap that was asked for under this number.
    pub(super) fn learn(&mut self, asked: u64, gap: RequestGap) {
        self.unheard.learn(asked, gap);
    }

    /// The store is asked now.
    pub(super) fn ask(&mut self, now: Millis) {
        self.asked = now;
    }

    /// Whether a round takes commands of a partition: one that is looked up alone keeps all others out.
    pub(super) fn admits(&self, id: PartitionId, alone: Option<PartitionId>) -> bool {
        let together = Bug::ReadTogether.is_planted();
        alone.map_or_else(|| !self.is_unread(id), |alone| alone == id) || together
    }

    /// Whether the commands of a partition cannot be looked up.
    pub(super) fn is_unread(&self, id: PartitionId) -> bool {
        self.unread.contains_key(&id)
    }

    /// These were looked up.
    pub(super) fn answered(&mut self, work: &[Delivered]) {
        if !self.unread.is_empty() {
            for delivered in work.iter().filter(|it| is_command(it)) {
                self.unread.remove(&delivered.partition);
            }
        }
    }

    pub(super) fn forget(&mut self, id: PartitionId) {
        self.unread.remove(&id);
    }
}

/// Whether something stays behind what cannot be looked up: all commands of a partition keep their order.
fn is_command(delivered: &Delivered) -> bool {
    !matches!(delivered.work, Work::Completions(_)) || Bug::ReadTogether.is_planted()
}

impl Owner {
    /// What the store must be asked before it can be decided.
    pub(super) fn questions(
        &mut self,
        wall: Millis,
        work: &[Delivered],
    ) -> (Vec<RequestId>, Vec<String>) {
        let mut requests = Vec::new();
        let mut actions: HashSet<String> = HashSet::new();
        for delivered in work {
            if let Work::Submits(items) = &delivered.work {
                let ids = items.iter().map(|item| item.request_id);
                requests.extend(ids.filter(|id| !self.look_ups.unheard.note(*id, wall)));
            }
        }
        for delivered in work {
            match &delivered.work {
                Work::Submits(items) => {
                    let partition = self.partition(delivered.partition);
                    for item in items {
                        let action_ref = &item.submission.action_ref;
                        if partition.is_some_and(|it| !it.knows_action(action_ref)) {
                            actions.insert(action_ref.clone());
                        }
                    }
                }
                Work::Changes(items) => {
                    actions.extend(items.iter().map(|(_, action_ref)| action_ref.clone()));
                }
                Work::Completions(_)
                | Work::Cancels(_)
                | Work::Explains(_)
                | Work::Releases(_)
                | Work::Pauses(_)
                | Work::Policies(_)
                | Work::Operations(_) => {}
            }
        }
        actions.retain(|text| ActionRef::check(text).is_ok());
        (requests, actions.into_iter().collect())
    }

    /// What was gathered cannot be decided: the commands wait. Answers the ends of runs among it.
    pub(super) fn look_up_failed(
        &mut self,
        now: Millis,
        work: Vec<Delivered>,
        reply: Reply,
    ) -> Vec<Delivered> {
        let mut words = "the store did not answer".to_owned();
        if let Reply::Failed(failure) = reply {
            words.clone_from(&failure.words);
            self.say(Notice::StoreFailed {
                call: "look up requests",
                failure,
            });
        }
        let (commands, ends): (Vec<_>, Vec<_>) = work.into_iter().partition(is_command);
        let partitions: BTreeSet<PartitionId> = commands.iter().map(|it| it.partition).collect();
        for id in partitions {
            let unread = self.look_ups.unread.entry(id).or_insert_with(|| Unread {
                since: now,
                words: String::new(),
                at: now,
                backoff: Backoff::new(20, 2_000),
            });
            unread.words.clone_from(&words);
            // As long as it took to fail, so that half of the time is the others'.
            let took = now - self.look_ups.asked;
            unread.at = now + unread.backoff.next_delay(&mut self.chance).max(took);
        }
        self.put_back(commands);
        ends
    }

    /// What was gathered waits again, before what came after it.
    pub(super) fn put_back(&mut self, work: Vec<Delivered>) {
        for delivered in work.into_iter().rev() {
            let place = self.places.get_mut(&delivered.partition);
            let Some(place) = place.filter(|place| place.subscription == delivered.subscription)
            else {
                continue;
            };
            place.mailbox.push_front(delivered);
        }
    }

    /// The partition that the next round looks up alone, if any.
    pub(super) fn alone(&mut self, now: Millis) -> Option<PartitionId> {
        let mut others = self.places.keys();
        let wait = others.any(|id| !self.look_ups.is_unread(*id) && self.has_commands(*id));
        let due = self.look_ups.due(now, wait, |id| self.has_commands(id));
        self.look_ups.was_alone = due.is_some();
        due
    }

    /// Whether a partition has commands that may be decided.
    pub(super) fn has_commands(&self, id: PartitionId) -> bool {
        let place = self.places.get(&id);
        place.is_some_and(|place| !place.mailbox.commands.is_empty()) && self.is_open(id)
    }

    /// When something is looked up again.
    pub(super) fn look_up_at(&self) -> Option<Millis> {
        let unread = self.look_ups.unread.iter();
        let unread = unread.filter(|(id, _)| self.has_commands(**id));
        unread.map(|(_, unread)| unread.at).min()
    }

    /// The partitions for which nothing is accepted because what it needs cannot be looked up; in which
    /// epochs, and what the store said.
    pub fn unread(&self, now: Millis) -> impl Iterator<Item = (PartitionId, Epoch, Trouble)> + '_ {
        self.look_ups.unread.iter().filter_map(move |(id, unread)| {
            let place = self.places.get(id)?;
            let trouble = Trouble {
                for_ms: now - unread.since,
                words: unread.words.clone(),
            };
            Some((*id, place.epoch, trouble))
        })
    }
}
