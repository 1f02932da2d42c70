//! Watches counters that others raise, by a clock that only goes forward: what has not moved for
//! long enough is over, whatever any wall clock says.

use std::collections::BTreeMap;

use crate::queue::Millis;

/// What was seen of some counters, and since when each has stood still.
#[derive(Debug)]
pub(super) struct Watch<K, C> {
    seen: BTreeMap<K, Seen<C>>,
    /// When the last look was asked for and answered.
    last: Option<(Millis, Millis)>,
}

#[derive(Debug, Clone, Copy)]
struct Seen<C> {
    counter: C,
    /// When it was known to show this, less the time that does not count.
    since: Millis,
}

impl<K, C> Default for Watch<K, C> {
    fn default() -> Self {
        Self {
            seen: BTreeMap::new(),
            last: None,
        }
    }
}

impl<K: Ord, C: PartialEq> Watch<K, C> {
    /// Takes what was read at some moment from `asked` to `answered`: each counter, and for how
    /// long it counts as having stood still when it is seen for the first time.
    ///
    /// Of the time from one question to the next only `longest` counts: the store did not answer,
    /// so nobody could raise a counter either, or nobody watched.
    pub(super) fn look(
        &mut self,
        (asked, answered): (Millis, Millis),
        longest: Millis,
        counters: impl Iterator<Item = (K, C, Millis)>,
    ) {
        let gap = self.last.map_or(0, |(before, _)| asked - before);
        let unseen = (gap - longest).max(0);
        let mut before = std::mem::take(&mut self.seen);
        let seen = counters.map(|(key, counter, at_first)| {
            let since = match before.remove(&key) {
                Some(seen) if seen.counter == counter => seen.since + unseen,
                Some(_) => answered,
                None => answered - at_first,
            };
            (key, Seen { counter, since })
        });
        self.seen = seen.collect();
        self.last = Some((asked, answered));
    }

    /// For how long a counter is known to have stood still; `None` when it is not there.
    pub(super) fn still_for(&self, key: &K) -> Option<Millis> {
        let (asked, _) = self.last?;
        let seen = self.seen.get(key)?;
        Some((asked - seen.since).max(0))
    }

    /// When the last look that was answered was asked for.
    pub(super) fn looked_at(&self) -> Option<Millis> {
        self.last.map(|(asked, _)| asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Millis = 1_000;

    fn look(watch: &mut Watch<u8, i64>, at: Millis, counters: &[(u8, i64)]) {
        let counters = counters.iter().map(|(key, counter)| (*key, *counter, 0));
        watch.look((at, at + 10), LONGEST, counters);
    }

    #[test]
    fn what_stands_still_is_known_to_from_answer_to_question() {
        let mut watch = Watch::default();
        assert_eq!(watch.looked_at(), None);
        look(&mut watch, 0, &[(1, 7), (2, 7)]);
        assert_eq!(watch.still_for(&1), Some(0));
        look(&mut watch, 500, &[(1, 7), (2, 8)]);
        assert_eq!(watch.looked_at(), Some(500));
        assert_eq!(
            (watch.still_for(&1), watch.still_for(&2)),
            (Some(490), Some(0))
        );
        look(&mut watch, 1_000, &[(1, 7), (2, 8), (3, 0)]);
        assert_eq!(
            (watch.still_for(&1), watch.still_for(&2)),
            (Some(990), Some(490))
        );
        assert_eq!((watch.still_for(&3), watch.still_for(&4)), (Some(0), None));
        look(&mut watch, 1_500, &[(2, 8)]);
        assert_eq!(watch.still_for(&1), None, "it is gone");
        look(&mut watch, 2_000, &[(1, 7)]);
        assert_eq!(watch.still_for(&1), Some(0), "and back");
    }

    #[test]
    fn what_has_stood_still_before_it_was_seen_counts_from_its_first_move_on() {
        let mut watch = Watch::default();
        for (at, counter, expected) in [(0, 7, 5_000), (500, 7, 5_500), (900, 8, 0)] {
            let counters = [(1, counter, 5_010)].into_iter();
            watch.look((at, at + 10), LONGEST, counters);
            assert_eq!(watch.still_for(&1), Some(expected), "at {at}");
        }
    }

    #[test]
    fn a_counter_that_falls_has_moved_too() {
        let mut watch = Watch::default();
        look(&mut watch, 0, &[(1, 7)]);
        look(&mut watch, 900, &[(1, 6)]);
        assert_eq!(watch.still_for(&1), Some(0));
    }

    #[test]
    fn time_in_which_nothing_could_be_seen_does_not_count() {
        let mut watch = Watch::default();
        look(&mut watch, 0, &[(1, 7)]);
        look(&mut watch, 500, &[(1, 7)]);
        look(&mut watch, 40_500, &[(1, 7)]);
        assert_eq!(watch.still_for(&1), Some(1_490));
        look(&mut watch, 41_000, &[(1, 7)]);
        assert_eq!(watch.still_for(&1), Some(1_990));
    }

    /// A question that is answered late is such a time as well: the store stood still, or the clock.
    #[test]
    fn the_time_that_an_answer_takes_does_not_count_either() {
        let mut watch = Watch::default();
        look(&mut watch, 0, &[(1, 7)]);
        let late = [(1, 7, 0)].into_iter();
        watch.look((500, 40_500), LONGEST, late);
        assert_eq!(watch.still_for(&1), Some(490));
        look(&mut watch, 40_500, &[(1, 7)]);
        assert_eq!(watch.still_for(&1), Some(1_490));
    }
}
