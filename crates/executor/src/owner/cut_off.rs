//! An owner that has lost the bus and not the store could renew its leases for ever, and get no
//! message about what it owns. So it says in its announcements that it is cut off, which takes it
//! out of the shares as long as anybody is not; and what it has it hands over.
//!
//! A broker that is away for everybody moves nothing: all say that they are cut off, and then
//! everybody counts again. For this to be seen by all, nothing is handed over for a whole lease; and
//! whoever finds the broker again before the others must have it for as long before they make way.

use attune_core::{Bug, OwnerId};

use super::{Notice, Owner};
use crate::queue::Millis;

/// Whether the bus can be reached, and since when it cannot.
#[derive(Debug, Default)]
pub(super) struct BusReach {
    /// Since when it could not be reached for longer than a moment.
    lost_since: Option<Millis>,
    /// Since when it can be reached again.
    back_since: Option<Millis>,
    /// It was said to people that others take the partitions.
    told: bool,
}

/// For so long the bus must be away, or back, before it counts: an announcement and a look of
/// everybody else fit between this and the end of a lease.
fn settled(ttl: Millis) -> Millis {
    ttl / 3
}

impl BusReach {
    /// For how long it has been away, or was.
    pub(super) fn lost_for(&self, now: Millis) -> Millis {
        let until = self.back_since.unwrap_or(now);
        self.lost_since.map_or(0, |since| until - since)
    }

    /// Whether this owner says that it is cut off.
    fn is_cut_off(&self, now: Millis, ttl: Millis) -> bool {
        self.lost_for(now) >= settled(ttl)
    }

    /// Whether everybody has had the time to say that they are cut off as well.
    fn is_known(&self, now: Millis, ttl: Millis) -> bool {
        self.back_since.is_none() && self.lost_for(now) >= ttl
    }

    /// When what it says changes, unless something happens before.
    pub(super) fn wake_at(&self, ttl: Millis) -> Option<Millis> {
        self.back_since.map(|since| since + settled(ttl))
    }
}

impl Owner {
    /// Whether the bus can be reached has changed, or may have.
    pub(super) fn reach_bus(&mut self, now: Millis, reachable: bool) {
        let reach = &mut self.reach;
        if !reachable && !Bug::StayPut.is_planted() {
            reach.lost_since.get_or_insert(now);
            reach.back_since = None;
        } else if reach.lost_since.is_some() {
            reach.back_since.get_or_insert(now);
        }
    }

    /// Forgets that the bus was away, once it has been back for long enough, and says so at once.
    pub(super) fn settle_reach(&mut self, now: Millis) {
        let due = self.reach.wake_at(self.options.lease_ttl);
        if due.is_none_or(|at| now < at) {
            return;
        }
        if self.is_cut_off(now) {
            self.announce_soon(now);
        }
        if self.reach.told {
            self.say(Notice::BusIsBack);
        }
        self.reach = BusReach::default();
    }

    /// Whether this owner says that it is cut off from the bus.
    pub(super) fn is_cut_off(&self, now: Millis) -> bool {
        self.reach.is_cut_off(now, self.options.lease_ttl)
    }

    /// Those among whom the partitions are shared: who is there and not cut off, or everybody when
    /// all are.
    pub(super) fn sharing(&self, now: Millis) -> Vec<OwnerId> {
        let others = self.looks.others().iter();
        let others = others.map(|(other, cut_off)| (*other, *cut_off));
        let own = (!self.is_departing()).then_some((self.options.id, self.is_cut_off(now)));
        let all: Vec<(OwnerId, bool)> = others.chain(own).collect();
        let everybody = all.iter().all(|(_, cut_off)| *cut_off);
        let sharing = all
            .iter()
            .filter(|(_, cut_off)| everybody || !cut_off)
            .map(|(owner, _)| *owner);
        sharing.collect()
    }

    /// Whether what is held is to be handed over to those who are not cut off, as there are some.
    pub(super) fn makes_way(&mut self, now: Millis) -> bool {
        let ttl = self.options.lease_ttl;
        let makes_way = self.reach.is_known(now, ttl) && self.looks.has_reached_since(now - ttl);
        if makes_way && !self.reach.told && !self.keeper.held.is_empty() {
            self.reach.told = true;
            self.say(Notice::CutOff);
        }
        makes_way
    }
}
