//! The queue of one action: who waits, who holds a slot, who is next. Pure data, no I/O, no clock.
//!
//! Entering only enqueues; [`grant_next`](ActionQueue::grant_next) is the one place where a slot
//! is given, and it can say why it gives none. Slots are a *set* of `(execution, attempt)`, never
//! a counter: releasing what is not held then changes nothing, however often it is said.

use std::collections::BTreeMap;

use attune_core::{
    ActionId, Attempt, Bug, ExecutionId, Hold, Priority, QueueStats, QueueTotals, Seq,
};
use chrono::{DateTime, Utc};

use super::delayed::Delayed;
use crate::policy::{Order, QueueLimits};

/// Milliseconds since 1970.
pub type Millis = i64;

/// An execution that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Its place in the order.
    pub seq: Seq,
    /// When it was accepted.
    pub enqueued_at: Millis,
    /// Since when it waits for a slot: since it was accepted, or since its delay was over.
    pub eligible_at: Millis,
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
    /// Since when it waited for a slot.
    pub eligible_at: Millis,
    /// Whether it shall be ended.
    pub cancel_requested: bool,
}

/// The queue holds as many waiting executions as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("Queue full (max length: {max_length})")]
pub struct QueueFull {
    /// How many may wait.
    pub max_length: u32,
}

/// A slot that was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// The attempt that holds the slot.
    pub attempt: Attempt,
    /// As it was for [`Waiting::delayed`].
    pub delayed: bool,
}

/// What an attempt to give a slot led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// The first in order holds a slot now.
    Granted(Granted),
    /// Nobody was given a slot.
    Blocked(Blocked),
}

impl Grant {
    /// The slot that was given, if one was.
    pub fn granted(self) -> Option<Granted> {
        match self {
            Self::Granted(granted) => Some(granted),
            Self::Blocked(_) => None,
        }
    }
}

/// Why nobody is given a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocked {
    /// Nobody waits.
    Empty,
    /// All that wait are delayed.
    Delayed {
        /// When the first of them becomes eligible.
        until: Millis,
    },
    /// As many hold a slot as may.
    Limit {
        /// How many may.
        limit: u32,
    },
    /// The pool that would run it takes no more dispatches at the moment.
    PoolClosed,
    /// Operators hold the queue.
    Paused,
}

/// Who waits and who holds a slot.
#[derive(Debug, Clone, Default)]
struct Load {
    order: Order,
    delayed: Delayed,
    active: BTreeMap<ExecutionId, Holder>,
}

