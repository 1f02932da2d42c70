//! Who of those that wait may have a slot, where executions demand different things: of a limit for each
//! group, or more than one unit of the limit of their action.
//!
//! A group is a *class*: all who wait in it lack the same limit, so a group without room is set aside as
//! a whole, and comes back when its own limit has room for its first. Nobody who waits is ever looked at
//! to find out who may start: the first of each group with room stands in a sorted set, and whatever
//! changes a group (somebody comes, leaves, is granted or ends) costs that group's place in it.
//!
//! Who is first in a group does not let others pass that demand less: a dear one waits for its room.
//!
//! Where starts are counted for each key, those with the same group and the same key are a class. One whose
//! key has used up its rate is set aside until a time and holds up nobody else (`aside`). Where both are told
//! apart, the classes of a group share its limit (`Together`).
//!
//! Where slots are shared among flows, those with the same flow are a class, and `fair.rs` says which of
//! those that have room is next.

use std::collections::BTreeSet;

use attune_core::{Bug, Demand, ExecutionId, GroupKey, OrderRule, Priority, Seq};

use super::few::Few;
use super::{QueueLimits, Users};
use crate::ByKey;
use crate::queue::Millis;

mod aside;
mod fair;
mod known;
mod line;
mod looks;

use aside::Aside;
#[cfg(test)]
pub(crate) use fair::IS_ALONE;
use fair::{Alone, Fair, Shared};
use known::Known;
use line::{Line, Standing};

/// A group of a queue, as the queue knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(u32);

impl Group {
    /// Of whoever is in none, or in one that is not known yet.
    pub const NONE: Self = Self(u32::MAX);
}

/// What is taken of the limits that an execution demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Share {
    /// Its group.
    pub group: Group,
    /// How much it takes.
    pub cost: u16,
}

impl Default for Share {
    fn default() -> Self {
        Self {
            group: Group::NONE,
            cost: 1,
        }
    }
}

/// Somebody who waits in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    /// [`Waiting::lane`](crate::queue::Waiting::lane).
    pub(crate) lane: Option<Priority>,
    pub(crate) seq: Seq,
    pub(crate) cost: u16,
    /// By which it stands among those of other priorities.
    pub(crate) enqueued_at: Millis,
}

impl Member {
    fn key(&self, rule: OrderRule) -> (i64, Seq) {
        (key_in(rule, self.lane, self.enqueued_at), self.seq)
    }
}

/// The order key of somebody in a lane; those before all lanes have the smallest.
pub(crate) fn key_in(rule: OrderRule, lane: Option<Priority>, enqueued_at: Millis) -> i64 {
    lane.map_or(i64::MIN, |priority| rule.key(priority, enqueued_at))
}

/// All executions of one group that wait, are delayed or hold a slot, and whose starts count together.
#[derive(Debug, Clone)]
struct Class {
    /// Its group.
    key: GroupKey,
    /// For whom its starts are counted.
    rate: GroupKey,
    /// Whether it is set aside, because its rate is used up.
    is_aside: bool,
    /// Who waits, is delayed or holds a slot. Without anybody the class is given up.
    members: u32,
    /// What those who hold a slot take of the limit.
    used: u32,
    line: Line,
    /// Where it stands among those that have room; absent when it has none, or nobody waits. Of one that
    /// shares its limit with others, where it stands among these; of one that is set aside, among those of
    /// its rate.
    place: Option<(i64, Seq)>,
}

/// Where a class stands among others, by the order key of its first.
type Place = (i64, Seq, Group);

/// Classes of one group that share its limit.
#[derive(Debug, Clone, Default)]
struct Together {
    /// What the holders of all of them take.
    used: u32,
    /// Those of which somebody waits and whose rate is not used up.
    waiting: Few<Place>,
    /// Who of them stands among those that have room.
    place: Option<Place>,
    /// Who is first of them, where it takes more than the room that is left.
    dear: Option<Group>,
    /// How they share it, where slots are shared and there has been more than one.
    fair: Option<Box<Shared>>,
    /// The only one that there has been, where slots are shared.
    alone: Option<Alone>,
}

