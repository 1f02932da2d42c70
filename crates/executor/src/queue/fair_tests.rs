//! Tests of shared slots by examples; `fair_model.rs` has random histories.

use std::collections::BTreeMap;
use std::sync::Arc;

use attune_core::policy::Weights;
use attune_core::{Demand, Flow, GroupKey, OrderRule, PartitionId, QueueTotals};
use proptest::prelude::*;

use super::*;
use crate::policy::{Extra, Share};

const RULE: i64 = 7;

fn key(n: u16) -> GroupKey {
    let mut key = [1; 16];
    key[..2].copy_from_slice(&n.to_be_bytes());
    GroupKey(key)
}

fn limits(max_concurrent: Option<u32>, group_limit: Option<u32>, weights: Weights) -> QueueLimits {
    QueueLimits {
        max_concurrent,
        max_length: 100_000,
        timeout_seconds: 60,
        order: OrderRule::Priority,
        extra: Extra {
            group_limit,
            demands: Some(RULE),
            fairness: Some(Arc::new(weights)),
            ..Extra::default()
        }
        .boxed(),
    }
}

fn queue(limits: QueueLimits) -> ActionQueue {
    ActionQueue::new(ActionId(1), limits, QueueTotals::default())
}

fn demand(flow: &[u16], group: u16, cost: u16) -> Demand {
    let keys: Vec<GroupKey> = flow.iter().copied().map(key).collect();
    Demand {
        rule: RULE,
        group: if group == 0 {
            GroupKey::default()
        } else {
            key(group)
        },
        cost,
        user: None,
        rate: GroupKey::default(),
        flow: Flow::of(&keys).unwrap(),
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

fn next(queue: &mut ActionQueue) -> Option<i64> {
    let granted = queue.grant_next(0).granted();
    granted.map(|granted| granted.execution_id.seq().0)
}

fn granted(queue: &mut ActionQueue) -> Vec<i64> {
    std::iter::from_fn(|| next(queue)).collect()
}

#[test]
fn slots_are_shared_by_weight_and_not_by_who_came_first() {
    let weights = Weights::new(1, [((0, key(2)), 2)]);
    let mut queue = queue(limits(Some(6), None, weights));
    for n in 1..=20 {
        let user = if n <= 12 { 1 } else { 2 };
        queue
            .enter(Priority::Normal, waiting(n), Some(&demand(&[user], 0, 1)))
            .unwrap();
    }
    assert_eq!(
        granted(&mut queue),
        [1, 13, 14, 2, 15, 16],
        "two for each of the other"
    );
    for n in [13, 14, 15] {
        assert!(queue.finish(id(n), Attempt(1), false));
    }
    assert_eq!(granted(&mut queue), [17, 18, 19]);
    // A higher priority goes before everybody's turn, and the front before that.
    queue
        .enter(Priority::High, waiting(30), Some(&demand(&[1], 0, 1)))
        .unwrap();
    assert!(queue.move_waiting(Seq(12), Priority::Normal, true));
    assert!(queue.finish(id(16), Attempt(1), false));
    assert!(queue.finish(id(17), Attempt(1), false));
    assert_eq!(granted(&mut queue), [12, 30]);
    // Other weights hold at once.
    queue.set_limits(limits(
        Some(6),
        None,
        Weights::new(1, [((0, key(1)), 1000)]),
    ));
    assert!(queue.finish(id(18), Attempt(1), false));
    assert_eq!(granted(&mut queue), [3]);
}

#[test]
fn who_is_many_has_no_more_than_others() {
    let (slots, mut n) = (100, 0);
    let mut queue = queue(limits(Some(slots), Some(1), Weights::new(1, [])));
    let mut enter = |queue: &mut ActionQueue, user: u16, group: u16| {
        n += 1;
        queue
            .enter(
                Priority::Normal,
                waiting(n),
                Some(&demand(&[user, group], group, 1)),
            )
            .unwrap();
        n
    };
    let mut of: BTreeMap<i64, (u16, u16)> = BTreeMap::new();
    for group in 1..=1000 {
        of.insert(enter(&mut queue, 1, group), (1, group));
    }
    // Nine others with a hundred groups each, so that nobody lacks the limit of one.
    for user in 2..=10 {
        for group in 0..100 {
            let group = 2000 + user * 100 + group;
            of.insert(enter(&mut queue, user, group), (user, group));
        }
    }
    let (mut starts, mut running) = (BTreeMap::<u16, u32>::new(), Vec::new());
    for round in 0_usize..20_000 {
        while let Some(started) = next(&mut queue) {
            running.push(started);
            *starts.entry(of[&started].0).or_default() += 1;
        }
        let gone = running.swap_remove(round * 7919 % running.len());
        assert!(queue.finish(id(gone), Attempt(1), false));
        let (user, group) = of[&gone];
        of.insert(enter(&mut queue, user, group), (user, group));
    }
    let all: u32 = starts.values().sum();
    for (user, starts) in starts {
        let share = f64::from(starts) * 10.0 / f64::from(all);
        assert!(
            (0.95..=1.05).contains(&share),
            "user {user} has {share} of a tenth"
        );
    }
}

#[test]
fn a_short_limit_of_a_group_goes_by_turns_as_well() {
    let mut queue = queue(limits(None, Some(1), Weights::new(1, [])));
    for n in 1..=6 {
        let user = if n <= 4 { 1 } else { 2 };
        queue
            .enter(Priority::Normal, waiting(n), Some(&demand(&[user], 9, 1)))
            .unwrap();
    }
    let mut came = Vec::new();
    while let Some(n) = next(&mut queue) {
        came.push(n);
        assert!(queue.blocked().is_some());
        assert!(queue.finish(id(n), Attempt(1), false));
    }
    assert_eq!(came, [1, 5, 2, 6, 3, 4]);
    assert!(queue.is_idle());
}

proptest! {
    /// From the first grant on, though nobody else of the group waited then.
    #[test]
    fn who_was_just_served_in_a_group_goes_behind_who_never_was(
        ops in prop::collection::vec((0..3_u16, 1..4_u16), 1..60),
    ) {
        let mut queue = queue(limits(None, Some(1), Weights::new(1, [])));
        let mut waiting_of: BTreeMap<i64, u16> = BTreeMap::new();
        // Who was served since the group was empty, and who was last.
        let (mut served, mut holder) = (Vec::new(), None);
        for (n, (kind, user)) in (1..).zip(ops) {
            if kind > 0 {
                queue.enter(Priority::Normal, waiting(n), Some(&demand(&[user], 9, 1))).unwrap();
                waiting_of.insert(n, user);
            } else if let Some(gone) = holder.take() {
                prop_assert!(queue.finish(id(gone), Attempt(1), false));
                if waiting_of.is_empty() {
                    served.clear();
                }
            }
            if let Some(granted) = next(&mut queue) {
                let user = waiting_of.remove(&granted).unwrap();
                let passed = waiting_of.values().find(|it| !served.contains(*it));
                prop_assert!(served.last() != Some(&user) || passed.is_none(), "{:?}", passed);
                served.push(user);
                holder = Some(granted);
            }
        }
    }
}

#[test]
fn whose_turn_it_is_is_told() {
    use attune_core::explain::{NoEstimate, Reason};

    let mut queue = queue(limits(
        Some(2),
        Some(2),
        Weights::new(1, [((0, key(2)), 3)]),
    ));
    for (n, user) in [(1, 1), (2, 1), (3, 1), (4, 2)] {
        queue
            .enter(
                Priority::Normal,
                waiting(n),
                Some(&demand(&[user], n as u16, 1)),
            )
            .unwrap();
    }
    assert_eq!(granted(&mut queue), [1, 4]);
    queue
        .enter(Priority::Normal, waiting(5), Some(&demand(&[2], 5, 1)))
        .unwrap();
    let said = queue.explain(9, id(2), "pool", None).unwrap();
    assert_eq!(said.no_estimate, Some(NoEstimate::Turns));
    let turn = Reason::Turn {
        holds: 1,
        weight: 1,
        next_holds: 1,
        next_weight: 3,
        next: Some(id(5)),
        in_group: false,
    };
    assert!(
        matches!(&said.waits_for[..], [Reason::Limit(lack), it] if *it == turn && lack.is_shared),
        "{said:?}"
    );
    // Two of a group of which one dear one is first: what is left is not for the other.
    let mut queue = self::queue(limits(Some(9), Some(2), Weights::new(1, [])));
    for (n, user, cost) in [(1, 1, 1), (2, 2, 2), (3, 3, 1)] {
        queue
            .enter(
                Priority::Normal,
                waiting(n),
                Some(&demand(&[user], 7, cost)),
            )
            .unwrap();
    }
    assert_eq!(granted(&mut queue), [1]);
    let said = queue.explain(9, id(3), "pool", None).unwrap();
    let [
        Reason::GroupLimit(lack),
        Reason::Turn { next, in_group, .. },
    ] = &said.waits_for[..]
    else {
        panic!("{said:?}");
    };
    assert_eq!(
        (lack.is_shared, *next, *in_group),
        (true, Some(id(2)), true)
    );
}

/// Two of three units are taken; who needs two waits in an earlier lane, and keeps back who needs one.
#[test]
fn who_waits_behind_a_dear_one_of_another_lane_is_told_so() {
    use attune_core::explain::Reason;

    for is_front in [false, true] {
        let mut queue = queue(limits(Some(3), None, Weights::new(1, [])));
        let enter = |queue: &mut ActionQueue, n: i64, priority, user, cost| {
            let demand = demand(&[user], 0, cost);
            queue.enter(priority, waiting(n), Some(&demand)).unwrap();
            if is_front {
                queue.move_waiting(Seq(n), priority, true);
            }
        };
        enter(&mut queue, 1, Priority::Normal, 1, 2);
        assert_eq!(granted(&mut queue), [1]);
        enter(&mut queue, 2, Priority::High, 2, 2);
        enter(&mut queue, 3, Priority::Normal, 3, 1);
        assert_eq!(granted(&mut queue), [0; 0]);
        let said = queue.explain(9, id(3), "pool", None).unwrap();
        assert!(
            matches!(&said.waits_for[..], [Reason::Limit(lack)] if lack.ahead == 1),
            "{said:?}"
        );
    }
}

#[path = "fair_model.rs"]
mod model;
