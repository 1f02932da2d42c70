//! The order among the executions of one action that wait and may have a slot: by the key that the
//! [rule](OrderRule) of the action gives them, then by sequence.
//!
//! Each priority is a lane of its own. Within one the order is by sequence, whatever the rule; among the
//! lanes the smallest key of those that stand first goes. Keys never change, and within a lane they
//! never fall, so the rule can change at any time and nothing is sorted again. Nearly every execution comes in the order in which it was
//! accepted, so a lane is a plain row: joining the end and taking the head cost a constant,
//! finding one in the middle a binary search, and taking one from the middle leaves a gap that
//! the head steps over. The few that come out of order (a retry keeps its early place, a delayed
//! start becomes eligible late) stand beside the row in a map.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use attune_core::{Attempt, ExecutionId, OrderRule, Priority, Seq};

use super::front::Front;
use super::{Group, Share};
use crate::queue::{Millis, Waiting};

mod first;

/// One place in the row of a lane, of somebody who waits since it was accepted.
#[derive(Debug, Clone, Copy)]
struct Place {
    execution_id: ExecutionId,
    seq: Seq,
    enqueued_at: Millis,
    // As in `Share`, which would take more room here.
    group: Group,
    cost: u16,
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
            eligible_at: self.enqueued_at,
            attempt: Attempt(0),
            unbegun: 0,
            delayed: self.delayed,
            front: false,
            share: self.share(),
        }
    }

    fn share(self) -> Share {
        Share {
            group: self.group,
            cost: self.cost,
        }
    }

    fn set_share(&mut self, share: Share) {
        (self.group, self.cost) = (share.group, share.cost);
    }
}

/// Where somebody stands among all lanes.
type Key = (i64, Seq);

/// How many places and late ones of a lane are counted one by one for a position that is only told.
const COUNTED: usize = 4096;