/// The groups of one queue.
#[derive(Debug, Clone, Default)]
pub(crate) struct Groups {
    /// Those classes by group and rate; unused where slots are shared.
    known: Known,
    classes: Vec<Class>,
    free: Vec<Group>,
    /// Those with room for their first.
    ready: BTreeSet<Place>,
    /// What all who hold a slot take of the limit of the action.
    used: u64,
    /// Whose group is not known yet. While there are any nobody is granted a slot: never are there two
    /// groupings at once.
    unknown: BTreeSet<ExecutionId>,
    /// Whose executions are here.
    users: Users,
    /// Those whose rate is used up.
    aside: Aside,
    /// The groups of which some executions are told apart; unused where none are.
    together: ByKey<GroupKey, Together>,
    /// There where slots are shared.
    fair: Option<Box<Fair>>,
}

/// Whether executions of one group are told apart, by whose starts are counted or by whose turn it is.
fn are_both(limits: &QueueLimits) -> bool {
    let is_apart = limits.keyed_rate().is_some() || limits.fairness().is_some();
    limits.group_limit().is_some() && is_apart
}

/// Whether somebody who takes `cost` has room in a limit of which `used` is taken. Who takes more than
/// there is runs alone, instead of waiting for ever: the limit was higher when it was accepted.
fn fits(used: u64, cost: u16, limit: Option<u32>) -> bool {
    limit.is_none_or(|limit| used + u64::from(cost).min(u64::from(limit)) <= u64::from(limit))
}

/// By what classes are told apart where slots are not shared.
fn keys(classes: &[Class]) -> impl Fn(Group) -> (GroupKey, GroupKey) {
    |group| {
        let class = &classes[group.0 as usize];
        (class.key, class.rate)
    }
}

/// The first of a class comes.
fn open(
    classes: &mut Vec<Class>,
    free: &mut Vec<Group>,
    (key, rate): (GroupKey, GroupKey),
) -> Group {
    let class = Class {
        key,
        rate,
        is_aside: false,
        members: 0,
        used: 0,
        line: Line::Empty,
        place: None,
    };
    if let Some(group) = free.pop() {
        classes[group.0 as usize] = class;
        return group;
    }
    classes.push(class);
    Group(u32::try_from(classes.len() - 1).unwrap_or(u32::MAX))
}

impl Groups {
    /// Groups of executions, of which some are there already and must be told apart first; whose they are may
    /// be known.
    pub(crate) fn new(limits: &QueueLimits, unknown: BTreeSet<ExecutionId>, users: Users) -> Self {
        Self {
            unknown,
            users,
            fair: limits.fairness().map(Fair::boxed),
            ..Self::default()
        }
    }

    /// Whose executions are here, once they are told apart by something else.
    pub(crate) fn into_users(self) -> Users {
        self.users
    }

    /// Whose executions are here.
    pub(crate) fn users(&self) -> &Users {
        &self.users
    }

    /// The group of somebody who demands this, if another of it is here.
    pub(crate) fn of_demand(&self, demand: &Demand) -> Option<Group> {
        match &self.fair {
            None => self
                .known
                .get(&(demand.group, demand.rate), keys(&self.classes)),
            Some(fair) => fair.of_demand(&self.classes, demand),
        }
    }

    /// Whose group is not known.
    pub(crate) fn unknown(&self) -> &BTreeSet<ExecutionId> {
        &self.unknown
    }

    /// What an execution that is there takes of the limits, if that is known: a demand says it only under
    /// the rule that it follows from, and under any whose the execution is.
    pub(crate) fn share(
        &mut self,
        id: ExecutionId,
        demand: Option<&Demand>,
        rule: Option<i64>,
    ) -> Share {
        if let Some(user) = demand.and_then(|demand| demand.user) {
            self.users.join(id, user);
        }
        match demand.filter(|demand| Some(demand.rule) == rule) {
            Some(demand) => {
                self.unknown.remove(&id);
                Share {
                    group: self.join(demand),
                    cost: demand.cost,
                }
            }
            None => {
                self.unknown.insert(id);
                Share::default()
            }
        }
    }

    fn class(&mut self, group: Group) -> Option<&mut Class> {
        self.classes.get_mut(group.0 as usize)
    }

    /// Somebody joins a group, to wait, to be delayed or to hold a slot.
    fn join(&mut self, demand: &Demand) -> Group {
        let (key, rate) = (demand.group, demand.rate);
        let group = self.of_demand(demand).unwrap_or_else(|| {
            let group = open(&mut self.classes, &mut self.free, (key, rate));
            match &mut self.fair {
                None => self.known.insert(group, keys(&self.classes)),
                Some(fair) => fair.open(&self.classes, demand.flow, group),
            }
            group
        });
        if let Some(class) = self.class(group) {
            class.members += 1;
        }
        group
    }

