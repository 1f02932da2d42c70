//! Random histories are played again, and whoever is given a slot is asked what kept it before: what
//! happened must be the end of exactly that.

use std::collections::BTreeMap;

use attune_core::{
    ActionId, Attempt, Demand, Flow, GroupKey, Hold, OrderRule, PartitionId, PauseMode,
    QueueTotals, Seq,
};
use proptest::prelude::*;

use super::*;
use crate::policy::{Extra, QueueLimits, Share};

const RULE: i64 = 7;

fn limits(max_concurrent: u32, group_limit: Option<u32>, order: OrderRule) -> QueueLimits {
    let demands = group_limit.map(|_| RULE);
    QueueLimits {
        max_concurrent: Some(max_concurrent),
        max_length: 1_000,
        timeout_seconds: 60,
        order,
        extra: Extra {
            group_limit,
            demands,
            ..Extra::default()
        }
        .boxed(),
    }
}

fn id(n: i64) -> ExecutionId {
    ExecutionId::new(PartitionId(0), Seq(n))
}

/// What happens to a queue.
#[derive(Debug, Clone)]
enum Op {
    Enter {
        rank: u8,
        group: u8,
        cost: u16,
    },
    EnterDelayed {
        rank: u8,
        group: u8,
        cost: u16,
        wait: Millis,
    },
    Finish(usize),
    PutBack(usize, Option<Millis>),
    Cancel(usize),
    Wake(Millis),
    Limit(u32),
    Pause(bool),
    Pool(bool),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let (rank, group, cost) = (0..5_u8, 0..3_u8, 1..4_u16);
    let op = prop_oneof![
        10 => (rank.clone(), group.clone(), cost.clone())
            .prop_map(|(rank, group, cost)| Op::Enter { rank, group, cost }),
        1 => (rank, group, cost, 1..300_i64)
            .prop_map(|(rank, group, cost, wait)| Op::EnterDelayed { rank, group, cost, wait }),
        8 => (0..20_usize).prop_map(Op::Finish),
        2 => ((0..20_usize), prop::option::of(1..200_i64)).prop_map(|(n, wait)| Op::PutBack(n, wait)),
        2 => (0..40_usize).prop_map(Op::Cancel),
        2 => (0..100_i64).prop_map(Op::Wake),
        1 => (1..6_u32).prop_map(Op::Limit),
        1 => any::<bool>().prop_map(Op::Pause),
        1 => any::<bool>().prop_map(Op::Pool),
    ];
    prop::collection::vec(op, 1..120)
}

struct World {
    queue: ActionQueue,
    demands: BTreeMap<ExecutionId, Demand>,
    now: Millis,
    next: i64,
}

/// What one step was, for who was given a slot by it.
enum Done {
    Released(ExecutionId),
    Other,
}

impl World {
    fn waiting(&self) -> Vec<ExecutionId> {
        let all = self.demands.keys().copied();
        all.filter(|id| self.queue.is_waiting(id.seq())).collect()
    }

    fn holders(&self) -> Vec<(ExecutionId, Attempt)> {
        let holders = self.queue.holders();
        holders.map(|(id, holder)| (id, holder.attempt)).collect()
    }

    fn explain(&self, id: ExecutionId) -> Explanation {
        self.queue.explain(self.now, id, "pool", None).unwrap()
    }

    fn enter(&mut self, rank: u8, (group, cost): (u8, u16), wait: Option<Millis>) {
        let (execution_id, seq) = (id(self.next), Seq(self.next));
        self.next += 1;
        let demand = Demand {
            rule: RULE,
            group: GroupKey([group; 16]),
            cost,
            user: None,
            rate: GroupKey::default(),
            flow: Flow::default(),
        };
        self.demands.insert(execution_id, demand);
        let waiting = Waiting {
            execution_id,
            seq,
            enqueued_at: self.now,
            eligible_at: self.now,
            attempt: Attempt(0),
            unbegun: 0,
            delayed: wait.is_some(),
            front: false,
            share: Share::default(),
        };
        let priority = Priority::from_rank(rank).unwrap();
        let demand = Some(&demand);
        match wait {
            Some(wait) => self
                .queue
                .enter_delayed(priority, waiting, demand, self.now + wait)
                .unwrap(),
            None => self.queue.enter(priority, waiting, demand).unwrap(),
        };
    }