/// For how many places a row has room that is kept while nobody stands in it.
const SMALL: usize = 64;

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
            && waiting.eligible_at == waiting.enqueued_at
            && last.is_none_or(|last| {
                last.seq < waiting.seq && last.enqueued_at <= waiting.enqueued_at
            })
            && self.late.last_key_value().is_none_or(|(seq, last)| {
                *seq < waiting.seq && last.enqueued_at <= waiting.enqueued_at
            })
    }

    fn insert(&mut self, mut waiting: Waiting) -> Millis {
        if self.is_next(&waiting) {
            self.row.push_back(Place {
                execution_id: waiting.execution_id,
                seq: waiting.seq,
                enqueued_at: waiting.enqueued_at,
                group: waiting.share.group,
                cost: waiting.share.cost,
                delayed: waiting.delayed,
                gone: false,
            });
            return waiting.enqueued_at;
        }
        if let Some(since) = waiting.wait_counts_from() {
            self.late_expiry.insert((since, waiting.seq));
        }
        waiting.enqueued_at = self.in_line(waiting.seq, waiting.enqueued_at);
        self.late.insert(waiting.seq, waiting);
        waiting.enqueued_at
    }

    /// Says what somebody takes of the limits.
    fn set_share(&mut self, seq: Seq, share: Share) -> Option<Waiting> {
        if let Some(waiting) = self.late.get_mut(&seq) {
            waiting.share = share;
            return Some(*waiting);
        }
        let at = self.row.binary_search_by_key(&seq, |place| place.seq);
        let place = self.row.get_mut(at.ok()?).filter(|place| !place.gone)?;
        place.set_share(share);
        Some(place.waiting())
    }

    fn forget_shares(&mut self) {
        let late = self.late.values_mut();
        late.for_each(|waiting| waiting.share = Share::default());
        let row = self.row.iter_mut();
        row.for_each(|place| place.set_share(Share::default()));
    }

    /// The time of acceptance of somebody at this place. Those of owners whose clocks differed may
    /// contradict the sequence, which is right: nobody was accepted before those who stand before it, or
    /// after those who stand behind it.
    fn in_line(&self, seq: Seq, time: Millis) -> Millis {
        let at = self.row.partition_point(|place| place.seq < seq);
        let in_row = |at: Option<usize>| at.and_then(|at| self.row.get(at));
        let rows = [in_row(at.checked_sub(1)), in_row(Some(at))];
        let [row_before, row_behind] = rows.map(|place| place.map(|place| place.enqueued_at));
        let late_before = self.late.range(..seq).next_back();
        let late_behind = self.late.range(seq..).next();
        let [late_before, late_behind] =
            [late_before, late_behind].map(|late| late.map(|(_, waiting)| waiting.enqueued_at));
        let least = row_before.into_iter().chain(late_before).max();
        let most = row_behind.into_iter().chain(late_behind).min();
        time.min(most.unwrap_or(Millis::MAX))
            .max(least.unwrap_or(Millis::MIN))
    }

    fn key(&self, rule: OrderRule, waiting: &Waiting) -> Key {
        (rule.key(self.priority, waiting.enqueued_at), waiting.seq)
    }

    /// How many of this lane stand before a key.
    fn before(&self, rule: OrderRule, key: Key) -> usize {
        let at = self.row_before(rule, key);
        let late = self.late.values();
        let late = late.take_while(|waiting| self.key(rule, waiting) < key);
        at - self.gaps_before(at) + late.count()
    }

    /// The same, in a bounded time: of a long row with gaps it is an estimate.
    fn about_before(&self, rule: OrderRule, key: Key) -> usize {
        let at = self.row_before(rule, key);
        let gaps = match at {
            0..=COUNTED => self.gaps_before(at),
            _ => self.gaps * at / self.row.len(),
        };
        let late = self.late.values().take(COUNTED);
        let late = late.take_while(|waiting| self.key(rule, waiting) < key);
        at - gaps.min(at) + late.count()
    }

    /// How many places of the row stand before a key, gaps among them.
    fn row_before(&self, rule: OrderRule, key: Key) -> usize {
        let row_key = |place: &Place| (rule.key(self.priority, place.enqueued_at), place.seq);
        self.row.partition_point(|place| row_key(place) < key)
    }

    fn gaps_before(&self, at: usize) -> usize {
        if self.gaps == 0 {
            return 0;
        }
        self.row.range(..at).filter(|place| place.gone).count()
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
            self.late_expiry.remove(&(waiting.eligible_at, seq));
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
        match self.late_expiry.first() {
            None => row,
            Some(late) => Some(row.map_or(*late, |row| row.min(*late))),
        }
    }

    /// When the last in it was accepted.
    fn newest(&self) -> Option<Millis> {
        let row = self.row.back().map(|place| place.enqueued_at);
        let late = self.late.last_key_value();
        row.max(late.map(|(_, waiting)| waiting.enqueued_at))
    }

    /// Who stands at a place.
    fn get(&self, seq: Seq) -> Option<Waiting> {
        if let Some(waiting) = self.late.get(&seq) {
            return Some(*waiting);
        }
        let at = self
            .row
            .binary_search_by_key(&seq, |place| place.seq)
            .ok()?;
        let place = self.row[at];
        (!place.gone).then(|| place.waiting())
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
    /// Who goes before all of them; absent while nobody does.
    front: Option<Box<Front>>,
}

