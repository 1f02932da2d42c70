//! Tests of groups and costs: the examples, then random histories against a model that looks through
//! everything each time.

use std::collections::BTreeMap;

use attune_core::{Demand, Flow, GroupKey, OrderRule, PartitionId, QueueTotals};
use proptest::prelude::*;

use super::*;
use crate::policy::{Extra, Share};
use crate::queue::QueueFull;

pub(in crate::queue) const RULE: i64 = 7;

fn limits(max_concurrent: Option<u32>, group_limit: Option<u32>) -> QueueLimits {
    QueueLimits {
        max_concurrent,
        max_length: 100,
        timeout_seconds: 60,
        order: OrderRule::Priority,
        extra: grouped(RULE, group_limit),
    }
}

fn grouped(rule: i64, group_limit: Option<u32>) -> Option<Box<Extra>> {
    let demands = Some(rule);
    Extra {
        group_limit,
        demands,
        ..Extra::default()
    }
    .boxed()
}

fn queue(max_concurrent: Option<u32>, group_limit: Option<u32>) -> ActionQueue {
    let limits = limits(max_concurrent, group_limit);
    ActionQueue::new(ActionId(1), limits, QueueTotals::default())
}

pub(in crate::queue) fn demand(group: u8, cost: u16) -> Demand {
    Demand {
        rule: RULE,
        group: GroupKey([group; 16]),
        cost,
        user: None,
        rate: GroupKey::default(),
        flow: Flow::default(),
    }
}

fn id(n: i64) -> ExecutionId {
    ExecutionId::new(PartitionId(0), Seq(n))
}

fn waiting(n: i64) -> Waiting {
    Waiting {
        front: false,
        execution_id: id(n),
        seq: Seq(n),
        enqueued_at: n,
        eligible_at: n,
        attempt: Attempt(0),
        unbegun: 0,
        delayed: false,
        share: Share::default(),
    }
}

fn enter(queue: &mut ActionQueue, n: i64, demand: &Demand) -> Result<u64, QueueFull> {
    queue.enter(Priority::Normal, waiting(n), Some(demand))
}

fn granted(queue: &mut ActionQueue) -> Vec<i64> {
    let granted = std::iter::from_fn(|| queue.grant_next(0).granted());
    granted
        .map(|granted| granted.execution_id.seq().0)
        .collect()
}

#[test]
fn a_group_without_room_lets_others_pass() {
    let mut queue = queue(Some(3), Some(1));
    for (n, group) in [(1, 1), (2, 1), (3, 1), (4, 2), (5, 3), (6, 4)] {
        enter(&mut queue, n, &demand(group, 1)).unwrap();
    }
    assert_eq!(granted(&mut queue), [1, 4, 5]);
    assert_eq!(queue.blocked(), Some(Blocked::Limit { limit: 3 }));
    assert!(queue.finish(id(4), Attempt(1), false));
    assert_eq!(
        granted(&mut queue),
        [6],
        "2 and 3 are before it, but their group is taken"
    );
    assert!(queue.finish(id(5), Attempt(1), false));
    assert_eq!(queue.blocked(), Some(Blocked::Groups));
    assert!(queue.finish(id(1), Attempt(1), false));
    assert_eq!(granted(&mut queue), [2]);
}

#[test]
fn a_dear_one_is_not_overtaken_on_a_limit_that_both_demand() {
    let mut queue = queue(Some(4), None);
    for (n, cost) in [(1, 2), (2, 3), (3, 1), (4, 1)] {
        enter(&mut queue, n, &demand(0, cost)).unwrap();
    }
    assert_eq!(granted(&mut queue), [1], "2 waits for 3 of 4");
    assert!(queue.finish(id(1), Attempt(1), false));
    assert_eq!(granted(&mut queue), [2, 3]);
    // Lowered below what the next one takes: it runs alone instead of never.
    enter(&mut queue, 5, &demand(0, 4)).unwrap();
    queue.set_limits(limits(Some(2), None));
    assert!(granted(&mut queue).is_empty());
    assert!(queue.finish(id(2), Attempt(1), false));
    assert_eq!(granted(&mut queue), [4]);
    assert!(queue.finish(id(3), Attempt(1), false));
    assert!(granted(&mut queue).is_empty(), "5 does not run beside 4");
    assert!(queue.finish(id(4), Attempt(1), false));
    assert_eq!(granted(&mut queue), [5]);
}

