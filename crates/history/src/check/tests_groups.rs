//! Histories of actions whose executions are grouped, or take more than one of their limit.

use attune_core::{Demand, ExecutionId, Flow, GroupKey};

use super::tests::{NORMAL, assert_breaks, assert_clean};
use super::world::World;
use super::*;

const RULE: i64 = 7;

pub(super) fn demand(group: u8, cost: u16) -> Demand {
    Demand {
        rule: RULE,
        group: GroupKey([group; 16]),
        cost,
        user: None,
        rate: GroupKey::default(),
        flow: Flow::default(),
    }
}

impl World {
    /// Makes the action one whose executions demand what `of` says, by their number.
    pub(super) fn group(&mut self, group_limit: Option<u32>, of: impl Fn(usize) -> Demand) {
        let mut known: Vec<ExecutionId> = Vec::new();
        for record in &mut self.records {
            match record {
                Record::Accepted {
                    execution_id,
                    demand,
                    ..
                } => {
                    *demand = Some(of(known.len()));
                    known.push(*execution_id);
                }
                Record::Granted {
                    group_limit: limit,
                    demands,
                    ..
                }
                | Record::Limit {
                    group_limit: limit,
                    demands,
                    ..
                } => (*limit, *demands) = (group_limit, Some(RULE)),
                _ => {}
            }
        }
    }
}

/// Six executions at limit 2, one after another.
fn six() -> World {
    let mut world = World::new(2);
    for _ in 0..6 {
        world.submit(NORMAL);
    }
    world.drain();
    world
}

#[test]
fn i2_more_than_the_limit_of_a_group() {
    let mut world = six();
    world.group(Some(1), |number| demand(u8::try_from(number).unwrap(), 1));
    assert_clean(&world);
    world.group(Some(2), |_| demand(1, 1));
    assert_clean(&world);
    world.group(Some(1), |_| demand(1, 1));
    assert_breaks(&world, Promise::I2);
}

#[test]
fn i2_dearer_than_the_limit() {
    let mut world = six();
    world.group(None, |_| demand(0, 1));
    assert_clean(&world);
    world.group(None, |number| demand(0, if number == 3 { 2 } else { 1 }));
    assert_breaks(&world, Promise::I2);
    // Alone, one may take more than there is: the limit was higher when it was accepted.
    let mut alone = World::new(1);
    alone.submit(NORMAL);
    alone.submit(NORMAL);
    alone.drain();
    alone.group(None, |_| demand(0, 3));
    assert_clean(&alone);
}

/// At limit 2 two hold a slot, and the fourth is granted before the third.
fn overtaken() -> World {
    let mut world = six();
    let ids: Vec<ExecutionId> = world
        .records
        .iter()
        .filter_map(|record| match record {
            Record::Accepted { execution_id, .. } => Some(*execution_id),
            _ => None,
        })
        .collect();
    for record in &mut world.records {
        let id = match record {
            Record::Granted { execution_id, .. }
            | Record::Ended { execution_id, .. }
            | Record::Start { execution_id, .. }
            | Record::End { execution_id, .. }
            | Record::Taken { execution_id, .. }
            | Record::ProgramStart { execution_id, .. }
            | Record::ProgramEnd { execution_id, .. } => execution_id,
            _ => continue,
        };
        *id = match *id {
            id if id == ids[2] => ids[3],
            id if id == ids[3] => ids[2],
            id => id,
        };
    }
    world
}

#[test]
fn i3_before_one_of_the_same_group_or_of_one_with_room() {
    for (groups, group_limit, is_right) in [
        // The third is in the group of the second, which runs still.
        ([1, 2, 2, 3, 4, 5], 1, true),
        ([1, 2, 2, 3, 4, 5], 2, false),
        ([1, 2, 3, 3, 4, 5], 1, false),
        ([1, 2, 3, 4, 5, 6], 1, false),
    ] {
        let mut world = overtaken();
        world.group(Some(group_limit), |number| demand(groups[number], 1));
        let report = super::tests::findings(&world);
        let broken = report[0].count(Promise::I3);
        assert_eq!(
            broken == 0,
            is_right,
            "{groups:?} at {group_limit}: {broken}"
        );
    }
}

/// Where slots are shared another flow may have its turn; within one who came first goes first.
#[test]
fn i3_before_one_of_the_same_flow() {
    for (flows, is_right) in [([1, 2, 3, 4, 5, 6], true), ([1, 2, 3, 3, 4, 5], false)] {
        let mut world = overtaken();
        world.group(None, |number| Demand {
            flow: Flow::of(&[GroupKey([9; 16]), GroupKey([flows[number]; 16])]).unwrap(),
            ..demand(0, 1)
        });
        let report = super::tests::findings(&world);
        let broken = report[0].count(Promise::I3);
        assert_eq!(broken == 0, is_right, "{flows:?}: {broken}");
    }
}

