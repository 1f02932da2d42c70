//! Classes whose rate is used up.
//!
//! They are set aside by rate. When a rate has room again only the first of its classes comes back, and the
//! next once that has its slot or has no room in its group: as many stand among those with room as it takes
//! to see who is next, however many wait for the same rate. Where slots are shared it is not by order whose
//! turn it is, and all classes of a rate come back together.

use std::collections::BTreeSet;

use attune_core::{GroupKey, Seq};

use super::{Group, Groups, Place};
use crate::ByKey;
use crate::policy::{Meters, QueueLimits};
use crate::queue::Millis;

/// What is set aside, and what has to be looked at before anybody is granted a slot.
#[derive(Debug, Clone, Default)]
pub(super) struct Aside {
    of_rate: ByKey<GroupKey, OfRate>,
    /// The rates that are used up, by the time until which nobody of them may start.
    until: BTreeSet<(Millis, GroupKey)>,
    /// Classes of which it must be seen whether their rate is used up.
    unsure: Vec<Group>,
    /// Rates of which it must be seen whether more of their classes may come back.
    open: Vec<GroupKey>,
    /// Those of each rate that stand among those with room, where several classes share one.
    standing: BTreeSet<(GroupKey, i64, Seq, Group)>,
    /// Those who are first in a group that has some room, but less than they take.
    dear: BTreeSet<(GroupKey, Group)>,
}

/// What is set aside of one rate.
#[derive(Debug, Clone, Default)]
struct OfRate {
    /// The classes in which somebody waits, by their first.
    classes: BTreeSet<Place>,
    /// Until when nobody may start. Absent when the rate has room: then the first of its classes that has
    /// room in its group is not here.
    until: Option<Millis>,
}

impl Aside {
    /// The classes of a rate that are set aside, by their first.
    pub(super) fn of_rate(&self, rate: GroupKey) -> impl Iterator<Item = Place> + '_ {
        let of_rate = self.of_rate.get(&rate).into_iter();
        of_rate.flat_map(|it| it.classes.iter().copied())
    }

    /// It must be seen whether the rate of a class is used up.
    pub(super) fn look_at(&mut self, group: Group) {
        self.unsure.push(group);
    }

    /// A class stands among those with room from now on, or no longer.
    pub(super) fn stand(&mut self, rate: GroupKey, (key, seq, group): Place, is_there: bool) {
        let standing = (rate, key, seq, group);
        if is_there {
            self.standing.insert(standing);
            self.unsure.push(group);
        } else if self.standing.remove(&standing) && self.of_rate.contains_key(&rate) {
            self.open.push(rate);
        }
    }

    /// Somebody is the first of its group, and too dear for what is left there.
    pub(super) fn is_dear(&mut self, rate: GroupKey, group: Group) {
        if self.dear.insert((rate, group)) {
            self.unsure.push(group);
        }
    }

    /// It is not any more.
    pub(super) fn is_dear_no_more(&mut self, rate: GroupKey, group: Group) {
        self.dear.remove(&(rate, group));
    }

    /// Another one is first of a class that is set aside.
    fn replace(&mut self, rate: GroupKey, earlier: Option<Place>, place: Option<Place>) {
        let of_rate = self.of_rate.entry(rate).or_default();
        if let Some(earlier) = earlier {
            of_rate.classes.remove(&earlier);
        }
        of_rate.classes.extend(place);
        if of_rate.classes.is_empty() {
            self.set_until(rate, None);
            self.of_rate.remove(&rate);
        } else {
            self.open.push(rate);
        }
    }

    /// Nobody of a rate may start until then, or somebody may.
    fn set_until(&mut self, rate: GroupKey, until: Option<Millis>) {
        let Some(of_rate) = self.of_rate.get_mut(&rate) else {
            return;
        };
        let earlier = std::mem::replace(&mut of_rate.until, until);
        if let Some(earlier) = earlier {
            self.until.remove(&(earlier, rate));
        }
        self.until.extend(until.map(|until| (until, rate)));
    }

    /// The first of a rate that is set aside, if it goes before all of the rate that stand among those with
    /// room, or is to come back in any case.
    fn first(&self, rate: GroupKey, in_any_case: bool) -> Option<Place> {
        let first = *self.of_rate.get(&rate)?.classes.first()?;
        let range = (rate, i64::MIN, Seq(i64::MIN), Group(0))..;
        let standing = self.standing.range(range).next();
        let standing = standing.filter(|(of, ..)| *of == rate);
        let goes_first = standing.is_none_or(|(_, key, seq, group)| first < (*key, *seq, *group));
        (in_any_case || goes_first).then_some(first)
    }
}

