//! The queue of one action: who waits, who holds a slot, who is next. Pure data, no I/O, no clock.
//!
//! Entering only enqueues; [`grant_next`](ActionQueue::grant_next) is the one place where a slot
//! is given, and it can say why it gives none. Slots are a *set* of `(execution, attempt)`, never
//! a counter: releasing what is not held then changes nothing, however often it is said.

use attune_core::{
    ActionId, Attempt, Bug, Demand, ExecutionId, Hold, PauseMode, Priority, QueueStats,
    QueueTotals, Seq,
};
use chrono::{DateTime, Utc};

use super::entry::{Blocked, Grant, Granted, Holder, Millis, QueueFull, Waiting};
use super::load::Load;
use crate::policy::{Groups, Member, QueueLimits};

/// The queue of one action.
#[derive(Debug, Clone)]
pub struct ActionQueue {
    action_id: ActionId,
    pub(super) limits: QueueLimits,
    pub(super) totals: QueueTotals,
    /// The pool of the action takes no dispatches: nobody is granted a slot meanwhile.
    pool_closed: bool,
    /// How operators hold it: nobody is granted a slot and nobody expires meanwhile.
    hold: Hold,
    /// Absent while nobody waits or runs: most of many queues are idle, and then small.
    pub(super) load: Option<Box<Load>>,
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

    pub(super) fn load_mut(&mut self) -> &mut Load {
        let limits = &self.limits;
        self.load.get_or_insert_with(|| Box::new(Load::new(limits)))
    }

    /// Gives the memory of an idle queue back.
    pub(super) fn shrink(&mut self) {
        if self.is_idle() {
            self.load = None;
        }
    }

    /// Its bounds.
    pub fn limits(&self) -> QueueLimits {
        self.limits
    }

    /// Changes its bounds. Raising the limit makes room for [`grant_next`](Self::grant_next);
    /// lowering it takes no slot away: the queue drains down to it. Where executions demand by another
    /// rule than before, the queue stands still until it [knows](Self::assign) the group of each.
    pub fn set_limits(&mut self, limits: QueueLimits) {
        let earlier = std::mem::replace(&mut self.limits, limits);
        let Some(load) = &mut self.load else { return };
        if earlier.demands != limits.demands {
            load.regroup(&limits);
        } else if let Some(groups) = load.groups.as_mut().filter(|_| earlier != limits) {
            groups.rearrange(&limits);
        }
    }

