//! Groups what goes to the same partition into messages.

use std::collections::BTreeMap;

use attune_core::{Attempt, ExecutionId, PartitionId, Status};
use serde_json::value::RawValue;

/// Room for the envelope around the items, in bytes; it takes about 190.
pub(crate) const ENVELOPE_BYTES: usize = 512;

/// Which attempt of which execution, and how it ended.
pub(crate) type Outcome = (ExecutionId, Attempt, Status);

/// The items of one message, with the deliveries they came from.
#[derive(Debug)]
pub(crate) struct Pack {
    pub(crate) partition: PartitionId,
    pub(crate) items: Vec<Box<RawValue>>,
    /// What the items say, in their order.
    pub(crate) outcomes: Vec<Outcome>,
    /// Numbers of deliveries, each once, rising.
    pub(crate) deliveries: Vec<usize>,
    bytes: usize,
}

/// Fills packs one after the other, each partition its own.
#[derive(Debug)]
pub(crate) struct Packer {
    max_items: usize,
    /// Without the envelope.
    max_bytes: usize,
    full: Vec<Pack>,
    open: BTreeMap<PartitionId, Pack>,
}

impl Packer {
    /// Packs of at most `max_items` items in messages of at most `max_bytes`.
    pub(crate) fn new(max_items: usize, max_bytes: usize) -> Self {
        Self {
            max_items,
            max_bytes: max_bytes.saturating_sub(ENVELOPE_BYTES),
            full: Vec::new(),
            open: BTreeMap::new(),
        }
    }

    /// Adds an item of the delivery with this number; the numbers must not fall.
    pub(crate) fn add(
        &mut self,
        partition: PartitionId,
        (item, outcome): (Box<RawValue>, Outcome),
        delivery: usize,
    ) {
        let bytes = item.get().len() + 1;
        let empty = || Pack {
            partition,
            items: Vec::new(),
            outcomes: Vec::new(),
            deliveries: Vec::new(),
            bytes: 0,
        };
        let pack = self.open.entry(partition).or_insert_with(empty);
        let has_room = pack.items.len() < self.max_items && pack.bytes + bytes <= self.max_bytes;
        if !has_room && !pack.items.is_empty() {
            self.full.push(std::mem::replace(pack, empty()));
        }
        pack.items.push(item);
        pack.outcomes.push(outcome);
        pack.bytes += bytes;
        if pack.deliveries.last() != Some(&delivery) {
            pack.deliveries.push(delivery);
        }
    }

    /// All packs; those of one partition in the order in which they were filled.
    pub(crate) fn finish(self) -> Vec<Pack> {
        let mut packs = self.full;
        packs.extend(self.open.into_values());
        packs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(bytes: usize) -> (Box<RawValue>, Outcome) {
        let text = RawValue::from_string(format!("\"{}\"", "x".repeat(bytes - 2))).unwrap();
        (text, (ExecutionId(1), Attempt(1), Status::Succeeded))
    }

    fn shape(packer: Packer) -> Vec<(u16, usize, Vec<usize>)> {
        let packs = packer.finish().into_iter();
        packs
            .map(|pack| (pack.partition.0, pack.items.len(), pack.deliveries))
            .collect()
    }

    #[test]
    fn packs_are_bounded_by_items() {
        let mut packer = Packer::new(2, 1 << 20);
        for (delivery, partition) in [(0, 1), (0, 1), (0, 1), (1, 7), (1, 1), (2, 1)] {
            packer.add(PartitionId(partition), item(10), delivery);
        }
        assert_eq!(
            shape(packer),
            [
                (1, 2, vec![0]),
                (1, 2, vec![0, 1]),
                (1, 1, vec![2]),
                (7, 1, vec![1])
            ]
        );
    }

    #[test]
    fn packs_are_bounded_by_bytes() {
        let mut packer = Packer::new(100, ENVELOPE_BYTES + 202);
        for (delivery, bytes) in [100, 100, 1, 300, 50].into_iter().enumerate() {
            packer.add(PartitionId(0), item(bytes.max(2)), delivery);
        }
        // The third does not fit by one byte; the fourth would fit nowhere and goes alone.
        assert_eq!(
            shape(packer),
            [
                (0, 2, vec![0, 1]),
                (0, 1, vec![2]),
                (0, 1, vec![3]),
                (0, 1, vec![4])
            ]
        );
    }
}
