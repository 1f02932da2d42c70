//! What those who hold a slot take of the limits, and who has room beside them.

use super::*;

impl Replay<'_> {
    /// What the holders take of the limit of the action, and those of one group of its own.
    pub(super) fn used(&self, group: Option<Class>) -> (u64, u64) {
        if self.rule.is_none() {
            return (self.holders.len() as u64, 0);
        }
        let mut used = (0, 0);
        for id in self.holders.keys() {
            let demand = self.demand(*id);
            let cost = demand.map_or(1, |demand| u64::from(demand.cost));
            used.0 += cost;
            if demand.is_some_and(|demand| group.is_some_and(|it| it.0 == demand.group)) {
                used.1 += cost;
            }
        }
        used
    }

    /// Whoever surely waits with room in all its limits, when so many wait. Nobody passes those who stand ahead,
    /// which may lack room in their groups when limits have changed, until their worker has given them back.
    pub(super) fn with_room(&self, bounds: Bounds, waiting: u64) -> Option<ExecutionId> {
        if !self.ahead.is_empty() {
            return None;
        }
        let (used, _) = self.used(None);
        let lanes = self.waiting.values();
        let known: usize = lanes.flat_map(BTreeMap::values).map(BTreeSet::len).sum();
        // One of whom it is not known that it waits may be the first, and lack room.
        let unknown = match waiting > known as u64 {
            true => self.most_demanded,
            false => 1,
        };
        let lanes = self.waiting.values();
        let dearest = lanes.map(|lanes| self.dearest(lanes)).max().unwrap_or(1);
        let fits = |limit: u32| used + dearest.max(unknown) <= u64::from(limit);
        if !bounds.limit.is_none_or(fits) {
            return None;
        }
        let mut groups = self.waiting.iter().filter(|(group, lanes)| {
            bounds.demands.is_none()
                || (group.is_some() && self.has_room(bounds, **group, lanes, unknown))
        });
        groups.find_map(|(_, lanes)| lanes.values().find_map(BTreeSet::first).copied())
    }

    /// Whether a group surely has room for whoever is first in it: one that is known, or one that demands no
    /// more than `unknown`.
    pub(super) fn has_room(
        &self,
        bounds: Bounds,
        group: Option<Class>,
        lanes: &Lanes,
        unknown: u64,
    ) -> bool {
        let is_sure = || self.holders.keys().all(|id| self.demand(*id).is_some());
        let (_, used) = self.used(group);
        // Of the flows of a group the dearest may be the first.
        let of_group = group.filter(|(.., flow)| !flow.is_none()).map(|it| it.0);
        let others = self
            .waiting
            .iter()
            .filter(|(other, _)| other.is_some_and(|other| Some(other.0) == of_group));
        let dearest = others.map(|(_, lanes)| self.dearest(lanes)).max();
        let dearest = dearest
            .unwrap_or(unknown)
            .max(self.dearest(lanes))
            .max(unknown);
        let fits = |limit: u32| used + dearest <= u64::from(limit);
        bounds.group_limit.is_none_or(fits) && is_sure()
    }

    /// The most that the first of a priority demands.
    pub(super) fn dearest(&self, lanes: &Lanes) -> u64 {
        let heads = lanes.values().filter_map(BTreeSet::first);
        let costs = heads.filter_map(|id| self.demand(*id));
        costs
            .map(|demand| u64::from(demand.cost))
            .max()
            .unwrap_or(1)
    }
}
