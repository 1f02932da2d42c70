//! Whether what is counted of untold grants is what there is.

use std::collections::BTreeMap;

use attune_core::PartitionId;

use super::super::{Owner, Stage};
use super::size;

impl Owner {
    /// What is counted wrongly of that which workers are not told yet, for whoever checks an owner: a partition
    /// that is let go waits for it, and commands wait while it is too much.
    pub fn miscounted(&self) -> Option<String> {
        let parts = self.links.links.values().flat_map(|link| &link.parts);
        let waiting = parts.clone().flat_map(|(_, part)| &part.grants);
        let under_way = self.links.on_the_way.values();
        let bytes = waiting.map(size).sum::<usize>();
        let bytes = bytes + under_way.clone().map(|sent| sent.bytes).sum::<usize>();
        if bytes != self.links.bytes {
            let counted = self.links.bytes;
            return Some(format!(
                "{bytes} bytes wait to be told, and {counted} are counted"
            ));
        }
        let mut untold: BTreeMap<PartitionId, usize> = BTreeMap::new();
        for (id, part) in parts {
            if !self.places.contains_key(id) {
                return Some(format!(
                    "something of {id} waits to be told, which is not held"
                ));
            }
            *untold.entry(*id).or_default() += part.grants.len();
        }
        for (id, epoch, grants) in under_way.flat_map(|sent| &sent.sections) {
            let is_of = self
                .places
                .get(id)
                .is_some_and(|place| place.epoch == *epoch);
            *untold.entry(*id).or_default() += if is_of { grants.len() } else { 0 };
        }
        self.places.iter().find_map(|(id, place)| {
            let is_told = matches!(
                place.stage,
                Stage::Leaving {
                    unsubscribing: true,
                    ..
                }
            );
            let (there, counted) = (untold.get(id).copied().unwrap_or(0), place.untold);
            let words =
                || format!("{there} grants of {id} wait to be told, and {counted} are counted");
            (!is_told && there != counted).then(words)
        })
    }
}
