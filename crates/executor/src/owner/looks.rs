//! Watches the leases of all partitions and who is there, beside the keeper's renewals.
//!
//! The store's clock judges nothing here: a lease is over when it was not renewed for as long as it
//! holds and a grace, by the clock of the one who watches. It is then taken as it was observed, so
//! a renewal that comes first wins.

use std::collections::BTreeMap;

use attune_core::{Epoch, OwnerId, PartitionId};

use super::clock::{DRIFT, Finding, Shown};
use super::watch::Watch;
use super::{Call, Looked, Notice, Owner, Purpose, Reply};
use crate::leases::{SeenLease, is_over_after, plan};
use crate::queue::Millis;
use crate::stored::StoredLease;

/// How long after the end of somebody's lease it is looked for, in milliseconds: not everybody
/// should come at once.
const AFTER_THE_END: (Millis, Millis) = (20, 120);
/// How often is looked at most, in milliseconds.
const OFTEN: Millis = 50;

/// What was seen of the leases.
#[derive(Debug)]
pub(super) struct Looks {
    asked: Option<Millis>,
    at: Millis,
    leases: Watch<PartitionId, (Epoch, i64)>,
    executors: Watch<OwnerId, i64>,
    /// Who is there besides this owner, and whether they say that they are cut off from the bus.
    others: Vec<(OwnerId, bool)>,
    /// Since when each of them has been seen to say that it is not.
    reaching_since: BTreeMap<OwnerId, Millis>,
    /// A lease was being given up while this look was under way: what seems to be this owner's
    /// own may be on its way to somebody else.
    own_is_unsure: bool,
}

impl Default for Looks {
    fn default() -> Self {
        Self {
            asked: None,
            // Nobody looks before it has said that it is there.
            at: Millis::MAX,
            leases: Watch::default(),
            executors: Watch::default(),
            others: Vec::new(),
            reaching_since: BTreeMap::new(),
            own_is_unsure: false,
        }
    }
}

impl Looks {
    pub(super) fn wake_at(&self) -> Option<Millis> {
        self.asked.is_none().then_some(self.at)
    }

    /// Looks as soon as the look that is under way is answered, or at once.
    pub(super) fn hurry(&mut self, now: Millis) {
        self.at = now;
    }

    /// A lease is being given up.
    pub(super) fn gives_up(&mut self) {
        self.own_is_unsure = true;
    }

    /// Who is there besides this owner, and whether they say that they are cut off from the bus.
    pub(super) fn others(&self) -> &[(OwnerId, bool)] {
        &self.others
    }

    /// Whether somebody else has said all the time since then that it reaches the bus.
    pub(super) fn has_reached_since(&self, then: Millis) -> bool {
        self.reaching_since.values().any(|since| *since <= then)
    }
}

impl Owner {
    /// Asks how the leases stand, when it is time.
    pub(super) fn go_on_looking(&mut self, now: Millis) {
        if self.looks.asked.is_some() || now < self.looks.at || self.has_ended() {
            return;
        }
        let mut under_way = self.calls.values();
        self.looks.own_is_unsure =
            under_way.any(|(purpose, _)| matches!(purpose, Purpose::Free(..)));
        self.looks.asked = Some(now);
        let period = (self.options.lease_ttl / 10).max(OFTEN);
        self.looks.at = now + self.chance.between(period * 4 / 5, period);
        self.call(Purpose::Look, Call::Look);
    }

