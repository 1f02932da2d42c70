//! Whose turn it is where slots are shared: a tree of flows, a level for each place of `fairness.by`.
//!
//! On each level the child goes that holds the fewest slots for its weight. Among those that hold equally
//! many it is as in start-time fair queueing: each has a *start tag*, its service takes it `cost / weight`
//! further, and the smallest tag goes; then whoever was accepted first. A child that has been away starts
//! at the *virtual time* of its parent, the largest tag that was served, and whoever was passed with an
//! earlier tag, because it held more, is served by that one as well: nobody saves up turns.
//!
//! Each priority is a lane of its own in every line; what flows hold and their tags are common to all.
//!
//! Tags are whole numbers of `2^-20` units of cost. Shares of slots are compared as `slots · 2^20 / weight`,
//! rounded down, which orders them as the fractions themselves: two fractions with denominators up to 1,000
//! that differ do so by more than `2^-20`. Steps of tags are rounded up, so that a heavy flow gains nothing
//! by it. A step is at most `65,535 · 2^20 < 2^36`, and a tag has 128 bits: it overflows after more than
//! `2^92` grants.
//!
//! A change of a flow touches the nodes on its way to the root and a place in the line of each: `O(levels ·
//! log n)`. A flow that neither waits nor holds anything is given up when its tag has been reached by the
//! virtual time, and no more of them are kept than there are others: for the oldest the time goes on.

use std::collections::BTreeSet;

use attune_core::policy::{MAX_LEVELS, Weights};
use attune_core::{Flow, GroupKey, Priority, Seq};

use super::few::Few;
use crate::ByKey;

/// Units of a tag in one unit of cost, as a power of two.
const UNIT: u32 = 20;
/// So many flows that have nothing any more are kept beside as many as there are others.
const KEPT: usize = 8;
/// Above all flows.
const ROOT: u32 = 0;

/// Somebody in the line of a node: a child of it, or a class that waits in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    lane: Priority,
    /// What it holds for its weight, in `2^-20` slots; of classes nothing.
    share: u64,
    start: u128,
    /// The place of whoever of it is next.
    seq: Seq,
    of: u32,
}

impl Due {
    /// Before everybody in a lane.
    fn first_in(lane: Priority) -> Self {
        Self {
            lane,
            share: 0,
            start: 0,
            seq: Seq(i64::MIN),
            of: 0,
        }
    }
}

/// A flow, or a part of one.
#[derive(Debug, Clone)]
struct Node {
    parent: u32,
    key: GroupKey,
    weight: u16,
    /// What its holders take.
    holds: u64,
    /// Its tag, while somebody of it waits.
    start: u128,
    /// Where its last service has taken it.
    finish: u128,
    /// The virtual time of its children: where those begin that come.
    time: u128,
    /// The largest tag of its children that was served: nobody is served by an earlier one.
    served: u128,
    line: Few<Due>,
    children: usize,
    /// Children of which nobody waits or holds anything, by where their last service has taken them.
    lapsed: BTreeSet<(u128, u32)>,
}

impl Node {
    fn new(parent: u32, key: GroupKey, weight: u16) -> Self {
        Self {
            parent,
            key,
            weight,
            holds: 0,
            start: 0,
            finish: 0,
            time: 0,
            served: 0,
            line: Few::default(),
            children: 0,
            lapsed: BTreeSet::new(),
        }
    }

    fn first(&self, lane: Priority) -> Option<Due> {
        let first = self.line.first_from(&Due::first_in(lane));
        first.copied().filter(|first| first.lane == lane)
    }

    /// What it holds for its weight.
    fn share(&self) -> u64 {
        let share = (u128::from(self.holds) << UNIT) / u128::from(self.weight);
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Its places in the line of its parent: one in each lane in which somebody of it waits.
    fn places(&self, of: u32) -> [Option<Due>; 5] {
        let (Some(first), Some(last)) = (self.line.first(), self.line.last()) else {
            return [None; 5];
        };
        let (share, start) = (self.share(), self.start);
        let place = |first: Due| Due {
            share,
            start,
            of,
            ..first
        };
        let (first, last) = (first.lane, last.lane);
        Priority::ALL.map(|lane| match (first..=last).contains(&lane) {
            true => self.first(lane).map(place),
            false => None,
        })
    }

    fn is_active(&self) -> bool {
        self.holds > 0 || !self.line.is_empty()
    }
}

/// A class that waits in a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) lane: Priority,
    /// The place of its first.
    pub(super) seq: Seq,
    /// Which class.
    pub(super) of: u32,
}

