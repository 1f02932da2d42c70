//! Executions that may not start before a time: by that time, and found by their place as well.
//!
//! Nearly all come in the order of their places, so they stand in a plain row: 48 bytes each, a place
//! is found by a binary search, and who is taken out leaves a gap until a quarter are gaps. The few
//! that come out of order stand beside it in a map. Nothing here visits all of them but for closing
//! the gaps, which a quarter of them pay for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use attune_core::{Attempt, ExecutionId, Priority, Seq};

use super::{Millis, Waiting};
use crate::policy::Share;

/// Fewer gaps than this are not worth closing.
const FEW_GAPS: usize = 64;

/// One that waits for its time.
#[derive(Debug, Clone, Copy)]
struct Place {
    execution_id: ExecutionId,
    seq: Seq,
    enqueued_at: Millis,
    not_before: Millis,
    attempt: Attempt,
    unbegun: u16,
    /// None where who stood here was taken out: a place has 48 bytes so, and 56 with a mark of its own.
    priority: Option<Priority>,
    delayed: bool,
    share: Share,
}

impl Place {
    /// As it waits for a slot: since its time came, or since `since` where that is said.
    fn waiting(self, front: bool, since: Option<Millis>) -> Waiting {
        Waiting {
            execution_id: self.execution_id,
            seq: self.seq,
            enqueued_at: self.enqueued_at,
            // The time it was not eligible does not count as waiting for a slot.
            eligible_at: since.unwrap_or(self.enqueued_at.max(self.not_before)),
            attempt: self.attempt,
            unbegun: self.unbegun,
            delayed: self.delayed,
            front,
            share: self.share,
        }
    }

    fn is_gone(&self) -> bool {
        self.priority.is_none()
    }
}

/// Who waits for its time.
#[derive(Debug, Clone, Default)]
pub(super) struct Delayed {
    /// By the time from which on each is eligible, then by sequence.
    by_time: BTreeSet<(Millis, Seq)>,
    /// By rising sequence. Its first place is never a gap.
    row: VecDeque<Place>,
    /// How many places of the row are gaps.
    gaps: usize,
    /// Who came when a later place stood in the row already.
    late: BTreeMap<Seq, Place>,
    /// Those that go before all others when their time has come; absent while there are none.
    #[expect(
        clippy::box_collection,
        reason = "every queue has it, and nearly none uses it"
    )]
    front: Option<Box<BTreeSet<Seq>>>,
    /// Since when those wait for a slot whom an owner accepted that was ahead of this one, and of their time;
    /// absent while there are none.
    #[expect(
        clippy::box_collection,
        reason = "every queue has it, and nearly none uses it"
    )]
    since: Option<Box<BTreeMap<Seq, Millis>>>,
}

impl Delayed {
    pub(super) fn len(&self) -> usize {
        self.by_time.len()
    }

    pub(super) fn contains(&self, seq: Seq) -> bool {
        self.late.contains_key(&seq) || self.in_row(seq).is_some()
    }

    /// Who waits for its time at a place, with which priority, and until when.
    pub(super) fn find(&self, seq: Seq) -> Option<(Priority, Waiting, Millis)> {
        let place = match self.late.get(&seq) {
            Some(place) => place,
            None => &self.row[self.in_row(seq)?],
        };
        Some((place.priority?, self.waiting(place), place.not_before))
    }

    /// Where in the row somebody stands.
    fn in_row(&self, seq: Seq) -> Option<usize> {
        let index = self.row.binary_search_by_key(&seq, |place| place.seq);
        index.ok().filter(|index| !self.row[*index].is_gone())
    }

    pub(super) fn insert(&mut self, priority: Priority, waiting: Waiting, not_before: Millis) {
        let seq = waiting.seq;
        let place = Place {
            execution_id: waiting.execution_id,
            seq,
            enqueued_at: waiting.enqueued_at,
            not_before,
            attempt: waiting.attempt,
            unbegun: waiting.unbegun,
            priority: Some(priority),
            delayed: waiting.delayed,
            share: waiting.share,
        };
        self.by_time.insert((not_before, seq));
        if waiting.eligible_at > place.enqueued_at.max(not_before) {
            let since = self.since.get_or_insert_default();
            since.insert(seq, waiting.eligible_at);
        }
        if waiting.front {
            self.front.get_or_insert_default().insert(seq);
        }
        if self.row.back().is_none_or(|last| last.seq < seq) {
            self.row.push_back(place);
        } else {
            self.late.insert(seq, place);
        }
    }

    pub(super) fn remove(&mut self, seq: Seq) -> Option<Waiting> {
        let place = self.take(seq)?;
        self.by_time.remove(&(place.not_before, seq));
        Some(self.leave(place))
    }

