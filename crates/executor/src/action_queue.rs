//! The queue of one action: who waits, who holds a slot, who is next. Pure data, no I/O, no clock.
//!
//! Order is (priority, sequence). Each priority is a lane of its own, sorted by sequence, so that
//! taking the head and joining the end cost a constant, and finding one in the middle a binary
//! search. Slots are a *set* of `(execution, attempt)`, never a counter: releasing what is not
//! held then changes nothing, however often it is said.

use std::collections::{BTreeMap, VecDeque};

use attune_core::{ActionId, Attempt, ExecutionId, Priority, QueueStats, QueueTotals, Seq};
use chrono::{DateTime, Utc};

/// Milliseconds since 1970.
pub type Millis = i64;

/// The bounds of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// How many executions may hold a slot; `None` is unlimited.
    pub max_concurrent: Option<u32>,
    /// How many may wait.
    pub max_length: u32,
    /// How long one may wait, in seconds.
    pub timeout_seconds: u32,
}

/// An execution that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Its place in the order.
    pub seq: Seq,
    /// When it was accepted.
    pub enqueued_at: Millis,
    /// How often it has held a slot so far.
    pub attempt: Attempt,
    /// Whether it became eligible later than it was accepted, so that later ones may rightly have
    /// been granted before it.
    pub delayed: bool,
}

/// An execution that holds a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The attempt that holds it.
    pub attempt: Attempt,
    /// Its priority, for when it must wait again.
    pub priority: Priority,
    /// Its place in the order, likewise.
    pub seq: Seq,
    /// When it was accepted.
    pub enqueued_at: Millis,
    /// Whether it shall be ended.
    pub cancel_requested: bool,
}

/// What became of an execution that entered the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entered {
    /// A slot was free and nobody waited: it holds a slot in this attempt.
    Granted(Attempt),
    /// It waits, with this many before it.
    Queued {
        /// How many wait before it.
        position: u64,
    },
}

/// The queue holds as many waiting executions as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("Queue full (max length: {max_length})")]
pub struct QueueFull {
    /// How many may wait.
    pub max_length: u32,
}

/// A slot given to an execution that waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// The attempt that holds the slot.
    pub attempt: Attempt,
    /// As it was for [`Waiting::delayed`].
    pub delayed: bool,
}

/// The waiting executions of one priority, sorted by sequence.
#[derive(Debug, Clone)]
struct Lane {
    priority: Priority,
    waiting: VecDeque<Waiting>,
}

impl Lane {
    /// The first that waits for its first slot. The few that wait again stand before it.
    fn first_to_expire(&self) -> Option<(usize, &Waiting)> {
        let mut waiting = self.waiting.iter().enumerate();
        waiting.find(|(_, waiting)| waiting.attempt == Attempt(0))
    }
}

/// Who waits and who holds a slot.
#[derive(Debug, Clone, Default)]
struct Load {
    /// Only the lanes that have been used, by priority: most queues have one.
    lanes: Vec<Lane>,
    /// Not eligible before a time; by that time, then by sequence.
    delayed: BTreeMap<(Millis, Seq), (Priority, Waiting)>,
    active: BTreeMap<ExecutionId, Holder>,
}

/// The load of a queue in which nobody waits or runs.
static NO_LOAD: Load = Load {
    lanes: Vec::new(),
    delayed: BTreeMap::new(),
    active: BTreeMap::new(),
};

/// The queue of one action.
#[derive(Debug, Clone)]
pub struct ActionQueue {
    action_id: ActionId,
    limits: QueueLimits,
    totals: QueueTotals,
    /// Absent while nobody waits or runs: most of many queues are idle, and then small.
    load: Option<Box<Load>>,
}

impl ActionQueue {
    /// An empty queue.
    pub fn new(action_id: ActionId, limits: QueueLimits, totals: QueueTotals) -> Self {
        Self {
            action_id,
            limits,
            totals,
            load: None,
        }
    }

    fn load(&self) -> &Load {
        self.load.as_deref().unwrap_or(&NO_LOAD)
    }

    fn load_mut(&mut self) -> &mut Load {
        self.load.get_or_insert_default()
    }

    /// Gives the memory of an idle queue back.
    pub(crate) fn rest(&mut self) {
        if self.is_idle() {
            self.load = None;
        }
    }