impl Order {
    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.in_front() + self.lanes.iter().map(Lane::len).sum::<usize>()
    }

    /// Whether it takes little memory, whoever stands in it.
    pub(crate) fn is_small(&self) -> bool {
        self.lanes.len() == 1 && self.lanes.iter().all(|lane| lane.row.capacity() <= SMALL)
    }

    /// When the last of a priority was accepted that waits.
    pub(crate) fn newest(&self, priority: Priority) -> Option<Millis> {
        let lane = self.lanes.iter().find(|lane| lane.priority == priority);
        lane.and_then(Lane::newest)
    }

    /// How many go before all lanes.
    fn in_front(&self) -> usize {
        self.front.as_ref().map_or(0, |front| front.len())
    }

    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.front.is_none() && self.lanes.iter().all(Lane::is_empty)
    }

    /// Inserts at its place. Tells by which time it stands there.
    pub(crate) fn insert(&mut self, priority: Priority, waiting: Waiting) -> Millis {
        if waiting.front {
            self.front.get_or_insert_default().insert(priority, waiting);
            return waiting.enqueued_at;
        }
        let index = match self
            .lanes
            .binary_search_by_key(&priority, |lane| lane.priority)
        {
            Ok(index) => index,
            Err(index) => {
                // As said above, it is often the only one: a vector that grows by itself has room for four.
                self.lanes.reserve_exact(1);
                self.lanes.insert(index, Lane::new(priority));
                index
            }
        };
        self.lanes[index].insert(waiting)
    }

    /// Says what somebody who waits takes of the limits.
    pub(crate) fn set_share(&mut self, seq: Seq, share: Share) -> Option<(Priority, Waiting)> {
        let mut front = self.front.iter_mut();
        let first = front.find_map(|front| front.set_share(seq, share));
        if first.is_some() {
            return first;
        }
        let mut lanes = self.lanes.iter_mut();
        lanes.find_map(|lane| Some((lane.priority, lane.set_share(seq, share)?)))
    }

    /// Nobody is in a group any more.
    pub(crate) fn forget_shares(&mut self) {
        self.lanes.iter_mut().for_each(Lane::forget_shares);
        self.front
            .iter_mut()
            .for_each(|front| front.forget_shares());
    }

    /// How many stand before somebody who comes last of a priority, accepted at `time`.
    pub(crate) fn before_newest(&self, rule: OrderRule, priority: Priority, time: Millis) -> u64 {
        let lanes = self.lanes.iter();
        let before: usize = if rule == OrderRule::Priority {
            let lanes = lanes.take_while(|lane| lane.priority <= priority);
            self.in_front() + lanes.map(Lane::len).sum::<usize>()
        } else if rule == OrderRule::Fifo {
            self.len()
        } else {
            let key = (rule.key(priority, time), Seq(i64::MAX));
            // Nobody came later, so of the same and of higher priorities all stand before it.
            let before = |lane: &Lane| match lane.priority <= priority {
                true => lane.len(),
                false => lane.about_before(rule, key),
            };
            self.in_front() + lanes.map(before).sum::<usize>()
        };
        before as u64
    }

    /// Takes one out, wherever it stands.
    pub(crate) fn remove(&mut self, seq: Seq) -> Option<(Priority, Waiting)> {
        if let Some(front) = &mut self.front
            && let Some(first) = front.remove(seq)
        {
            self.front.take_if(|front| front.is_empty());
            return Some(first);
        }
        let mut lanes = self.lanes.iter_mut();
        lanes.find_map(|lane| Some((lane.priority, lane.remove(seq)?)))
    }

    /// Takes one out that has waited for `timeout` or longer.
    pub(crate) fn pop_expired(
        &mut self,
        now: Millis,
        timeout: Millis,
    ) -> Option<(Priority, Waiting)> {
        let in_front = self.front.as_ref().and_then(|it| it.first_to_expire());
        if let Some((_, seq)) = in_front.filter(|(since, _)| since.saturating_add(timeout) <= now) {
            return self.remove(seq);
        }
        self.lanes.iter_mut().find_map(|lane| {
            let (since, seq) = lane.first_to_expire()?;
            if since.saturating_add(timeout) > now {
                return None;
            }
            Some((lane.priority, lane.remove(seq)?))
        })
    }

    /// Who makes room for somebody of this priority: whoever has waited longest of the lowest priority that
    /// is not above its own. Who has held a slot and waits again is left alone, as by expiry, and so is who
    /// goes before all others.
    pub(crate) fn first_to_drop(&self, rule: OrderRule, priority: Priority) -> Option<Seq> {
        if rule == OrderRule::Fifo {
            // There a priority counts for nothing.
            let oldest = self.lanes.iter().filter_map(Lane::first_to_expire).min();
            return oldest.map(|(_, seq)| seq);
        }
        let lanes = self.lanes.iter().rev();
        let mut lanes = lanes.take_while(|lane| lane.priority >= priority);
        lanes.find_map(|lane| Some(lane.first_to_expire()?.1))
    }

    /// Since when the one waits that expires first.
    pub(crate) fn first_to_expire(&self) -> Option<Millis> {
        // Asked for before every grant and after it, and nearly always of one lane.
        let mut first = self.front.as_ref().and_then(|it| it.first_to_expire());
        for lane in &self.lanes {
            first = match (first, lane.first_to_expire()) {
                (Some(first), Some(other)) => Some(first.min(other)),
                (first, other) => first.or(other),
            };
        }
        first.map(|(since, _)| since)
    }

    /// Whether somebody stands at a place.
    pub(crate) fn contains(&self, seq: Seq) -> bool {
        self.find(seq).is_some()
    }

    /// Who stands at a place, with which priority.
    pub(crate) fn find(&self, seq: Seq) -> Option<(Priority, Waiting)> {
        let mut front = self.front.iter();
        let mut lanes = self.lanes.iter();
        front
            .find_map(|front| front.get(seq))
            .or_else(|| lanes.find_map(|lane| Some((lane.priority, lane.get(seq)?))))
    }

    /// How many stand before a place; `None` when nobody stands there.
    pub(crate) fn rank(&self, rule: OrderRule, seq: Seq) -> Option<u64> {
        if let Some(front) = self.front.as_ref().filter(|front| front.get(seq).is_some()) {
            return Some(front.before(seq) as u64);
        }
        let mut found = self.lanes.iter();
        let key = found.find_map(|lane| Some(lane.key(rule, &lane.get(seq)?)))?;
        let lanes = self.lanes.iter();
        let before: usize = lanes.map(|lane| lane.before(rule, key)).sum();
        Some((self.in_front() + before) as u64)
    }

    /// How many stand before somebody, in a bounded time; and whether that is only about right.
    pub(crate) fn about_before(
        &self,
        rule: OrderRule,
        (priority, waiting): (Priority, &Waiting),
    ) -> (u64, bool) {
        let front = self.front.as_ref().filter(|_| waiting.front);
        if let Some(front) = front {
            let before = front.iter().take_while(|it| it.seq < waiting.seq);
            let before = before.take(COUNTED).count();
            return (before as u64, before == COUNTED);
        }
        let key = (rule.key(priority, waiting.enqueued_at), waiting.seq);
        let (mut before, mut is_about) = (self.in_front(), false);
        for lane in &self.lanes {
            before += lane.about_before(rule, key);
            let has_far_gaps = lane.gaps > 0 && lane.row_before(rule, key) > COUNTED;
            is_about |= has_far_gaps || lane.late.len() > COUNTED;
        }
        (before as u64, is_about)
    }

    /// Up to `max` who stand before somebody, in their order: of each lane those at its head.
    pub(crate) fn first_before(
        &self,
        rule: OrderRule,
        (priority, waiting): (Priority, &Waiting),
        max: usize,
    ) -> Vec<Waiting> {
        let key = match waiting.front {
            true => (i64::MIN, waiting.seq),
            false => (rule.key(priority, waiting.enqueued_at), waiting.seq),
        };
        let front = self.front.iter().flat_map(|front| front.iter());
        let front = front.map(|it| ((i64::MIN, it.seq), it));
        let mut before: Vec<(Key, Waiting)> = front.take_while(|it| it.0 < key).take(max).collect();
        for lane in self.lanes.iter().filter(|_| !waiting.front) {
            let keyed = |it: Waiting| (lane.key(rule, &it), it);
            let row = lane.row.iter().take(2 * max).filter(|place| !place.gone);
            let row = row.map(|place| keyed(place.waiting()));
            let late = lane.late.values().copied().map(keyed);
            before.extend(row.take_while(|it| it.0 < key).take(max));
            before.extend(late.take_while(|it| it.0 < key).take(max));
        }
        before.sort_unstable_by_key(|it| it.0);
        before.truncate(max);
        before.into_iter().map(|it| it.1).collect()
    }

    /// Since when the one waits that has waited longest.
    pub(crate) fn oldest(&self) -> Option<Millis> {
        let heads = self.lanes.iter().filter_map(Lane::first);
        let others = self.lanes.iter().filter_map(Lane::first_to_expire);
        let front = self.front.iter();
        let first = front.clone().filter_map(|front| front.first());
        let heads = heads.chain(first.map(|(_, first)| first));
        let others = others.chain(front.filter_map(|front| front.first_to_expire()));
        let since = heads.map(|head| head.eligible_at);
        since.chain(others.map(|(since, _)| since)).min()
    }

    /// All that wait, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Waiting> + '_ {
        let front = self.front.iter().flat_map(|front| front.iter());
        front.chain(self.lanes.iter().flat_map(Lane::iter))
    }
}

#[cfg(test)]
#[path = "order_tests.rs"]
mod tests;
