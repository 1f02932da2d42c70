//! Broken histories of I3 to I7.

use attune_core::{Attempt, ExecutionId, OrderRule, Priority, QueueTotals, Status};
use uuid::Uuid;

use super::tests::{NORMAL, assert_breaks, assert_clean, broken, busy, findings};
use super::world::{ACTION, SECOND, World, request};
use super::*;

/// Makes two executions change places in what was granted and run.
fn swap(world: &mut World, a: ExecutionId, b: ExecutionId) {
    let other = |id: ExecutionId| match id {
        id if id == a => b,
        id if id == b => a,
        id => id,
    };
    for record in &mut world.records {
        match record {
            Record::Granted { execution_id, .. }
            | Record::Ended { execution_id, .. }
            | Record::Taken { execution_id, .. }
            | Record::ProgramStart { execution_id, .. }
            | Record::ProgramEnd { execution_id, .. } => {
                *execution_id = other(*execution_id);
            }
            _ => {}
        }
    }
}

#[test]
fn i3_a_grant_out_of_order() {
    for limit in [1, 2] {
        let mut world = World::new(limit);
        let ids: Vec<_> = (0..6).map(|_| world.submit(NORMAL)).collect();
        world.drain();
        assert_clean(&world);
        swap(&mut world, ids[3], ids[4]);
        assert_breaks(&world, Promise::I3);
    }
}

#[test]
fn i3_a_lower_priority_before_a_higher() {
    let mut world = World::new(1);
    let _first = world.submit(NORMAL);
    let low = world.submit(NORMAL);
    let high = world.submit(Priority::High);
    world.drain();
    assert_clean(&world);
    swap(&mut world, low, high);
    assert_breaks(&world, Promise::I3);
}

impl World {
    pub(super) fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
        self.round += 1;
        let apply_id = Uuid::from_u128(self.round.into());
        self.ask_limit(apply_id, Some(limit));
        self.decide(|epoch| Record::Limit {
            action_id: ACTION,
            limit: Some(limit),
            group_limit: None,
            demands: None,
            max_length: None,
            epoch,
            round: 0,
            t_ns: 0,
        });
        self.serve(None);
        self.limit_is_stored(apply_id, true);
    }

    pub(super) fn set_order(&mut self, order: OrderRule) {
        self.order = order;
        self.set_limit(self.limit);
    }
}

/// Ten steps of the clock of this world are one of ageing.
const AGEING: OrderRule = OrderRule::Ageing { step: 100 };

/// One that holds the only slot, then one of low priority, and so much later one of high.
fn aged(order: OrderRule, later: i64) -> (World, ExecutionId, ExecutionId) {
    let mut world = World::new(1);
    world.set_order(order);
    let _first = world.submit(NORMAL);
    let low = world.submit(Priority::Low);
    world.wait(later);
    let high = world.submit(Priority::High);
    (world, low, high)
}

#[test]
fn i3_a_wait_counts_where_there_is_ageing() {
    for (order, later) in [(AGEING, 0), (AGEING, 1_000), (OrderRule::Fifo, 0)] {
        let (mut world, low, high) = aged(order, later);
        world.drain();
        assert_clean(&world);
        swap(&mut world, low, high);
        assert_breaks(&world, Promise::I3);
    }
}

#[test]
fn i3_an_order_that_nobody_asked_for() {
    let (mut world, ..) = aged(AGEING, 0);
    world.drain();
    world.stop();
    assert_eq!(findings(&world)[0].judged.orders, 3);
    for record in &mut world.records {
        if let Record::Granted { order, .. } = record {
            *order = OrderRule::Ageing { step: 101 };
        }
    }
    assert_breaks(&world, Promise::I3);
}

/// Another owner's clock may differ: what one has accepted is compared, also behind what another has.
#[test]
fn i3_ages_are_compared_where_one_owner_has_accepted_both() {
    for with_own in [false, true] {
        let (mut world, old, _) = aged(AGEING, SECOND);
        world.takeover();
        if with_own {
            world.submit(Priority::Low);
        }
        world.wait(SECOND);
        let critical = world.submit(Priority::Critical);
        world.drain();
        assert_clean(&world);
        swap(&mut world, old, critical);
        let broken = findings(&world)[0].count(Promise::I3);
        assert_eq!(broken > 0, with_own, "{broken}");
    }
}