/// The queue of one action.
#[derive(Debug, Clone)]
pub struct ActionQueue {
    action_id: ActionId,
    limits: QueueLimits,
    totals: QueueTotals,
    /// The pool of the action takes no dispatches: nobody is granted a slot meanwhile.
    pool_closed: bool,
    /// How operators hold it: nobody is granted a slot and nobody expires meanwhile.
    hold: Hold,
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
            pool_closed: false,
            hold: Hold::NONE,
            load: None,
        }
    }

    fn load_mut(&mut self) -> &mut Load {
        self.load.get_or_insert_default()
    }

    /// Gives the memory of an idle queue back.
    fn shrink(&mut self) {
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

    /// Says whether the pool of the action takes dispatches.
    pub fn set_pool_closed(&mut self, closed: bool) {
        self.pool_closed = closed;
    }

    /// Says how operators hold it; whether that is a change.
    pub fn set_hold(&mut self, hold: Hold) -> bool {
        std::mem::replace(&mut self.hold, hold) != hold
    }

    /// What has gone through it.
    pub fn totals(&self) -> QueueTotals {
        self.totals
    }

    /// How many wait, delayed ones included.
    pub fn len(&self) -> usize {
        let load = self.load.as_ref();
        load.map_or(0, |load| load.order.len() + load.delayed.len())
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many hold a slot.
    pub fn active_count(&self) -> usize {
        self.load.as_ref().map_or(0, |load| load.active.len())
    }

    /// Who holds a slot.
    pub fn holders(&self) -> impl Iterator<Item = (ExecutionId, Holder)> + '_ {
        let active = self.load.iter().flat_map(|load| &load.active);
        active.map(|(id, holder)| (*id, *holder))
    }

    /// The slot that an execution holds.
    pub fn holder(&self, execution_id: ExecutionId) -> Option<Holder> {
        self.load.as_ref()?.active.get(&execution_id).copied()
    }

    /// The first of each priority that waits and is eligible, the highest priority first.
    pub fn heads(&self) -> impl Iterator<Item = (Priority, Waiting)> + '_ {
        self.load.iter().flat_map(|load| load.order.heads())
    }

    /// Whether it is empty, idle and has nothing to remember but its totals.
    pub fn is_idle(&self) -> bool {
        self.active_count() == 0 && self.is_empty()
    }

    /// Why nobody can be given a slot right now; `None` when somebody can.
    pub fn blocked(&self) -> Option<Blocked> {
        let Some(load) = self.load.as_deref() else {
            return Some(Blocked::Empty);
        };
        if load.order.is_empty() {
            let until = load.delayed.next();
            return Some(until.map_or(Blocked::Empty, |until| Blocked::Delayed { until }));
        }
        self.without_room(load)
    }

    /// Why a slot cannot be given to anybody, whoever waits.
    fn without_room(&self, load: &Load) -> Option<Blocked> {
        if self.hold.mode.is_some() {
            return Some(Blocked::Paused);
        }
        let limit = self.limits.max_concurrent;
        match limit.filter(|limit| load.active.len() >= *limit as usize) {
            Some(limit) => Some(Blocked::Limit { limit }),
            None => self.pool_closed.then_some(Blocked::PoolClosed),
        }
    }

    /// A new execution joins the end of its priority. Tells how many stand before it.
    ///
    /// # Errors
    /// [`QueueFull`] when it would have to wait and too many do; nothing is changed then.
    pub fn enter(&mut self, priority: Priority, waiting: Waiting) -> Result<u64, QueueFull> {
        let is_open = !self.pool_closed && self.hold.mode.is_none();
        let starts_now = self.load.as_deref().map_or(is_open, |load| {
            load.order.is_empty() && self.without_room(load).is_none()
        }) && self.limits.max_concurrent != Some(0);
        if !starts_now {
            self.check_room()?;
        }
        self.totals.enqueued += 1;
        let rule = self.limits.order;
        let order = &mut self.load_mut().order;
        let before = order.before_newest(rule, priority, waiting.enqueued_at);
        order.insert(priority, waiting);
        Ok(before)
    }

    /// A new execution enters that may not start before `not_before`. Tells how many wait.
    ///
    /// # Errors
    /// [`QueueFull`] as for [`enter`](Self::enter).
    pub fn enter_delayed(
        &mut self,
        priority: Priority,
        waiting: Waiting,
        not_before: Millis,
    ) -> Result<u64, QueueFull> {
        self.check_room()?;
        self.totals.enqueued += 1;
        let before = self.len() as u64;
        let delayed = &mut self.load_mut().delayed;
        delayed.insert(priority, waiting, not_before);
        Ok(before)
    }

    fn check_room(&self) -> Result<(), QueueFull> {
        let max_length = self.limits.max_length;
        if self.len() >= max_length as usize {
            Err(QueueFull { max_length })
        } else {
            Ok(())
        }
    }

    /// Gives a free slot to the first in order: the one place where slots are given.
    pub fn grant_next(&mut self) -> Grant {
        if let Some(blocked) = self.blocked() {
            return Grant::Blocked(blocked);
        }
        let rule = self.limits.order;
        let Some((priority, waiting)) = self.load_mut().order.pop_first(rule) else {
            return Grant::Blocked(Blocked::Empty);
        };
        let attempt = waiting.attempt.next();
        let holder = Holder {
            attempt,
            priority,
            seq: waiting.seq,
            enqueued_at: waiting.enqueued_at,
            eligible_at: waiting.eligible_at,
            cancel_requested: false,
        };
        self.restore_holder(waiting.execution_id, holder);
        Grant::Granted(Granted {
            execution_id: waiting.execution_id,
            attempt,
            delayed: waiting.delayed,
        })
    }

    /// Whether this attempt holds a slot.
    fn holds(&self, execution_id: ExecutionId, attempt: Attempt) -> bool {
        let load = self.load.as_ref();
        let holder = load.and_then(|load| load.active.get(&execution_id));
        holder.is_some_and(|holder| holder.attempt == attempt)
    }

    /// Releases the slot that this attempt holds; false, and nothing happens, when it holds none.
    /// `cancelled` says how the end counts.
    pub fn finish(&mut self, execution_id: ExecutionId, attempt: Attempt, cancelled: bool) -> bool {
        if !self.holds(execution_id, attempt) {
            // As `running -= 1` would: some slot comes free for every completion.
            if Bug::Counter.is_planted() {
                self.load_mut().active.pop_first();
            }
            return false;
        }
        self.load_mut().active.remove(&execution_id);
        self.shrink();
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
        if !self.holds(execution_id, attempt) {
            return false;
        }
        let load = self.load_mut();
        let Some(holder) = load.active.remove(&execution_id) else {
            return false;
        };
        let waiting = Waiting {
            execution_id,
            seq: holder.seq,
            enqueued_at: holder.enqueued_at,
            eligible_at: holder.eligible_at,
            attempt,
            delayed: false,
        };
        // Behind whatever waits, as a message that is given back to its broker.
        let priority = if Bug::Requeue.is_planted() {
            Priority::Low
        } else {
            holder.priority
        };
        load.order.insert(priority, waiting);
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
        self.totals.cancelled += 1;
        Some(waiting)
    }

    /// Takes a waiting execution out and counts it as expired.
    pub fn expire_waiting(&mut self, seq: Seq) -> Option<Waiting> {
        let waiting = self.remove(seq)?;
        self.totals.expired += 1;
        Some(waiting)
    }

    fn remove(&mut self, seq: Seq) -> Option<Waiting> {
        let load = self.load.as_mut()?;
        let waiting = load
            .order
            .remove(seq)
            .or_else(|| load.delayed.remove(seq))?;
        self.shrink();
        Some(waiting)
    }

    /// Takes out up to `max` executions that have waited longer than they may, and counts them
    /// as expired; nobody while operators hold the queue, and none by a wait from before they
    /// resumed it. One that has held a slot and waits again, because its worker was lost, does
    /// not expire: its first slot came in time.
    pub fn expire(&mut self, now: Millis, max: usize) -> Vec<Waiting> {
        let timeout = self.timeout();
        let mut expired = Vec::new();
        if self.hold.mode.is_some() || self.hold.waits_from.saturating_add(timeout) > now {
            return expired;
        }
        if let Some(load) = &mut self.load {
            let next = || load.order.pop_expired(now, timeout);
            expired.extend(std::iter::from_fn(next).take(max));
        }
        self.shrink();
        self.totals.expired += expired.len() as u64;
        expired
    }

    /// Makes up to `max` delayed executions eligible whose time has come.
    pub fn wake_delayed(&mut self, now: Millis, max: usize) {
        let Some(load) = &mut self.load else { return };
        for _ in 0..max {
            let Some((not_before, priority, mut waiting)) = load.delayed.pop_due(now) else {
                return;
            };
            // The time it was not eligible does not count as waiting for a slot.
            waiting.eligible_at = waiting.enqueued_at.max(not_before);
            load.order.insert(priority, waiting);
        }
    }

    /// When [`expire`](Self::expire) or [`wake_delayed`](Self::wake_delayed) has something to do.
    pub fn next_deadline(&self) -> Option<Millis> {
        let load = self.load.as_ref()?;
        let expiry = load.order.first_to_expire();
        let expiry = expiry.filter(|_| self.hold.mode.is_none());
        let from = self.hold.waits_from;
        let expiry = expiry.map(|since| since.max(from).saturating_add(self.timeout()));
        expiry.into_iter().chain(load.delayed.next()).min()
    }

    fn timeout(&self) -> Millis {
        i64::from(self.limits.timeout_seconds) * 1000
    }

    /// How many stand before this execution; `None` when it does not wait, or not yet.
    pub fn position(&self, seq: Seq) -> Option<u64> {
        self.load.as_ref()?.order.rank(self.limits.order, seq)
    }

    /// Whether this execution waits, delayed or not.
    pub(crate) fn is_waiting(&self, seq: Seq) -> bool {
        let load = self.load.as_ref();
        load.is_some_and(|load| load.order.contains(seq) || load.delayed.contains(seq))
    }

    /// Takes out everyone who waits and counts them as cancelled.
    pub fn clear(&mut self) -> Vec<Waiting> {
        let Some(load) = &mut self.load else {
            return Vec::new();
        };
        let mut cleared: Vec<Waiting> = load.order.iter().collect();
        cleared.sort_unstable_by_key(|waiting| waiting.seq);
        cleared.extend(load.delayed.iter());
        load.order = Order::default();
        load.delayed = Delayed::default();
        self.shrink();
        self.totals.cancelled += cleared.len() as u64;
        cleared
    }

    /// The queue as it is now.
    pub fn stats(&self) -> QueueStats {
        let load = self.load.as_ref();
        // Whoever is delayed has not waited for a slot yet.
        let oldest = load.and_then(|load| load.order.oldest());
        QueueStats {
            action_id: self.action_id,
            queue_length: self.len() as u64,
            active_count: self.active_count() as u64,
            max_concurrent: self.limits.max_concurrent,
            oldest_enqueued_at: oldest.and_then(DateTime::<Utc>::from_timestamp_millis),
            total_enqueued: self.totals.enqueued,
            total_completed: self.totals.completed,
            total_cancelled: self.totals.cancelled,
            total_expired: self.totals.expired,
        }
    }
}

