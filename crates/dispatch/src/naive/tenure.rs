//! One of the owners around a life.

use std::collections::BTreeSet;

use attune_core::{Epoch, OwnerId, PartitionId};

use super::Job;
use crate::{Granted, Key, Section, Stream};

/// An owner of one partition in one epoch, which may be over without its knowing.
#[derive(Debug, Clone)]
pub(super) struct Tenure {
    pub(super) partition: PartitionId,
    pub(super) owner: OwnerId,
    pub(super) epoch: Epoch,
    pub(super) stream: Stream,
    /// What is held, by what it knows.
    pub(super) holds: BTreeSet<Key>,
    /// How many sections it has sent.
    pub(super) sent: u64,
    /// What it has to say that became of grants, and to cancel.
    pub(super) settled: Vec<Key>,
    pub(super) cancel: Vec<Key>,
}

impl Tenure {
    /// Sections from what is to be said; with a sync where one is needed, in parts where it is long.
    pub(super) fn sections(&mut self, grants: Vec<Job>) -> Vec<Section<Job>> {
        let needs_sync = self.stream.needs_sync();
        let mut next = || self.stream.next(self.partition, self.epoch, self.owner);
        let (mut sections, mut section) = (Vec::new(), next());
        if needs_sync {
            let held: Vec<Key> = self.holds.iter().copied().collect();
            let most = if self.sent.is_multiple_of(2) {
                1
            } else {
                usize::MAX
            };
            let mut parts = held.chunks(most).peekable();
            section.sync = Some(Vec::new());
            while let Some(part) = parts.next() {
                section.sync = Some(part.to_vec());
                if parts.peek().is_some() {
                    let last = part.last().map(|(id, _)| *id);
                    section.sync_to = last;
                    sections.push(std::mem::replace(&mut section, next()));
                    section.sync_after = last;
                }
            }
        }
        self.holds.extend(grants.iter().map(Granted::key));
        section.settled = std::mem::take(&mut self.settled);
        section.cancel = std::mem::take(&mut self.cancel);
        section.grants = grants;
        self.sent = section.number + 1;
        sections.push(section);
        sections
    }
}
