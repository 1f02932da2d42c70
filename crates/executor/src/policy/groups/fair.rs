//! Which class is next where slots are shared among flows.
//!
//! Whoever has room stands in the tree of its lane: there its flow says when its turn is. The lane is that
//! of whoever is first in order of all that have room: priority goes before fairness, and with ageing a lane
//! has its turn by its oldest.
//!
//! Where groups have a limit, and one of them may have classes of many flows, as many of them have room as the
//! limit has left: they are *named* by turns as well, by what each flow holds *in that group*. So whatever
//! happens in a group changes the standing of few of its classes: nobody looks through all of them when its
//! limit is reached, or has room again. Each lane is named for by itself, for as much as is left: the lane
//! that goes first takes it. Who is named stays so, until it has its slot, is gone, or there is no room left.
//! Where whoever is first in the first lane of a group takes more than is left, nobody of the group is named: a
//! dear one is not passed.

use std::collections::BTreeSet;
use std::sync::Arc;

use attune_core::policy::{FlowWeights, Weights};
use attune_core::{Bug, Demand, Flow, GroupKey, Priority, Seq};

use super::known::Known;
use super::{Class, Group, Groups, Member, Place, Share, Together, are_both, fits};
use crate::policy::QueueLimits;
use crate::policy::flows::{Flows, Head, Turn};

/// How a class stands among others.
#[derive(Debug, Clone, Copy, Default)]
struct Standing {
    flow: Flow,
    /// Its first, if that could have a slot as far as its own class goes.
    head: Option<Member>,
    /// Whether it has room in its group.
    is_named: bool,
}

/// What is known of a queue whose slots are shared.
#[derive(Debug, Clone)]
pub(super) struct Fair {
    weights: Arc<Weights>,
    known: Known,
    /// Of each class.
    of: Vec<Standing>,
    /// Those that have room.
    flows: Flows,
}

/// How many lanes there are: the front, and one for each priority.
const LANES: usize = 1 + Priority::ALL.len();

fn lane_number(lane: Option<Priority>) -> usize {
    lane.map_or(0, |priority| 1 + usize::from(priority.rank()))
}

/// The classes of one group that share its limit.
#[derive(Debug, Clone, Default)]
pub(super) struct Shared {
    /// Those that are not named.
    flows: Flows,
    /// The same of those before all lanes.
    front: BTreeSet<(Seq, Group)>,
    /// Those that are named.
    named: BTreeSet<(Option<Priority>, Seq, Group)>,
    /// What these would take, by lane.
    taking: [u64; LANES],
}

#[cfg(test)]
thread_local! {
    /// Whether turns are not kept in a group of one class; a test tries both.
    pub(crate) static IS_ALONE: std::cell::Cell<bool> = const { std::cell::Cell::new(true) };
}

/// The only class of a group that has waited or held anything so far: it needs no turns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alone {
    class: Group,
    /// What its last service took; 0 before the first.
    served: u16,
}

impl Alone {
    /// How it stands among others of its group, now that there are some: as if there had been from the begin.
    /// Tags count from its last service, for nobody else has one.
    fn shared(self, limits: &QueueLimits, fair: &Fair, used: u32) -> Box<Shared> {
        let mut shared = Box::<Shared>::default();
        let Standing {
            flow,
            head,
            is_named,
        } = fair.of[self.class.0 as usize];
        if used > 0 && !Bug::FairByStarts.is_planted() {
            shared.flows.take(&fair.weights, flow, used.into());
        }
        if self.served > 0 {
            let cost = self.served.into();
            shared.flows.serve(&fair.weights, flow, cost);
        }
        match head.filter(|_| is_named) {
            Some(head) => shared.name(limits, &head, self.class),
            None => shared.replace(&fair.weights, flow, (None, head), self.class),
        }
        shared
    }
}

impl Together {
    /// How the classes of a group share its limit, once another than `group` is or was there.
    fn shared(
        &mut self,
        limits: &QueueLimits,
        fair: &Fair,
        classes: &[Class],
        group: Group,
    ) -> Option<&mut Shared> {
        #[cfg(test)]
        if !IS_ALONE.get() {
            self.fair.get_or_insert_default();
        }
        if self.fair.is_none() {
            let alone = self.alone.get_or_insert(Alone {
                class: group,
                served: 0,
            });
            if alone.class == group {
                return None;
            }
            let used = classes[alone.class.0 as usize].used;
            self.fair = Some(alone.shared(limits, fair, used));
        }
        self.fair.as_deref_mut()
    }
}

impl Shared {
    /// How many are named.
    pub(super) fn named(&self) -> usize {
        self.named.len()
    }

    fn name(&mut self, limits: &QueueLimits, head: &Member, of: Group) {
        self.named.insert((head.lane, head.seq, of));
        self.taking[lane_number(head.lane)] += taken(head, limits);
    }

