//! What comes back takes along who stands behind it and was not told.
//!
//! Whoever is granted ahead of its slot is begun when a run before it has ended, or where there is none. A worker
//! that has what came back knows that, and gives back what it is told behind it. One that never had it, or that was
//! told meanwhile that it is settled, would begin the next of the action at once, before what came back is granted
//! anew.

use std::collections::BTreeSet;
use std::sync::Arc;

use attune_core::{ActionId, Bug, PartitionId, WorkerId};
use attune_dispatch::Key;

use super::super::Owner;
use crate::partition::{Event, Grantee};

/// Why those come back.
const WHY: &str = "one before it came back";

impl Owner {
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

    fn untold_behind(
        &self,
        id: PartitionId,
        worker: WorkerId,
        back: impl Iterator<Item = Key>,
    ) -> Vec<Key> {
        let Some(partition) = self.partition(id).filter(|_| !Bug::ToldBehind.is_planted()) else {
            return Vec::new();
        };
        let actions: BTreeSet<ActionId> = back
            .filter_map(|key| partition.action_of(worker, key))
            .collect();
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
        behind
            .map(|grantee| (grantee.execution_id, grantee.attempt))
            .collect()
    }
}
