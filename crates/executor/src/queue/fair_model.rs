//! Random histories of a queue whose slots are shared, judged by a look through everything.

use attune_core::policy::MAX_LEVELS;
use proptest::prelude::*;

use super::*;
use crate::policy::IS_ALONE;

/// What happens to a queue.
#[derive(Debug, Clone)]
enum Op {
    Enter {
        rank: u8,
        flow: [u16; MAX_LEVELS],
        group: u16,
        cost: u16,
    },
    Finish(usize),
    Revoke(usize),
    Cancel(usize),
    Front(usize),
    Limit(Option<u32>),
    GroupLimit(u32),
    Weights(u16),
    Order(OrderRule),
    Restore,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let rule = prop_oneof![
        Just(OrderRule::Priority),
        (1..200_u32).prop_map(|step| OrderRule::Ageing { step })
    ];
    let enter = (0..3_u8, [0..4_u16, 0..2, 0..2], 1..4_u16, 1..4_u16);
    let op = prop_oneof![
        10 => enter.prop_map(|(rank, flow, group, cost)| Op::Enter { rank, flow, group, cost }),
        6 => (0..20_usize).prop_map(Op::Finish),
        2 => (0..20_usize).prop_map(Op::Revoke),
        2 => (0..40_usize).prop_map(Op::Cancel),
        1 => (0..40_usize).prop_map(Op::Front),
        1 => prop::option::of(1..9_u32).prop_map(Op::Limit),
        1 => (1..9_u32).prop_map(Op::GroupLimit),
        1 => (1..9_u16).prop_map(Op::Weights),
        1 => rule.prop_map(Op::Order),
        1 => Just(Op::Restore),
    ];
    prop::collection::vec(op, 1..80)
}

/// How executions are told apart.
#[derive(Debug, Clone, Copy)]
struct Shape {
    levels: usize,
    grouped: bool,
    costs: bool,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    priority: Priority,
    demand: Demand,
    attempt: Attempt,
    holds: bool,
    front: bool,
}

impl Known {
    fn lane(&self) -> Option<Priority> {
        (!self.front).then_some(self.priority)
    }
}

/// The queue as a plain list.
struct Model {
    shape: Shape,
    known: BTreeMap<i64, Known>,
    limits: QueueLimits,
    own: u16,
    /// Who was granted a slot, in this order.
    granted: Vec<i64>,
}

impl Model {
    fn limits(&self, max_concurrent: Option<u32>, group_limit: Option<u32>) -> QueueLimits {
        let weights = Weights::new(1, [((0, key(0)), self.own), ((1, key(1)), 3)]);
        let order = self.limits.order;
        QueueLimits {
            order,
            ..limits(max_concurrent, group_limit, weights)
        }
    }