    fn unname(&mut self, limits: &QueueLimits, head: &Member, of: Group) {
        self.named.remove(&(head.lane, head.seq, of));
        self.taking[lane_number(head.lane)] -= taken(head, limits);
    }

    fn replace(
        &mut self,
        weights: &Weights,
        flow: Flow,
        heads: (Option<Member>, Option<Member>),
        of: Group,
    ) {
        for (head, is_there) in [(heads.0, false), (heads.1, true)] {
            match head.filter(|head| head.lane.is_none()) {
                Some(head) if is_there => drop(self.front.insert((head.seq, of))),
                Some(head) => drop(self.front.remove(&(head.seq, of))),
                None => {}
            }
        }
        let in_flows = |head: Option<Member>| head.and_then(|head| head.in_lane(of));
        self.flows
            .replace(weights, flow, (in_flows(heads.0), in_flows(heads.1)));
    }

    /// Whose turn it is to be named in a lane.
    fn first(&self, lane: Option<Priority>) -> Option<Group> {
        match lane {
            None => self.front.first().map(|(_, group)| *group),
            Some(lane) => self.flows.first(lane).map(Group),
        }
    }

    /// Who was named last of all by its place in a lane.
    fn last_named(&self, lane: Option<Priority>) -> Option<Group> {
        let range = (lane, Seq(i64::MIN), Group(0))..=(lane, Seq(i64::MAX), Group::NONE);
        self.named
            .range(range)
            .next_back()
            .map(|(.., group)| *group)
    }
}

impl Member {
    /// It in the line of its flow; those before all lanes stand in none.
    fn in_lane(&self, of: Group) -> Option<Head> {
        let seq = self.seq;
        self.lane.map(|lane| Head {
            lane,
            seq,
            of: of.0,
        })
    }
}

/// By what classes are told apart: their group, for whom their starts count, and their flow.
fn keys(classes: &[Class], of: &[Standing]) -> impl Fn(Group) -> (GroupKey, GroupKey, Flow) {
    |group| {
        let class = &classes[group.0 as usize];
        (class.key, class.rate, of[group.0 as usize].flow)
    }
}

impl Fair {
    pub(super) fn boxed(weights: &Arc<Weights>) -> Box<Self> {
        Box::new(Self {
            weights: Arc::clone(weights),
            known: Known::default(),
            of: Vec::new(),
            flows: Flows::default(),
        })
    }

    pub(super) fn of_demand(&self, classes: &[Class], demand: &Demand) -> Option<Group> {
        let key = (demand.group, demand.rate, demand.flow);
        self.known.get(&key, keys(classes, &self.of))
    }

    /// A class comes.
    pub(super) fn open(&mut self, classes: &[Class], flow: Flow, group: Group) {
        let index = group.0 as usize;
        if self.of.len() <= index {
            self.of.resize(index + 1, Standing::default());
        }
        self.of[index].flow = flow;
        self.known.insert(group, keys(classes, &self.of));
    }

    /// A class is given up.
    pub(super) fn close(&mut self, classes: &[Class], group: Group) {
        self.known.remove(group, keys(classes, &self.of));
        self.of[group.0 as usize] = Standing::default();
    }
}

/// What somebody takes of the limit of its group: never more than there is.
fn taken(head: &Member, limits: &QueueLimits) -> u64 {
    let limit = limits.group_limit().unwrap_or(u32::MAX);
    u64::from(head.cost).min(u64::from(limit))
}

impl Groups {
    /// A slot is held from now on, or no longer.
    pub(super) fn hold_fairly(&mut self, limits: &QueueLimits, share: Share, is_held: bool) {
        let Some(fair) = &mut self.fair else { return };
        let flow = fair.of[share.group.0 as usize].flow;
        let cost = share.cost.into();
        let key = self.classes[share.group.0 as usize].key;
        let of_group = match are_both(limits) {
            true => {
                let together = self.together.entry(key).or_default();
                let shared = together.shared(limits, fair, &self.classes, share.group);
                shared.map(|shared| &mut shared.flows)
            }
            false => None,
        };
        if Bug::FairByStarts.is_planted() {
            return;
        }
        for flows in of_group.into_iter().chain([&mut fair.flows]) {
            match is_held {
                true => flows.take(&fair.weights, flow, cost),
                false => flows.give_back(&fair.weights, flow, cost),
            }
        }
    }

