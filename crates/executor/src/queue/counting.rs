//! What a queue counts of its starts, where its policy bounds how often they may be.

use attune_core::{Bug, Demand, GroupKey};

use super::action_queue::ActionQueue;
use super::entry::Millis;
use crate::policy::{Counted, Meters, StartLimit};

/// How often a poll would come, in milliseconds.
const LOOK_EVERY: Millis = 10_000;

impl ActionQueue {
    /// Says what time it is, before anybody is granted a slot. A time before the last is as good as that.
    pub fn pass(&mut self, now: Millis) {
        self.end_rest(now);
        if !self.limits.counts_starts() {
            if self.meters.is_some() {
                self.meters = None;
            }
            return;
        }
        let meters = self
            .meters
            .get_or_insert_with(|| Box::new(Meters::new(now)));
        meters.pass(now);
        if self.load.is_none() && meters.is_over(&self.limits) {
            self.meters = None;
        }
        self.set_aside();
    }

    /// Sets aside whoever would be next and has used up its rate.
    pub(super) fn set_aside(&mut self) {
        if let (Some(load), Some(meters)) = (&mut self.load, &self.meters)
            && let Some(groups) = &mut load.groups
        {
            groups.settle(&self.limits, meters);
        }
    }

    /// How many groups stand among those with room for their first.
    #[cfg(test)]
    pub(super) fn groups_with_room(&self) -> usize {
        let groups = self.load.as_ref().and_then(|load| load.groups.as_ref());
        groups.map_or(0, |groups| groups.with_room())
    }

    /// When somebody may start whose rate is used up; of a queue that stands idle, when nothing of what
    /// was counted counts any more.
    pub(super) fn deadline_of_meters(&self) -> Option<Millis> {
        let meters = self.meters.as_ref()?;
        let Some(load) = &self.load else {
            return Some(meters.over_at(&self.limits).max(meters.now() + 1));
        };
        if load.order.is_empty() || self.is_stopped() {
            return None;
        }
        let groups = load.groups.as_ref();
        let aside = groups.and_then(|groups| groups.aside_until());
        let until = meters.until(&self.limits);
        let opens = aside.into_iter().chain(until).min();
        if Bug::NoWake.is_planted() {
            return opens.map(|time| (time / LOOK_EVERY + 1) * LOOK_EVERY);
        }
        opens
    }

    /// When anybody may start as far as starts of all together are counted; `None` when that is now.
    pub(crate) fn starts_are_free_at(&self) -> Option<Millis> {
        self.meters.as_ref()?.until(&self.limits)
    }

    /// Whether somebody who demands this could start now as far as starts are counted.
    pub(super) fn may_start(&self, demand: Option<&Demand>) -> bool {
        let key = demand.map_or(GroupKey::default(), |demand| demand.rate);
        self.rate_opens(key).is_none()
    }

    /// When somebody of this key may start as far as starts are counted; `None` when it may now.
    pub(super) fn rate_opens(&self, key: GroupKey) -> Option<Millis> {
        let meters = self.meters.as_ref()?;
        let until = meters.until(&self.limits);
        until.max(meters.rate_until(&self.limits, key))
    }

    /// For how long whoever enters at `now` would have to wait because its rate is used up, in
    /// milliseconds; `None` where nothing is used up, or its policy lets it wait.
    pub(crate) fn refused_for(&self, now: Millis, demand: Option<&Demand>) -> Option<Millis> {
        self.limits.rate().filter(|rate| rate.rejects)?;
        let key = demand.map_or(GroupKey::default(), |demand| demand.rate);
        let until = self.meters.as_ref()?.rate_until(&self.limits, key)?;
        (until > now).then(|| until - now)
    }

    /// What was counted in the round under way, to be stored with it, which is written down as of `at`.
    pub(crate) fn counted(&self, at: Millis) -> Vec<Counted> {
        let meters = self.meters.as_ref();
        meters.map_or_else(Vec::new, |meters| {
            let ahead = (at - meters.now()).max(0);
            meters.fresh(&self.limits, ahead)
        })
    }

    /// What was counted in the round under way is stored, since `at` at the latest.
    pub(crate) fn settle_counted(&mut self, at: Millis) {
        if let Some(meters) = &mut self.meters {
            meters.settle(&self.limits, at);
        }
    }

    /// Takes in what another owner has counted, as it was stored at `written_at`.
    pub(crate) fn restore_counted(
        &mut self,
        now: Millis,
        (limit, key): (StartLimit, GroupKey),
        stored: (&[u8], Millis),
    ) {
        if self.limits.counts_starts() {
            let meters = self
                .meters
                .get_or_insert_with(|| Box::new(Meters::new(now)));
            meters.pass(now);
            meters.restore(&self.limits, limit, key, stored);
        }
    }
}
