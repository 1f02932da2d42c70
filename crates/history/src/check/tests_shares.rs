//! Histories of actions whose slots are shared.

use attune_core::policy::FlowWeights;
use attune_core::{Demand, ExecutionId, Flow, GroupKey, OrderRule};

use super::tests::{NORMAL, assert_breaks, assert_clean, findings};
use super::tests_groups::demand;
use super::world::World;
use super::*;

/// The flow of each execution by its number, and what each flow is worth.
type Flows<'a> = (&'a [u8], [u16; 2]);

impl World {
    /// Shares the slots of the action; the executions of the second flow are in one group, all others in groups
    /// of their own.
    fn share(&mut self, group_limit: Option<u32>, (flows, weights): Flows<'_>) {
        self.group(group_limit, |number| Demand {
            flow: Flow::of(&[GroupKey([flows[number]; 16])]).unwrap(),
            ..demand(
                match flows[number] {
                    2 => 100,
                    _ => 1 + u8::try_from(number).unwrap(),
                },
                1,
            )
        });
        let mut known: Vec<ExecutionId> = Vec::new();
        for record in &mut self.records {
            match record {
                Record::Accepted { execution_id, .. } => known.push(*execution_id),
                Record::Granted {
                    execution_id,
                    weights: told,
                    ..
                } => {
                    let number = known.iter().position(|id| id == execution_id).unwrap();
                    let of = vec![weights[usize::from(flows[number]) - 1]];
                    *told = Some(FlowWeights { mark: 5, of });
                }
                _ => {}
            }
        }
    }
}

/// So many are submitted, and when the one of this number ends the next has its slot.
fn history(order: OrderRule, (limit, many): (u32, usize), ends: &[usize], takeover: bool) -> World {
    let mut world = World::new(limit);
    world.order = order;
    let ids: Vec<ExecutionId> = (0..many).map(|_| world.submit(NORMAL)).collect();
    if takeover {
        world.takeover();
    }
    for number in ends {
        world.finish(ids[*number]);
    }
    world.drain();
    world
}

fn judged(world: &World) -> u64 {
    findings(world)[0].judged.shares
}

#[test]
fn i10_who_holds_a_slot_has_another_before_who_holds_none() {
    for order in [OrderRule::Priority, OrderRule::Ageing { step: 1 }] {
        let mut world = history(order, (2, 4), &[0], false);
        world.share(None, (&[1, 1, 2, 1], [1, 1]));
        assert_clean(&world);
        assert_eq!(judged(&world), 1);
        world.share(None, (&[1, 1, 1, 2], [1, 1]));
        assert_breaks(&world, Promise::I10);
    }
}

#[test]
fn i10_by_weight() {
    // The first and the second flow hold one each, and the first has another.
    let mut world = history(OrderRule::Priority, (3, 6), &[0], false);
    let flows = [1, 1, 2, 1, 2, 2];
    for weights in [[1, 1], [3, 1], [1000, 999]] {
        world.share(None, (&flows, weights));
        assert_clean(&world);
    }
    for weights in [[1, 3], [999, 1000]] {
        world.share(None, (&flows, weights));
        assert_breaks(&world, Promise::I10);
    }
}

#[test]
fn i10_says_nothing_of_who_lacks_room_in_its_group() {
    let mut world = history(OrderRule::Priority, (3, 6), &[0, 2], false);
    let flows = [1, 1, 2, 1, 2, 1];
    world.share(Some(2), (&flows, [1, 3]));
    assert_breaks(&world, Promise::I10);
    world.share(Some(1), (&flows, [1, 3]));
    assert_clean(&world);
    // Nor of groups of more than one flow: those share its limit by turns of their own.
    world.share(Some(2), (&flows, [1, 3]));
    for record in &mut world.records {
        if let Record::Accepted {
            demand: Some(demand),
            ..
        } = record
        {
            demand.group = GroupKey([1; 16]);
        }
    }
    assert_eq!(judged(&world), 0);
}

#[test]
fn i10_after_a_takeover() {
    let mut world = history(OrderRule::Priority, (2, 4), &[0], true);
    world.share(None, (&[1, 1, 1, 2], [1, 1]));
    assert_breaks(&world, Promise::I10);
    // With ageing somebody of whom no record tells may have taken its class to another lane.
    let mut world = history(OrderRule::Ageing { step: 1 }, (2, 4), &[0], true);
    world.share(None, (&[1, 1, 1, 2], [1, 1]));
    assert_clean(&world);
    assert_eq!(judged(&world), 0);
}

#[test]
fn i10_says_nothing_where_too_little_is_known() {
    let shared = || {
        let mut world = history(OrderRule::Priority, (2, 4), &[0], false);
        world.share(None, (&[1, 1, 1, 2], [1, 1]));
        world
    };
    // Of records from before weights were written.
    let mut world = shared();
    for record in &mut world.records {
        if let Record::Granted { weights, .. } = record {
            *weights = None;
        }
    }
    assert_clean(&world);
    assert_eq!(judged(&world), 0);
    // Where it is not known by what a holder was told apart.
    let mut world = shared();
    let mut number = 0;
    for record in &mut world.records {
        if let Record::Accepted { demand, .. } = record {
            *demand = demand.filter(|_| number != 1);
            number += 1;
        }
    }
    assert_eq!(findings(&world)[0].count(Promise::I10), 0);
    // Where nobody of the other flow was ever granted a slot by these weights.
    let mut world = shared();
    let last = world.records.iter_mut().rev();
    let mut told = last.filter_map(|record| match record {
        Record::Granted { weights, .. } => weights.as_mut(),
        _ => None,
    });
    told.next().unwrap().mark = 6;
    assert_clean(&world);
}
