//! What workers say of what they were granted. Each thing is said until it is settled, or asked for again, so
//! that a report may be lost, and may come to who owns the partition no longer.

use std::collections::BTreeMap;
use std::sync::Arc;

use attune_core::{PartitionId, WorkerId};
use attune_dispatch::Key;

use super::Owner;
use crate::counters::Counter;
use crate::partition::{Event, Partition};
use crate::queue::Millis;

/// How long a worker that has given something back is granted nothing: longer than what it was sent before, and
/// what it says of that, are on their way as a rule.
const REST: Millis = 100;

/// What a worker has said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    /// Which life of it.
    pub worker: WorkerId,
    /// The user of the broker who says so, where somebody vouches for it.
    pub user: Option<Arc<str>>,
    /// How many grants of others it has that have not ended.
    pub elsewhere: u32,
    /// Everything of this owner's partitions that it gives back and that is not settled, with the reasons.
    pub returned: Vec<(Key, Arc<str>)>,
    /// What of that comes back for want of a key, and the ids of the keys.
    pub lacks_keys: Vec<(Key, Arc<str>)>,
    /// What runs, and for how long.
    pub started: Vec<(Key, Millis)>,
    /// Of which partitions it misses a section.
    pub resync: Vec<PartitionId>,
}

impl Reported {
    /// What says no more than that this life is there.
    pub fn nothing(worker: WorkerId) -> Self {
        Self {
            worker,
            user: None,
            elsewhere: 0,
            returned: Vec::new(),
            lacks_keys: Vec::new(),
            started: Vec::new(),
            resync: Vec::new(),
        }
    }
}

impl Owner {
    /// Takes what workers have said into the next round.
    pub(super) fn reported(&mut self, now: Millis, reports: Vec<Reported>) {
        for report in reports {
            self.take_report(now, report);
        }
    }

    fn take_report(&mut self, now: Millis, report: Reported) {
        let worker = report.worker;
        // Whoever has no lease and holds nothing has nothing to say, and can be named in any number. One that has
        // just come says it again.
        let is_somebody = {
            let roster = self.roster.lock();
            roster.knows(worker) || !roster.held_by(worker).is_empty()
        };
        let user = report.user.as_deref();
        if !is_somebody || !self.is_heard_from(worker, user, Counter::ForbiddenReport) {
            return;
        }
        self.is_heard_of(worker);
        self.roster
            .lock()
            .note_elsewhere(now, worker, report.elsewhere);
        let wall = self.clock.at(now);
        let mut keyless: BTreeMap<PartitionId, Vec<(Key, Arc<str>)>> = BTreeMap::new();
        for (key, lacks) in report.lacks_keys {
            let of_partition = keyless.entry(key.0.partition()).or_default();
            of_partition.push((key, lacks));
        }
        let mut returned: BTreeMap<PartitionId, Vec<(Key, Arc<str>)>> = BTreeMap::new();
        for (key, why) in report.returned {
            returned
                .entry(key.0.partition())
                .or_default()
                .push((key, why));
        }
        for (id, grants) in returned {
            if self.partition(id).is_some() {
                let many = grants.len() as u64;
                self.out.push(super::Output::Count(Counter::Returned, many));
                // What was called back says nothing about its room.
                let is_called = |partition: &Partition| {
                    grants
                        .iter()
                        .all(|(key, _)| partition.is_ahead(worker, *key))
                };
                if !self.partition(id).is_some_and(is_called) {
                    self.roster.lock().rest(worker, now + REST);
                }
                if let Some(grants) = keyless.remove(&id) {
                    let event = Event::LacksKeys { worker, grants };
                    self.pending.push_back((id, event));
                }
                self.pending
                    .push_back((id, Event::Returned { worker, grants }));
            }
        }
        let mut started: BTreeMap<PartitionId, Vec<(Key, Millis)>> = BTreeMap::new();
        for (key, age) in report.started {
            let runs = started.entry(key.0.partition()).or_default();
            runs.push((key, wall - age.max(0)));
        }
        for (id, runs) in started {
            if self.partition(id).is_some() {
                self.pending
                    .push_back((id, Event::Started { worker, runs }));
            }
        }
        for id in report.resync {
            if self.partition(id).is_some() {
                self.links.want_sync(id, worker);
            }
        }
    }

    /// Serves those who stand in line for workers that have room, partitions and actions in turns.
    pub(super) fn serve_lines(&mut self, wall: Millis, draft: &mut crate::round::Draft) {
        let mut turn = self.line_turn;
        let ready = self.roster.lock().ready();
        for (pool, mut partitions) in ready {
            let pool: Arc<str> = Arc::from(pool);
            let after = partitions.partition_point(|id| Some(*id) <= turn);
            partitions.rotate_left(after);
            partitions.retain(|id| self.is_open(*id));
            let mut at = 0;
            while !partitions.is_empty() && self.roster.lock().has_room(&pool) {
                at %= partitions.len();
                let id = partitions[at];
                let Some(partition) = self.partition_mut(id) else {
                    partitions.remove(at);
                    continue;
                };
                if !partition.may_grant() {
                    // It goes on in the next round.
                    self.rounds.go_on();
                    partitions.remove(at);
                    continue;
                }
                let pool = Arc::clone(&pool);
                draft.add(
                    id,
                    partition.step(
                        wall,
                        Event::Room {
                            pool: Arc::clone(&pool),
                        },
                    ),
                );
                turn = Some(id);
                if partition.waited_for().any(|of| of == &*pool) {
                    at += 1;
                } else {
                    partitions.remove(at);
                }
            }
        }
        self.line_turn = turn;
    }
}