    /// Somebody is gone: it neither waits nor holds a slot.
    pub(crate) fn leave(&mut self, id: ExecutionId, group: Group) {
        self.users.leave(id);
        let Some(class) = self.class(group) else {
            self.unknown.remove(&id);
            return;
        };
        class.members = class.members.saturating_sub(1);
        if class.members == 0 {
            match &mut self.fair {
                None => self.known.remove(group, keys(&self.classes)),
                Some(fair) => fair.close(&self.classes, group),
            }
            self.free.push(group);
        }
    }

    /// A member waits for a slot from now on.
    pub(crate) fn wait(&mut self, limits: &QueueLimits, group: Group, member: Member) {
        if let Some(class) = self.class(group) {
            class.line.insert(member);
            self.place(limits, group);
        }
    }

    /// A member waits no longer.
    pub(crate) fn stop_waiting(&mut self, limits: &QueueLimits, group: Group, standing: Standing) {
        if let Some(class) = self.class(group) {
            class.line.remove(standing);
            self.place(limits, group);
        }
    }

    /// A member holds a slot from now on.
    pub(crate) fn take(&mut self, limits: &QueueLimits, share: Share) {
        let Some(key) = self.hold(limits, share) else {
            return;
        };
        if are_both(limits) {
            self.place_together(limits, key);
        } else {
            self.place(limits, share.group);
        }
    }

    /// A member that waits is granted a slot. It holds that before it leaves its line: a group in which
    /// nobody else waits is then not taken for one in which nobody is.
    pub(crate) fn grant(&mut self, limits: &QueueLimits, share: Share, standing: Standing) {
        self.serve(limits, share.group, share.cost);
        self.hold(limits, share);
        self.stop_waiting(limits, share.group, standing);
    }

    /// Counts a slot as held; tells of which group it is.
    fn hold(&mut self, limits: &QueueLimits, share: Share) -> Option<GroupKey> {
        let class = self.class(share.group)?;
        class.used += u32::from(share.cost);
        let key = class.key;
        self.used += u64::from(share.cost);
        if self.fair.is_some() {
            self.hold_fairly(limits, share, true);
        }
        if are_both(limits) {
            self.together.entry(key).or_default().used += u32::from(share.cost);
        }
        Some(key)
    }

    /// A member holds its slot no longer.
    pub(crate) fn give_back(&mut self, limits: &QueueLimits, share: Share) {
        if let Some(class) = self.class(share.group) {
            class.used = class.used.saturating_sub(u32::from(share.cost));
            let key = class.key;
            self.used = self.used.saturating_sub(u64::from(share.cost));
            if self.fair.is_some() {
                self.hold_fairly(limits, share, false);
            }
            if are_both(limits) {
                let together = self.together.entry(key).or_default();
                together.used = together.used.saturating_sub(u32::from(share.cost));
                self.place_together(limits, key);
            } else {
                self.place(limits, share.group);
            }
        }
    }

    /// Puts a group among those with room, or takes it from them.
    fn place(&mut self, limits: &QueueLimits, group: Group) {
        let Some(class) = self.classes.get_mut(group.0 as usize) else {
            return;
        };
        let first = class.line.first(limits.order);
        if class.is_aside {
            return self.place_aside(group, first.map(|first| first.key(limits.order)));
        }
        let limit = limits.group_limit().filter(|_| !are_both(limits));
        let used = class.used.into();
        self.stand(
            limits,
            group,
            first.filter(|first| fits(used, first.cost, limit)),
        );
    }

    /// Puts a class among those with room by its first that could have a slot as far as the class goes.
    fn stand(&mut self, limits: &QueueLimits, group: Group, first: Option<Member>) {
        let Some(class) = self.classes.get_mut(group.0 as usize) else {
            return;
        };
        let place = first.map(|first| first.key(limits.order));
        if class.place == place {
            return;
        }
        let (key, rate) = (class.key, class.rate);
        let earlier = std::mem::replace(&mut class.place, place);
        if place.is_some() && limits.keyed_rate().is_some() {
            self.aside.look_at(group);
        }
        let of = |(key, seq): (i64, Seq)| (key, seq, group);
        if self.fair.is_some() {
            if !rate.is_zero() {
                self.stands_by_rate(rate, earlier.map(of), place.map(of));
            }
            return self.place_fairly(limits, group, earlier, first);
        }
        if are_both(limits) {
            let waiting = &mut self.together.entry(key).or_default().waiting;
            if let Some(earlier) = earlier {
                waiting.remove(&of(earlier));
            }
            waiting.extend(place.map(of));
            return self.place_together(limits, key);
        }
        if let Some(earlier) = earlier {
            self.ready.remove(&of(earlier));
        }
        self.ready.extend(place.map(of));
        if !rate.is_zero() && !key.is_zero() {
            self.stands_by_rate(rate, earlier.map(of), place.map(of));
        }
    }