/// Where times contradict the order of acceptance a clock was put right.
#[test]
fn i3_times_that_contradict_the_ids_tell_nothing() {
    let (mut world, low, high) = aged(AGEING, 1_000);
    world.drain();
    swap(&mut world, low, high);
    assert_breaks(&world, Promise::I3);
    for record in &mut world.records {
        if let Record::Accepted {
            execution_id,
            at: Some(at),
            ..
        } = record
            && *execution_id < low
        {
            *at += SECOND;
        }
    }
    assert_eq!(findings(&world)[0].count(Promise::I3), 0);
}

#[test]
fn i3_over_a_takeover_and_with_a_cancelled_one() {
    let mut world = World::new(1);
    let ids: Vec<_> = (0..3).map(|_| world.submit(NORMAL)).collect();
    world.takeover();
    let last = world.submit(NORMAL);
    world.cancel(ids[1]);
    world.drain();
    assert_clean(&world);
    swap(&mut world, ids[2], last);
    assert_breaks(&world, Promise::I3);
}

#[test]
fn i3_starts_out_of_order_at_limit_1_by_the_programs_alone() {
    let mut world = World::new(1);
    let ids: Vec<_> = (0..4).map(|_| world.submit(NORMAL)).collect();
    world.drain();
    for record in &mut world.records {
        let (Record::ProgramStart { execution_id, .. } | Record::ProgramEnd { execution_id, .. }) =
            record
        else {
            continue;
        };
        if *execution_id == ids[1] {
            *execution_id = ids[2];
        } else if *execution_id == ids[2] {
            *execution_id = ids[1];
        }
    }
    // The one that starts too early does so before it is granted.
    let findings = &findings(&world)[0];
    assert_eq!(broken(findings), [Promise::I3, Promise::I5]);
}

#[test]
fn i3_what_is_delayed_may_be_overtaken() {
    let mut world = World::new(1);
    let ids: Vec<_> = (0..4).map(|_| world.submit(NORMAL)).collect();
    world.drain();
    swap(&mut world, ids[1], ids[2]);
    for record in &mut world.records {
        match record {
            Record::Accepted {
                execution_id,
                delayed,
                ..
            } => *delayed = *execution_id == ids[1],
            Record::SubmitInvoke {
                request_id,
                delayed,
                ..
            } => *delayed = *request_id == request(ids[1]),
            _ => {}
        }
    }
    assert_clean(&world);
}

#[test]
fn i3_an_answer_before_a_request_binds_the_order() {
    let mut world = World::new(1);
    let first = world.submit(NORMAL);
    let second = world.submit(NORMAL);
    world.drain();
    // The second was told before the first was asked for.
    for record in &mut world.records {
        match record {
            Record::SubmitInvoke {
                request_id, t_ns, ..
            } if *request_id == request(second) => {
                *t_ns = 1;
            }
            Record::SubmitOk {
                request_id, t_ns, ..
            } if *request_id == request(second) => {
                *t_ns = 2;
            }
            _ => {}
        }
    }
    assert_breaks(&world, Promise::I3);
    // Of another priority it says nothing.
    for record in &mut world.records {
        if let Record::SubmitInvoke {
            request_id,
            priority,
            ..
        }
        | Record::Accepted {
            request_id,
            priority,
            ..
        } = record
            && *request_id == request(first)
        {
            *priority = Priority::High;
        }
    }
    assert_clean(&world);
}

#[test]
fn i4_a_slot_that_is_never_released() {
    let (mut world, ids) = busy(1);
    world.drain();
    world.rows.get_mut(&ids[5]).unwrap().status = Status::Running;
    assert_breaks(&world, Promise::I4);
    let mut world = World::new(1);
    world.submit(NORMAL);
    assert_eq!(findings(&world)[1].count(Promise::I4), 1);
}

