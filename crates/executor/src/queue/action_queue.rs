//! The queue of one action: who waits, who holds a slot, who is next. Pure data, no I/O, no clock.
//!
//! Entering only enqueues; [`grant_next`](ActionQueue::grant_next) is the one place where a slot
//! is given, and it can say why it gives none. Slots are a *set* of `(execution, attempt)`, never
//! a counter: releasing what is not held then changes nothing, however often it is said.

use attune_core::policy::FlowWeights;
use attune_core::{
    ActionId, Attempt, Bug, ExecutionId, Hold, Priority, QueueStats, QueueTotals, Seq, WorkerId,
};
use chrono::{DateTime, Utc};

use super::ahead::holder_of;
use super::entry::{Blocked, Grant, Granted, Holder, Millis, Waiting};
use super::keyless::Keyless;
use super::load::Load;
use crate::policy::{Groups, Member, Meters, QueueLimits};

/// What stops a queue that has room and somebody who waits.
#[derive(Debug, Clone)]
struct Stops {
    /// No worker of the pool has room: nobody is granted a slot meanwhile.
    pool_closed: bool,
    /// How operators hold it: nobody is granted a slot and nobody expires meanwhile.
    hold: Hold,
    /// What its workers could not open.
    keyless: Option<Box<Keyless>>,
}

impl Stops {
    const NONE: Self = Self {
        pool_closed: false,
        hold: Hold::NONE,
        keyless: None,
    };
}

/// The queue of one action.
#[derive(Debug, Clone)]
pub struct ActionQueue {
    pub(super) action_id: ActionId,
    pub(super) limits: QueueLimits,
    pub(super) totals: QueueTotals,
    /// Absent in the many queues that nothing from outside has stopped yet.
    stops: Option<Box<Stops>>,
    /// Absent while nobody waits or runs: most of many queues are idle, and then small.
    pub(super) load: Option<Box<Load>>,
    /// What has started lately, there where starts are counted and have been.
    pub(super) meters: Option<Box<Meters>>,
}

impl ActionQueue {
    /// An empty queue.
    pub fn new(action_id: ActionId, limits: QueueLimits, totals: QueueTotals) -> Self {
        Self {
            action_id,
            limits,
            totals,
            stops: None,
            load: None,
            meters: None,
        }
    }

    /// Its bounds, and who waits and runs.
    pub(super) fn parts(&mut self) -> (&QueueLimits, &mut Load) {
        let limits = &self.limits;
        let load = self.load.get_or_insert_with(|| Load::boxed(limits));
        (limits, load)
    }

    /// Gives the memory of an idle queue back.
    pub(super) fn shrink(&mut self) {
        if self.is_idle()
            && let Some(load) = self.load.take()
        {
            load.retire();
        }
    }

    /// Its bounds.
    pub fn limits(&self) -> &QueueLimits {
        &self.limits
    }

    /// Says whether no worker of the pool has room, or others stand before it there.
    pub fn set_pool_closed(&mut self, closed: bool) {
        if closed || self.stops.is_some() {
            self.stops_mut().pool_closed = closed;
        }
    }

    /// Says how operators hold it; whether that is a change. A resume counts for good: no wait counts
    /// from before it.
    pub fn set_hold(&mut self, mut hold: Hold) -> bool {
        hold.waits_from = hold.waits_from.max(self.held().waits_from);
        let is_change = self.held() != hold;
        if is_change {
            self.stops_mut().hold = hold;
        }
        is_change
    }

    fn stops_mut(&mut self) -> &mut Stops {
        self.stops.get_or_insert_with(|| Box::new(Stops::NONE))
    }

    pub(super) fn keyless(&self) -> Option<&Keyless> {
        self.stops.as_ref()?.keyless.as_deref()
    }

    pub(super) fn keyless_if_any(&mut self) -> Option<&mut Keyless> {
        self.stops.as_mut()?.keyless.as_deref_mut()
    }

    pub(super) fn forget_keyless(&mut self) {
        if let Some(stops) = &mut self.stops {
            stops.keyless = None;
        }
    }

    pub(super) fn keyless_mut(&mut self) -> &mut Keyless {
        self.stops_mut().keyless.get_or_insert_default()
    }

    /// How operators hold it.
    pub(crate) fn held(&self) -> Hold {
        self.stops.as_ref().map_or(Hold::NONE, |stops| stops.hold)
    }

    pub(super) fn is_held(&self) -> bool {
        self.stops
            .as_ref()
            .is_some_and(|stops| stops.hold.mode.is_some())
    }

    /// Whether no worker of the pool has room, or others stand before it there.
    pub(super) fn is_pool_closed(&self) -> bool {
        self.stops.as_ref().is_some_and(|stops| stops.pool_closed)
    }