    fn apply(&mut self, op: &Op) -> Done {
        self.now += 1;
        let (holders, waiting) = (self.holders(), self.waiting());
        match *op {
            Op::Enter { rank, group, cost } => self.enter(rank, (group, cost), None),
            Op::EnterDelayed {
                rank,
                group,
                cost,
                wait,
            } => {
                self.enter(rank, (group, cost), Some(wait));
            }
            Op::Finish(n) if !holders.is_empty() => {
                let (id, attempt) = holders[n % holders.len()];
                assert!(self.queue.finish(id, attempt, false));
                return Done::Released(id);
            }
            Op::PutBack(n, wait) if !holders.is_empty() => {
                let (id, attempt) = holders[n % holders.len()];
                let until = wait.map(|wait| self.now + wait);
                assert!(self.queue.put_back(id, attempt, true, until));
                return Done::Released(id);
            }
            Op::Cancel(n) if !waiting.is_empty() => {
                let id = waiting[n % waiting.len()];
                assert!(self.queue.cancel_waiting(id.seq()).is_some());
            }
            Op::Wake(wait) => {
                self.now += wait;
                self.queue.wake_delayed(self.now, 100);
            }
            Op::Limit(limit) => {
                let earlier = self.queue.limits().clone();
                let group_limit = earlier.group_limit();
                self.queue
                    .set_limits(limits(limit, group_limit, earlier.order));
            }
            Op::Pause(paused) => {
                let mode = paused.then_some(PauseMode::Pause);
                self.queue.set_hold(Hold { mode, ..Hold::NONE });
            }
            Op::Pool(closed) => self.queue.set_pool_closed(closed),
            Op::Finish(_) | Op::PutBack(..) | Op::Cancel(_) => {}
        }
        Done::Other
    }
}

fn granted(queue: &mut ActionQueue, now: Millis) -> Vec<ExecutionId> {
    let granted = std::iter::from_fn(|| queue.grant_next(now).granted());
    granted.map(|granted| granted.execution_id).collect()
}

/// The limits among what somebody waits for.
fn lacks(said: &Explanation) -> Vec<&Lack> {
    let lacks = said.waits_for.iter().filter_map(|reason| match reason {
        Reason::Limit(lack) | Reason::GroupLimit(lack) => Some(lack),
        _ => None,
    });
    lacks.collect()
}

fn names(lack: &Lack, id: ExecutionId) -> bool {
    lack.more_holders > 0 || lack.holders.iter().any(|it| it.execution_id == id)
}

/// Whoever waits for one limit alone, as the next, is given a slot by the release that makes room in it, and
/// by none before: unless the same release makes room in the group of somebody who stands before it, or
/// others passed it while its group had no room, and took what it needs of the limit of the action.
fn check_next(world: &World, id: ExecutionId) -> Result<(), TestCaseError> {
    let said = world.explain(id);
    let [reason @ (Reason::Limit(lack) | Reason::GroupLimit(lack))] = said.waits_for.as_slice()
    else {
        return Ok(());
    };
    if lack.ahead > 0 {
        return Ok(());
    }
    let mut queue = world.queue.clone();
    let (mut used, mut is_passed) = (lack.used, false);
    for holder in &lack.holders {
        prop_assert!(queue.finish(holder.execution_id, holder.attempt, false));
        used -= holder.cost;
        let fits = used + lack.cost.min(lack.capacity) <= lack.capacity;
        let given = granted(&mut queue, world.now);
        match given.first().copied() {
            None if fits => {
                let now = queue.explain(world.now, id, "pool", None).unwrap();
                let lacks_now = now
                    .waits_for
                    .iter()
                    .any(|it| matches!(it, Reason::Limit(lack) if lack.ahead > 0 || is_passed));
                prop_assert!(lacks_now, "{said:?}, then {now:?}");
                return Ok(());
            }
            None => {}
            Some(first) if first == id => {
                prop_assert!(fits, "{said:?}");
                return Ok(());
            }
            Some(first) if world.explain(first).position < said.position => return Ok(()),
            Some(first) => {
                // Only a group without room lets those pass that stand behind it, and none of its own.
                let is_of_group =
                    |other: &ExecutionId| world.demands[other].group == world.demands[&id].group;
                let may_pass = matches!(reason, Reason::GroupLimit(_)) && !fits;
                prop_assert!(
                    may_pass && !given.iter().any(is_of_group),
                    "{first}: {said:?}"
                );
                is_passed = true;
            }
        }
    }
    prop_assert!(false, "all of {lack:?} is free, and {id} has no slot");
    Ok(())
}

