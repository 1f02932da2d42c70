//! Who leaves a queue without having had a slot, and who becomes eligible in it as time goes by.

use attune_core::Seq;

use super::action_queue::ActionQueue;
use super::entry::{Millis, Waiting};
use super::load::Load;

impl ActionQueue {
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
        let (limits, load) = (&self.limits, self.load.as_mut()?);
        let waiting = match load.order.remove(seq) {
            Some((priority, waiting)) => {
                load.let_go(limits, (priority, waiting));
                waiting
            }
            None => load.take_delayed(seq)?,
        };
        self.shrink();
        Some(waiting)
    }

    /// Takes out up to `max` executions that have waited longer than they may, and counts them as expired;
    /// nobody while operators hold the queue, and none by a wait from before they resumed it. One that
    /// has held a slot and waits again does not expire: its first slot came in time.
    pub fn expire(&mut self, now: Millis, max: usize) -> Vec<Waiting> {
        let mut expired = Vec::new();
        if !self.has_expired(now) {
            return expired;
        }
        let timeout = self.timeout();
        let (limits, Some(load)) = (&self.limits, &mut self.load) else {
            return expired;
        };
        let next = || {
            let (priority, waiting) = load.order.pop_expired(now, timeout)?;
            load.let_go(limits, (priority, waiting));
            Some(waiting)
        };
        expired.extend(std::iter::from_fn(next).take(max));
        self.shrink();
        self.totals.expired += expired.len() as u64;
        expired
    }

    /// Whether [`expire`](Self::expire) would find anybody: nearly always it would not.
    #[inline]
    pub(crate) fn has_expired(&self, now: Millis) -> bool {
        let load = self.load.as_ref();
        let first = load.and_then(|load| self.first_expiry(load));
        first.is_some_and(|time| time <= now)
    }

    /// Whether whoever [`grant_next`](Self::grant_next) would give a slot has waited too long.
    pub(crate) fn is_next_expired(&mut self, now: Millis) -> bool {
        if !self.has_expired(now) {
            return false;
        }
        if self.meters.is_some() {
            self.set_aside();
        }
        let next = self.load.as_ref().and_then(|load| match &load.groups {
            None => load.order.first(self.limits.order),
            Some(groups) => {
                let (_, first) = groups.first(&self.limits)?;
                load.order.find(first.seq)
            }
        });
        let since = next.and_then(|(_, next)| next.wait_counts_from());
        since.is_some_and(|since| self.expiry_since(since) <= now)
    }

    /// When the first of those who wait has waited too long; of a queue that is held, never.
    fn first_expiry(&self, load: &Load) -> Option<Millis> {
        let until = self.expiry_since(load.order.first_to_expire()?);
        self.held().mode.is_none().then_some(until)
    }

    /// When somebody who waits has waited too long; of a queue that is held, and of one that has held a slot,
    /// never.
    pub(super) fn expires_at(&self, waiting: &Waiting) -> Option<Millis> {
        let until = self.expiry_since(waiting.wait_counts_from()?);
        self.held().mode.is_none().then_some(until)
    }

    /// When somebody has waited too long that waits since then.
    fn expiry_since(&self, since: Millis) -> Millis {
        let since = since.max(self.held().waits_from);
        since.saturating_add(self.timeout())
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

    /// Makes up to `max` delayed executions eligible whose time has come; tells how many.
    pub fn wake_delayed(&mut self, now: Millis, max: usize) -> usize {
        let (limits, Some(load)) = (&self.limits, &mut self.load) else {
            return 0;
        };
        let mut woken = 0;
        while woken < max
            && let Some((priority, waiting)) = load.delayed.pop_due(now)
        {
            load.wait(limits, priority, waiting);
            woken += 1;
        }
        woken
    }

    /// Until when somebody is delayed, if it is.
    pub(crate) fn delayed_until(&self, seq: Seq) -> Option<Millis> {
        let (.., until) = self.load.as_ref()?.delayed.find(seq)?;
        Some(until)
    }

    /// Whether somebody delayed could be woken.
    pub(crate) fn has_due(&self, now: Millis) -> bool {
        let load = self.load.as_ref();
        let next = load.and_then(|load| load.delayed.next());
        next.is_some_and(|time| time <= now)
    }

    /// When [`expire`](Self::expire), [`wake_delayed`](Self::wake_delayed), [`pass`](Self::pass) or
    /// [`next_try`](Self::next_try) has something to do.
    pub fn next_deadline(&self) -> Option<Millis> {
        let of_load = earlier(self.deadline_of_load(), self.deadline_of_meters());
        let of_slots = earlier(self.deadline_of_kept(), self.rests_until());
        earlier(of_load, of_slots)
    }

    fn deadline_of_load(&self) -> Option<Millis> {
        let load = self.load.as_ref()?;
        let (expiry, due) = (self.first_expiry(load), load.delayed.next());
        earlier(expiry, due)
    }

    fn timeout(&self) -> Millis {
        i64::from(self.limits.timeout_seconds) * 1000
    }
}

/// The earlier of two times, if there are any.
fn earlier(one: Option<Millis>, other: Option<Millis>) -> Option<Millis> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
