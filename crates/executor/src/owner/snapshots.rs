//! Publishes the queues as they are: those that changed, those of a partition that is taken over (its
//! last owner may have ended before it had told), and all of them again from time to time, since whoever
//! keeps them may have missed some.

use std::collections::{BTreeSet, HashMap};

use attune_core::{ActionId, PartitionId, Seq};

use super::{Output, Owner, Send, Stage};
use crate::queue::Millis;

/// How many snapshots are published at once.
const MAX_SNAPSHOTS: usize = 2_000;
/// How many times older the snapshot of an idle queue may become than that of one in which somebody
/// waits or runs: there are many of them, and nothing changes.
const IDLE_REFRESH: Millis = 60;

/// What is to be published.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    /// Queues that changed.
    unpublished: BTreeSet<(PartitionId, ActionId)>,
    publish_at: Millis,
    /// Queues that were published, by when they are again.
    due: BTreeSet<(Millis, PartitionId, ActionId)>,
    due_at: HashMap<ActionId, Millis>,
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
        self.due.retain(|(_, of, action_id)| {
            if *of == partition {
                self.due_at.remove(action_id);
            }
            *of != partition
        });
    }

    /// The first of those that are to be published again.
    fn first_due(&self, now: Millis) -> Option<(PartitionId, ActionId)> {
        let (_, id, action_id) = self.due.first().filter(|(at, ..)| *at <= now)?;
        Some((*id, *action_id))
    }

    fn not_due(&mut self, id: PartitionId, action_id: ActionId) {
        if let Some(at) = self.due_at.remove(&action_id) {
            self.due.remove(&(at, id, action_id));
        }
    }

    fn due_again(&mut self, at: Millis, id: PartitionId, action_id: ActionId) {
        self.not_due(id, action_id);
        self.due.insert((at, id, action_id));
        self.due_at.insert(action_id, at);
    }
}

impl Owner {
    pub(super) fn snapshots_are_due(&self, now: Millis) -> bool {
        self.telling.snapshots.first_due(now).is_some()
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

    /// Publishes the queues that changed, at most once per interval, and all others from time to time: a
    /// stale figure shall mean trouble, and none stays so.
    pub(super) fn publish_snapshots(&mut self, now: Millis) {
        while let Some((id, action_id)) = self.telling.snapshots.first_due(now) {
            self.telling.snapshots.not_due(id, action_id);
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
            let is_idle = stats.queue_length + stats.active_count == 0;
            let refresh = self.options.stats_refresh * if is_idle { IDLE_REFRESH } else { 1 };
            let known = &mut self.telling.snapshots;
            known.due_again(now + refresh, id, action_id);
            snapshots.push((version, stats));
        }
        self.telling.snapshots.unpublished.extend(later);
        if !snapshots.is_empty() {
            self.out.push(Output::Send(Send::Snapshots(snapshots)));
        }
    }
}