#[test]
fn a_full_queue_takes_whoever_has_room_in_its_group() {
    let mut queue = queue(None, Some(1));
    let limits = QueueLimits {
        max_length: 1,
        ..limits(None, Some(1))
    };
    queue.set_limits(limits);
    enter(&mut queue, 1, &demand(1, 1)).unwrap();
    assert_eq!(granted(&mut queue), [1]);
    enter(&mut queue, 2, &demand(1, 1)).unwrap();
    assert_eq!(
        enter(&mut queue, 3, &demand(1, 1)),
        Err(QueueFull { max_length: 1 })
    );
    assert_eq!(
        enter(&mut queue, 4, &demand(2, 1)),
        Ok(1),
        "it starts at once"
    );
    assert_eq!(granted(&mut queue), [4]);
}

#[test]
fn a_queue_stands_still_until_all_groups_are_known() {
    let mut queue = queue(Some(9), Some(1));
    for (n, group) in [(1, 1), (2, 2), (3, 1)] {
        enter(&mut queue, n, &demand(group, 1)).unwrap();
    }
    assert_eq!(granted(&mut queue), [1, 2]);
    let later = queue.enter_delayed(Priority::Normal, waiting(4), Some(&demand(4, 1)), 50);
    assert_eq!(later, Ok(1));
    let other = QueueLimits {
        extra: grouped(8, Some(1)),
        ..limits(Some(9), Some(1))
    };
    queue.set_limits(other);
    assert_eq!(queue.blocked(), Some(Blocked::Regrouping));
    let unknown: Vec<i64> = queue.unknown().map(|id| id.seq().0).collect();
    assert_eq!(unknown, [1, 2, 3, 4]);
    // Who comes meanwhile says it itself; what another rule says is no answer.
    let new = |group| Demand {
        rule: 8,
        ..demand(group, 1)
    };
    enter(&mut queue, 5, &new(5)).unwrap();
    assert!(!queue.assign(id(1), &demand(1, 1)));
    for (n, group) in [(1, 9), (2, 9), (3, 9)] {
        assert!(queue.assign(id(n), &new(group)));
        assert!(granted(&mut queue).is_empty());
    }
    assert!(queue.assign(id(4), &new(4)));
    assert!(!queue.assign(id(4), &new(4)), "it is known");
    assert_eq!(
        granted(&mut queue),
        [5],
        "3 waits for both that are in its group now"
    );
    assert!(queue.finish(id(1), Attempt(1), false));
    assert!(granted(&mut queue).is_empty());
    assert!(queue.finish(id(2), Attempt(1), false));
    assert_eq!(granted(&mut queue), [3]);
    queue.wake_delayed(50, 9);
    assert_eq!(granted(&mut queue), [4]);
    // Without groups everything is as if there had been none.
    queue.set_limits(QueueLimits {
        extra: None,
        ..limits(Some(9), None)
    });
    for n in 6..9 {
        queue.enter(Priority::Normal, waiting(n), None).unwrap();
    }
    assert_eq!(granted(&mut queue), [6, 7, 8]);
}

/// What happens to a queue.
#[derive(Debug, Clone)]
enum Op {
    Enter {
        rank: u8,
        group: u8,
        cost: u16,
        later: Millis,
    },
    EnterDelayed {
        rank: u8,
        group: u8,
        cost: u16,
        wait: Millis,
    },
    Finish(usize),
    Revoke(usize),
    Cancel(usize),
    Wake(Millis),
    Expire(Millis),
    Limit(Option<u32>),
    GroupLimit(Option<u32>),
    Order(OrderRule),
    Restore,
    Regroup,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let (rank, group, cost) = (0..5_u8, 0..5_u8, 1..5_u16);
    let limit = |least: u32| prop_oneof![Just(None), (least..6_u32).prop_map(Some)];
    let rule = prop_oneof![
        Just(OrderRule::Priority),
        Just(OrderRule::Fifo),
        (1..200_u32).prop_map(|step| OrderRule::Ageing { step })
    ];
    let op = prop_oneof![
        8 => (rank.clone(), group.clone(), cost.clone(), 0..30_i64)
            .prop_map(|(rank, group, cost, later)| Op::Enter { rank, group, cost, later }),
        2 => (rank, group, cost, 1..200_i64)
            .prop_map(|(rank, group, cost, wait)| Op::EnterDelayed { rank, group, cost, wait }),
        6 => (0..20_usize).prop_map(Op::Finish),
        2 => (0..20_usize).prop_map(Op::Revoke),
        2 => (0..40_usize).prop_map(Op::Cancel),
        2 => (0..100_i64).prop_map(Op::Wake),
        1 => (0..2_000_i64).prop_map(Op::Expire),
        1 => limit(1).prop_map(Op::Limit),
        1 => limit(1).prop_map(Op::GroupLimit),
        1 => rule.prop_map(Op::Order),
        1 => Just(Op::Restore),
        1 => Just(Op::Regroup),
    ];
    prop::collection::vec(op, 1..80)
}