/// Whoever waits has room in its group, and a slot is free for it.
#[test]
fn i6_a_group_with_room_is_not_served() {
    let mut world = World::new(3);
    let ids: Vec<ExecutionId> = (0..3).map(|_| world.submit(NORMAL)).collect();
    world.finish(ids[0]);
    let last = world.submit(NORMAL);
    world.drain();
    let of = |number: usize| demand([1, 2, 3, 2][number], 1);
    world.group(Some(2), of);
    assert_clean(&world);
    // Its grant comes a round later than it could.
    let granted = |record: &Record| matches!(record, Record::Granted { execution_id, .. } if *execution_id == last);
    let at = world.records.iter().position(granted).unwrap();
    let totals = (at..world.records.len())
        .find(|at| matches!(world.records[*at], Record::Totals { .. }))
        .unwrap();
    let grant = world.records.remove(at);
    if let Record::Totals {
        waiting, active, ..
    } = &mut world.records[totals - 1]
    {
        (*waiting, *active) = (*waiting + 1, *active - 1);
    }
    let mut again = world.records[totals - 1].clone();
    if let Record::Totals {
        waiting, active, ..
    } = &mut again
    {
        (*waiting, *active) = (*waiting - 1, *active + 1);
    }
    world.records.splice(totals..totals, [grant, again]);
    let count = |world: &World| super::tests::findings(world)[0].count(Promise::I6);
    assert_eq!(count(&world), 1);
    world.group(Some(1), of);
    assert_eq!(
        count(&world),
        0,
        "the second runs still, and is in its group"
    );
}

/// One of whom it is not known that it waits stands first and is too dear for what is free.
#[test]
fn i6_who_waits_behind_an_unknown_one_may_lack_room() {
    let count = |costs: [u16; 3], is_known: bool| {
        let mut world = World::new(1);
        for _ in costs {
            world.submit(NORMAL);
        }
        world.drain();
        world.group(None, |number| demand(0, costs[number]));
        let mut number = 0;
        for record in &mut world.records {
            match record {
                Record::Granted { limit, .. } | Record::Limit { limit, .. } => *limit = Some(3),
                Record::SubmitInvoke { delayed, .. } => *delayed = number == 1 && !is_known,
                Record::Accepted { delayed, .. } => {
                    *delayed = number == 1 && !is_known;
                    number += 1;
                }
                _ => {}
            }
        }
        super::tests::findings(&world)[0].count(Promise::I6)
    };
    for is_known in [true, false] {
        assert_eq!(count([2, 3, 1], is_known), 0, "{is_known}");
        assert!(count([2, 1, 1], is_known) > 0, "{is_known}");
    }
}

/// Programs of one group run at once, as they say themselves, though all grants came one after the other; they
/// were granted under an earlier rule, and grouped anew while they ran.
#[test]
fn i2_more_runs_of_a_group_than_its_limit_after_another_rule() {
    for is_anew in [false, true] {
        let mut world = six();
        world.group(Some(2), |_| demand(1, 1));
        assert_clean(&world);
        let mut ids = Vec::new();
        for record in &mut world.records {
            if let Record::Accepted {
                execution_id,
                demand: told,
                ..
            } = record
            {
                ids.push(*execution_id);
                if is_anew {
                    *told = Some(Demand {
                        rule: RULE - 1,
                        ..demand(u8::try_from(ids.len()).unwrap(), 1)
                    });
                }
            }
        }
        if is_anew {
            // Before anybody is granted a slot under the rule in force.
            let at = world
                .records
                .iter()
                .position(|record| matches!(record, Record::Granted { .. }))
                .unwrap();
            let grouped = ids.iter().map(|id| {
                Record::Grouped(attune_record::GroupedExecution {
                    execution_id: *id,
                    action_id: super::world::ACTION,
                    demand: demand(1, 1),
                    epoch: attune_core::Epoch(1),
                    round: 0,
                    t_ns: 0,
                })
            });
            world.records.splice(at..at, grouped);
        }
        assert_clean(&world);
        // The first to end does so only when all are over.
        let until = world.now();
        for record in &mut world.records {
            if let Record::ProgramEnd {
                execution_id, t_ns, ..
            } = record
                && *execution_id == ids[0]
            {
                *t_ns = until;
            }
        }
        let broken = &super::tests::findings(&world)[0];
        assert!(
            broken
                .violations
                .iter()
                .any(|it| it.what.contains("runs of group")),
            "{is_anew}: {:?}",
            broken.violations
        );
    }
}

/// By the first rule all are in one group; from then on each is in its own.
#[test]
fn who_is_grouped_anew_is_in_the_new_group() {
    for told in [true, false] {
        let mut world = World::new(2);
        let ids: Vec<ExecutionId> = (0..3).map(|_| world.submit(NORMAL)).collect();
        world.set_limit(2);
        world.drain();
        world.group(Some(2), |_| demand(1, 1));
        let at = world
            .records
            .iter()
            .rposition(|record| matches!(record, Record::Limit { .. }))
            .unwrap();
        let epoch = match &world.records[at] {
            Record::Limit { epoch, .. } => *epoch,
            _ => unreachable!("it is one"),
        };
        for record in &mut world.records[at..] {
            if let Record::Granted {
                group_limit,
                demands,
                ..
            }
            | Record::Limit {
                group_limit,
                demands,
                ..
            } = record
            {
                (*group_limit, *demands) = (Some(1), Some(RULE + 1));
            }
        }
        let action_id = super::world::ACTION;
        let grouped = ids.iter().zip(1..).map(|(id, group)| {
            Record::Grouped(attune_record::GroupedExecution {
                execution_id: *id,
                action_id,
                demand: Demand {
                    rule: RULE + 1,
                    // Untold, all are in one group still, of which two run.
                    ..demand(if told { group } else { 1 }, 1)
                },
                epoch,
                round: 0,
                t_ns: 0,
            })
        });
        world.records.splice(at + 1..at + 1, grouped);
        if told {
            assert_clean(&world);
        } else {
            assert_breaks(&world, Promise::I2);
        }
    }
}