/// What a flow holds on one level, and its weight there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holds {
    pub(crate) slots: u64,
    pub(crate) weight: u16,
}

/// A flow and the one whose turn it is, on the highest level on which they are not the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) own: Holds,
    pub(crate) next: Holds,
    /// The place of whoever of that one is next.
    pub(crate) seq: Seq,
}

/// The flows of a queue, or of those in it that share a limit.
#[derive(Debug, Clone)]
pub(super) struct Flows {
    nodes: Vec<Node>,
    free: Vec<u32>,
    by_key: ByKey<(u32, GroupKey), u32>,
}

impl Default for Flows {
    fn default() -> Self {
        Self {
            nodes: vec![Node::new(ROOT, GroupKey::default(), 1)],
            free: Vec::new(),
            by_key: ByKey::default(),
        }
    }
}

/// The nodes of a flow, from the top.
type Way = ([u32; MAX_LEVELS], usize);

impl Flows {
    /// Another class of a flow waits in place of one, or none does.
    pub(super) fn replace(
        &mut self,
        weights: &Weights,
        flow: Flow,
        (earlier, now): (Option<Head>, Option<Head>),
    ) {
        let due = |head: Head| Due {
            seq: head.seq,
            of: head.of,
            ..Due::first_in(head.lane)
        };
        self.change(weights, flow, |flows, way| {
            let Some((leaf, _)) = way.last() else { return };
            let line = &mut flows.nodes[*leaf as usize].line;
            if let Some(earlier) = earlier {
                line.remove(&due(earlier));
            }
            line.extend(now.map(due));
        });
    }

    /// Somebody of a flow holds so much from now on.
    pub(super) fn take(&mut self, weights: &Weights, flow: Flow, cost: u64) {
        self.change(weights, flow, |flows, way| {
            for (node, _) in way {
                flows.nodes[*node as usize].holds += cost;
            }
        });
    }

    /// Somebody of a flow holds it no longer.
    pub(super) fn give_back(&mut self, weights: &Weights, flow: Flow, cost: u64) {
        self.change(weights, flow, |flows, way| {
            for (node, _) in way {
                let holds = &mut flows.nodes[*node as usize].holds;
                *holds = holds.saturating_sub(cost);
            }
        });
    }

    /// A flow is served. Who of it is served stands in its line still, unless it has left that before.
    pub(super) fn serve(&mut self, weights: &Weights, flow: Flow, cost: u64) {
        self.change(weights, flow, |flows, way| {
            for (index, waits) in way {
                let node = &flows.nodes[*index as usize];
                let parent = node.parent;
                let Node { time, served, .. } = flows.nodes[parent as usize];
                let start = match waits {
                    // Whoever was passed, because it held more or stood in a later lane, has no turns to
                    // make up for.
                    true => node.start.max(served),
                    false => node.finish.max(time),
                };
                let node = &mut flows.nodes[*index as usize];
                let step = (u128::from(cost) << UNIT).div_ceil(u128::from(node.weight));
                node.finish = start.saturating_add(step);
                node.start = node.finish;
                let parent = &mut flows.nodes[parent as usize];
                parent.time = parent.time.max(start);
                parent.served = parent.served.max(start);
            }
        });
    }

    /// The class whose turn it is in a lane.
    pub(super) fn first(&self, lane: Priority) -> Option<u32> {
        let mut node = &self.nodes[ROOT as usize];
        loop {
            let first = node.first(lane)?;
            // The lines of the lowest nodes hold classes, which have no tag.
            if node.children == 0 {
                return Some(first.of);
            }
            node = &self.nodes[first.of as usize];
        }
    }

