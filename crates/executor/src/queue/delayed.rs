//! Executions that may not start before a time: by that time, and found by their place as well.

use std::collections::{BTreeMap, HashMap};

use attune_core::{Priority, Seq};

use super::{Millis, Waiting};
use crate::policy::Share;

/// Who waits for its time.
#[derive(Debug, Clone, Default)]
pub(super) struct Delayed {
    /// By the time from which on each is eligible, then by sequence.
    by_time: BTreeMap<(Millis, Seq), (Priority, Waiting)>,
    /// The time of each, to find it by its place.
    times: HashMap<Seq, Millis>,
}

impl Delayed {
    pub(super) fn len(&self) -> usize {
        self.by_time.len()
    }

    pub(super) fn contains(&self, seq: Seq) -> bool {
        self.times.contains_key(&seq)
    }

    pub(super) fn insert(&mut self, priority: Priority, waiting: Waiting, not_before: Millis) {
        self.by_time
            .insert((not_before, waiting.seq), (priority, waiting));
        self.times.insert(waiting.seq, not_before);
    }

    pub(super) fn remove(&mut self, seq: Seq) -> Option<Waiting> {
        let time = self.times.remove(&seq)?;
        let (_, waiting) = self.by_time.remove(&(time, seq))?;
        Some(waiting)
    }

    /// Says what somebody takes of the limits, once it waits for a slot; false when it is not here.
    pub(super) fn set_share(&mut self, seq: Seq, share: Share) -> bool {
        let time = self.times.get(&seq).copied();
        let entry = time.and_then(|time| self.by_time.get_mut(&(time, seq)));
        entry.map(|(_, waiting)| waiting.share = share).is_some()
    }

    /// Nobody is in a group any more.
    pub(super) fn forget_shares(&mut self) {
        let waiting = self.by_time.values_mut();
        waiting.for_each(|(_, waiting)| waiting.share = Share::default());
    }

    /// Takes one out whose time has come, with that time.
    pub(super) fn pop_due(&mut self, now: Millis) -> Option<(Millis, Priority, Waiting)> {
        let entry = self
            .by_time
            .first_entry()
            .filter(|entry| entry.key().0 <= now)?;
        let ((time, seq), (priority, waiting)) = entry.remove_entry();
        self.times.remove(&seq);
        Some((time, priority, waiting))
    }

    /// When the first becomes eligible.
    pub(super) fn next(&self) -> Option<Millis> {
        self.by_time.first_key_value().map(|((time, _), _)| *time)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Waiting> + '_ {
        self.by_time.values().map(|(_, waiting)| *waiting)
    }
}

#[cfg(test)]
mod tests {
    use attune_core::{Attempt, ExecutionId};

    use super::*;

    fn waiting(n: i64) -> Waiting {
        Waiting {
            execution_id: ExecutionId(n),
            seq: Seq(n),
            enqueued_at: n,
            eligible_at: n,
            attempt: Attempt(0),
            delayed: true,
            share: Share::default(),
        }
    }

    /// The two looks at who waits agree.
    fn check(delayed: &Delayed, expected: &[(Millis, i64)]) {
        let next = expected.iter().map(|(time, _)| *time).min();
        let all: Vec<i64> = delayed
            .iter()
            .map(|waiting| waiting.execution_id.0)
            .collect();
        let expected: Vec<i64> = expected.iter().map(|(_, n)| *n).collect();
        assert_eq!(all, expected, "by time, then by place");
        assert_eq!(delayed.len(), expected.len());
        assert_eq!(delayed.next(), next);
        assert_eq!(delayed.times.len(), expected.len());
    }

    #[test]
    fn who_is_delayed_is_found_by_time_and_by_place() {
        let mut delayed = Delayed::default();
        check(&delayed, &[]);
        for (time, n) in [(50, 4), (30, 7), (50, 2), (40, 9)] {
            delayed.insert(Priority::Normal, waiting(n), time);
        }
        check(&delayed, &[(30, 7), (40, 9), (50, 2), (50, 4)]);
        assert_eq!(delayed.remove(Seq(7)), Some(waiting(7)));
        assert_eq!(delayed.remove(Seq(7)), None, "it is gone");
        assert!(!delayed.contains(Seq(7)) && delayed.contains(Seq(9)));
        assert_eq!(delayed.remove(Seq(1)), None, "it never was there");
        check(&delayed, &[(40, 9), (50, 2), (50, 4)]);
        assert_eq!(delayed.pop_due(39), None);
        let first = delayed.pop_due(50);
        assert_eq!(first, Some((40, Priority::Normal, waiting(9))));
        let second = delayed.pop_due(50);
        assert_eq!(second, Some((50, Priority::Normal, waiting(2))));
        check(&delayed, &[(50, 4)]);
        assert_eq!(delayed.remove(Seq(4)), Some(waiting(4)));
        check(&delayed, &[]);
        assert_eq!(delayed.pop_due(Millis::MAX), None);
    }
}