    /// The store has said how the leases stand.
    pub(super) fn looked(&mut self, now: Millis, reply: Reply) {
        let Some(asked) = self.looks.asked.take() else {
            return;
        };
        let Reply::Looked(looked) = reply else {
            return;
        };
        self.look_at_the_clocks((asked, now), &looked);
        self.watch_others((asked, now), &looked);
        let (leases, next_end) = self.watch_leases((asked, now), looked);
        if let Some(wait) = next_end {
            let jitter = self.chance.between(AFTER_THE_END.0, AFTER_THE_END.1);
            self.looks.at = self.looks.at.min(now + wait + jitter);
        }
        if self.is_departing() {
            return;
        }
        let me = self.options.id;
        let live = self.sharing(now);
        let patience = self.options.lease_ttl;
        let mut plan = plan(me, &live, &leases, &self.keeper.held, now, patience);
        if !live.contains(&me) {
            // Others can serve what is free, and this owner cannot.
            plan.acquire.clear();
        }
        if self.is_cut_off(now) && (live.contains(&me) || !self.makes_way(now)) {
            // Everybody is cut off, or may turn out to be.
            plan.hand_over.clear();
        }
        if self.looks.own_is_unsure {
            plan.acquire.retain(|seen| seen.holder != Some(me));
        }
        for (partition, to) in plan.hand_over {
            self.let_go(now, partition, Some(to));
        }
        let observed = plan.acquire.iter().map(StoredLease::observed);
        self.keeper.observed = observed.collect();
    }

    /// Learns what time it is. When it turns out that decisions went by a time that was too early,
    /// everything is loaded again: who waits is known since when by the store.
    fn look_at_the_clocks(&mut self, (asked, answered): (Millis, Millis), looked: &Looked) {
        let shown = Shown {
            asked,
            answered,
            store: looked.store_now,
            own: looked.own_now,
        };
        match self.clock.observe(shown) {
            None => {}
            Some(Finding::Drift(by)) => self.say(Notice::ClockDrift { by }),
            Some(Finding::Differ(by)) => self.say(Notice::ClocksDiffer { by }),
            Some(Finding::Agree(by)) => {
                self.say(Notice::ClocksAgree { by });
                if by > DRIFT {
                    self.load_all_again(answered);
                }
            }
        }
    }

    /// Somebody is there as long as its renewals go on. Whom the store's clock takes for gone when
    /// it is seen first is there from its next renewal on.
    fn watch_others(&mut self, times: (Millis, Millis), looked: &Looked) {
        let ttl = self.presence_ttl();
        let watch = &mut self.looks.executors;
        let counters = looked.executors.iter();
        let counters = counters.map(|row| {
            let at_first = if row.live { 0 } else { ttl * 2 };
            (row.executor, row.renewals, at_first)
        });
        watch.look(times, ttl / 3, counters);
        let others = looked.executors.iter();
        let others = others.filter(|row| {
            let still_for = watch.still_for(&row.executor);
            row.executor != self.options.id && still_for.is_some_and(|still_for| still_for < ttl)
        });
        let others = others.map(|row| (row.executor, row.cut_off));
        let others: Vec<(OwnerId, bool)> = others.collect();
        let before = std::mem::take(&mut self.looks.reaching_since);
        let reaching = others.iter().filter(|(_, cut_off)| !cut_off);
        let since = |other: &OwnerId| before.get(other).copied().unwrap_or(times.1);
        self.looks.reaching_since = reaching.map(|(it, _)| (*it, since(it))).collect();
        self.looks.others = others;
    }

    /// How long each lease has not moved, and in how long the next one is over.
    fn watch_leases(
        &mut self,
        times: (Millis, Millis),
        looked: Looked,
    ) -> (Vec<SeenLease>, Option<Millis>) {
        let counters = looked.leases.iter();
        let counters = counters.map(|lease| (lease.partition, (lease.epoch, lease.renewals), 0));
        let longest = self.options.lease_ttl / 3;
        self.looks.leases.look(times, longest, counters);
        let watch = &self.looks.leases;
        let seen = looked.leases.into_iter().map(|lease| SeenLease {
            still_for: watch.still_for(&lease.partition).unwrap_or(0),
            lease,
        });
        let seen: Vec<SeenLease> = seen.collect();
        let me = self.options.id;
        let others = seen.iter().filter(|seen| {
            let holder = seen.lease.holder;
            holder.is_some_and(|holder| holder != me) && !seen.is_over()
        });
        let next = others.map(|seen| is_over_after(seen.lease.ttl) - seen.still_for);
        let next = next.min();
        (seen, next)
    }
}
