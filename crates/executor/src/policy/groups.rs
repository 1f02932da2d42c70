//! Who of those that wait may have a slot, where executions demand different things: of a limit for each
//! group, or more than one unit of the limit of their action.
//!
//! A group is a *class*: all who wait in it lack the same limit, so a group without room is set aside as
//! a whole, and comes back when its own limit has room for its first. Nobody who waits is ever looked at
//! to find out who may start: the first of each group with room stands in a sorted set, and whatever
//! changes a group (somebody comes, leaves, is granted or ends) costs that group's place in it.
//!
//! Who is first in a group does not let others pass that demand less: a dear one waits for its room.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use attune_core::{Bug, Demand, ExecutionId, GroupKey, OrderRule, Priority, Seq};

use super::{QueueLimits, Users};
use crate::queue::Millis;

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

/// Where somebody stands in the line of its group: those before all lanes first.
type Standing = (Option<Priority>, Seq);

/// Who waits in a group. Of many groups most have one.
#[derive(Debug, Clone, Default)]
enum Line {
    #[default]
    Empty,
    One(Member),
    Many(BTreeMap<Standing, (Millis, u16)>),
}

impl Line {
    fn insert(&mut self, member: Member) {
        match self {
            Self::Empty => *self = Self::One(member),
            Self::One(first) => {
                let two = [*first, member].map(|member| {
                    let place = (member.lane, member.seq);
                    (place, (member.enqueued_at, member.cost))
                });
                *self = Self::Many(BTreeMap::from(two));
            }
            Self::Many(members) => {
                let place = (member.lane, member.seq);
                members.insert(place, (member.enqueued_at, member.cost));
            }
        }
    }

    fn remove(&mut self, (lane, seq): Standing) {
        match self {
            Self::One(member) if member.seq == seq => *self = Self::Empty,
            Self::Many(members) => {
                members.remove(&(lane, seq));
                let last = members.first_key_value().map(member);
                if let Some(last) = last.filter(|_| members.len() == 1) {
                    *self = Self::One(last);
                }
            }
            Self::Empty | Self::One(_) => {}
        }
    }

    /// The first by the rule of the action.
    fn first(&self, rule: OrderRule) -> Option<Member> {
        let members = match self {
            Self::Empty => return None,
            Self::One(member) => return Some(*member),
            Self::Many(members) => members,
        };
        // Within a lane the first stands before all others, whatever the rule.
        let lanes = std::iter::once(None).chain(Priority::ALL.map(Some));
        let heads = lanes.filter_map(|lane| {
            let (lowest, highest) = (Seq(i64::MIN), Seq(i64::MAX));
            let mut lane = members.range((lane, lowest)..=(lane, highest));
            lane.next().map(member)
        });
        heads.min_by_key(|head| head.key(rule))
    }
}

fn member(entry: (&Standing, &(Millis, u16))) -> Member {
    let (&(lane, seq), &(enqueued_at, cost)) = entry;
    Member {
        lane,
        seq,
        cost,
        enqueued_at,
    }
}

/// All executions of one group that wait, are delayed or hold a slot.
#[derive(Debug, Clone)]
struct Class {
    key: GroupKey,
    /// Who waits, is delayed or holds a slot. Without anybody the class is given up.
    members: u32,
    /// What those who hold a slot take of the limit.
    used: u32,
    line: Line,
    /// Where it stands among those that have room; absent when it has none, or nobody waits.
    place: Option<(i64, Seq)>,
}

/// The groups of one queue.
#[derive(Debug, Clone, Default)]
pub(crate) struct Groups {
    by_key: HashMap<GroupKey, Group>,
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
}

/// Whether somebody who takes `cost` has room in a limit of which `used` is taken. Who takes more than
/// there is runs alone, instead of waiting for ever: the limit was higher when it was accepted.
fn fits(used: u64, cost: u16, limit: Option<u32>) -> bool {
    limit.is_none_or(|limit| used + u64::from(cost).min(u64::from(limit)) <= u64::from(limit))
}

impl Groups {
    /// Groups of executions that are there already and must be told apart first.
    pub(crate) fn of_unknown(unknown: BTreeSet<ExecutionId>) -> Self {
        Self {
            unknown,
            ..Self::default()
        }
    }

    /// Whose executions are here.
    pub(crate) fn users(&self) -> &Users {
        &self.users
    }

    /// The group of a key, if somebody of it is here.
    pub(crate) fn of_key(&self, key: GroupKey) -> Option<Group> {
        self.by_key.get(&key).copied()
    }

    /// Whose group is not known.
    pub(crate) fn unknown(&self) -> &BTreeSet<ExecutionId> {
        &self.unknown
    }