/// Everybody who waits is told something, and what is told is so.
fn check_all(world: &World) -> Result<(), TestCaseError> {
    let mut in_order = Vec::new();
    // Whoever has a slot as soon as nothing from outside stops the queue lacks nothing of a limit.
    let mut opened = world.queue.clone();
    opened.set_hold(Hold::NONE);
    opened.set_pool_closed(false);
    let lack_nothing = granted(&mut opened, world.now);
    for id in world.waiting() {
        let said = world.explain(id);
        let is_free = lack_nothing.contains(&id);
        prop_assert!(
            !is_free || lacks(&said).is_empty(),
            "{id} only waits: {said:?}"
        );
        prop_assert!(!said.waits_for.is_empty() && !said.waits_for.contains(&Reason::NextRound));
        match said.order_key {
            Some(key) => in_order.push((key.key, key.seq, said.position)),
            None => prop_assert_eq!(said.state, QueueState::Delayed),
        }
        for lack in lacks(&said) {
            let held: u64 = lack.holders.iter().map(|holder| holder.cost).sum();
            prop_assert!(lack.more_holders > 0 || held == lack.used, "{lack:?}");
        }
        check_next(world, id)?;
    }
    // Of those who lack room in the action alone one is next.
    let next = world.waiting().into_iter().filter(|id| {
        let said = world.explain(*id);
        matches!(said.waits_for.as_slice(), [Reason::Limit(lack)] if lack.ahead == 0)
    });
    let next: Vec<ExecutionId> = next.collect();
    prop_assert!(next.len() <= 1, "{next:?} are all next");
    in_order.sort_unstable();
    for (place, (.., position)) in (0..).zip(in_order) {
        prop_assert_eq!(position, Some(place));
    }
    for (id, holder) in world.queue.holders() {
        let said = world.explain(id);
        prop_assert_eq!(
            (said.state, said.attempt),
            (QueueState::HoldsSlot, holder.attempt)
        );
    }
    Ok(())
}

fn replay(group_limit: Option<u32>, order: OrderRule, ops: &[Op]) -> Result<(), TestCaseError> {
    let mut world = World {
        queue: ActionQueue::new(
            ActionId(1),
            limits(3, group_limit, order),
            QueueTotals::default(),
        ),
        demands: BTreeMap::new(),
        now: 0,
        next: 1,
    };
    for op in ops {
        let before: BTreeMap<ExecutionId, Explanation> = world
            .waiting()
            .into_iter()
            .map(|id| (id, world.explain(id)))
            .collect();
        let done = world.apply(op);
        let given = granted(&mut world.queue, world.now);
        for (place, id) in given.iter().enumerate() {
            let Some(said) = before.get(id) else { continue };
            let by_time = said.state == QueueState::Delayed;
            let (is_paused, is_closed) = (
                said.waits_for
                    .iter()
                    .any(|it| matches!(it, Reason::Paused { .. })),
                said.waits_for
                    .iter()
                    .any(|it| matches!(it, Reason::PoolClosed { .. })),
            );
            prop_assert_eq!(by_time, matches!(op, Op::Wake(_)) && by_time, "{:?}", said);
            prop_assert!(
                !is_paused || matches!(op, Op::Pause(false)),
                "{op:?}: {said:?}"
            );
            prop_assert!(
                !is_closed || matches!(op, Op::Pool(false)),
                "{op:?}: {said:?}"
            );
            if let Done::Released(holder) = done {
                prop_assert!(!lacks(said).is_empty(), "{said:?}");
                for lack in lacks(said) {
                    prop_assert!(names(lack, holder), "{holder} gave {id} its slot: {lack:?}");
                    prop_assert!(lack.ahead <= place as u64, "{given:?}: {lack:?}");
                }
            }
        }
        check_all(&world)?;
    }
    Ok(())
}

#[test]
fn who_lacks_room_in_its_group_is_passed_and_may_lack_room_in_the_action_then() {
    let enter = |group, cost| Op::Enter {
        rank: 0,
        group,
        cost,
    };
    // Of four, the group of the last but one has its two, and what is left is too little for the last.
    let ops = [
        Op::Limit(4),
        enter(2, 1),
        enter(2, 1),
        enter(2, 2),
        enter(0, 3),
    ];
    replay(Some(2), OrderRule::Priority, &ops).unwrap();
}

proptest! {
    #[test]
    fn what_is_named_is_what_a_slot_comes_from(
        group_limit in prop::option::of(1..4_u32),
        order in prop_oneof![
            Just(OrderRule::Priority),
            Just(OrderRule::Fifo),
            (1..200_u32).prop_map(|step| OrderRule::Ageing { step })
        ],
        ops in ops(),
    ) {
        replay(group_limit, order, &ops)?;
    }
}