    /// A class is served, while its first waits still.
    pub(super) fn serve(&mut self, limits: &QueueLimits, group: Group, cost: u16) {
        let Some(fair) = &mut self.fair else { return };
        let flow = fair.of[group.0 as usize].flow;
        fair.flows.serve(&fair.weights, flow, cost.into());
        let key = self.classes[group.0 as usize].key;
        let Some(together) = self.together.get_mut(&key) else {
            return;
        };
        match together.shared(limits, fair, &self.classes, group) {
            Some(shared) => shared.flows.serve(&fair.weights, flow, cost.into()),
            None => {
                together.alone = Some(Alone {
                    class: group,
                    served: cost,
                })
            }
        }
    }

    /// Another one is first of a class, or nobody is.
    pub(super) fn place_fairly(
        &mut self,
        limits: &QueueLimits,
        group: Group,
        earlier: Option<(i64, Seq)>,
        head: Option<Member>,
    ) {
        let Some(fair) = &mut self.fair else { return };
        let Some(standing) = fair.of.get_mut(group.0 as usize) else {
            return;
        };
        let before = std::mem::replace(&mut standing.head, head);
        let (flow, was_named) = (standing.flow, std::mem::take(&mut standing.is_named));
        let place = |(key, seq): (i64, Seq)| (key, seq, group);
        let now = head.map(|head| head.key(limits.order));
        if !are_both(limits) {
            standing.is_named = head.is_some();
            if let Some(earlier) = earlier {
                self.ready.remove(&place(earlier));
            }
            self.ready.extend(now.map(place));
            let in_lane = |head: Option<Member>| head.and_then(|head| head.in_lane(group));
            return fair
                .flows
                .replace(&fair.weights, flow, (in_lane(before), in_lane(head)));
        }
        let key = self.classes[group.0 as usize].key;
        let together = self.together.entry(key).or_default();
        if let Some(earlier) = earlier {
            together.waiting.remove(&place(earlier));
        }
        together.waiting.extend(now.map(place));
        let mut shared = together.shared(limits, fair, &self.classes, group);
        let mut unnamed = before;
        if let (true, Some(before)) = (was_named, before) {
            unnamed = None;
            if let Some(shared) = &mut shared {
                shared.unname(limits, &before, group);
            }
            if let Some(earlier) = earlier {
                self.ready.remove(&place(earlier));
            }
            let in_lane = before.in_lane(group);
            fair.flows.replace(&fair.weights, flow, (in_lane, None));
        }
        if let Some(shared) = shared {
            shared.replace(&fair.weights, flow, (unnamed, head), group);
        }
        self.share_out(limits, key);
    }

    /// Names as many of a group as its limit has room for.
    pub(super) fn share_out(&mut self, limits: &QueueLimits, key: GroupKey) {
        let Some(together) = self.together.get(&key) else {
            return;
        };
        let Some(first) = together.waiting.first().copied() else {
            if together.used == 0 {
                self.together.remove(&key);
            }
            return;
        };
        if together.fair.is_none() {
            let used = together.used.into();
            return self.name_alone(limits, first, used);
        }
        let (.., first) = first;
        let heads = self.fair.iter().map(|fair| fair.of[first.0 as usize].head);
        let first_lane = heads.flatten().next().and_then(|head| head.lane);
        self.share_out_in(limits, key, first_lane, true);
        let is_open = self.together.get(&key).is_some_and(|together| {
            let shared = together.fair.as_ref();
            shared.is_some_and(|shared| shared.taking[lane_number(first_lane)] > 0)
        });
        let lanes = std::iter::once(None).chain(Priority::ALL.map(Some));
        for lane in lanes.filter(|lane| *lane != first_lane) {
            self.share_out_in(limits, key, lane, is_open);
        }
    }

    /// Names the only class of a group if its limit has room for it, of which so much is taken.
    fn name_alone(&mut self, limits: &QueueLimits, place: Place, used: u64) {
        let Some(fair) = &mut self.fair else { return };
        let (.., group) = place;
        let standing = &mut fair.of[group.0 as usize];
        let Some(head) = standing.head else { return };
        let has_room = fits(used, head.cost, limits.group_limit());
        if has_room == standing.is_named {
            return;
        }
        standing.is_named = has_room;
        let (flow, in_lane) = (standing.flow, head.in_lane(group));
        let heads = if has_room {
            self.ready.insert(place);
            (None, in_lane)
        } else {
            self.ready.remove(&place);
            (in_lane, None)
        };
        fair.flows.replace(&fair.weights, flow, heads);
    }