    /// What an execution that is there takes of the limits, if that is known.
    pub(crate) fn share(&mut self, id: ExecutionId, demand: Option<&Demand>) -> Share {
        match demand {
            Some(demand) => {
                self.unknown.remove(&id);
                if let Some(user) = demand.user {
                    self.users.join(id, user);
                }
                Share {
                    group: self.join(demand.group),
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
    fn join(&mut self, key: GroupKey) -> Group {
        let group = match self.by_key.entry(key) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let class = Class {
                    key,
                    members: 0,
                    used: 0,
                    line: Line::Empty,
                    place: None,
                };
                let group = match self.free.pop() {
                    Some(group) => {
                        self.classes[group.0 as usize] = class;
                        group
                    }
                    None => {
                        self.classes.push(class);
                        Group(u32::try_from(self.classes.len() - 1).unwrap_or(u32::MAX))
                    }
                };
                *new.insert(group)
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
            let key = class.key;
            self.by_key.remove(&key);
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
        if let Some(class) = self.class(share.group) {
            class.used += u32::from(share.cost);
            self.used += u64::from(share.cost);
            self.place(limits, share.group);
        }
    }

    /// A member holds its slot no longer.
    pub(crate) fn give_back(&mut self, limits: &QueueLimits, share: Share) {
        if let Some(class) = self.class(share.group) {
            class.used = class.used.saturating_sub(u32::from(share.cost));
            self.used = self.used.saturating_sub(u64::from(share.cost));
            self.place(limits, share.group);
        }
    }

    /// Puts a group among those with room, or takes it from them.
    fn place(&mut self, limits: &QueueLimits, group: Group) {
        let Some(class) = self.classes.get_mut(group.0 as usize) else {
            return;
        };
        let first = class.line.first(limits.order);
        let first =
            first.filter(|first| fits(u64::from(class.used), first.cost, limits.group_limit()));
        let place = first.map(|first| first.key(limits.order));
        if class.place == place {
            return;
        }
        if let Some((key, seq)) = std::mem::replace(&mut class.place, place) {
            self.ready.remove(&(key, seq, group));
        }
        if let Some((key, seq)) = place {
            self.ready.insert((key, seq, group));
        }
    }

    /// The order or the limit of the groups is another one from now on.
    pub(crate) fn rearrange(&mut self, limits: &QueueLimits) {
        for index in 0..self.classes.len() {
            self.place(limits, Group(u32::try_from(index).unwrap_or(u32::MAX)));
        }
    }

    /// Who is first among those whose group has room.
    pub(crate) fn first(&self, limits: &QueueLimits) -> Option<(Group, Member)> {
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

    /// Whether somebody who came now would be the next to have a slot, and has room in its limits.
    pub(crate) fn is_open(&self, limits: &QueueLimits, demand: &Demand, key: (i64, Seq)) -> bool {
        let class = self.class_of(demand);
        let first = class.and_then(|class| class.line.first(limits.order));
        let ready = self.ready.first();
        first.is_none_or(|first| key < first.key(limits.order))
            && self.group_has_room(limits, demand)
            && ready.is_none_or(|(first, seq, _)| key < (*first, *seq))
            && self.unknown.is_empty()
            && self.has_room(limits, demand.cost)
    }

    fn class_of(&self, demand: &Demand) -> Option<&Class> {
        let group = self.by_key.get(&demand.group)?;
        self.classes.get(group.0 as usize)
    }

    /// Whether the limit of its group has room for somebody, beside those who hold a slot.
    pub(crate) fn group_has_room(&self, limits: &QueueLimits, demand: &Demand) -> bool {
        let used = self
            .class_of(demand)
            .map_or(0, |class| u64::from(class.used));
        fits(used, demand.cost, limits.group_limit())
    }

    /// Whether somebody waits of the group in which one would be who demands this.
    pub(crate) fn has_line(&self, demand: &Demand) -> bool {
        let class = self.class_of(demand);
        class.is_some_and(|class| !matches!(class.line, Line::Empty))
    }

    /// Whether somebody of a group has room in both limits once others of it have freed so much.
    pub(crate) fn would_fit(
        &self,
        limits: &QueueLimits,
        group: Group,
        freed: u64,
        cost: u16,
    ) -> bool {
        let (used, of_group) = self.used(group);
        let left = |used: u64| used.saturating_sub(freed);
        fits(left(of_group), cost, limits.group_limit())
            && fits(left(used), cost, limits.max_concurrent)
    }

    /// What those who hold a slot take of the limits: of the action's, and of that of a group.
    pub(crate) fn used(&self, group: Group) -> (u64, u64) {
        let class = self.classes.get(group.0 as usize);
        (self.used, class.map_or(0, |class| u64::from(class.used)))
    }

    /// Whether there is room in the limit of a group for somebody, beside those who hold a slot and others
    /// who take so much.
    pub(crate) fn has_room_in(&self, limits: &QueueLimits, share: Share, others: u64) -> bool {
        let class = self.classes.get(share.group.0 as usize);
        let used = class.map_or(0, |class| u64::from(class.used));
        fits(used + others, share.cost, limits.group_limit())
    }

    /// How many wait in a group before somebody, and what they take; up to `max` are looked at.
    pub(crate) fn before_in(
        &self,
        limits: &QueueLimits,
        group: Group,
        me: &Member,
        max: usize,
    ) -> (u64, u64) {
        let Some(class) = self.classes.get(group.0 as usize) else {
            return (0, 0);
        };
        let Line::Many(members) = &class.line else {
            return (0, 0);
        };
        let key = me.key(limits.order);
        let (mut many, mut cost) = (0, 0);
        for lane in std::iter::once(None).chain(Priority::ALL.map(Some)) {
            let (lowest, highest) = (Seq(i64::MIN), Seq(i64::MAX));
            let lane = members.range((lane, lowest)..=(lane, highest));
            let before = lane.map(member).take_while(|it| it.key(limits.order) < key);
            for member in before.take(max) {
                many += 1;
                cost += u64::from(member.cost);
            }
        }
        (many, cost)
    }

    /// How many groups with room, but for one, have their first before somebody; up to `max`.
    pub(crate) fn ready_before(
        &self,
        limits: &QueueLimits,
        but: Group,
        me: &Member,
        max: usize,
    ) -> u64 {
        let (key, seq) = me.key(limits.order);
        let before = self.ready.range(..(key, seq, Group(0))).take(max);
        before.filter(|(_, _, group)| *group != but).count() as u64
    }

    /// The first of a group.
    pub(crate) fn first_of(&self, limits: &QueueLimits, group: Group) -> Option<Member> {
        let class = self.classes.get(group.0 as usize)?;
        class.line.first(limits.order)
    }
}
