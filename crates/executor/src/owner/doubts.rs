//! Which of several rows the store refuses to write. It refuses a call as a whole, and one row may be
//! why: those that were refused together are asked for in parts, until the one is left alone.

use std::collections::BTreeMap;

use attune_core::PartitionId;

use crate::queue::Millis;

/// Into so many parts goes what was refused together: with more of them it is found sooner which rows
/// have nothing to do with it, and those are enough to serve all.
const PARTS: usize = 4;

/// What is known of refusals of one kind of call.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    /// Each of these groups was refused together, or what it was a part of. Those refused last stand last.
    suspects: Vec<Vec<PartitionId>>,
    /// Refused by themselves.
    refused: BTreeMap<PartitionId, Refused>,
}

/// A row that the store refuses to write: since when, when it did so last, and why.
#[derive(Debug)]
pub(super) struct Refused {
    since: Millis,
    last: Millis,
    words: String,
}

impl Doubts {
    /// The store has refused these together: at least one of them is why. One alone is refused, and no
    /// suspect any more.
    pub(super) fn refused(&mut self, now: Millis, asked: &[PartitionId], words: &str) {
        for group in &mut self.suspects {
            group.retain(|partition| !asked.contains(partition));
        }
        match asked {
            [partition] => {
                let before = self.refused.get(partition);
                let refused = Refused {
                    since: before.map_or(now, |before| before.since),
                    last: now,
                    words: words.to_owned(),
                };
                self.refused.insert(*partition, refused);
            }
            _ => {
                let parts = asked.chunks(asked.len().div_ceil(PARTS).max(1));
                self.suspects.extend(parts.map(<[_]>::to_vec));
            }
        }
        self.suspects.retain(|group| !group.is_empty());
    }

    /// The store has done what it was asked for this one. Whether it had refused it alone before.
    pub(super) fn is_fine(&mut self, partition: PartitionId) -> bool {
        self.retain(|it| it != partition).is_some()
    }

    /// Forgets whatever is not kept, and says what of it was refused alone.
    pub(super) fn retain(&mut self, keep: impl Fn(PartitionId) -> bool) -> Option<PartitionId> {
        for group in &mut self.suspects {
            group.retain(|partition| keep(*partition));
        }
        self.suspects.retain(|group| !group.is_empty());
        let gone = self
            .refused
            .extract_if(.., |partition, _| !keep(*partition));
        gone.map(|(partition, _)| partition).last()
    }

    /// It is known otherwise which row is why.
    pub(super) fn suspect_none(&mut self) {
        self.suspects.clear();
    }

    /// Whether something is suspected.
    pub(super) fn is_in_doubt(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// When a row was last refused alone.
    pub(super) fn last(&self, partition: PartitionId) -> Option<Millis> {
        self.refused.get(&partition).map(|it| it.last)
    }

    /// Which row has been refused for longest, since when, and why.
    pub(super) fn longest(&self) -> Option<(PartitionId, Millis, &str)> {
        let longest = self.refused.iter().min_by_key(|(_, it)| it.since);
        longest.map(|(partition, it)| (*partition, it.since, it.words.as_str()))
    }

    /// All that were refused alone.
    #[cfg(test)]
    pub(super) fn alone(&self) -> impl ExactSizeIterator<Item = PartitionId> {
        self.refused.keys().copied()
    }

    /// What of this is asked for together, in the order in which it is asked for. What nothing is known
    /// against comes first, and gets on whatever becomes of the others; then come the suspects, and each
    /// that was refused alone, in turns, as a refusal may take long and the others then wait. No group
    /// is empty but, at times, the first.
    pub(super) fn in_turns<T>(
        &self,
        mut asked: Vec<T>,
        partition: impl Fn(&T) -> PartitionId,
    ) -> Vec<Vec<T>> {
        let mut suspects = Vec::new();
        for group in &self.suspects {
            let suspected = asked.extract_if(.., |it| group.contains(&partition(it)));
            suspects.push(suspected.collect::<Vec<T>>());
        }
        suspects.retain(|group| !group.is_empty());
        let alone = asked.extract_if(.., |it| self.last(partition(it)).is_some());
        let mut alone: Vec<T> = alone.collect();
        alone.sort_by_key(|it| self.last(partition(it)));
        let alone = alone.into_iter().map(|it| vec![it]);
        std::iter::once(asked)
            .chain(suspects)
            .chain(alone)
            .collect()
    }
}