    fn sum<'a>(of: impl Iterator<Item = &'a Known>) -> u64 {
        of.map(|it| u64::from(it.demand.cost)).sum()
    }

    fn holders(&self) -> impl Iterator<Item = &Known> {
        self.known.values().filter(|known| known.holds)
    }

    fn used(&self, group: Option<GroupKey>) -> u64 {
        Self::sum(
            self.holders()
                .filter(|it| group.is_none_or(|group| it.demand.group == group)),
        )
    }

    fn eligible(&self) -> impl Iterator<Item = (i64, &Known)> {
        let known = self.known.iter().filter(|(_, known)| !known.holds);
        known.map(|(n, known)| (*n, known))
    }

    fn key(&self, (n, known): (i64, &Known)) -> (i64, i64) {
        (crate::policy::key_in(self.limits.order, known.lane(), n), n)
    }

    fn is_first_of_line(&self, one: (i64, &Known)) -> bool {
        let line = |known: &Known| (known.demand.group, known.demand.flow);
        let mut mates = self
            .eligible()
            .filter(|(_, known)| line(known) == line(one.1));
        mates.all(|mate| self.key(one) <= self.key(mate))
    }

    /// Whether all who wait in a group have room in it together.
    fn all_fit(&self, group: GroupKey) -> bool {
        let wanted = self
            .eligible()
            .map(|(_, known)| known)
            .filter(|it| it.demand.group == group);
        let wanted = Self::sum(wanted) + self.used(Some(group));
        self.limits
            .group_limit()
            .is_none_or(|limit| wanted <= u64::from(limit))
    }

    /// The shares of the flows of two, on the highest level on which they differ, multiplied out.
    fn shares(&self, one: &Known, other: &Known) -> Option<(u64, u64)> {
        let keys = |known: &Known| known.demand.flow.keys().collect::<Vec<_>>();
        let (one, other) = (keys(one), keys(other));
        let level = (0..one.len()).find(|level| one[*level] != other[*level])?;
        let weights = self.limits.fairness()?;
        let of = |way: &[GroupKey]| {
            let same = self.holders().filter(|it| keys(it).starts_with(way));
            (
                Self::sum(same),
                u64::from(weights.weight(level, way[level])),
            )
        };
        let ((mine, weight), (its, other_weight)) = (of(&one[..=level]), of(&other[..=level]));
        Some((mine * other_weight, its * weight))
    }

    /// Judges that this one was granted, before it holds its slot.
    fn judge(&self, n: i64) -> Result<(), TestCaseError> {
        let granted = self.known[&n];
        let fits = |group: Option<GroupKey>, limit: Option<u32>| {
            let used = self.used(group);
            limit.is_none_or(|limit| {
                used + u64::from(granted.demand.cost) <= u64::from(limit) || used == 0
            })
        };
        prop_assert!(fits(None, self.limits.max_concurrent));
        prop_assert!(fits(Some(granted.demand.group), self.limits.group_limit()));
        prop_assert!(
            self.is_first_of_line((n, &granted)),
            "{} was not first in its line",
            n
        );
        for (other, known) in self.eligible().filter(|(other, _)| *other != n) {
            if !self.is_first_of_line((other, known)) || !self.all_fit(known.demand.group) {
                continue;
            }
            if known.lane() != granted.lane() {
                // A lane has its turn by its oldest.
                let mut mates = self
                    .eligible()
                    .filter(|(_, it)| it.lane() == granted.lane());
                let key = self.key((other, known));
                prop_assert!(
                    mates.any(|mate| self.key(mate) < key),
                    "{} before {}",
                    n,
                    other
                );
            } else if granted.front {
                prop_assert!(n < other);
            } else if let Some((mine, its)) = self.shares(&granted, known) {
                prop_assert!(
                    mine <= its,
                    "{} holds {} beside {} of {}",
                    n,
                    mine,
                    its,
                    other
                );
            }
        }
        Ok(())
    }

    /// Nobody is granted a slot: nobody must have room for sure.
    fn judge_blocked(&self) -> Result<(), TestCaseError> {
        let heads: Vec<_> = self
            .eligible()
            .filter(|it| self.is_first_of_line(*it))
            .collect();
        let dearest = heads
            .iter()
            .map(|(_, it)| u64::from(it.demand.cost))
            .max()
            .unwrap_or(0);
        let has_room = self
            .limits
            .max_concurrent
            .is_none_or(|limit| self.used(None) + dearest <= u64::from(limit));
        let group_has_room = |group: GroupKey| {
            let of_group = heads.iter().filter(|(_, it)| it.demand.group == group);
            let dearest = of_group
                .map(|(_, it)| u64::from(it.demand.cost))
                .max()
                .unwrap_or(0);
            self.limits
                .group_limit()
                .is_none_or(|limit| self.used(Some(group)) + dearest <= u64::from(limit))
        };
        let free = heads.iter().find(|(_, it)| group_has_room(it.demand.group));
        prop_assert!(
            free.is_none() || !has_room,
            "{:?} has room and no slot",
            free
        );
        Ok(())
    }

    fn pick(&self, at: usize, holds: bool) -> Option<i64> {
        let mut fitting = self.known.iter().filter(|(_, known)| known.holds == holds);
        fitting.nth(at).map(|(n, _)| *n)
    }

    fn again(&self) -> ActionQueue {
        let mut queue = queue(self.limits.clone());
        for (n, known) in &self.known {
            let waiting = Waiting {
                attempt: known.attempt,
                front: known.front,
                ..waiting(*n)
            };
            if !known.holds {
                queue.restore_waiting(known.priority, waiting, Some(&known.demand), None);
                continue;
            }
            let holder = Holder {
                front: known.front,
                attempt: known.attempt,
                unbegun: 0,
                priority: known.priority,
                seq: waiting.seq,
                enqueued_at: *n,
                eligible_at: *n,
                held_since: None,
                cancel_requested: false,
                share: Share::default(),
                worker: None,
                started: false,
                ahead: None,
            };
            queue.restore_holder(id(*n), holder, Some(&known.demand));
        }
        queue
    }
}

