//! What comes back takes along who stands behind it and was not told.
//!
//! Whoever is granted ahead of its slot is begun when a run before it has ended, or where there is none. A worker
//! that has what came back knows that, and gives back what it is told behind it. One that never had it, or that was
//! told meanwhile that it is settled, would begin the next of the action at once, before what came back is granted
//! anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use attune_core::{ActionId, Bug, PartitionId, WorkerId};
use attune_dispatch::Key;

use super::super::Owner;
use super::Part;
use crate::partition::{Event, Grantee};

/// Why those come back.
const WHY: &str = "one before it came back";

impl Owner {
    /// Forgets what was taken back before it was told, for the last time, since nobody knows later what of a
    /// partition is granted; and all whose parameters are not read, with those behind them. The next owner's sync
    /// names them.
    pub(in crate::owner) fn drop_what_was_taken_back(&mut self, id: PartitionId) {
        let links = self.links.links.iter_mut();
        let parts = links.filter_map(|(worker, link)| Some((*worker, link.parts.remove(&id)?)));
        let parts: Vec<(WorkerId, Part)> = parts.collect();
        for (worker, mut part) in parts {
            self.drop_taken_back(id, worker, &mut part);
            let link = self.links.links.get_mut(&worker);
            if let Some(link) = link.filter(|_| !part.is_empty()) {
                link.parts.insert(id, part);
            }
        }
        self.telling.again.forget(id);
    }

    /// Adds to what comes back everybody of the same actions who was granted ahead of a slot to the same life and
    /// is not told yet. To be done when it is decided on: who was granted meanwhile stands behind it as well.
    pub(in crate::owner) fn add_untold(&self, id: PartitionId, event: &mut Event) {
        match event {
            Event::Returned { worker, grants } => {
                let untold = self.untold_behind(id, *worker, grants.iter().map(|(key, _)| *key));
                if !untold.is_empty() {
                    let why: Arc<str> = Arc::from(WHY);
                    grants.extend(untold.into_iter().map(|key| (key, Arc::clone(&why))));
                }
            }
            Event::Bounced { worker, grants } => {
                grants.extend(self.untold_behind(id, *worker, grants.iter().copied()));
            }
            _ => {}
        }
    }

    /// From how many lives something has come back that is decided on in this round: until then nobody is granted
    /// ahead to them, for that one would not be told either, and is in no link yet.
    pub(in crate::owner) fn note_returns(&mut self, open: &[PartitionId]) {
        let mut returns: BTreeMap<PartitionId, BTreeMap<WorkerId, usize>> = BTreeMap::new();
        for (id, event) in &self.pending {
            if let Event::Returned { worker, .. } | Event::Bounced { worker, .. } = event {
                let of_partition = returns.entry(*id).or_default();
                *of_partition.entry(*worker).or_default() += 1;
            }
        }
        for id in open {
            if let Some(returns) = returns.remove(id)
                && let Some(partition) = self.partition_mut(*id)
            {
                partition.expects(returns);
            }
        }
    }

    fn untold_behind(
        &self,
        id: PartitionId,
        worker: WorkerId,
        back: impl Iterator<Item = Key>,
    ) -> Vec<Key> {
        let Some(partition) = self.partition(id).filter(|_| !Bug::ToldBehind.is_planted()) else {
            return Vec::new();
        };
        let back: BTreeSet<Key> = back.collect();
        let actions: BTreeSet<ActionId> = back
            .iter()
            .filter_map(|key| partition.action_of(worker, *key))
            .collect();
        if actions.is_empty() {
            return Vec::new();
        }
        let link = self.links.links.get(&worker);
        let part = link.and_then(|link| link.parts.get(&id));
        let unsent = part.into_iter().flat_map(|part| &part.grants);
        let unsent = unsent.map(|dispatch| &dispatch.grantee);
        let unread = actions.iter();
        let unread = unread.flat_map(|action_id| self.telling.again.of_action(*action_id));
        let is_behind = |grantee: &&Grantee| {
            grantee.worker == worker
                && grantee.slots.is_some()
                && actions.contains(&grantee.action.id)
        };
        let behind = unsent.chain(unread).filter(is_behind);
        let behind = behind.map(Grantee::key);
        behind.filter(|key| !back.contains(key)).collect()
    }
}
