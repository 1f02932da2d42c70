//! Who goes before all others of its action because an operator said so: by sequence, whatever its
//! priority. Few queues have anybody here, and then few.

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{Priority, Seq};

use super::Share;
use crate::queue::{Millis, Waiting};

/// Who waits before all others.
#[derive(Debug, Clone, Default)]
pub(super) struct Front {
    waiting: BTreeMap<Seq, (Priority, Waiting)>,
    /// Those that can expire, by the time since which they wait.
    expiry: BTreeSet<(Millis, Seq)>,
}

impl Front {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn insert(&mut self, priority: Priority, waiting: Waiting) {
        if let Some(since) = waiting.wait_counts_from() {
            self.expiry.insert((since, waiting.seq));
        }
        self.waiting.insert(waiting.seq, (priority, waiting));
    }

    pub(super) fn remove(&mut self, seq: Seq) -> Option<(Priority, Waiting)> {
        let (priority, waiting) = self.waiting.remove(&seq)?;
        self.expiry.remove(&(waiting.eligible_at, seq));
        Some((priority, waiting))
    }

    pub(super) fn get(&self, seq: Seq) -> Option<(Priority, Waiting)> {
        self.waiting.get(&seq).copied()
    }

    pub(super) fn first(&self) -> Option<(Priority, Waiting)> {
        let first = self.waiting.first_key_value();
        first.map(|(_, waiting)| *waiting)
    }

    /// How many stand before a place.
    pub(super) fn before(&self, seq: Seq) -> usize {
        self.waiting.range(..seq).count()
    }

    pub(super) fn set_share(&mut self, seq: Seq, share: Share) -> Option<(Priority, Waiting)> {
        let (priority, waiting) = self.waiting.get_mut(&seq)?;
        waiting.share = share;
        Some((*priority, *waiting))
    }

    pub(super) fn forget_shares(&mut self) {
        let waiting = self.waiting.values_mut();
        waiting.for_each(|(_, waiting)| waiting.share = Share::default());
    }

    pub(super) fn first_to_expire(&self) -> Option<(Millis, Seq)> {
        self.expiry.first().copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Waiting> + '_ {
        self.waiting.values().map(|(_, waiting)| *waiting)
    }
}
