//! Random histories of flows against a model that looks through everything, and the bounds of a share.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn key(n: u8) -> GroupKey {
    GroupKey([n + 1; 16])
}

fn flow(keys: &[u8]) -> Flow {
    Flow::of(&keys.iter().copied().map(key).collect::<Vec<_>>()).unwrap()
}

/// The same tree, as a list of its nodes by the way to them.
#[derive(Default)]
struct Model {
    nodes: BTreeMap<Vec<GroupKey>, Plain>,
}

#[derive(Default)]
struct Plain {
    weight: u64,
    holds: u64,
    start: u128,
    finish: u128,
    time: u128,
    served: u128,
    heads: BTreeSet<(Priority, Seq, u32)>,
}

impl Model {
    fn below(&self, way: &[GroupKey]) -> impl Iterator<Item = &Vec<GroupKey>> {
        let children = self.nodes.keys();
        children.filter(move |it| it.len() == way.len() + 1 && it.starts_with(way))
    }

    fn waits(&self, way: &[GroupKey]) -> bool {
        let mut below = self.nodes.iter();
        below.any(|(it, node)| it.starts_with(way) && !node.heads.is_empty())
    }

    /// Who is next in a lane below a node.
    fn first(&self, way: &[GroupKey], lane: Priority) -> Option<(Seq, u32)> {
        let heads = self.nodes[way].heads.iter();
        if let Some((_, seq, of)) = heads.filter(|head| head.0 == lane).min() {
            return Some((*seq, *of));
        }
        let children = self.below(way);
        let children = children.filter_map(|it| Some((&self.nodes[it], self.first(it, lane)?)));
        let next = children.min_by(|(one, first), (other, second)| {
            let shares = (one.holds * other.weight).cmp(&(other.holds * one.weight));
            let tags = || one.start.cmp(&other.start);
            shares.then_with(tags).then_with(|| first.cmp(second))
        });
        next.map(|(_, first)| first)
    }

    fn change(&mut self, weights: &Weights, flow: Flow, act: impl Fn(&mut Plain, u128)) {
        let keys: Vec<GroupKey> = flow.keys().collect();
        let ways: Vec<Vec<GroupKey>> = (1..=keys.len()).map(|n| keys[..n].to_vec()).collect();
        self.nodes.entry(Vec::new()).or_default();
        let mut waited = Vec::new();
        for (level, way) in ways.iter().enumerate() {
            let weight = weights.weight(level, keys[level]).into();
            self.nodes.entry(way.clone()).or_default().weight = weight;
            waited.push(self.waits(way));
        }
        for way in &ways {
            let waits = self.waits(way);
            let above = &self.nodes[&way[..way.len() - 1]];
            let (time, served) = (above.time, above.served);
            let node = self.nodes.get_mut(way).unwrap();
            let start = if waits {
                node.start.max(served)
            } else {
                node.finish.max(time)
            };
            let before = node.finish;
            act(node, start);
            if node.finish != before {
                let parent = self.nodes.get_mut(&way[..way.len() - 1]).unwrap();
                parent.time = parent.time.max(start);
                parent.served = parent.served.max(start);
            }
        }
        self.settle(&ways, &waited);
    }

