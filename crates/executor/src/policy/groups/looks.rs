//! What can be seen of groups, for whoever comes and for whoever asks why something waits.

use attune_core::{Demand, GroupKey, Priority, Seq};

use super::line::Line;
use super::{Class, Group, Groups, Member, Share, fits};
use crate::policy::QueueLimits;

/// Where somebody stands, and what it takes.
type Standing = ((i64, Seq), u16);

/// How many of a group have room one after the other, beside those who take so much of its limit, and what they
/// take.
fn fitting(limits: &QueueLimits, mut used: u64, mut line: Vec<Standing>) -> (u64, u64) {
    line.sort_unstable();
    let (mut many, mut taken) = (0, 0);
    for (_, cost) in line {
        if !fits(used, cost, limits.group_limit()) {
            break;
        }
        used += u64::from(cost);
        taken += u64::from(cost);
        many += 1;
    }
    (many, taken)
}

impl Groups {
    /// Whether somebody who came now would be the next to have a slot, and has room in its limits.
    pub(crate) fn is_open(&self, limits: &QueueLimits, demand: &Demand, key: (i64, Seq)) -> bool {
        if self.fair.is_some() {
            return self.is_open_to_all(limits, demand);
        }
        let class = self.class_of(demand);
        let first = class.and_then(|class| class.line.first(limits.order));
        let together = self.together.get(&demand.group);
        let beside = together.and_then(|together| together.waiting.first());
        let mut before = self.ready.first().into_iter().chain(beside);
        first.is_none_or(|first| key < first.key(limits.order))
            && self.group_has_room(limits, demand)
            && before.all(|(first, seq, _)| key < (*first, *seq))
            && self.unknown.is_empty()
            && self.has_room(limits, demand.cost)
    }

    fn class_of(&self, demand: &Demand) -> Option<&Class> {
        let group = self.of_demand(demand)?;
        self.classes.get(group.0 as usize)
    }

    /// Whether the limit of its group has room for somebody, beside those who hold a slot.
    pub(crate) fn group_has_room(&self, limits: &QueueLimits, demand: &Demand) -> bool {
        fits(self.used_beside(demand), demand.cost, limits.group_limit())
    }

    /// What those take who hold a slot in the group of somebody who demands this.
    fn used_beside(&self, demand: &Demand) -> u64 {
        let together = self.together.get(&demand.group);
        let used = together.map(|together| together.used);
        let used = used.or(self.class_of(demand).map(|class| class.used));
        used.unwrap_or(0).into()
    }

    /// Whether somebody waits of the group in which one would be who demands this, and is not held up by its
    /// rate alone.
    pub(crate) fn has_line(&self, demand: &Demand) -> bool {
        let together = self.together.get(&demand.group);
        let class = self.class_of(demand);
        together.is_some_and(|together| !together.waiting.is_empty())
            || class.is_some_and(|class| !matches!(class.line, Line::Empty))
    }

    /// Whether somebody who demands this has room in both limits once others of its group have freed so
    /// much.
    pub(crate) fn would_fit(&self, limits: &QueueLimits, demand: &Demand, freed: u64) -> bool {
        let left = |used: u64| used.saturating_sub(freed);
        fits(
            left(self.used_beside(demand)),
            demand.cost,
            limits.group_limit(),
        ) && fits(left(self.used), demand.cost, limits.max_concurrent)
    }

    /// The group that a class is of; `None` of no class.
    pub(crate) fn key_of(&self, group: Group) -> Option<GroupKey> {
        self.classes.get(group.0 as usize).map(|class| class.key)
    }

    /// What those who hold a slot take of the limits: of the action's, and of that of a group.
    pub(crate) fn used(&self, group: Group) -> (u64, u64) {
        let class = self.classes.get(group.0 as usize);
        let together = class.and_then(|class| self.together.get(&class.key));
        let of_group = together.map(|together| together.used);
        let of_group = of_group.or(class.map(|class| class.used)).unwrap_or(0);
        (self.used, of_group.into())
    }

    /// Whether the holders of two groups take of one limit: they are one group, told apart by whose starts
    /// are counted.
    pub(crate) fn share_limit(&self, one: Group, other: Group) -> bool {
        let key = |group: Group| self.classes.get(group.0 as usize).map(|class| class.key);
        one == other || key(one).is_some_and(|one| Some(one) == key(other))
    }

    /// Whether there is room in the limit of a group for somebody, beside those who hold a slot and others
    /// who take so much.
    pub(crate) fn has_room_in(&self, limits: &QueueLimits, share: Share, others: u64) -> bool {
        let (_, used) = self.used(share.group);
        fits(used + others, share.cost, limits.group_limit())
    }

    /// How many wait in a group before somebody, and what they take; up to `max` are looked at in each lane of
    /// each of up to `max` classes. Of those who share slots its own class alone counts: of the others it is not
    /// known who goes before.
    pub(crate) fn before_in(
        &self,
        limits: &QueueLimits,
        group: Group,
        me: &Member,
        max: usize,
    ) -> (u64, u64) {
        let before = self.all_before_in(limits, group, me, max);
        let cost = before.iter().map(|(_, cost)| u64::from(*cost)).sum();
        (before.len() as u64, cost)
    }

    /// The same of those for whom there is room in the group now: only so many of them take of the limit of the
    /// action what nobody of the group gives back.
    pub(crate) fn fitting_before_in(
        &self,
        limits: &QueueLimits,
        group: Group,
        me: &Member,
        max: usize,
    ) -> (u64, u64) {
        let (_, used) = self.used(group);
        fitting(limits, used, self.all_before_in(limits, group, me, max))
    }