    /// A flow beside the one whose turn it is in a lane; nothing where that is its own.
    pub(super) fn beside_first(&self, lane: Priority, flow: Flow) -> Option<Turn> {
        let mut above = ROOT;
        for key in flow.keys() {
            let first = self.nodes[above as usize].first(lane)?;
            let own = self.by_key.get(&(above, key)).copied()?;
            if own != first.of {
                let (own, next) = (self.holds(own), self.holds(first.of));
                let seq = first.seq;
                return Some(Turn { own, next, seq });
            }
            above = own;
        }
        None
    }

    fn holds(&self, of: u32) -> Holds {
        let node = &self.nodes[of as usize];
        Holds {
            slots: node.holds,
            weight: node.weight,
        }
    }

    /// Changes a flow: its nodes leave the lines above, are changed, and stand there again. Each is handed to
    /// `act` with whether somebody of it waits.
    fn change(
        &mut self,
        weights: &Weights,
        flow: Flow,
        act: impl FnOnce(&mut Self, &[(u32, bool)]),
    ) {
        let (nodes, levels) = self.way(weights, flow);
        let way = nodes.map(|it| (it, !self.nodes[it as usize].line.is_empty()));
        let way = &way[..levels];
        for (index, _) in way {
            let node = &self.nodes[*index as usize];
            let parent = node.parent;
            let places = node.places(*index);
            let line = &mut self.nodes[parent as usize].line;
            for place in places.into_iter().flatten() {
                line.remove(&place);
            }
        }
        act(self, way);
        for (index, waited) in way.iter().rev() {
            self.stand(*index, *waited);
        }
        for (index, _) in way.iter().rev() {
            self.give_up(*index);
        }
    }

    /// Puts a node into the line of its parent.
    fn stand(&mut self, index: u32, waited: bool) {
        let node = &self.nodes[index as usize];
        let parent = node.parent;
        let time = self.nodes[parent as usize].time;
        let node = &mut self.nodes[index as usize];
        if !waited {
            node.start = node.finish.max(time);
        }
        let places = node.places(index).into_iter().flatten();
        self.nodes[parent as usize].line.extend(places);
    }

    /// Lets go of what nobody waits or holds anything in any more.
    fn give_up(&mut self, index: u32) {
        let node = &self.nodes[index as usize];
        let (parent, finish, is_active) = (node.parent, node.finish, node.is_active());
        if !is_active {
            self.nodes[parent as usize].lapsed.insert((finish, index));
        }
        loop {
            let parent = &mut self.nodes[parent as usize];
            let Some((finish, first)) = parent.lapsed.first().copied() else {
                return;
            };
            let others = parent.children - parent.lapsed.len();
            if finish > parent.time && parent.lapsed.len() <= others + KEPT {
                return;
            }
            parent.time = parent.time.max(finish);
            parent.lapsed.pop_first();
            self.drop_node(first);
        }
    }

    /// Drops a node and those below it, which have all lapsed.
    fn drop_node(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        let (parent, key) = (node.parent, node.key);
        let below = std::mem::take(&mut node.lapsed);
        for (_, child) in below {
            self.drop_node(child);
        }
        self.nodes[parent as usize].children -= 1;
        self.by_key.remove(&(parent, key));
        self.free.push(index);
    }

    /// The nodes of a flow; those that are not there are made.
    fn way(&mut self, weights: &Weights, flow: Flow) -> Way {
        let (mut way, mut levels, mut above) = ([ROOT; MAX_LEVELS], 0, ROOT);
        for key in flow.keys() {
            let index = match self.by_key.get(&(above, key)) {
                Some(index) => *index,
                None => self.add(above, key, weights.weight(levels, key)),
            };
            let finish = self.nodes[index as usize].finish;
            let lapsed = &mut self.nodes[above as usize].lapsed;
            lapsed.remove(&(finish, index));
            (way[levels], above) = (index, index);
            levels += 1;
        }
        (way, levels)
    }

    fn add(&mut self, parent: u32, key: GroupKey, weight: u16) -> u32 {
        let node = Node::new(parent, key, weight);
        let index = match self.free.pop() {
            Some(index) => {
                self.nodes[index as usize] = node;
                index
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).unwrap_or(u32::MAX)
            }
        };
        self.nodes[parent as usize].children += 1;
        self.by_key.insert((parent, key), index);
        index
    }
}

#[cfg(test)]
#[path = "flows_tests.rs"]
mod tests;