fn apply(queue: &mut ActionQueue, model: &mut Model, op: Op, n: i64) -> Result<(), TestCaseError> {
    let (limit, group_limit) = (model.limits.max_concurrent, model.limits.group_limit());
    match op {
        Op::Enter {
            rank,
            flow,
            group,
            cost,
        } => {
            let shape = model.shape;
            let group = if shape.grouped { group } else { 0 };
            let demand = demand(
                &flow[..shape.levels],
                group,
                if shape.costs { cost } else { 1 },
            );
            let priority = Priority::from_rank(rank).unwrap();
            queue.enter(priority, waiting(n), Some(&demand)).unwrap();
            let known = Known {
                priority,
                demand,
                attempt: Attempt(0),
                holds: false,
                front: false,
            };
            model.known.insert(n, known);
        }
        Op::Finish(at) => {
            if let Some(n) = model.pick(at, true) {
                let known = model.known.remove(&n).unwrap();
                prop_assert!(queue.finish(id(n), known.attempt, false));
            }
        }
        Op::Revoke(at) => {
            if let Some(n) = model.pick(at, true) {
                let known = model.known.get_mut(&n).unwrap();
                prop_assert!(queue.put_back(id(n), known.attempt, true, None));
                known.holds = false;
            }
        }
        Op::Cancel(at) => {
            if let Some(n) = model.pick(at, false) {
                prop_assert!(queue.cancel_waiting(Seq(n)).is_some());
                model.known.remove(&n);
            }
        }
        Op::Front(at) => {
            if let Some(n) = model.pick(at, false) {
                let known = model.known.get_mut(&n).unwrap();
                prop_assert!(queue.move_waiting(Seq(n), known.priority, true));
                known.front = true;
            }
        }
        Op::Limit(limit) => model.limits = model.limits(limit, group_limit),
        Op::GroupLimit(limit_of_group) => {
            let group_limit = model.shape.grouped.then_some(limit_of_group);
            model.limits = model.limits(limit, group_limit);
        }
        Op::Weights(own) => {
            model.own = own;
            model.limits = model.limits(limit, group_limit);
        }
        Op::Order(order) => {
            model.limits.order = order;
            model.limits = model.limits(limit, group_limit);
        }
        Op::Restore => *queue = model.again(),
    }
    queue.set_limits(model.limits.clone());
    while let Some(n) = next(queue) {
        model.judge(n)?;
        let known = model.known.get_mut(&n).unwrap();
        (known.holds, known.attempt) = (true, known.attempt.next());
        model.granted.push(n);
    }
    prop_assert_eq!(queue.len(), model.eligible().count());
    model.judge_blocked()
}

/// A queue to which all of this has happened.
fn played(shape: Shape, ops: Vec<Op>) -> Result<(ActionQueue, Model), TestCaseError> {
    let mut model = Model {
        shape,
        known: BTreeMap::new(),
        limits: limits(Some(4), None, Weights::new(1, [])),
        own: 2,
        granted: Vec::new(),
    };
    model.limits = model.limits(Some(4), shape.grouped.then_some(3));
    let mut queue = queue(model.limits.clone());
    for (n, op) in (1..).zip(ops) {
        apply(&mut queue, &mut model, op, n)?;
    }
    Ok((queue, model))
}

proptest! {
    #![proptest_config(crate::thorough())]

    #[test]
    fn nobody_is_passed_whose_turn_it_is(
        (levels, grouped, costs) in (1..4_usize, any::<bool>(), any::<bool>()),
        ops in ops(),
    ) {
        let shape = Shape { levels, grouped, costs };
        let (mut queue, model) = played(shape, ops)?;
        for (n, known) in &model.known {
            if known.holds {
                prop_assert!(queue.finish(id(*n), known.attempt, false));
            } else {
                prop_assert!(queue.cancel_waiting(Seq(*n)).is_some());
            }
        }
        prop_assert!(queue.is_idle(), "whoever is gone leaves nothing behind");
    }

    /// While a class is the only one of its group its turns there are not kept; when another comes, it stands
    /// as if they had been.
    #[test]
    fn who_was_alone_in_its_group_stands_as_if_it_had_not_been(
        (levels, costs) in (1..4_usize, any::<bool>()),
        ops in ops(),
    ) {
        let shape = Shape { levels, grouped: true, costs };
        let granted = |alone: bool| {
            IS_ALONE.set(alone);
            let played = played(shape, ops.clone());
            IS_ALONE.set(true);
            played.map(|(_, model)| model.granted)
        };
        prop_assert_eq!(granted(true)?, granted(false)?);
    }
}
