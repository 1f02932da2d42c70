//! The order among the executions of one action that wait and may have a slot: by priority, then
//! by sequence.
//!
//! Each priority is a lane of its own. Nearly every execution comes in the order in which it was
//! accepted, so a lane is a plain row: joining the end and taking the head cost a constant,
//! finding one in the middle a binary search, and taking one from the middle leaves a gap that
//! the head steps over. The few that come out of order (a retry keeps its early place, a delayed
//! start becomes eligible late) stand beside the row in a map.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use attune_core::{Attempt, ExecutionId, Priority, Seq};

use crate::queue::{Millis, Waiting};

/// One place in the row of a lane.
#[derive(Debug, Clone, Copy)]
struct Place {
    execution_id: ExecutionId,
    seq: Seq,
    enqueued_at: Millis,
    delayed: bool,
    /// Who stood here was taken out.
    gone: bool,
}

impl Place {
    fn waiting(self) -> Waiting {
        Waiting {
            execution_id: self.execution_id,
            seq: self.seq,
            enqueued_at: self.enqueued_at,
            attempt: Attempt(0),
            delayed: self.delayed,
        }
    }
}

/// Who waits with one priority.
#[derive(Debug, Clone)]
struct Lane {
    priority: Priority,
    /// By rising sequence and never falling time of acceptance; each waits for its first slot.
    /// Its first place is never a gap.
    row: VecDeque<Place>,
    /// How many places of the row are gaps.
    gaps: usize,
    /// Who came out of order.
    late: BTreeMap<Seq, Waiting>,
    /// Those of `late` that can expire, by the time since which they wait.
    late_expiry: BTreeSet<(Millis, Seq)>,
}

impl Lane {
    fn new(priority: Priority) -> Self {
        Self {
            priority,
            row: VecDeque::new(),
            gaps: 0,
            late: BTreeMap::new(),
            late_expiry: BTreeSet::new(),
        }
    }

    fn len(&self) -> usize {
        self.row.len() - self.gaps + self.late.len()
    }

    fn is_empty(&self) -> bool {
        self.row.is_empty() && self.late.is_empty()
    }

    /// Whether a waiting execution belongs at the end of the row.
    fn is_next(&self, waiting: &Waiting) -> bool {
        let last = self.row.back();
        waiting.attempt == Attempt(0)
            && last.is_none_or(|last| {
                last.seq < waiting.seq && last.enqueued_at <= waiting.enqueued_at
            })
            && self
                .late
                .last_key_value()
                .is_none_or(|(seq, _)| *seq < waiting.seq)
    }

    fn insert(&mut self, waiting: Waiting) {
        if self.is_next(&waiting) {
            self.row.push_back(Place {
                execution_id: waiting.execution_id,
                seq: waiting.seq,
                enqueued_at: waiting.enqueued_at,
                delayed: waiting.delayed,
                gone: false,
            });
            return;
        }
        // Who has held a slot and waits again, because its worker was lost, does not expire: its
        // first slot came in time.
        if waiting.attempt == Attempt(0) {
            self.late_expiry.insert((waiting.enqueued_at, waiting.seq));
        }
        self.late.insert(waiting.seq, waiting);
    }

    fn first(&self) -> Option<Waiting> {
        let late = self.late.first_key_value().map(|(_, waiting)| *waiting);
        let row = self.row.front().map(|place| place.waiting());
        match (row, late) {
            (Some(row), Some(late)) if late.seq < row.seq => Some(late),
            (None, late) => late,
            (row, _) => row,
        }
    }

    fn remove(&mut self, seq: Seq) -> Option<Waiting> {
        if let Some(waiting) = self.late.remove(&seq) {
            self.late_expiry.remove(&(waiting.enqueued_at, seq));
            return Some(waiting);
        }
        // Nearly always the head, whose place is known: a search through a long row visits memory that
        // nobody has looked at for long.
        let is_head = self.row.front().is_some_and(|place| place.seq == seq);
        let index = if is_head {
            0
        } else {
            self.row
                .binary_search_by_key(&seq, |place| place.seq)
                .ok()?
        };
        let place = &mut self.row[index];
        if place.gone {
            return None;
        }
        place.gone = true;
        let waiting = place.waiting();
        self.gaps += 1;
        self.close_gaps();
        Some(waiting)
    }

    /// Drops the gaps at the head, and all of them when most places are gaps.
    fn close_gaps(&mut self) {
        while self.row.front().is_some_and(|place| place.gone) {
            self.row.pop_front();
            self.gaps -= 1;
        }
        if self.gaps > 64 && self.gaps * 2 > self.row.len() {
            self.row.retain(|place| !place.gone);
            self.gaps = 0;
        }
    }