#[test]
fn i5_two_outcomes() {
    let (mut world, ids) = busy(2);
    world.drain();
    let mut again = world.records.clone();
    again.retain(
        |record| matches!(record, Record::Ended { execution_id, .. } if *execution_id == ids[5]),
    );
    let end = world.records.len();
    world.records.splice(end..end, again);
    assert_breaks(&world, Promise::I5);
}

#[test]
fn i5_another_outcome_than_the_one_recorded() {
    let (mut world, ids) = busy(2);
    world.drain();
    world.rows.get_mut(&ids[1]).unwrap().status = Status::Failed;
    assert_breaks(&world, Promise::I5);
    world.rows.get_mut(&ids[1]).unwrap().status = Status::Succeeded;
    assert_clean(&world);
    world.rows.get_mut(&ids[1]).unwrap().attempt = Attempt(2);
    assert_breaks(&world, Promise::I5);
}

#[test]
fn i6_a_freed_slot_that_waits_for_a_later_round() {
    let world = |pool_closed: bool| {
        let mut world = World::new(1);
        let ids: Vec<_> = (0..3).map(|_| world.submit(NORMAL)).collect();
        // The completion's own round grants nothing; something else wakes the queue later.
        world.limit = 0;
        world.pool_closed = pool_closed;
        world.finish(ids[0]);
        world.limit = 1;
        world.pool_closed = false;
        world.submit(NORMAL);
        world.drain();
        world
    };
    assert_breaks(&world(false), Promise::I6);
    // Its pool took no dispatches meanwhile.
    assert_clean(&world(true));
    // Its owner had more to do in that round than one step does.
    let mut world = world(false);
    for record in &mut world.records {
        if let Record::Totals { goes_on, .. } = record {
            *goes_on = true;
        }
    }
    assert_clean(&world);
}

#[test]
fn i7_counts_that_do_not_add_up() {
    let (mut world, ids) = busy(2);
    world.drain();
    let clean = world.records.clone();
    let last = world
        .records
        .iter()
        .rposition(|r| matches!(r, Record::Totals { .. }));
    let pick: [fn(&mut Record) -> &mut u64; 3] = [
        |record| match record {
            Record::Totals { enqueued, .. } => enqueued,
            _ => unreachable!(),
        },
        |record| match record {
            Record::Totals { completed, .. } => completed,
            _ => unreachable!(),
        },
        |record| match record {
            Record::Totals { active, .. } => active,
            _ => unreachable!(),
        },
    ];
    for pick in pick {
        world.records.clone_from(&clean);
        *pick(&mut world.records[last.unwrap()]) += 1;
        assert_breaks(&world, Promise::I7);
    }
    // They add up, but not from what was before.
    world.records.clone_from(&clean);
    pick.iter()
        .take(2)
        .for_each(|pick| *pick(&mut world.records[last.unwrap()]) += 1);
    assert_breaks(&world, Promise::I7);
    // What the store counts must be what it has.
    world.records = clean;
    let totals = |completed| FinalLine::Totals {
        action_id: ACTION,
        totals: QueueTotals {
            enqueued: ids.len() as u64,
            completed,
            ..QueueTotals::default()
        },
    };
    let judge = |line| {
        let lines = world.lines().into_iter().chain([line]);
        broken(&check(&world.records, Some(lines)))
    };
    assert_eq!(judge(totals(6)), []);
    assert_eq!(judge(totals(5)), [Promise::I7]);
}

#[test]
fn a_large_history_is_judged_in_good_time() {
    const EXECUTIONS: u32 = 20_000;
    let mut world = World::new(5);
    for n in 0..EXECUTIONS {
        world.submit(Priority::ALL[n as usize % 5]);
        if n % 1000 > 200 {
            let first = *world.holders.first_key_value().unwrap().0;
            world.finish(first);
        }
    }
    world.takeover();
    world.drain();
    let lines = world.lines();
    let began = std::time::Instant::now();
    let findings = check(&world.records, Some(lines));
    let elapsed = began.elapsed();
    println!("{} records in {elapsed:?}", world.records.len());
    assert_eq!(findings.violations, []);
    assert_eq!(findings.executions, u64::from(EXECUTIONS));
    // A quadratic rule would take minutes.
    assert!(elapsed.as_secs() < 20, "{elapsed:?}");
}