    /// Whether something from outside stops it.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_held() || self.is_pool_closed() || self.rests_until().is_some()
    }

    /// What has gone through it.
    pub fn totals(&self) -> QueueTotals {
        self.totals
    }

    /// How many wait, delayed ones and those ahead of their slots included.
    pub fn len(&self) -> usize {
        let load = self.load.as_ref();
        load.map_or(0, |load| {
            load.order.len() + load.delayed.len() + load.ahead_count()
        })
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many hold a slot.
    pub fn active_count(&self) -> usize {
        self.load.as_ref().map_or(0, |load| load.slots())
    }

    /// Who is granted to a worker: whoever holds a slot, and whoever stands ahead of one.
    pub fn holders(&self) -> impl Iterator<Item = (ExecutionId, Holder)> + '_ {
        let active = self.load.iter().flat_map(|load| load.active.iter());
        active.map(|(id, holder)| (id, *holder))
    }

    /// How an execution is granted.
    pub fn holder(&self, execution_id: ExecutionId) -> Option<Holder> {
        self.load.as_ref()?.active.get(execution_id).copied()
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

    /// What the flow of a holder is worth, where slots are shared.
    pub(crate) fn flow_weights(&self, execution_id: ExecutionId) -> Option<FlowWeights> {
        let load = self.load.as_ref()?;
        // Most queues have no groups, and are asked for each grant.
        let groups = load.groups.as_ref()?;
        groups.flow_weights(load.active.get(execution_id)?.share.group)
    }

    /// How many are granted to a worker: those that hold a slot, and those that stand ahead of one.
    pub(crate) fn granted_count(&self) -> usize {
        self.load.as_ref().map_or(0, |load| load.active.len())
    }

    /// Whether nobody waits or holds a slot.
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

    /// Whether nobody can be given a slot right now, of those who are not to be set aside first.
    pub(crate) fn is_blocked(&mut self) -> bool {
        if self.meters.is_some() {
            self.set_aside();
        }
        self.blocked().is_some()
    }

    /// Why a slot cannot be given to anybody of those that wait.
    pub(super) fn without_room(&self, load: &Load) -> Option<Blocked> {
        if self.is_held() {
            return Some(Blocked::Paused);
        }
        let limit = self.limits.max_concurrent;
        // Nobody passes those who stand ahead, also where the limit for which they do is lifted.
        if self.has_line(load) {
            return Some(limit.map_or(Blocked::Line, |limit| Blocked::Limit { limit }));
        }
        if let Some(groups) = &load.groups {
            return self.without_room_in(groups);
        }
        let is_full = |limit: &u32| load.slots() >= *limit as usize;
        match limit.filter(is_full) {
            Some(limit) => Some(Blocked::Limit { limit }),
            None => self.without_rate(),
        }
    }

    /// Whether somebody stands ahead of a slot.
    pub(super) fn has_line(&self, load: &Load) -> bool {
        load.ahead_count() > 0 && !Bug::PastTheLine.is_planted()
    }

    /// The same, as far as it is not a matter of who holds slots.
    pub(super) fn without_rate(&self) -> Option<Blocked> {
        let meters = self.meters.as_ref();
        match meters.and_then(|meters| meters.until(&self.limits)) {
            Some(until) => Some(Blocked::Rate { until }),
            None if self.is_pool_closed() => Some(Blocked::PoolClosed),
            None => self.rests_until().map(|until| Blocked::Key { until }),
        }
    }

    /// The same, where executions demand different things.
    fn without_room_in(&self, groups: &Groups) -> Option<Blocked> {
        if !groups.unknown().is_empty() {
            return Some(Blocked::Regrouping);
        }
        let Some((_, first)) = groups.first(&self.limits) else {
            let until = groups.aside_until();
            return Some(until.map_or(Blocked::Groups, |until| Blocked::Rate { until }));
        };
        match self.limits.max_concurrent {
            Some(limit) if !groups.has_room(&self.limits, first.cost) => {
                Some(Blocked::Limit { limit })
            }
            _ => self.without_rate(),
        }
    }

    /// Gives a free slot to the first in order, from `now` on: the one place where slots are given.
    pub fn grant_next(&mut self, now: Millis) -> Grant {
        if self.meters.is_some() {
            self.set_aside();
        }
        if let Some(blocked) = self.blocked() {
            return Grant::Blocked(blocked);
        }
        let (limits, Some(load)) = (&self.limits, &mut self.load) else {
            return Grant::Blocked(Blocked::Empty);
        };
        let first = match &load.groups {
            None => load.order.pop_first(limits.order),
            Some(groups) => {
                let first = groups.first(limits);
                first.and_then(|(_, first)| load.order.remove(first.seq))
            }
        };
        let Some((priority, waiting)) = first else {
            return Grant::Blocked(Blocked::Empty);
        };
        let attempt = waiting.next_attempt();
        let holder = Holder {
            held_since: Some(now),
            ..holder_of(priority, &waiting)
        };
        let lane = waiting.lane(priority);
        load.grant(limits, (waiting.execution_id, lane), holder);
        if let Some(meters) = &mut self.meters {
            let groups = load.groups.as_ref();
            let key = groups.map(|groups| groups.rate_of(holder.share.group));
            let key = key.unwrap_or_default();
            meters.start(limits, key);
            if let Some(groups) = &mut load.groups
                && meters.rate_until(limits, key).is_some()
            {
                groups.use_up(key);
            }
        }
        Grant::Granted(Granted {
            execution_id: waiting.execution_id,
            attempt,
            delayed: waiting.delayed,
            priority,
            eligible_at: waiting.eligible_at,
        })
    }

    /// Says which life of a worker runs whoever holds a slot.
    pub(crate) fn give_to(&mut self, execution_id: ExecutionId, worker: WorkerId) {
        if let Some(holder) = self.active_mut(execution_id) {
            (holder.worker, holder.started) = (Some(worker), false);
        }
    }

    /// Notes that the worker of this attempt has said that it runs; whether that is new.
    pub(crate) fn note_started(&mut self, execution_id: ExecutionId) -> bool {
        let holder = self.active_mut(execution_id);
        let is_new = holder.is_some_and(|holder| !std::mem::replace(&mut holder.started, true));
        if is_new {
            self.note_begun(execution_id);
        }
        is_new
    }

    fn active_mut(&mut self, execution_id: ExecutionId) -> Option<&mut Holder> {
        self.load.as_mut()?.active.get_mut(execution_id)
    }

    /// Whether this attempt holds a slot.
    pub(super) fn holds(&self, execution_id: ExecutionId, attempt: Attempt) -> bool {
        let load = self.load.as_ref();
        let holder = load.and_then(|load| load.active.get(execution_id));
        holder.is_some_and(|holder| holder.attempt == attempt)
    }

    /// Releases the slot that this attempt holds; false, and nothing happens, when it holds none.
    /// `cancelled` says how the end counts.
    pub fn finish(&mut self, execution_id: ExecutionId, attempt: Attempt, cancelled: bool) -> bool {
        if !self.holds(execution_id, attempt) {
            // As `running -= 1` would: some slot comes free for every completion.
            if Bug::Counter.is_planted() {
                let active = &mut self.parts().1.active;
                let first = active.iter().next().map(|(id, _)| id);
                first.and_then(|id| active.remove(id));
            }
            return false;
        }
        let (limits, load) = self.parts();
        load.release(limits, execution_id);
        self.shrink();
        if cancelled {
            self.totals.cancelled += 1;
        } else {
            self.totals.completed += 1;
            self.note_begun(execution_id);
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
        let (limits, load) = self.parts();
        let Some(holder) = load.give_back(limits, execution_id) else {
            return false;
        };
        let waiting = Waiting {
            attempt,
            unbegun: holder.unbegun.saturating_add(u16::from(!begun)),
            ..holder.waiting(execution_id)
        };
        // Behind whatever waits, as a message that is given back to its broker.
        let priority = if Bug::Requeue.is_planted() {
            Priority::Low
        } else {
            holder.priority
        };
        match not_before.filter(|_| !Bug::RetryAtOnce.is_planted()) {
            Some(time) => load.put_off(priority, waiting, time),
            None => load.wait(limits, priority, waiting),
        }
        true
    }

    /// Marks a holder as to be ended; its slot comes free when its worker says so.
    pub fn request_cancel(&mut self, execution_id: ExecutionId) -> Option<Attempt> {
        self.load.as_mut()?.ask(execution_id)
    }

    /// How many stand before this execution; `None` when it does not wait, or not yet.
    pub fn position(&self, seq: Seq) -> Option<u64> {
        let load = self.load.as_ref()?;
        let rank = load.order.rank(self.limits.order, seq)?;
        Some(rank + load.ahead_count() as u64)
    }

    /// Whether this execution waits, delayed or not.
    pub(crate) fn is_waiting(&self, seq: Seq) -> bool {
        let load = self.load.as_ref();
        load.is_some_and(|load| load.order.contains(seq) || load.delayed.contains(seq))
    }

    /// The queue as it is now.
    pub fn stats(&self) -> QueueStats {
        let load = self.load.as_ref();
        // Whoever is delayed has not waited for a slot yet.
        let oldest = load.and_then(|load| load.order.oldest());
        let oldest = self.oldest_ahead().into_iter().chain(oldest).min();
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
            lacks_key: self.lacks_key(),
        }
    }
}

#[cfg(test)]
#[path = "action_queue_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "group_tests.rs"]
pub(super) mod group_tests;

#[cfg(test)]
#[path = "fair_tests.rs"]
mod fair_tests;

#[cfg(test)]
#[path = "aside_tests.rs"]
mod aside_tests;

#[cfg(test)]
#[path = "rate_tests.rs"]
mod rate_tests;