    /// Executions whose group must be found out before anybody is granted a slot, by rising id.
    pub(crate) fn unknown(&self) -> impl Iterator<Item = ExecutionId> + '_ {
        let groups = self.load.iter().filter_map(|load| load.groups.as_ref());
        groups.flat_map(|groups| groups.unknown().iter().copied())
    }

    /// Says what an execution demands whose group was not known; false when that is not asked.
    pub(crate) fn assign(&mut self, execution_id: ExecutionId, demand: &Demand) -> bool {
        let limits = self.limits;
        let Some(load) = &mut self.load else {
            return false;
        };
        let Some(groups) = load.groups.as_mut().filter(|groups| {
            limits.demands == Some(demand.rule) && groups.unknown().contains(&execution_id)
        }) else {
            return false;
        };
        let share = groups.share(execution_id, Some(demand));
        let seq = execution_id.seq();
        if let Some(holder) = load.active.get_mut(&execution_id) {
            holder.share = share;
            groups.take(&limits, share);
        } else if let Some((priority, waiting)) = load.order.set_share(seq, share) {
            let member = Member {
                priority,
                seq,
                cost: share.cost,
                enqueued_at: waiting.enqueued_at,
            };
            groups.wait(&limits, share.group, member);
        } else if !load.delayed.set_share(seq, share) {
            groups.leave(execution_id, share.group);
        }
        true
    }

    /// Says whether the pool of the action takes dispatches.
    pub fn set_pool_closed(&mut self, closed: bool) {
        self.pool_closed = closed;
    }

    /// Says how operators hold it; whether that is a change.
    pub fn set_hold(&mut self, hold: Hold) -> bool {
        std::mem::replace(&mut self.hold, hold) != hold
    }

    /// How operators hold it, if they do.
    pub(super) fn hold_mode(&self) -> Option<PauseMode> {
        self.hold.mode
    }

    /// Whether the pool of the action takes no dispatches.
    pub(super) fn is_pool_closed(&self) -> bool {
        self.pool_closed
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

    /// The first in the group of a holder that waits and is eligible; `None` where nobody demands
    /// anything of its own.
    pub(crate) fn head_beside(&self, holder: &Holder) -> Option<Member> {
        let groups = self.load.as_ref()?.groups.as_ref()?;
        groups.first_of(&self.limits, holder.share.group)
    }

    /// What those who hold a slot take of the limit of the action, and of that of a holder's group, where
    /// executions demand different things.
    pub(crate) fn used(&self, holder: &Holder) -> (u64, u64) {
        let groups = self.load.as_ref().and_then(|load| load.groups.as_ref());
        groups.map_or((0, 0), |groups| groups.used(holder.share.group))
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

    /// Why a slot cannot be given to anybody of those that wait.
    fn without_room(&self, load: &Load) -> Option<Blocked> {
        if self.hold.mode.is_some() {
            return Some(Blocked::Paused);
        }
        if let Some(groups) = &load.groups {
            return self.without_room_in(groups);
        }
        let limit = self.limits.max_concurrent;
        match limit.filter(|limit| load.active.len() >= *limit as usize) {
            Some(limit) => Some(Blocked::Limit { limit }),
            None => self.pool_closed.then_some(Blocked::PoolClosed),
        }
    }

    /// The same, where executions demand different things.
    fn without_room_in(&self, groups: &Groups) -> Option<Blocked> {
        if !groups.unknown().is_empty() {
            return Some(Blocked::Regrouping);
        }
        let Some((_, first)) = groups.first(&self.limits) else {
            return Some(Blocked::Groups);
        };
        match self.limits.max_concurrent {
            Some(limit) if !groups.has_room(&self.limits, first.cost) => {
                Some(Blocked::Limit { limit })
            }
            _ => self.pool_closed.then_some(Blocked::PoolClosed),
        }
    }

    /// Whether somebody who enters now can be granted a slot at once.
    fn starts_now(&self, demand: Option<&Demand>) -> bool {
        let is_held = self.hold.mode.is_some();
        if is_held || self.pool_closed || self.limits.max_concurrent == Some(0) {
            return false;
        }
        let Some(load) = self.load.as_deref() else {
            return true;
        };
        match &load.groups {
            None => load.order.is_empty() && self.without_room(load).is_none(),
            Some(groups) => demand.is_some_and(|demand| groups.is_open(&self.limits, demand)),
        }
    }

    /// A new execution joins the end of its priority. Tells how many stand before it. Where executions
    /// demand different things, `demand` is what this one does.
    ///
    /// # Errors
    /// [`QueueFull`] when it would have to wait and too many do; nothing is changed then.
    pub fn enter(
        &mut self,
        priority: Priority,
        mut waiting: Waiting,
        demand: Option<&Demand>,
    ) -> Result<u64, QueueFull> {
        if !self.starts_now(demand) {
            self.check_room()?;
        }
        self.totals.enqueued += 1;
        let limits = self.limits;
        let load = self.load_mut();
        let order = &load.order;
        let before = order.before_newest(limits.order, priority, waiting.enqueued_at);
        waiting.share = load.share(&limits, waiting.execution_id, demand);
        load.wait(&limits, priority, waiting);
        Ok(before)
    }

    /// A new execution enters that may not start before `not_before`. Tells how many wait.
    ///
    /// # Errors
    /// [`QueueFull`] as for [`enter`](Self::enter).
    pub fn enter_delayed(
        &mut self,
        priority: Priority,
        mut waiting: Waiting,
        demand: Option<&Demand>,
        not_before: Millis,
    ) -> Result<u64, QueueFull> {
        self.check_room()?;
        self.totals.enqueued += 1;
        let before = self.len() as u64;
        let limits = self.limits;
        let load = self.load_mut();
        waiting.share = load.share(&limits, waiting.execution_id, demand);
        load.delayed.insert(priority, waiting, not_before);
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

    /// Gives a free slot to the first in order, from `now` on: the one place where slots are given.
    pub fn grant_next(&mut self, now: Millis) -> Grant {
        if let Some(blocked) = self.blocked() {
            return Grant::Blocked(blocked);
        }
        let limits = self.limits;
        let load = self.load_mut();
        let first = match &mut load.groups {
            None => load.order.pop_first(limits.order),
            Some(groups) => groups.first(&limits).and_then(|(group, first)| {
                groups.stop_waiting(&limits, group, (first.priority, first.seq));
                load.order.remove(first.seq)
            }),
        };
        let Some((priority, waiting)) = first else {
            return Grant::Blocked(Blocked::Empty);
        };
        let attempt = waiting.attempt.next();
        let holder = Holder {
            attempt,
            unbegun: waiting.unbegun,
            priority,
            seq: waiting.seq,
            enqueued_at: waiting.enqueued_at,
            eligible_at: waiting.eligible_at,
            held_since: Some(now),
            cancel_requested: false,
            share: waiting.share,
        };
        self.hold(waiting.execution_id, holder);
        Grant::Granted(Granted {
            execution_id: waiting.execution_id,
            attempt,
            delayed: waiting.delayed,
        })
    }

    pub(super) fn hold(&mut self, execution_id: ExecutionId, holder: Holder) {
        let limits = self.limits;
        let load = self.load_mut();
        load.active.insert(execution_id, holder);
        if let Some(groups) = &mut load.groups {
            groups.take(&limits, holder.share);
        }
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
        let limits = self.limits;
        self.load_mut().release(&limits, execution_id);
        self.shrink();
        if cancelled {
            self.totals.cancelled += 1;
        } else {
            self.totals.completed += 1;
        }
        true
    }

    /// Takes the slot from this attempt and puts the execution back at its place in the order, from
    /// `not_before` on, whatever the queue's bound; false when the attempt holds no slot. An attempt
    /// that has not `begun` does not count as a try.
    pub fn put_back(
        &mut self,
        execution_id: ExecutionId,
        attempt: Attempt,
        begun: bool,
        not_before: Option<Millis>,
    ) -> bool {
        if !self.holds(execution_id, attempt) {
            return false;
        }
        let limits = self.limits;
        let load = self.load_mut();
        let Some(holder) = load.give_back(&limits, execution_id) else {
            return false;
        };
        let waiting = Waiting {
            execution_id,
            seq: holder.seq,
            enqueued_at: holder.enqueued_at,
            eligible_at: holder.eligible_at,
            attempt,
            unbegun: holder.unbegun.saturating_add(u16::from(!begun)),
            delayed: false,
            share: holder.share,
        };
        // Behind whatever waits, as a message that is given back to its broker.
        let priority = if Bug::Requeue.is_planted() {
            Priority::Low
        } else {
            holder.priority
        };
        match not_before.filter(|_| !Bug::RetryAtOnce.is_planted()) {
            Some(time) => load.delayed.insert(priority, waiting, time),
            None => load.wait(&limits, priority, waiting),
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
        self.totals.cancelled += 1;
        Some(waiting)
    }

    /// Takes a waiting execution out and counts it as expired.
    pub fn expire_waiting(&mut self, seq: Seq) -> Option<Waiting> {
        let waiting = self.remove(seq)?;
        self.totals.expired += 1;
        Some(waiting)
    }

    pub(super) fn remove(&mut self, seq: Seq) -> Option<Waiting> {
        let limits = self.limits;
        let load = self.load.as_mut()?;
        let waiting = match load.order.remove(seq) {
            Some((priority, waiting)) => {
                load.let_go(&limits, (priority, waiting));
                waiting
            }
            None => {
                let waiting = load.delayed.remove(seq)?;
                if let Some(groups) = &mut load.groups {
                    groups.leave(waiting.execution_id, waiting.share.group);
                }
                waiting
            }
        };
        self.shrink();
        Some(waiting)
    }

    /// Takes out up to `max` executions that have waited longer than they may, and counts them as expired;
    /// nobody while operators hold the queue, and none by a wait from before they resumed it. One that
    /// has held a slot and waits again does not expire: its first slot came in time.
    pub fn expire(&mut self, now: Millis, max: usize) -> Vec<Waiting> {
        let (timeout, limits) = (self.timeout(), self.limits);
        let mut expired = Vec::new();
        if self.hold.mode.is_some() || self.hold.waits_from.saturating_add(timeout) > now {
            return expired;
        }
        let Some(load) = &mut self.load else {
            return expired;
        };
        // Nearly always nobody has.
        let first = load.order.first_to_expire();
        if first.is_none_or(|since| since.saturating_add(timeout) > now) {
            return expired;
        }
        let next = || {
            let (priority, waiting) = load.order.pop_expired(now, timeout)?;
            load.let_go(&limits, (priority, waiting));
            Some(waiting)
        };
        expired.extend(std::iter::from_fn(next).take(max));
        self.shrink();
        self.totals.expired += expired.len() as u64;
        expired
    }

    /// Makes up to `max` delayed executions eligible whose time has come; tells how many.
    pub fn wake_delayed(&mut self, now: Millis, max: usize) -> usize {
        let limits = self.limits;
        let Some(load) = &mut self.load else { return 0 };
        let mut woken = 0;
        while woken < max
            && let Some((priority, waiting)) = load.delayed.pop_due(now)
        {
            load.wait(&limits, priority, waiting);
            woken += 1;
        }
        woken
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
        let Some(load) = &self.load else {
            return Vec::new();
        };
        let mut cleared: Vec<Waiting> = load.order.iter().collect();
        cleared.sort_unstable_by_key(|waiting| waiting.seq);
        cleared.extend(load.delayed.iter());
        let gone: Vec<Seq> = cleared.iter().map(|waiting| waiting.seq).collect();
        for seq in gone {
            self.remove(seq);
        }
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

#[cfg(test)]
#[path = "action_queue_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "group_tests.rs"]
mod group_tests;