#[derive(Debug, Clone, Copy)]
struct Known {
    priority: Priority,
    demand: Demand,
    enqueued_at: Millis,
    attempt: Attempt,
    holds: bool,
    not_before: Option<Millis>,
}

/// The queue as a plain list.
struct Model {
    known: BTreeMap<i64, Known>,
    limits: QueueLimits,
    now: Millis,
}

impl Model {
    fn used(&self, group: Option<GroupKey>) -> u64 {
        let holders = self.known.values().filter(|known| known.holds);
        let same = holders.filter(|known| group.is_none_or(|group| known.demand.group == group));
        same.map(|known| u64::from(known.demand.cost)).sum()
    }

    fn fits(&self, group: Option<GroupKey>, cost: u16) -> bool {
        let limit = match group {
            None => self.limits.max_concurrent,
            Some(_) => self.limits.group_limit(),
        };
        let used = self.used(group);
        limit.is_none_or(|limit| used + u64::from(cost) <= u64::from(limit) || used == 0)
    }

    fn key(&self, n: i64) -> (i64, i64) {
        let known = &self.known[&n];
        (self.limits.order.key(known.priority, known.enqueued_at), n)
    }

    /// Who is next: the first in order who is first in its group and has room there, if it has room in
    /// the limit of all.
    fn next(&self) -> Option<i64> {
        let mut waiting: Vec<i64> = self
            .known
            .iter()
            .filter(|(_, known)| !known.holds && known.not_before.is_none())
            .map(|(n, _)| *n)
            .collect();
        waiting.sort_by_key(|n| self.key(*n));
        let mut seen = std::collections::BTreeSet::new();
        let first = waiting.into_iter().find(|n| {
            let demand = self.known[n].demand;
            seen.insert(demand.group) && self.fits(Some(demand.group), demand.cost)
        })?;
        self.fits(None, self.known[&first].demand.cost)
            .then_some(first)
    }
}

fn serve(queue: &mut ActionQueue, model: &mut Model) -> Result<(), TestCaseError> {
    loop {
        let expected = model.next();
        prop_assert_eq!(queue.blocked().is_none(), expected.is_some());
        let granted = queue.grant_next(0).granted();
        prop_assert_eq!(
            granted.map(|granted| granted.execution_id.seq().0),
            expected
        );
        let Some(n) = expected else { break };
        let known = model.known.get_mut(&n).unwrap();
        (known.holds, known.attempt) = (true, known.attempt.next());
    }
    let waits = model.known.values().filter(|known| !known.holds).count();
    prop_assert_eq!(queue.len(), waits);
    prop_assert_eq!(queue.active_count(), model.known.len() - waits);
    prop_assert_eq!(queue.unknown().next(), None);
    Ok(())
}

/// The same queue, as a takeover or a change of the rule makes it from what is stored.
fn again(model: &Model) -> ActionQueue {
    let mut queue = ActionQueue::new(ActionId(1), model.limits.clone(), QueueTotals::default());
    for (n, known) in &model.known {
        let waiting = Waiting {
            enqueued_at: known.enqueued_at,
            eligible_at: known.enqueued_at,
            attempt: known.attempt,
            ..waiting(*n)
        };
        if known.holds {
            let holder = Holder {
                front: false,
                attempt: known.attempt,
                unbegun: 0,
                priority: known.priority,
                seq: waiting.seq,
                enqueued_at: known.enqueued_at,
                eligible_at: known.enqueued_at,
                held_since: None,
                cancel_requested: false,
                share: Share::default(),
                worker: None,
                started: false,
                ahead: None,
            };
            queue.restore_holder(id(*n), holder, Some(&known.demand));
        } else {
            queue.restore_waiting(
                known.priority,
                waiting,
                Some(&known.demand),
                known.not_before,
            );
        }
    }
    queue
}

fn pick(model: &Model, at: usize, holds: bool) -> Option<i64> {
    let mut fitting = model.known.iter().filter(|(_, known)| known.holds == holds);
    fitting.nth(at).map(|(n, _)| *n)
}