    fn settle(&mut self, ways: &[Vec<GroupKey>], waited: &[bool]) {
        for (way, waited) in ways.iter().zip(waited) {
            let time = self.nodes[&way[..way.len() - 1]].time;
            let node = self.nodes.get_mut(way).unwrap();
            if !waited {
                node.start = node.finish.max(time);
            }
        }
        for way in ways.iter().rev() {
            let above = &way[..way.len() - 1];
            loop {
                let children: Vec<_> = self.below(above).cloned().collect();
                let is_lapsed = |it: &Vec<GroupKey>| self.nodes[it].holds == 0 && !self.waits(it);
                let (lapsed, others): (Vec<_>, Vec<_>) = children.into_iter().partition(is_lapsed);
                let first = lapsed.iter().min_by_key(|it| self.nodes[*it].finish);
                let time = self.nodes[above].time;
                let Some(first) = first.filter(|first| {
                    self.nodes[*first].finish <= time || lapsed.len() > others.len() + KEPT
                }) else {
                    break;
                };
                let finish = self.nodes[first].finish;
                self.nodes.get_mut(above).unwrap().time = time.max(finish);
                self.nodes.retain(|it, _| !it.starts_with(first));
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Op {
    Wait { keys: [u8; 3], rank: u8 },
    Serve { rank: u8, cost: u64 },
    Leave(usize),
    End(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => ([0..14_u8, 0..3, 0..2], 0..2_u8).prop_map(|(keys, rank)| Op::Wait { keys, rank }),
        6 => (0..2_u8, 1..4_u64).prop_map(|(rank, cost)| Op::Serve { rank, cost }),
        1 => (0..20_usize).prop_map(Op::Leave),
        4 => (0..20_usize).prop_map(Op::End),
    ];
    prop::collection::vec(op, 1..120)
}

fn weights() -> Weights {
    let of = [((0, key(1)), 3), ((0, key(2)), 1000), ((1, key(0)), 7)];
    Weights::new(2, of)
}

proptest! {
    #[test]
    fn whose_turn_it_is_is_what_a_look_through_everything_finds(levels in 1..4_usize, ops in ops()) {
        let (weights, mut flows, mut model) = (weights(), Flows::default(), Model::default());
        model.nodes.entry(Vec::new()).or_default();
        let mut waiting: BTreeMap<u32, (Flow, Head)> = BTreeMap::new();
        let mut holding: Vec<(Flow, u64)> = Vec::new();
        let leave = |flows: &mut Flows, model: &mut Model, flow: Flow, head: Head| {
            flows.replace(&weights, flow, (Some(head), None));
            model.change(&weights, flow, |node, _| {
                node.heads.remove(&(head.lane, head.seq, head.of));
            });
        };
        for (n, op) in (1_u32..).zip(ops) {
            match op {
                Op::Wait { keys, rank } => {
                    let flow = flow(&keys[..levels]);
                    let head = Head { lane: Priority::from_rank(rank).unwrap(), seq: Seq(n.into()), of: n };
                    flows.replace(&weights, flow, (None, Some(head)));
                    // Only the lowest node has it.
                    let lowest: Vec<GroupKey> = flow.keys().collect();
                    model.enter(&weights, flow, &lowest, head);
                    waiting.insert(n, (flow, head));
                }
                Op::Serve { rank, cost } => {
                    let lane = Priority::from_rank(rank).unwrap();
                    let first = flows.first(lane);
                    prop_assert_eq!(first, model.first(&[], lane).map(|(_, of)| of));
                    let Some((flow, head)) = first.and_then(|of| waiting.remove(&of)) else { continue };
                    prop_assert!(flows.beside_first(lane, flow).is_none(), "it is its own turn");
                    flows.serve(&weights, flow, cost);
                    model.serve(&weights, flow, cost);
                    leave(&mut flows, &mut model, flow, head);
                    flows.take(&weights, flow, cost);
                    model.change(&weights, flow, |node, _| node.holds += cost);
                    holding.push((flow, cost));
                }
                Op::Leave(at) => {
                    let gone = waiting.keys().nth(at).copied();
                    if let Some((flow, head)) = gone.and_then(|of| waiting.remove(&of)) {
                        leave(&mut flows, &mut model, flow, head);
                    }
                }
                Op::End(at) if at < holding.len() => {
                    let (flow, cost) = holding.swap_remove(at);
                    flows.give_back(&weights, flow, cost);
                    model.change(&weights, flow, |node, _| node.holds -= cost);
                }
                Op::End(_) => {}
            }
            prop_assert_eq!(flows.by_key.len() + 1, model.nodes.len());
        }
    }

    #[test]
    fn nobody_holds_more_for_its_weight_than_whoever_waits(
        of in prop::collection::vec(1..1001_u16, 2..8),
        slots in 1..30_usize,
        ends in prop::collection::vec((0..30_usize, 1..5_u64), 1..300),
    ) {
        let numbers = (0_u8..).zip(&of);
        let weights = Weights::new(1, numbers.map(|(n, weight)| ((0, key(n)), *weight)));
        let mut flows = Flows::default();
        let head = |n: usize| Head { lane: Priority::Normal, seq: Seq(n as i64), of: n as u32 };
        for n in 0..of.len() {
            flows.replace(&weights, flow(&[n as u8]), (None, Some(head(n))));
        }
        let (mut holds, mut holding) = (vec![0_u64; of.len()], Vec::new());
        for (end, cost) in ends {
            while holding.len() < slots {
                let next = flows.first(Priority::Normal).unwrap() as usize;
                flows.serve(&weights, flow(&[next as u8]), cost);
                flows.take(&weights, flow(&[next as u8]), cost);
                holds[next] += cost;
                holding.push((next, cost));
                // `running_j / w_j <= running_i / w_i + cost / w_j`, without a fraction.
                let after = u64::from(of[next]);
                for (other, weight) in of.iter().map(|it| u64::from(*it)).enumerate() {
                    let (one, other) = ((holds[next] - cost) * weight, holds[other] * after);
                    prop_assert_ne!(one.cmp(&other), Ordering::Greater);
                }
            }
            let (gone, cost) = holding.swap_remove(end % holding.len());
            flows.give_back(&weights, flow(&[gone as u8]), cost);
            holds[gone] -= cost;
        }
    }

    /// Whatever happened before: others ran for long, or had turns in another lane.
    #[test]
    fn with_one_slot_turns_come_by_weight(
        of in prop::collection::vec(1..1001_u16, 2..5),
        before in prop::collection::vec((any::<bool>(), 0..6_usize), 0..200),
        rounds in 100..3_000_usize,
    ) {
        let numbers = (0_u8..).zip(&of);
        let weights = Weights::new(1, numbers.map(|(n, weight)| ((0, key(n)), *weight)));
        let mut flows = Flows::default();
        let head = |lane, n: usize| Head { lane, seq: Seq(n as i64), of: n as u32 };
        for n in 0..of.len() {
            flows.replace(&weights, flow(&[n as u8]), (None, Some(head(Priority::Normal, n))));
        }
        // Those of even numbers wait in an earlier lane as well.
        for n in (0..of.len()).step_by(2) {
            flows.replace(&weights, flow(&[n as u8]), (None, Some(head(Priority::High, n))));
        }
        let mut holding = Vec::new();
        for (is_high, at) in before {
            let lane = if is_high { Priority::High } else { Priority::Normal };
            let next = flow(&[flows.first(lane).unwrap() as u8]);
            flows.serve(&weights, next, 1);
            flows.take(&weights, next, 1);
            holding.push(next);
            if holding.len() > 3 {
                flows.give_back(&weights, holding.swap_remove(at % holding.len()), 1);
            }
        }
        for held in holding {
            flows.give_back(&weights, held, 1);
        }
        for n in (0..of.len()).step_by(2) {
            flows.replace(&weights, flow(&[n as u8]), (Some(head(Priority::High, n)), None));
        }
        // How often each had its turn since each other one had.
        let mut since = vec![vec![0_u32; of.len()]; of.len()];
        for _ in 0..rounds {
            let next = flows.first(Priority::Normal).unwrap() as usize;
            let own = flow(&[next as u8]);
            flows.serve(&weights, own, 1);
            flows.take(&weights, own, 1);
            flows.give_back(&weights, own, 1);
            since[next].fill(0);
            for (other, since) in since.iter_mut().enumerate().filter(|(other, _)| *other != next) {
                since[next] += 1;
                let most = u32::from(of[next]).div_ceil(of[other].into()) + 1;
                prop_assert!(since[next] <= most, "{} between two of {}", since[next], other);
            }
        }
    }
}

impl Model {
    fn enter(&mut self, weights: &Weights, flow: Flow, lowest: &[GroupKey], head: Head) {
        // A node that nobody waits in or holds anything of is given up at once, so it is made again.
        let keys: Vec<GroupKey> = flow.keys().collect();
        let ways: Vec<Vec<GroupKey>> = (1..=keys.len()).map(|n| keys[..n].to_vec()).collect();
        let mut waited = Vec::new();
        for (level, way) in ways.iter().enumerate() {
            let weight = weights.weight(level, keys[level]).into();
            self.nodes.entry(way.clone()).or_default().weight = weight;
            waited.push(self.waits(way));
        }
        let node = self.nodes.get_mut(lowest).unwrap();
        node.heads.insert((head.lane, head.seq, head.of));
        self.settle(&ways, &waited);
    }

    fn serve(&mut self, weights: &Weights, flow: Flow, cost: u64) {
        self.change(weights, flow, |node, start| {
            node.finish = start + (u128::from(cost) << UNIT).div_ceil(u128::from(node.weight));
            node.start = node.finish;
        });
    }
}

#[test]
fn who_has_left_is_forgotten() {
    let (weights, mut flows) = (Weights::new(1, []), Flows::default());
    for n in 0..200_u8 {
        let (flow, head) = (
            flow(&[n, 0]),
            Head {
                lane: Priority::Normal,
                seq: Seq(n.into()),
                of: n.into(),
            },
        );
        flows.replace(&weights, flow, (None, Some(head)));
        flows.serve(&weights, flow, 1);
        flows.replace(&weights, flow, (Some(head), None));
        flows.take(&weights, flow, 1);
        flows.give_back(&weights, flow, 1);
        assert!(
            flows.by_key.len() <= 2 * (KEPT + 1),
            "{}",
            flows.by_key.len()
        );
        assert!(flows.nodes.len() <= 2 * (KEPT + 2) + 1);
    }
}
