//! The numbers of the sections from one partition, in one epoch, to one life.

use attune_core::{Epoch, OwnerId, PartitionId};

use crate::section::Section;

/// The owner's end of a stream. It is made with the epoch and ends with it.
#[derive(Debug, Clone, Default)]
pub struct Stream {
    next: u64,
    /// Whether a sync was sent, and nothing was lost since as far as is known.
    is_open: bool,
}

impl Stream {
    /// Whether the next section must begin with a sync: it is the first one, or one before it may be lost.
    pub fn needs_sync(&self) -> bool {
        !self.is_open
    }

    /// A section of it was lost, or may have been: a sync repairs everything.
    pub fn has_lost(&mut self) {
        self.is_open = false;
    }

    /// The next section. Whoever takes it for a stream that [needs one](Self::needs_sync) puts a sync into it,
    /// and sends what it takes in this order.
    pub fn next<G>(&mut self, partition: PartitionId, epoch: Epoch, owner: OwnerId) -> Section<G> {
        let section = Section::new(partition, epoch, self.next, owner);
        self.next += 1;
        self.is_open = true;
        section
    }
}