    fn all_before_in(
        &self,
        limits: &QueueLimits,
        group: Group,
        me: &Member,
        max: usize,
    ) -> Vec<Standing> {
        let together = self.key_of(group).and_then(|key| self.together.get(&key));
        let together = together.filter(|_| self.fair.is_none());
        let others = together.iter().flat_map(|it| it.waiting.iter());
        let others = others.map(|(.., other)| *other);
        let others = others.filter(|other| *other != group).take(max);
        let classes = others.chain([group]);
        classes
            .flat_map(|class| self.of_class_before(limits, class, me, max))
            .collect()
    }

    /// Who waits in a class before somebody, in no particular order; up to `max` in each lane.
    fn of_class_before(
        &self,
        limits: &QueueLimits,
        class: Group,
        me: &Member,
        max: usize,
    ) -> Vec<Standing> {
        let place = me.key(limits.order);
        let Some(class) = self.classes.get(class.0 as usize) else {
            return Vec::new();
        };
        let lanes = std::iter::once(None).chain(Priority::ALL.map(Some));
        let before = lanes.flat_map(|lane| {
            let lane = class.line.in_lane(lane).take(max);
            let lane = lane.map(|it| (it.key(limits.order), it.cost));
            lane.take_while(|(its, _)| *its < place)
        });
        before.collect()
    }

    /// How many wait before somebody for the rate for which it waits, as far as there is room for them in their
    /// groups; up to `max` classes are looked at, and up to `max` who wait in each lane of them.
    pub(crate) fn before_for_rate(
        &self,
        limits: &QueueLimits,
        group: Group,
        me: &Member,
        max: usize,
    ) -> u64 {
        let (key, seq) = me.key(limits.order);
        let others = self.aside.of_rate(self.rate_of(group));
        let others = others.take_while(|place| *place < (key, seq, Group(0)));
        let others = others.map(|(.., other)| other).filter(|it| *it != group);
        let classes = others.take(max).chain([group]);
        let many = classes.map(|class| {
            let (_, used) = self.used(class);
            fitting(limits, used, self.of_class_before(limits, class, me, max)).0
        });
        many.sum()
    }

    /// How many of the classes that share what is left of a group are to have it before another one of it, whose
    /// turn is not yet; those that go on with each other alone.
    pub(crate) fn named_before(&self, group: Group) -> u64 {
        let together = self.key_of(group).and_then(|key| self.together.get(&key));
        let shared = together.and_then(|it| it.fair.as_ref());
        match self.waits_to_be_named(group) {
            true => shared.map_or(0, |shared| shared.named() as u64),
            false => 0,
        }
    }

    /// How many of an earlier lane have room in their groups and wait; up to `max` groups are looked at, and up to
    /// `max` who wait in each lane of them.
    pub(crate) fn in_earlier_lanes(
        &self,
        limits: &QueueLimits,
        but: Group,
        me: &Member,
        max: usize,
    ) -> u64 {
        let lanes = std::iter::once(None).chain(Priority::ALL.map(Some));
        let lanes: Vec<_> = lanes.take_while(|lane| *lane != me.lane).collect();
        if lanes.is_empty() {
            return 0;
        }
        let groups = self.ready.iter().take(max).map(|(.., group)| *group);
        let many = groups.filter(|group| *group != but).map(|group| {
            let Some(class) = self.classes.get(group.0 as usize) else {
                return 0;
            };
            let its = lanes
                .iter()
                .flat_map(|lane| class.line.in_lane(*lane).take(max));
            let its = its.map(|it| (it.key(limits.order), it.cost)).collect();
            let (_, used) = self.used(group);
            fitting(limits, used, its).0
        });
        many.sum()
    }

    /// The groups with room, but for one, that have their first before somebody; up to `max` are looked at.
    fn all_ready_before(
        &self,
        limits: &QueueLimits,
        but: Group,
        me: &Member,
        max: usize,
    ) -> impl Iterator<Item = Group> {
        let (key, seq) = me.key(limits.order);
        let before = self.ready.range(..(key, seq, Group(0))).take(max);
        let groups = before.map(|(.., group)| *group);
        let is_shared = self.fair.is_some();
        groups.filter(move |group| match is_shared {
            true => *group != but,
            // Others of one group, told apart by whose starts are counted, are counted with it.
            false => !self.share_limit(*group, but),
        })
    }

    /// Who waits before somebody in other groups with room, as far as there is room for them in their groups:
    /// how many, and what they take together; up to `max` groups are looked at, and up to `max` who wait.
    pub(crate) fn ready_before(
        &self,
        limits: &QueueLimits,
        but: Group,
        me: &Member,
        max: usize,
    ) -> (u64, u64) {
        let (mut many, mut cost, mut looks) = (0, 0, max);
        for group in self.all_ready_before(limits, but, me, max) {
            let its = self.of_class_before(limits, group, me, looks);
            looks -= its.len().min(looks);
            let (_, used) = self.used(group);
            let (more, costs) = fitting(limits, used, its);
            many += more;
            cost += costs;
        }
        (many, cost)
    }

    /// How many groups stand among those with room for their first.
    #[cfg(test)]
    pub(crate) fn with_room(&self) -> usize {
        self.ready.len()
    }

    /// The first of a group.
    pub(crate) fn first_of(&self, limits: &QueueLimits, group: Group) -> Option<Member> {
        let class = self.classes.get(group.0 as usize)?;
        class.line.first(limits.order)
    }
}