impl Groups {
    /// Sets those aside whose rate is used up, and lets those come back whose time has come.
    pub(crate) fn settle(&mut self, limits: &QueueLimits, meters: &Meters) {
        while let Some((until, rate)) = self.aside.until.first().copied()
            && until <= meters.now()
        {
            self.aside.set_until(rate, None);
            self.aside.open.push(rate);
        }
        loop {
            if let Some(group) = self.aside.unsure.pop() {
                let class = self.classes.get(group.0 as usize);
                let stands = class.filter(|class| class.place.is_some() && !class.is_aside);
                if let Some(class) = stands
                    && meters.rate_until(limits, class.rate).is_some()
                {
                    self.set_aside(limits, group);
                }
            } else if let Some(rate) = self.aside.open.pop() {
                self.let_back(limits, meters, rate);
            } else {
                return;
            }
        }
    }

    /// Lets as many of a rate come back as may be next.
    fn let_back(&mut self, limits: &QueueLimits, meters: &Meters, rate: GroupKey) {
        if !self.aside.of_rate.contains_key(&rate) {
            return;
        }
        let until = meters.rate_until(limits, rate);
        self.aside.set_until(rate, until);
        if until.is_some() {
            return;
        }
        let all = self.fair.is_some();
        while let Some((.., group)) = self.aside.first(rate, all) {
            self.come_back(limits, group);
        }
    }

    fn set_aside(&mut self, limits: &QueueLimits, group: Group) {
        self.stand(limits, group, None);
        if let Some(class) = self.class(group) {
            class.is_aside = true;
            self.place(limits, group);
        }
    }

    fn come_back(&mut self, limits: &QueueLimits, group: Group) {
        self.place_aside(group, None);
        self.place(limits, group);
    }

    /// Another one is first of a class that is set aside; one in which nobody waits is not any more.
    pub(super) fn place_aside(&mut self, group: Group, place: Option<(i64, Seq)>) {
        let Some(class) = self.classes.get_mut(group.0 as usize) else {
            return;
        };
        class.is_aside = place.is_some();
        let earlier = std::mem::replace(&mut class.place, place);
        if earlier != place {
            let of = |(key, seq)| (key, seq, group);
            self.aside
                .replace(class.rate, earlier.map(of), place.map(of));
        }
    }

    /// Somebody has started, and its rate is used up.
    pub(crate) fn use_up(&mut self, rate: GroupKey) {
        let first = (rate, i64::MIN, Seq(i64::MIN), Group(0));
        let standing = self.aside.standing.range(first..);
        let standing = standing.take_while(|(of, ..)| *of == rate);
        let dear = self
            .aside
            .dear
            .range((rate, Group(0))..=(rate, Group::NONE));
        let groups = standing.map(|(.., group)| *group);
        let groups = groups.chain(dear.map(|(_, group)| *group));
        self.aside.unsure.extend(groups);
    }

    /// Somebody of a class has started who did not wait in it: whether its rate is used up is looked at.
    pub(crate) fn has_started(&mut self, group: Group) {
        self.aside.look_at(group);
    }

    /// Until when those are set aside whose rate is used up and who come back first.
    pub(crate) fn aside_until(&self) -> Option<Millis> {
        self.aside.until.first().map(|(until, _)| *until)
    }

    /// For whom the starts of a member count.
    pub(crate) fn rate_of(&self, group: Group) -> GroupKey {
        let class = self.classes.get(group.0 as usize);
        class.map_or(GroupKey::default(), |class| class.rate)
    }
}