    /// Who of this lane expires first, and since when it waits.
    fn first_to_expire(&self) -> Option<(Millis, Seq)> {
        let row = self.row.front().map(|place| (place.enqueued_at, place.seq));
        let late = self.late_expiry.first().copied();
        row.into_iter().chain(late).min()
    }

    /// How many places of the row stand before a place, gaps among them, and whether somebody
    /// stands there.
    fn find(&self, seq: Seq) -> (usize, bool) {
        let at = self.row.partition_point(|place| place.seq < seq);
        let in_row = self
            .row
            .get(at)
            .is_some_and(|place| place.seq == seq && !place.gone);
        (at, in_row || self.late.contains_key(&seq))
    }

    /// How many of this lane stand before a place; `None` when nobody stands there.
    fn rank(&self, seq: Seq) -> Option<usize> {
        let (at, stands) = self.find(seq);
        let late = self.late.range(..seq).count();
        let gaps = if self.gaps == 0 {
            0
        } else {
            self.row.range(..at).filter(|place| place.gone).count()
        };
        stands.then_some(at - gaps + late)
    }

    fn iter(&self) -> impl Iterator<Item = Waiting> + '_ {
        let row = self.row.iter().filter(|place| !place.gone);
        row.map(|place| place.waiting())
            .chain(self.late.values().copied())
    }
}

/// Who waits and may have a slot.
#[derive(Debug, Clone, Default)]
pub(crate) struct Order {
    /// Only the lanes that have been used, the highest priority first: most queues have one.
    lanes: Vec<Lane>,
}

impl Order {
    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.lanes.iter().map(Lane::len).sum()
    }

    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.iter().all(Lane::is_empty)
    }

    /// Inserts at its place.
    pub(crate) fn insert(&mut self, priority: Priority, waiting: Waiting) {
        let index = match self
            .lanes
            .binary_search_by_key(&priority, |lane| lane.priority)
        {
            Ok(index) => index,
            Err(index) => {
                self.lanes.insert(index, Lane::new(priority));
                index
            }
        };
        self.lanes[index].insert(waiting);
    }

    /// How many stand before somebody who comes last of a priority.
    pub(crate) fn before_newest(&self, priority: Priority) -> u64 {
        let lanes = self.lanes.iter();
        let before = lanes.take_while(|lane| lane.priority <= priority);
        before.map(Lane::len).sum::<usize>() as u64
    }

    /// Takes the first in order.
    pub(crate) fn pop_first(&mut self) -> Option<(Priority, Waiting)> {
        let lane = self.lanes.iter_mut().find(|lane| !lane.is_empty())?;
        let first = lane.first()?;
        Some((lane.priority, lane.remove(first.seq)?))
    }

    /// The first of each priority, the highest priority first.
    pub(crate) fn heads(&self) -> impl Iterator<Item = (Priority, Waiting)> + '_ {
        let lanes = self.lanes.iter();
        lanes.filter_map(|lane| Some((lane.priority, lane.first()?)))
    }

    /// Takes one out, wherever it stands.
    pub(crate) fn remove(&mut self, seq: Seq) -> Option<Waiting> {
        self.lanes.iter_mut().find_map(|lane| lane.remove(seq))
    }

    /// Takes one out that has waited for `timeout` or longer.
    pub(crate) fn pop_expired(&mut self, now: Millis, timeout: Millis) -> Option<Waiting> {
        self.lanes.iter_mut().find_map(|lane| {
            let (since, seq) = lane.first_to_expire()?;
            if since.saturating_add(timeout) > now {
                return None;
            }
            lane.remove(seq)
        })
    }

    /// Since when the one waits that expires first.
    pub(crate) fn first_to_expire(&self) -> Option<Millis> {
        let first = self.lanes.iter().filter_map(Lane::first_to_expire);
        first.map(|(since, _)| since).min()
    }

    /// Whether somebody stands at a place.
    pub(crate) fn contains(&self, seq: Seq) -> bool {
        self.lanes.iter().any(|lane| lane.find(seq).1)
    }

    /// How many stand before a place; `None` when nobody stands there.
    pub(crate) fn rank(&self, seq: Seq) -> Option<u64> {
        let mut before = 0;
        for lane in &self.lanes {
            if let Some(rank) = lane.rank(seq) {
                return Some((before + rank) as u64);
            }
            before += lane.len();
        }
        None
    }

    /// Since when the one waits that has waited longest.
    pub(crate) fn oldest(&self) -> Option<Millis> {
        let heads = self.lanes.iter().filter_map(Lane::first);
        let others = self.lanes.iter().filter_map(Lane::first_to_expire);
        let since = heads.map(|head| head.enqueued_at);
        since.chain(others.map(|(since, _)| since)).min()
    }

    /// All that wait, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Waiting> + '_ {
        self.lanes.iter().flat_map(Lane::iter)
    }
}

#[cfg(test)]
#[path = "order_tests.rs"]
mod tests;