    /// Its bounds.
    pub fn limits(&self) -> QueueLimits {
        self.limits
    }

    /// Changes its bounds. Raising the limit makes room for [`grant_next`](Self::grant_next);
    /// lowering it takes no slot away: the queue drains down to it.
    pub fn set_limits(&mut self, limits: QueueLimits) {
        self.limits = limits;
    }

    /// What has gone through it.
    pub fn totals(&self) -> QueueTotals {
        self.totals
    }

    pub(crate) fn totals_mut(&mut self) -> &mut QueueTotals {
        &mut self.totals
    }

    /// All that wait, in order, delayed ones last.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        let load = self.load();
        let eligible = load.lanes.iter().flat_map(|lane| &lane.waiting);
        eligible.chain(load.delayed.values().map(|(_, waiting)| waiting))
    }

    /// How many wait, delayed ones included.
    pub fn len(&self) -> usize {
        self.load()
            .lanes
            .iter()
            .map(|lane| lane.waiting.len())
            .sum::<usize>()
            + self.load().delayed.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many hold a slot.
    pub fn active_count(&self) -> usize {
        self.load().active.len()
    }

    /// Who holds a slot.
    pub fn holders(&self) -> impl Iterator<Item = (ExecutionId, Holder)> + '_ {
        self.load().active.iter().map(|(id, holder)| (*id, *holder))
    }

    /// The slot that an execution holds.
    pub fn holder(&self, execution_id: ExecutionId) -> Option<Holder> {
        self.load().active.get(&execution_id).copied()
    }

    /// The first of each priority that waits and is eligible, the highest priority first.
    pub(crate) fn heads(&self) -> impl Iterator<Item = (Priority, &Waiting)> {
        let lanes = self.load().lanes.iter();
        lanes.filter_map(|lane| Some((lane.priority, lane.waiting.front()?)))
    }

    /// Whether it is empty, idle and has nothing to remember but its totals.
    pub fn is_idle(&self) -> bool {
        self.load().active.is_empty() && self.is_empty()
    }

    fn has_free_slot(&self) -> bool {
        self.limits
            .max_concurrent
            .is_none_or(|limit| self.load().active.len() < limit as usize)
    }

    fn someone_eligible(&self) -> bool {
        self.load()
            .lanes
            .iter()
            .any(|lane| !lane.waiting.is_empty())
    }

    /// A new execution enters: it is given a slot at once when one is free and nobody waits.
    ///
    /// # Errors
    /// [`QueueFull`] when it would have to wait and too many do; nothing is changed then.
    pub fn enter(&mut self, priority: Priority, waiting: Waiting) -> Result<Entered, QueueFull> {
        if self.has_free_slot() && !self.someone_eligible() {
            self.totals.enqueued += 1;
            return Ok(Entered::Granted(self.hold(priority, waiting)));
        }
        self.check_room()?;
        self.totals.enqueued += 1;
        Ok(Entered::Queued {
            position: self.insert(priority, waiting),
        })
    }

    /// A new execution enters that may not start before `not_before`.
    ///
    /// # Errors
    /// [`QueueFull`] as for [`enter`](Self::enter).
    pub fn enter_delayed(
        &mut self,
        priority: Priority,
        waiting: Waiting,
        not_before: Millis,
    ) -> Result<(), QueueFull> {
        self.check_room()?;
        self.totals.enqueued += 1;
        self.delay(priority, waiting, not_before);
        Ok(())
    }

    pub(crate) fn delay(&mut self, priority: Priority, waiting: Waiting, not_before: Millis) {
        let delayed = &mut self.load_mut().delayed;
        delayed.insert((not_before, waiting.seq), (priority, waiting));
    }

    pub(crate) fn add_holder(&mut self, execution_id: ExecutionId, holder: Holder) {
        self.load_mut().active.insert(execution_id, holder);
    }

    fn check_room(&self) -> Result<(), QueueFull> {
        let max_length = self.limits.max_length;
        if self.len() >= max_length as usize {
            Err(QueueFull { max_length })
        } else {
            Ok(())
        }
    }

    /// Gives the next free slot to the first in order, if there are both.
    pub fn grant_next(&mut self) -> Option<Granted> {
        if !self.has_free_slot() {
            return None;
        }
        let lanes = &mut self.load.as_mut()?.lanes;
        let lane = lanes.iter_mut().find(|lane| !lane.waiting.is_empty())?;
        let priority = lane.priority;
        let waiting = lane.waiting.pop_front()?;
        let attempt = self.hold(priority, waiting);
        Some(Granted {
            execution_id: waiting.execution_id,
            attempt,
            delayed: waiting.delayed,
        })
    }

    fn hold(&mut self, priority: Priority, waiting: Waiting) -> Attempt {
        let attempt = waiting.attempt.next();
        let holder = Holder {
            attempt,
            priority,
            seq: waiting.seq,
            enqueued_at: waiting.enqueued_at,
            cancel_requested: false,
        };
        self.add_holder(waiting.execution_id, holder);
        attempt
    }

    /// Releases the slot that this attempt holds; false, and nothing happens, when it holds none.
    /// `cancelled` says how the end counts.
    pub fn finish(&mut self, execution_id: ExecutionId, attempt: Attempt, cancelled: bool) -> bool {
        if self
            .load()
            .active
            .get(&execution_id)
            .is_none_or(|holder| holder.attempt != attempt)
        {
            // As `running -= 1` would: some slot comes free for every completion.
            #[cfg(attune_plant = "counter")]
            self.load_mut().active.pop_first();
            return false;
        }
        self.load_mut().active.remove(&execution_id);
        self.rest();
        if cancelled {
            self.totals.cancelled += 1;
        } else {
            self.totals.completed += 1;
        }
        true
    }

    /// Takes the slot from this attempt and puts the execution back at its place in the order,
    /// whatever the queue's bound; false when the attempt holds no slot.
    pub fn revoke(&mut self, execution_id: ExecutionId, attempt: Attempt) -> bool {
        let Some(holder) = self.load().active.get(&execution_id).copied() else {
            return false;
        };
        if holder.attempt != attempt {
            return false;
        }
        self.load_mut().active.remove(&execution_id);
        let waiting = Waiting {
            execution_id,
            seq: holder.seq,
            enqueued_at: holder.enqueued_at,
            attempt,
            delayed: false,
        };
        self.insert(holder.priority, waiting);
        // Behind whatever waits, as a message that is given back to its broker.
        #[cfg(attune_plant = "requeue")]
        if let Some(waiting) = self.remove(holder.seq) {
            self.insert(Priority::Low, waiting);
        }
        true
    }

    /// Marks a holder as to be ended; its slot comes free when its worker says so.
    pub fn request_cancel(&mut self, execution_id: ExecutionId) -> Option<Attempt> {
        let holder = self.load.as_mut()?.active.get_mut(&execution_id)?;
        holder.cancel_requested = true;
        Some(holder.attempt)
    }

    /// Takes a waiting execution out and counts it as cancelled.
    pub fn cancel_waiting(&mut self, seq: Seq) -> Option<Waiting> {
        let waiting = self.remove(seq)?;
        self.rest();
        self.totals.cancelled += 1;
        Some(waiting)
    }

    /// Takes a waiting execution out and counts it as expired.
    pub fn expire_waiting(&mut self, seq: Seq) -> Option<Waiting> {
        let waiting = self.remove(seq)?;
        self.rest();
        self.totals.expired += 1;
        Some(waiting)
    }

    pub(crate) fn remove_holder(&mut self, execution_id: ExecutionId) -> bool {
        self.load_mut().active.remove(&execution_id).is_some()
    }

    pub(crate) fn remove(&mut self, seq: Seq) -> Option<Waiting> {
        let load = self.load.as_mut()?;
        for lane in &mut load.lanes {
            if let Ok(index) = lane
                .waiting
                .binary_search_by_key(&seq, |waiting| waiting.seq)
            {
                return lane.waiting.remove(index);
            }
        }
        let key = *load.delayed.keys().find(|(_, delayed)| *delayed == seq)?;
        load.delayed.remove(&key).map(|(_, waiting)| waiting)
    }

    /// Takes out, in order, up to `max` executions that have waited longer than they may, and
    /// counts them as expired. One that has held a slot and waits again, because its worker was
    /// lost, does not expire: its first slot came in time.
    pub fn expire(&mut self, now: Millis, max: usize) -> Vec<Waiting> {
        let timeout = self.timeout();
        let mut expired = Vec::new();
        let lanes = self.load.as_mut().map(|load| &mut load.lanes);
        for lane in lanes.into_iter().flatten() {
            while expired.len() < max
                && let Some((index, head)) = lane.first_to_expire()
                && head.enqueued_at + timeout <= now
            {
                expired.extend(lane.waiting.remove(index));
            }
        }
        self.rest();
        self.totals.expired += expired.len() as u64;
        expired
    }

    /// Makes delayed executions eligible whose time has come.
    pub fn wake_delayed(&mut self, now: Millis) {
        while let Some(load) = &mut self.load
            && let Some(entry) = load.delayed.first_entry()
            && entry.key().0 <= now
        {
            let ((not_before, _), (priority, mut waiting)) = entry.remove_entry();
            // The time it was not eligible does not count as waiting for a slot.
            waiting.enqueued_at = waiting.enqueued_at.max(not_before);
            self.insert(priority, waiting);
        }
    }

    /// When [`expire`](Self::expire) or [`wake_delayed`](Self::wake_delayed) has something to do.
    pub fn next_deadline(&self) -> Option<Millis> {
        let timeout = self.timeout();
        let expiry = self
            .load()
            .lanes
            .iter()
            .filter_map(Lane::first_to_expire)
            .map(|(_, head)| head.enqueued_at + timeout)
            .min();
        let wake = self.load().delayed.keys().next().map(|(time, _)| *time);
        expiry.into_iter().chain(wake).min()
    }

    fn timeout(&self) -> Millis {
        i64::from(self.limits.timeout_seconds) * 1000
    }

    /// How many wait before this execution; `None` when it does not wait.
    pub fn position(&self, seq: Seq) -> Option<u64> {
        let mut before = 0;
        for lane in &self.load().lanes {
            if let Ok(index) = lane
                .waiting
                .binary_search_by_key(&seq, |waiting| waiting.seq)
            {
                return Some((before + index) as u64);
            }
            before += lane.waiting.len();
        }
        None
    }

    /// Takes out everyone who waits and counts them as cancelled.
    pub fn clear(&mut self) -> Vec<Waiting> {
        let Some(load) = &mut self.load else {
            return Vec::new();
        };
        let lanes = load.lanes.iter_mut();
        let mut cleared: Vec<Waiting> = lanes
            .flat_map(|lane| std::mem::take(&mut lane.waiting))
            .collect();
        cleared.extend(
            std::mem::take(&mut load.delayed)
                .into_values()
                .map(|(_, waiting)| waiting),
        );
        self.rest();
        self.totals.cancelled += cleared.len() as u64;
        cleared
    }

    /// Inserts at its place and tells how many are before it. Nearly always that is the end.
    pub(crate) fn insert(&mut self, priority: Priority, waiting: Waiting) -> u64 {
        let lanes = &mut self.load_mut().lanes;
        let index = match lanes.binary_search_by_key(&priority, |lane| lane.priority) {
            Ok(index) => index,
            Err(index) => {
                lanes.insert(
                    index,
                    Lane {
                        priority,
                        waiting: VecDeque::new(),
                    },
                );
                index
            }
        };
        let before: usize = lanes[..index].iter().map(|lane| lane.waiting.len()).sum();
        let lane = &mut lanes[index].waiting;
        let place = match lane.back() {
            Some(last) if last.seq > waiting.seq => {
                lane.partition_point(|other| other.seq < waiting.seq)
            }
            _ => lane.len(),
        };
        lane.insert(place, waiting);
        (before + place) as u64
    }

    /// The queue as it is now.
    pub fn stats(&self) -> QueueStats {
        let oldest = self
            .load()
            .lanes
            .iter()
            .filter_map(|lane| lane.waiting.front())
            .chain(self.load().delayed.values().map(|(_, waiting)| waiting))
            .map(|waiting| waiting.enqueued_at)
            .min();
        QueueStats {
            action_id: self.action_id,
            queue_length: self.len() as u64,
            active_count: self.load().active.len() as u64,
            max_concurrent: self.limits.max_concurrent,
            oldest_enqueued_at: oldest.and_then(DateTime::<Utc>::from_timestamp_millis),
            total_enqueued: self.totals.enqueued,
            total_completed: self.totals.completed,
            total_cancelled: self.totals.cancelled,
            total_expired: self.totals.expired,
        }
    }
}

#[cfg(test)]
#[path = "action_queue_tests.rs"]
mod tests;
