//! Who leaves a queue without having had a slot, and who becomes eligible in it as time goes by.

use attune_core::Seq;

use super::action_queue::ActionQueue;
use super::entry::{Millis, Waiting};

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
            None => {
                let waiting = load.delayed.remove(seq)?;
                if let Some(rivals) = &mut load.rivals {
                    rivals.stop_waiting(waiting.share.group, seq);
                }
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
        let (timeout, hold) = (self.timeout(), self.held());
        let mut expired = Vec::new();
        if hold.mode.is_some() || hold.waits_from.saturating_add(timeout) > now {
            return expired;
        }
        let (limits, Some(load)) = (&self.limits, &mut self.load) else {
            return expired;
        };
        // Nearly always nobody has.
        let first = load.order.first_to_expire();
        if first.is_none_or(|since| since.saturating_add(timeout) > now) {
            return expired;
        }
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

    /// Whether somebody delayed could be woken.
    pub(crate) fn has_due(&self, now: Millis) -> bool {
        let load = self.load.as_ref();
        let next = load.and_then(|load| load.delayed.next());
        next.is_some_and(|time| time <= now)
    }

    /// When [`expire`](Self::expire), [`wake_delayed`](Self::wake_delayed), [`pass`](Self::pass) or
    /// [`next_try`](Self::next_try) has something to do.
    pub fn next_deadline(&self) -> Option<Millis> {
        let load = self.deadline_of_load();
        let others = self.deadline_of_meters().into_iter();
        load.into_iter()
            .chain(others)
            .chain(self.deadline_of_kept())
            .min()
    }

    fn deadline_of_load(&self) -> Option<Millis> {
        let load = self.load.as_ref()?;
        let expiry = load.order.first_to_expire();
        let hold = self.held();
        let expiry = expiry.filter(|_| hold.mode.is_none());
        let expiry = expiry.map(|since| since.max(hold.waits_from).saturating_add(self.timeout()));
        expiry.into_iter().chain(load.delayed.next()).min()
    }

    fn timeout(&self) -> Millis {
        i64::from(self.limits.timeout_seconds) * 1000
    }
}