fn apply(queue: &mut ActionQueue, model: &mut Model, op: Op, n: i64) -> Result<(), TestCaseError> {
    match op {
        Op::Enter {
            rank,
            group,
            cost,
            later,
        } => {
            model.now += later;
            let priority = Priority::from_rank(rank).unwrap();
            let demand = Demand {
                rule: model.limits.demands().unwrap(),
                ..demand(group, cost)
            };
            let entry = Waiting {
                enqueued_at: model.now,
                eligible_at: model.now,
                ..waiting(n)
            };
            queue.enter(priority, entry, Some(&demand)).unwrap();
            let known = Known {
                priority,
                demand,
                enqueued_at: model.now,
                attempt: Attempt(0),
                holds: false,
                not_before: None,
            };
            model.known.insert(n, known);
        }
        Op::EnterDelayed {
            rank,
            group,
            cost,
            wait,
        } => {
            let priority = Priority::from_rank(rank).unwrap();
            let demand = Demand {
                rule: model.limits.demands().unwrap(),
                ..demand(group, cost)
            };
            let entry = Waiting {
                enqueued_at: model.now,
                eligible_at: model.now,
                ..waiting(n)
            };
            let due = model.now + wait;
            queue
                .enter_delayed(priority, entry, Some(&demand), due)
                .unwrap();
            let known = Known {
                priority,
                demand,
                enqueued_at: model.now,
                attempt: Attempt(0),
                holds: false,
                not_before: Some(due),
            };
            model.known.insert(n, known);
        }
        Op::Finish(at) => {
            if let Some(n) = pick(model, at, true) {
                let known = model.known.remove(&n).unwrap();
                prop_assert!(queue.finish(id(n), known.attempt, false));
            }
        }
        Op::Revoke(at) => {
            if let Some(n) = pick(model, at, true) {
                let known = model.known.get_mut(&n).unwrap();
                // Some wait for a back-off first.
                known.not_before = at.is_multiple_of(2).then_some(model.now + 50);
                prop_assert!(queue.put_back(id(n), known.attempt, true, known.not_before));
                known.holds = false;
            }
        }
        Op::Cancel(at) => {
            if let Some(n) = pick(model, at, false) {
                prop_assert!(queue.cancel_waiting(Seq(n)).is_some());
                model.known.remove(&n);
            }
        }
        Op::Wake(later) => {
            model.now += later;
            queue.wake_delayed(model.now, usize::MAX);
            for known in model.known.values_mut() {
                known.not_before = known.not_before.filter(|due| *due > model.now);
            }
        }
        Op::Expire(later) => {
            model.now += later;
            queue.wake_delayed(model.now, usize::MAX);
            for known in model.known.values_mut() {
                known.not_before = known.not_before.filter(|due| *due > model.now);
            }
            // Who expires is another test's; here whoever does leaves its group.
            for gone in queue.expire(model.now, 3) {
                prop_assert!(model.known.remove(&gone.seq.0).is_some());
            }
        }
        Op::Limit(limit) => {
            model.limits.max_concurrent = limit;
            queue.set_limits(model.limits.clone());
        }
        Op::GroupLimit(limit) => {
            model.limits.extra = grouped(model.limits.demands().unwrap(), limit);
            queue.set_limits(model.limits.clone());
        }
        Op::Order(order) => {
            model.limits.order = order;
            queue.set_limits(model.limits.clone());
        }
        Op::Restore => *queue = again(model),
        Op::Regroup => {
            let rule = model.limits.demands().unwrap() + 1;
            model.limits.extra = grouped(rule, model.limits.group_limit());
            queue.set_limits(model.limits.clone());
            for (n, known) in &mut model.known {
                prop_assert_eq!(queue.grant_next(0).granted(), None);
                let group = GroupKey([known.demand.group.0[0] / 2; 16]);
                known.demand = Demand {
                    rule,
                    group,
                    ..known.demand
                };
                prop_assert!(queue.assign(id(*n), &known.demand));
            }
        }
    }
    serve(queue, model)
}

proptest! {
    #![proptest_config(crate::thorough())]

    #[test]
    fn groups_and_costs_are_what_a_look_through_everything_finds(ops in ops()) {
        let limits = limits(Some(4), Some(2));
        let mut queue = ActionQueue::new(ActionId(1), limits.clone(), QueueTotals::default());
        let mut model = Model { known: BTreeMap::new(), limits, now: 0 };
        for (n, op) in (1..).zip(ops) {
            apply(&mut queue, &mut model, op, n)?;
        }
        let all: Vec<i64> = model.known.keys().copied().collect();
        for n in all {
            let known = model.known.remove(&n).unwrap();
            if known.holds {
                prop_assert!(queue.finish(id(n), known.attempt, false));
            } else {
                prop_assert!(queue.cancel_waiting(Seq(n)).is_some());
            }
        }
        prop_assert!(queue.is_idle(), "whoever is gone leaves nothing behind");
    }
}