    /// A class stands elsewhere among those with room.
    fn stands_by_rate(&mut self, rate: GroupKey, earlier: Option<Place>, place: Option<Place>) {
        for (place, is_there) in [(earlier, false), (place, true)] {
            if let Some(place) = place {
                self.aside.stand(rate, place, is_there);
            }
        }
    }

    /// Puts the first class of a group among those with room, or takes it from them.
    fn place_together(&mut self, limits: &QueueLimits, key: GroupKey) {
        if self.fair.is_some() {
            return self.share_out(limits, key);
        }
        let Some(together) = self.together.get_mut(&key) else {
            return;
        };
        let first = together.waiting.first().copied();
        let used = u64::from(together.used);
        let limit = limits.group_limit();
        let place = first.filter(|(.., group)| {
            let class = self.classes.get(group.0 as usize);
            let head = class.and_then(|class| class.line.first(limits.order));
            head.is_some_and(|head| fits(used, head.cost, limit))
        });
        let earlier = std::mem::replace(&mut together.place, place);
        let has_some = place.is_none() && fits(used, 1, limit);
        let dear = first.map(|(.., group)| group).filter(|_| has_some);
        let was_dear = std::mem::replace(&mut together.dear, dear);
        if together.used == 0 && together.waiting.is_empty() {
            self.together.remove(&key);
        }
        if was_dear != dear {
            if let Some(group) = was_dear {
                self.aside.is_dear_no_more(self.rate_of(group), group);
            }
            if let Some(group) = dear {
                self.aside.is_dear(self.rate_of(group), group);
            }
        }
        if earlier != place {
            for (place, is_there) in [(earlier, false), (place, true)] {
                let Some(place) = place else { continue };
                match is_there {
                    true => self.ready.insert(place),
                    false => self.ready.remove(&place),
                };
                self.aside.stand(self.rate_of(place.2), place, is_there);
            }
        }
    }

    /// The order, the limit of the groups, the rate or what shares are worth is another one from now on.
    pub(crate) fn rearrange(&mut self, limits: &QueueLimits) {
        self.aside = Aside::default();
        self.ready.clear();
        self.together.clear();
        for class in &mut self.classes {
            (class.is_aside, class.place) = (false, None);
            if are_both(limits) && class.used > 0 {
                self.together.entry(class.key).or_default().used += class.used;
            }
        }
        self.begin_anew(limits);
        for index in 0..self.classes.len() {
            let group = Group(u32::try_from(index).unwrap_or(u32::MAX));
            self.place(limits, group);
        }
        let keys: Vec<GroupKey> = self.together.keys().copied().collect();
        for key in keys {
            self.place_together(limits, key);
        }
    }

    /// Who is first among those whose group has room.
    pub(crate) fn first(&self, limits: &QueueLimits) -> Option<(Group, Member)> {
        if let Some(fair) = &self.fair {
            return self.first_of_all(fair, limits);
        }
        let mut heads = self.ready.iter().filter_map(|(_, _, group)| {
            let class = self.classes.get(group.0 as usize)?;
            Some((*group, class.line.first(limits.order)?))
        });
        if Bug::ScanSkipsCost.is_planted() {
            // Whoever finds room passes the dear one before it.
            return heads.find(|(_, head)| self.has_room(limits, head.cost));
        }
        heads.next()
    }

    /// Whether the limit of the action has room for somebody, beside those who hold a slot.
    pub(crate) fn has_room(&self, limits: &QueueLimits, cost: u16) -> bool {
        self.has_room_beside(limits, cost, 0)
    }

    /// The same, beside others who take so much as well.
    pub(crate) fn has_room_beside(&self, limits: &QueueLimits, cost: u16, others: u64) -> bool {
        fits(self.used + others, cost, limits.max_concurrent)
    }
}