    /// Names those whose turn it is in one lane; nobody where it is closed.
    fn share_out_in(
        &mut self,
        limits: &QueueLimits,
        key: GroupKey,
        lane: Option<Priority>,
        is_open: bool,
    ) {
        let (Some(fair), Some(together)) = (&mut self.fair, self.together.get_mut(&key)) else {
            return;
        };
        let limit = limits.group_limit().unwrap_or(u32::MAX);
        let room = u64::from(limit).saturating_sub(together.used.into());
        let room = if is_open { room } else { 0 };
        let shared = together.fair.get_or_insert_default();
        let number = lane_number(lane);
        loop {
            let is_over = shared.taking[number] > room;
            let next = match is_over {
                true => shared.last_named(lane),
                false => shared.first(lane),
            };
            let Some(group) = next else { return };
            let standing = &mut fair.of[group.0 as usize];
            let (flow, Some(head)) = (standing.flow, standing.head) else {
                return;
            };
            let cost = taken(&head, limits);
            if !is_over && shared.taking[number] + cost > room {
                return;
            }
            standing.is_named = !is_over;
            let (order, seq) = head.key(limits.order);
            let in_lane = head.in_lane(group);
            if is_over {
                shared.unname(limits, &head, group);
                shared.replace(&fair.weights, flow, (None, Some(head)), group);
                self.ready.remove(&(order, seq, group));
                fair.flows.replace(&fair.weights, flow, (in_lane, None));
            } else {
                shared.replace(&fair.weights, flow, (Some(head), None), group);
                shared.name(limits, &head, group);
                self.ready.insert((order, seq, group));
                fair.flows.replace(&fair.weights, flow, (None, in_lane));
            }
        }
    }

    /// Everything stands anew by other limits; who has been served lately is forgotten.
    pub(super) fn begin_anew(&mut self, limits: &QueueLimits) {
        let (Some(fair), Some(weights)) = (&mut self.fair, limits.fairness()) else {
            return;
        };
        fair.weights = Arc::clone(weights);
        fair.flows = Flows::default();
        for standing in &mut fair.of {
            (standing.head, standing.is_named) = (None, false);
        }
        for index in 0..self.classes.len() {
            let class = &self.classes[index];
            let (key, used) = (class.key, class.used);
            if used == 0 {
                continue;
            }
            let Some(fair) = &mut self.fair else { return };
            let flow = fair.of[index].flow;
            fair.flows.take(&fair.weights, flow, used.into());
            let group = Group(u32::try_from(index).unwrap_or(u32::MAX));
            let together = self.together.get_mut(&key);
            let shared = together.and_then(|it| it.shared(limits, fair, &self.classes, group));
            if let Some(shared) = shared {
                shared.flows.take(&fair.weights, flow, used.into());
            }
        }
    }

    /// Who is next of all that have room.
    pub(super) fn first_of_all(
        &self,
        fair: &Fair,
        limits: &QueueLimits,
    ) -> Option<(Group, Member)> {
        let (.., oldest) = self.ready.first()?;
        let lane = fair.of.get(oldest.0 as usize)?.head?.lane;
        let next = lane.and_then(|lane| fair.flows.first(lane));
        let group = next.map_or(*oldest, Group);
        Some((group, self.first_of(limits, group)?))
    }

    /// Whether somebody who came now would start at once, because it has room and nobody else has.
    pub(super) fn is_open_to_all(&self, limits: &QueueLimits, demand: &Demand) -> bool {
        let together = self.together.get(&demand.group);
        let class = self.of_demand(demand);
        let waits = class.and_then(|class| self.first_of(limits, class));
        waits.is_none()
            && self.unknown.is_empty()
            && self.ready.is_empty()
            && together.is_none_or(|together| together.waiting.is_empty())
            && self.group_has_room(limits, demand)
            && self.has_room(limits, demand.cost)
    }

    /// Whether what the limit of its group has left is for other classes of it, whose turn comes before.
    pub(crate) fn waits_to_be_named(&self, group: Group) -> bool {
        let fair = self.fair.as_ref();
        let standing = fair.and_then(|fair| fair.of.get(group.0 as usize));
        standing.is_some_and(|standing| standing.head.is_some() && !standing.is_named)
    }

    /// What the flow of a class is worth.
    pub(crate) fn flow_weights(&self, group: Group) -> Option<FlowWeights> {
        let fair = self.fair.as_ref()?;
        let standing = fair.of.get(group.0 as usize)?;
        Some(fair.weights.of_flow(standing.flow))
    }

    /// The flow of a class beside the one whose turn it is in its lane; nothing where that is its own.
    pub(crate) fn beside_first(&self, group: Group, lane: Option<Priority>) -> Option<Turn> {
        let fair = self.fair.as_ref()?;
        let flow = fair.of.get(group.0 as usize)?.flow;
        fair.flows.beside_first(lane?, flow)
    }

    /// The same among those of its group, which share what room there is in that.
    pub(crate) fn beside_first_in(&self, group: Group, lane: Option<Priority>) -> Option<Turn> {
        let fair = self.fair.as_ref()?;
        let flow = fair.of.get(group.0 as usize)?.flow;
        let shared = self.together.get(&self.key_of(group)?)?.fair.as_ref()?;
        shared.flows.beside_first(lane?, flow)
    }
}