/// What takeovers and the reconciler bring into a queue to make it what is stored. None of it
/// counts as an end: [`balance`](ActionQueue::balance) sets the totals right once everything is
/// mended.
impl ActionQueue {
    /// Puts an execution that is stored as waiting back at its place; totals know it already.
    pub fn restore_waiting(
        &mut self,
        priority: Priority,
        waiting: Waiting,
        not_before: Option<Millis>,
    ) {
        let load = self.load_mut();
        match not_before {
            Some(time) => load.delayed.insert(priority, waiting, time),
            None => load.order.insert(priority, waiting),
        }
    }

    /// Gives an execution that is stored as holding a slot its slot, whatever the limit is now.
    pub fn restore_holder(&mut self, execution_id: ExecutionId, holder: Holder) {
        self.load_mut().active.insert(execution_id, holder);
    }

    /// Drops an execution that waits; false when it does not.
    pub fn forget_waiting(&mut self, seq: Seq) -> bool {
        self.remove(seq).is_some()
    }

    /// Drops a holder; false when it holds no slot.
    pub fn forget_holder(&mut self, execution_id: ExecutionId) -> bool {
        let load = self.load.as_mut();
        let forgotten = load.is_some_and(|load| load.active.remove(&execution_id).is_some());
        self.shrink();
        forgotten
    }

    /// Raises the totals until everything that entered is accounted for: what is gone without a
    /// trace counts as completed, what appeared without having entered as entered.
    pub fn balance(&mut self) {
        let present = (self.len() + self.active_count()) as u64;
        let totals = &mut self.totals;
        let known = totals.completed + totals.cancelled + totals.expired + present;
        totals.completed += totals.enqueued.saturating_sub(known);
        totals.enqueued = totals.enqueued.max(known);
    }
}

#[cfg(test)]
#[path = "action_queue_tests.rs"]
mod tests;
