//! Publishes the queues as they are: those that changed, and from time to time those in which
//! somebody waits or runs.

use std::collections::{BTreeSet, HashMap};

use attune_core::{ActionId, PartitionId, Seq};

use super::{Output, Owner, Send, Stage};
use crate::queue::Millis;

/// How many snapshots are published at once.
const MAX_SNAPSHOTS: usize = 2_000;

/// What is to be published.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    /// Queues that changed.
    unpublished: BTreeSet<(PartitionId, ActionId)>,
    publish_at: Millis,
    /// Queues that are not idle, by the time of their last snapshot.
    busy: BTreeSet<(Millis, PartitionId, ActionId)>,
    busy_since: HashMap<ActionId, Millis>,
    number: u32,
}

impl Snapshots {
    pub(super) fn wake_at(&self) -> Option<Millis> {
        (!self.unpublished.is_empty()).then_some(self.publish_at)
    }

    pub(super) fn changed(&mut self, queues: impl Iterator<Item = (PartitionId, ActionId)>) {
        self.unpublished.extend(queues);
    }

    /// A partition is served no more.
    pub(super) fn forget(&mut self, partition: PartitionId) {
        self.unpublished.retain(|(of, _)| *of != partition);
        self.busy.retain(|(_, of, action_id)| {
            if *of == partition {
                self.busy_since.remove(action_id);
            }
            *of != partition
        });
    }
}

impl Owner {
    pub(super) fn snapshots_are_due(&self, now: Millis) -> bool {
        let refresh = self.options.stats_refresh;
        self.telling
            .snapshots
            .busy
            .first()
            .is_some_and(|(at, ..)| at + refresh <= now)
    }

    /// Publishes these again: a queue that does not change any more would be shown as it was for ever.
    pub(super) fn snapshots_were_lost(&mut self, queues: &[ActionId]) {
        let places = self
            .places
            .iter()
            .filter_map(|(id, place)| match &place.stage {
                Stage::Serving(partition) => Some((*id, partition)),
                _ => None,
            });
        let lost: Vec<(PartitionId, ActionId)> = places
            .flat_map(|(id, partition)| {
                let here = queues.iter().filter(|it| partition.has_queue(**it));
                here.map(move |action_id| (id, *action_id))
            })
            .collect();
        self.telling.snapshots.changed(lost.into_iter());
    }

    /// Publishes the queues that changed, at most once per interval, and those that somebody
    /// waits or runs in, from time to time: a stale figure shall mean trouble.
    pub(super) fn publish_snapshots(&mut self, now: Millis) {
        while let Some((at, id, action_id)) = self.telling.snapshots.busy.first().copied() {
            if at + self.options.stats_refresh > now {
                break;
            }
            self.telling.snapshots.busy.pop_first();
            self.telling.snapshots.busy_since.remove(&action_id);
            self.telling.snapshots.unpublished.insert((id, action_id));
        }
        // While a round is written, memory is ahead of the store, and may have to go back.
        if !self.may_begin() {
            return;
        }
        if self.telling.snapshots.unpublished.is_empty() || now < self.telling.snapshots.publish_at
        {
            return;
        }
        self.telling.snapshots.publish_at = now + self.options.stats_interval;
        self.telling.snapshots.number = self.telling.snapshots.number.wrapping_add(1);
        let (mut snapshots, mut later) = (Vec::new(), Vec::new());
        while snapshots.len() < MAX_SNAPSHOTS
            && let Some((id, action_id)) = self.telling.snapshots.unpublished.pop_first()
        {
            let Some(partition) = self.partition(id) else {
                continue;
            };
            if self.rewrites.contains_key(&id) {
                later.push((id, action_id));
                continue;
            }
            let version = Seq::new(partition.epoch(), self.telling.snapshots.number).0;
            let Some(stats) = partition.stats(action_id) else {
                continue;
            };
            let known = &mut self.telling.snapshots;
            if let Some(at) = known.busy_since.remove(&action_id) {
                known.busy.remove(&(at, id, action_id));
            }
            if stats.queue_length + stats.active_count > 0 {
                known.busy.insert((now, id, action_id));
                known.busy_since.insert(action_id, now);
            }
            snapshots.push((version, stats));
        }
        self.telling.snapshots.unpublished.extend(later);
        if !snapshots.is_empty() {
            self.out.push(Output::Send(Send::Snapshots(snapshots)));
        }
    }
}