    /// Somebody who is here, as it will wait for a slot.
    fn waiting(&self, place: &Place) -> Waiting {
        let since = self.since.as_ref();
        let since = since.and_then(|since| since.get(&place.seq).copied());
        place.waiting(self.is_in_front(place.seq), since)
    }

    /// Somebody who was taken out, as it waits for a slot.
    fn leave(&mut self, place: Place) -> Waiting {
        let since = self.since.as_mut();
        let of_it = since.and_then(|since| since.remove(&place.seq));
        self.since.take_if(|since| since.is_empty());
        place.waiting(self.leave_front(place.seq), of_it)
    }

    /// Says what somebody takes of the limits, once it waits for a slot; false when it is not here.
    pub(super) fn set_share(&mut self, seq: Seq, share: Share) -> bool {
        let place = match self.late.get_mut(&seq) {
            Some(place) => place,
            None => match self.in_row(seq) {
                Some(index) => &mut self.row[index],
                None => return false,
            },
        };
        place.share = share;
        true
    }

    fn is_in_front(&self, seq: Seq) -> bool {
        self.front
            .as_ref()
            .is_some_and(|front| front.contains(&seq))
    }

    /// Somebody is here no longer; whether it goes before all others.
    fn leave_front(&mut self, seq: Seq) -> bool {
        let was_there = self.front.as_mut().is_some_and(|front| front.remove(&seq));
        self.front.take_if(|front| front.is_empty());
        was_there
    }

    /// With which priority somebody waits, and whether it goes before all others then.
    pub(super) fn standing(&self, seq: Seq) -> Option<(Priority, bool)> {
        let place = match self.late.get(&seq) {
            Some(place) => place,
            None => &self.row[self.in_row(seq)?],
        };
        Some((place.priority?, self.is_in_front(seq)))
    }

    /// Lets somebody wait with another priority, and before all others perhaps; false when it is not
    /// here.
    pub(super) fn set_standing(&mut self, seq: Seq, priority: Priority, front: bool) -> bool {
        let place = match self.late.get_mut(&seq) {
            Some(place) => place,
            None => match self.in_row(seq) {
                Some(index) => &mut self.row[index],
                None => return false,
            },
        };
        (place.priority, place.delayed) = (Some(priority), true);
        if front {
            self.front.get_or_insert_default().insert(seq);
        } else {
            self.leave_front(seq);
        }
        true
    }

    /// Nobody is in a group any more.
    pub(super) fn forget_shares(&mut self) {
        let places = self.row.iter_mut().chain(self.late.values_mut());
        places.for_each(|place| place.share = Share::default());
    }

    fn take(&mut self, seq: Seq) -> Option<Place> {
        if let Some(place) = self.late.remove(&seq) {
            return Some(place);
        }
        let index = self.in_row(seq)?;
        let place = self.row[index];
        self.row[index].priority = None;
        self.gaps += 1;
        self.close_gaps();
        Some(place)
    }

    /// Drops the gaps at the head, and all of them when a quarter of the places are gaps.
    fn close_gaps(&mut self) {
        while self.row.front().is_some_and(Place::is_gone) {
            self.row.pop_front();
            self.gaps -= 1;
        }
        if self.gaps > FEW_GAPS && self.gaps * 4 > self.row.len() {
            self.row.retain(|place| !place.is_gone());
            self.gaps = 0;
        }
    }

    /// Takes one out whose time has come, the earliest first.
    pub(super) fn pop_due(&mut self, now: Millis) -> Option<(Priority, Waiting)> {
        let (_, seq) = *self.by_time.first().filter(|(time, _)| *time <= now)?;
        self.by_time.pop_first();
        let place = self.take(seq)?;
        Some((place.priority?, self.leave(place)))
    }

    /// When the first becomes eligible.
    pub(super) fn next(&self) -> Option<Millis> {
        self.by_time.first().map(|(time, _)| *time)
    }

    /// Who becomes eligible when, with which priority, by rising time.
    pub(super) fn by_time(&self) -> impl Iterator<Item = (Millis, Priority, Waiting)> + '_ {
        let by_time = self.by_time.iter();
        by_time.filter_map(|(time, seq)| {
            let (priority, waiting, _) = self.find(*seq)?;
            Some((*time, priority, waiting))
        })
    }

    /// All of them, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Waiting> + '_ {
        let row = self.row.iter().filter(|place| !place.is_gone());
        let places = row.chain(self.late.values());
        places.map(|place| self.waiting(place))
    }
}

#[cfg(test)]
#[path = "delayed_tests.rs"]
mod tests;
