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
//! key has used up its rate is set aside until a time and holds up nobody else. Where both are told apart,
//! the classes of a group share its limit (`Together`), and those of a rate come and go together.
//!
//! Where slots are shared among flows, those with the same flow are a class, and `fair.rs` says which of
//! those that have room is next.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

use attune_core::{Bug, Demand, ExecutionId, GroupKey, OrderRule, Priority, Seq};

use super::{Meters, QueueLimits, Users};
use crate::queue::Millis;

mod fair;
mod line;
mod looks;

use fair::{Fair, Shared};
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
    /// Until when it is set aside, because its rate is used up.
    waits: Option<Millis>,
    /// Who waits, is delayed or holds a slot. Without anybody the class is given up.
    members: u32,
    /// What those who hold a slot take of the limit.
    used: u32,
    line: Line,
    /// Where it stands among those that have room; absent when it has none, or nobody waits. Of one that
    /// shares its limit with others, where it stands among these.
    place: Option<(i64, Seq)>,
}

/// Classes of one group that share its limit.
#[derive(Debug, Clone, Default)]
struct Together {
    /// What the holders of all of them take.
    used: u32,
    /// Those of which somebody waits and whose rate is not used up.
    waiting: BTreeSet<(i64, Seq, Group)>,
    /// Who of them stands among those that have room.
    place: Option<(i64, Seq, Group)>,
    /// How they share it, where slots are shared.
    fair: Option<Box<Shared>>,
}

/// The groups of one queue.
#[derive(Debug, Clone, Default)]
pub(crate) struct Groups {
    by_key: HashMap<(GroupKey, GroupKey), Group>,
    classes: Vec<Class>,
    free: Vec<Group>,
    /// Those with room for their first.
    ready: BTreeSet<(i64, Seq, Group)>,
    /// What all who hold a slot take of the limit of the action.
    used: u64,
    /// Whose group is not known yet. While there are any nobody is granted a slot: never are there two
    /// groupings at once.
    unknown: BTreeSet<ExecutionId>,
    /// Whose executions are here.
    users: Users,
    /// Classes whose rate is used up, by the time until which they are set aside.
    aside: BTreeSet<(Millis, Group)>,
    /// Classes of which it must be seen whether their rate is used up, before anybody is granted a slot.
    unsure: Vec<Group>,
    /// The classes of each rate, where those of several groups share one.
    of_rate: BTreeSet<(GroupKey, Group)>,
    /// The groups of which some executions are told apart; unused where none are.
    together: HashMap<GroupKey, Together>,
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

/// The first of a class comes.
fn open(
    classes: &mut Vec<Class>,
    free: &mut Vec<Group>,
    (key, rate): (GroupKey, GroupKey),
) -> Group {
    let class = Class {
        key,
        rate,
        waits: None,
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
            None => self.by_key.get(&(demand.group, demand.rate)).copied(),
            Some(fair) => fair.of_demand(demand),
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
        let group = if self.fair.is_some() {
            self.join_fairly(demand)
        } else {
            match self.by_key.entry((key, rate)) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => {
                    let group = open(&mut self.classes, &mut self.free, (key, rate));
                    if !key.is_zero() && !rate.is_zero() {
                        self.of_rate.insert((rate, group));
                    }
                    *new.insert(group)
                }
            }
        };
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
            let key = (class.key, class.rate);
            if let Some(until) = class.waits.take() {
                self.aside.remove(&(until, group));
            }
            match &mut self.fair {
                None => drop(self.by_key.remove(&key)),
                Some(fair) => fair.close(key, group),
            }
            self.of_rate.remove(&(key.1, group));
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
        self.serve(share.group, share.cost);
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
        let are_both = are_both(limits);
        let limit = limits.group_limit().filter(|_| !are_both);
        let first = class.line.first(limits.order);
        let first = first.filter(|first| {
            class.waits.is_none() && fits(u64::from(class.used), first.cost, limit)
        });
        let place = first.map(|first| first.key(limits.order));
        if class.place == place {
            return;
        }
        let key = class.key;
        let earlier = std::mem::replace(&mut class.place, place);
        if place.is_some() && limits.keyed_rate().is_some() {
            self.unsure.push(group);
        }
        if self.fair.is_some() {
            return self.place_fairly(limits, group, earlier, first);
        }
        let set = match are_both {
            false => &mut self.ready,
            true => &mut self.together.entry(key).or_default().waiting,
        };
        if let Some((key, seq)) = earlier {
            set.remove(&(key, seq, group));
        }
        if let Some((key, seq)) = place {
            set.insert((key, seq, group));
        }
        if are_both {
            self.place_together(limits, key);
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
        let place = first.filter(|(.., group)| {
            let class = self.classes.get(group.0 as usize);
            let head = class.and_then(|class| class.line.first(limits.order));
            let used = u64::from(together.used);
            head.is_some_and(|head| fits(used, head.cost, limits.group_limit()))
        });
        let earlier = std::mem::replace(&mut together.place, place);
        if together.used == 0 && together.waiting.is_empty() {
            self.together.remove(&key);
        }
        if earlier != place {
            if let Some(earlier) = earlier {
                self.ready.remove(&earlier);
            }
            self.ready.extend(place);
        }
    }

    /// Sets those aside whose rate is used up, and lets those come back whose time has come.
    pub(crate) fn settle(&mut self, limits: &QueueLimits, meters: &Meters) {
        while let Some((until, group)) = self.aside.first().copied()
            && until <= meters.now()
        {
            self.come_back(limits, group);
        }
        while let Some(group) = self.unsure.pop() {
            if let Some(class) = self.classes.get_mut(group.0 as usize)
                && class.place.is_some()
                && class.waits.is_none()
                && let Some(until) = meters.rate_until(limits, class.rate)
            {
                class.waits = Some(until);
                self.aside.insert((until, group));
                self.place(limits, group);
            }
        }
    }

    /// Somebody has started, and its rate is used up.
    pub(crate) fn use_up(&mut self, rate: GroupKey) {
        let of_rate = (rate, Group(0))..=(rate, Group::NONE);
        let classes = self.of_rate.range(of_rate).map(|(_, group)| *group);
        self.unsure.extend(classes);
    }

    /// Somebody of a class has started who did not wait in it: whether its rate is used up is looked at.
    pub(crate) fn has_started(&mut self, group: Group) {
        self.unsure.push(group);
    }

    fn come_back(&mut self, limits: &QueueLimits, group: Group) {
        let waits = self.class(group).and_then(|class| class.waits.take());
        if let Some(until) = waits {
            self.aside.remove(&(until, group));
            self.place(limits, group);
        }
    }

    /// Until when those are set aside whose rate is used up and who come back first.
    pub(crate) fn aside_until(&self) -> Option<Millis> {
        self.aside.first().map(|(until, _)| *until)
    }

    /// For whom the starts of a member count.
    pub(crate) fn rate_of(&self, group: Group) -> GroupKey {
        let class = self.classes.get(group.0 as usize);
        class.map_or(GroupKey::default(), |class| class.rate)
    }

    /// The order, the limit of the groups, the rate or what shares are worth is another one from now on.
    pub(crate) fn rearrange(&mut self, limits: &QueueLimits) {
        self.begin_anew(limits);
        for index in 0..self.classes.len() {
            let group = Group(u32::try_from(index).unwrap_or(u32::MAX));
            self.come_back(limits, group);
            self.place(limits, group);
            // A lowered rate may be used up by what has started before.
            if limits.keyed_rate().is_some() {
                self.unsure.push(group);
            }
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
