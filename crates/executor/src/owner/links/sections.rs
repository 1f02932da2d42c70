//! Cuts what one life is to be told about one partition into sections, each small enough for a message.

use std::collections::{BTreeSet, VecDeque};

use attune_core::{ActionId, Epoch, OwnerId, PartitionId};
use attune_dispatch::{Key, Section, Stream};

use super::super::Dispatch;

/// How many bytes one section has at most, but always one item.
const MAX_SECTION_BYTES: usize = 192 * 1024;
/// What a key takes in a message, in bytes, at most.
const KEY_BYTES: usize = 64;
/// What a message has around the sync of one partition, in bytes, at most.
const FRAME_BYTES: usize = 1_024;
/// The same of an action that is called back.
const ACTION_BYTES: usize = 24;

/// The sections of one partition for one life, while they are made.
pub(super) struct Sections<'a> {
    stream: &'a mut Stream,
    of: (PartitionId, Epoch, OwnerId),
    /// How many bytes a section has at most, but always one item.
    most: usize,
    /// The same of a sync: as many as a message can hold, so that only what no message could hold goes in parts.
    most_of_sync: usize,
    cut: Vec<Section<Dispatch>>,
    section: Section<Dispatch>,
    /// How many bytes the section has.
    bytes: usize,
}

impl<'a> Sections<'a> {
    pub(super) fn new(
        stream: &'a mut Stream,
        of: (PartitionId, Epoch, OwnerId),
        max_message_bytes: usize,
    ) -> Self {
        let most = MAX_SECTION_BYTES.min(max_message_bytes / 4);
        let section = stream.next(of.0, of.1, of.2);
        Self {
            stream,
            of,
            most,
            most_of_sync: most.max(max_message_bytes.saturating_sub(FRAME_BYTES)),
            cut: Vec::new(),
            section,
            bytes: 0,
        }
    }

    /// Whether a section of its own begins with something of so many bytes.
    fn overflows(&self, bytes: usize) -> bool {
        self.bytes > 0 && self.bytes + bytes > self.most
    }

    fn begin_next(&mut self) {
        let (id, epoch, owner) = self.of;
        let next = self.stream.next(id, epoch, owner);
        self.cut.push(std::mem::replace(&mut self.section, next));
        self.bytes = 0;
    }

    /// Makes room for something of so many bytes.
    fn take_room(&mut self, bytes: usize) {
        if self.overflows(bytes) {
            self.begin_next();
        }
        self.bytes += bytes;
    }

    /// Everything that the life holds, in parts where one section cannot hold it.
    pub(super) fn sync(&mut self, mut held: Vec<Key>) {
        held.sort_unstable();
        let mut part: Vec<Key> = Vec::new();
        for key in held {
            let bytes = key_bytes(key);
            if let Some((last, _)) = part.last().copied()
                && self.bytes + bytes > self.most_of_sync
            {
                self.section.sync = Some(std::mem::take(&mut part));
                self.section.sync_to = Some(last);
                self.begin_next();
                self.section.sync_after = Some(last);
            }
            self.bytes += bytes;
            part.push(key);
        }
        self.section.sync = Some(part);
    }

    pub(super) fn settled(&mut self, keys: &mut Vec<Key>) {
        for key in keys.drain(..) {
            self.take_room(KEY_BYTES);
            self.section.settled.push(key);
        }
    }

    /// Grants in the order in which they were decided, until they have so many bytes; how many they have.
    /// `is_alone` tells which go in a section of their own.
    pub(super) fn grants(
        &mut self,
        grants: &mut VecDeque<Dispatch>,
        most: usize,
        is_alone: impl Fn(&Dispatch) -> bool,
    ) -> usize {
        let mut bytes = 0;
        while let Some(grant) = grants.pop_front_if(|_| bytes < most) {
            let many = size(&grant);
            let is_alone = is_alone(&grant);
            self.take_room(if is_alone { self.most } else { many });
            bytes += many;
            self.section.grants.push(grant);
        }
        bytes
    }

    /// What is to be ended and called back: behind every grant that was decided before.
    pub(super) fn calls(&mut self, cancel: &mut Vec<Key>, recall: &mut BTreeSet<ActionId>) {
        for key in cancel.drain(..) {
            self.take_room(KEY_BYTES);
            self.section.cancel.push(key);
        }
        for action_id in std::mem::take(recall) {
            self.take_room(ACTION_BYTES);
            self.section.recall.push(action_id);
        }
    }

    pub(super) fn finish(self) -> Vec<Section<Dispatch>> {
        let mut sections = self.cut;
        sections.push(self.section);
        sections
    }
}

/// What a key takes in a message, in bytes, with the comma behind it.
fn key_bytes((execution_id, attempt): Key) -> usize {
    let digits = |number: u64| number.checked_ilog10().map_or(1, |log| log as usize + 1);
    let around = r#"{"execution_id":,"attempt":},"#.len();
    around + digits(execution_id.0.unsigned_abs()) + digits(attempt.0.unsigned_abs().into())
}

/// What a grant takes in a message, in bytes, at most.
pub(super) fn size(dispatch: &Dispatch) -> usize {
    dispatch.body.parameters.get().len() + dispatch.grantee.action.spec.dispatch_bytes() + 512
}

#[cfg(test)]
#[path = "sections_tests.rs"]
mod tests;
