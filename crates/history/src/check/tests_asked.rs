//! Broken histories as those who ask show them, and owners that do nothing.

use attune_core::{Attempt, ExecutionId, Priority, Promise, Status};
use attune_record::FaultPhase;
use uuid::Uuid;

use super::rounds::IDLE;
use super::tests::{NORMAL, assert_breaks, assert_clean, findings};
use super::world::{ACTION, ACTION_REF, SECOND, World, request};
use super::*;

impl World {
    /// Somebody asks for a limit.
    pub(super) fn ask_limit(&mut self, apply_id: Uuid, limit: Option<u32>) {
        let order = self.order;
        self.push(|t_ns| Record::ApplyInvoke {
            apply_id,
            action_ref: ACTION_REF.to_owned(),
            limit,
            order,
            sets_priorities: false,
            inherits_length: false,
            t_ns,
        });
    }

    /// It is stored.
    pub(super) fn limit_is_stored(&mut self, apply_id: Uuid, in_force: bool) {
        self.push(|t_ns| Record::ApplyOk {
            apply_id,
            action_id: ACTION,
            in_force,
            t_ns,
        });
    }
}

/// Somebody asks for a limit and is answered; owners do nothing.
fn apply(world: &mut World, limit: Option<u32>, in_force: bool) {
    let apply_id = Uuid::new_v4();
    world.ask_limit(apply_id, limit);
    world.limit_is_stored(apply_id, in_force);
}

/// An owner that grants by 3, when 1 is in force, or may not be yet.
fn at_limit_3(change: impl FnOnce(&mut World)) -> World {
    let mut world = World::new(3);
    apply(&mut world, Some(3), true);
    for _ in 0..3 {
        world.submit(NORMAL);
    }
    while let Some((id, _)) = world.holders.first_key_value() {
        world.finish(*id);
    }
    change(&mut world);
    for _ in 0..3 {
        world.submit(NORMAL);
    }
    while let Some((id, _)) = world.holders.first_key_value() {
        world.finish(*id);
    }
    world
}

#[test]
fn i2_an_owner_that_never_learns_of_a_lowered_limit() {
    // What the owner records of its grants is right by itself.
    let world = at_limit_3(|world| apply(world, Some(1), true));
    assert_breaks(&world, Promise::I2);
    let world = at_limit_3(|_| ());
    assert_clean(&world);
    assert_eq!(findings(&world)[0].judged.limits, 6);
}

#[test]
fn i2_a_limit_that_may_not_be_in_force_binds_nobody() {
    assert_clean(&at_limit_3(|world| apply(world, Some(1), false)));
    assert_clean(&at_limit_3(|world| {
        world.ask_limit(Uuid::new_v4(), Some(1))
    }));
    // One that was never answered may come into force later, and replace what is known.
    assert_clean(&at_limit_3(|world| {
        world.ask_limit(Uuid::new_v4(), Some(4));
        apply(world, Some(1), true);
    }));
    assert_clean(&at_limit_3(|world| {
        apply(world, Some(1), true);
        apply(world, None, true);
    }));
}

#[test]
fn i2_what_was_asked_for_before_a_limit_was_lowered_may_have_its_slot_already() {
    let mut world = World::new(3);
    apply(&mut world, Some(3), true);
    for _ in 0..3 {
        world.submit(NORMAL);
    }
    apply(&mut world, Some(1), true);
    world.set_limit(1);
    world.submit(NORMAL);
    world.drain();
    assert_clean(&world);
}

fn accepted_as(world: &mut World, id: ExecutionId, change: impl Fn(&mut Priority, &mut bool)) {
    for record in &mut world.records {
        if let Record::Accepted {
            execution_id,
            priority,
            delayed,
            ..
        } = record
            && *execution_id == id
        {
            change(priority, delayed);
        }
    }
}

#[test]
fn i3_a_priority_that_nobody_asked_for() {
    let mut world = World::new(1);
    let id = world.submit(Priority::High);
    world.drain();
    assert_clean(&world);
    accepted_as(&mut world, id, |priority, _| *priority = NORMAL);
    assert_breaks(&world, Promise::I3);
    // Asked for in two ways, either may be the one that counts.
    world.invoke(request(id), NORMAL);
    assert_clean(&world);
}

#[test]
fn i3_a_delay_that_nobody_asked_for() {
    let mut world = World::new(1);
    let id = world.submit(NORMAL);
    world.drain();
    accepted_as(&mut world, id, |_, delayed| *delayed = true);
    assert_breaks(&world, Promise::I3);
    for record in &mut world.records {
        if let Record::SubmitInvoke { delayed, .. } = record {
            *delayed = true;
        }
    }
    assert_clean(&world);
}

#[test]
fn i1_what_the_broker_has_confirmed_is_stored() {
    let mut world = World::new(1);
    world.submit(NORMAL);
    let id = world.submit(NORMAL);
    world.drain();
    assert_clean(&world);
    assert_eq!(findings(&world)[0].judged.confirms, 2);
    // Nothing but the confirm is left of it.
    let of_it = |record: &Record| match record {
        Record::Accepted { execution_id, .. } | Record::SubmitOk { execution_id, .. } => {
            *execution_id == id
        }
        Record::Answered { execution_id, .. } => *execution_id == Some(id),
        _ => false,
    };
    world.records.retain(|record| !of_it(record));
    world.rows.remove(&id);
    assert_eq!(findings(&world)[0].count(Promise::I1), 1);
    // Its client was told that nothing is stored.
    let fail = Record::SubmitFail {
        request_id: request(id),
        code: "UNKNOWN_ACTION".to_owned(),
        t_ns: 0,
    };
    world.records.push(fail);
    assert_eq!(findings(&world)[0].count(Promise::I1), 0);
}

#[test]
fn i1_a_confirm_for_an_action_that_there_is_not_binds_nobody() {
    let mut world = World::new(1);
    let other = attune_core::RequestId(Uuid::from_u128(99));
    world.push(|t_ns| Record::SubmitInvoke {
        request_id: other,
        action_ref: "core.unknown".to_owned(),
        priority: NORMAL,
        delayed: false,
        requested_by: None,
        t_ns,
    });
    world.push(|t_ns| Record::Confirmed {
        request_id: other,
        t_ns,
    });
    world.submit(NORMAL);
    world.drain();
    assert_clean(&world);
}

#[test]
fn i3_an_execution_that_was_put_back_keeps_its_place() {
    let mut world = World::new(1);
    let first = world.submit(NORMAL);
    let later = world.submit(NORMAL);
    world.lose(first);
    world.drain();
    assert_clean(&world);
    assert_eq!(findings(&world)[0].judged.retries, 1);
    // The one behind it gets the slot that it comes back for.
    for record in &mut world.records {
        if let Record::Granted {
            execution_id,
            attempt,
            ..
        } = record
        {
            match (*execution_id, *attempt) {
                (id, Attempt(2)) if id == first => (*execution_id, *attempt) = (later, Attempt(1)),
                (id, Attempt(1)) if id == later => (*execution_id, *attempt) = (first, Attempt(2)),
                _ => {}
            }
        }
    }
    assert!(findings(&world)[0].count(Promise::I3) > 0);
}

#[test]
fn i5_a_row_says_what_its_worker_said() {
    let mut world = World::new(1);
    let id = world.submit(NORMAL);
    world.drain();
    assert_clean(&world);
    // Owner and store agree; the worker and the listener said something else.
    for record in &mut world.records {
        if let Record::Ended { status, .. } = record {
            *status = Status::Failed;
        }
    }
    world.rows.get_mut(&id).unwrap().status = Status::Failed;
    assert_breaks(&world, Promise::I5);
    // One of both is enough.
    for record in &mut world.records {
        if let Record::End { status, .. } = record {
            *status = Some(Status::Failed);
        }
    }
    assert_clean(&world);
}

/// A completion, handed over and taken so much later.
fn taken_after(nanos: i64) -> World {
    let mut world = World::new(1);
    let id = world.submit(NORMAL);
    world.program(id, true);
    world.push(|t_ns| Record::Forwarded {
        execution_id: id,
        attempt: Attempt(1),
        status: Status::Succeeded,
        t_ns,
    });
    world.wait(nanos);
    world.finish(id);
    world.drain();
    world.wait(2 * IDLE);
    world.stop();
    world
}

#[test]
fn i6_an_owner_that_lives_and_does_nothing() {
    let world = taken_after(2 * IDLE);
    assert_eq!(findings(&world)[0].count(Promise::I6), 1);
    let world = taken_after(IDLE / 2);
    assert_clean(&world);
    assert!(findings(&world)[0].judged.rounds > 0);
}

#[test]
fn i6_a_submission_that_is_confirmed_waits_for_its_owner() {
    let late = |nanos: i64, busy: bool| {
        let mut world = World::new(2);
        world.submit(NORMAL);
        let place = |world: &World, wanted: fn(&Record) -> bool| {
            world.records.iter().position(wanted).unwrap()
        };
        // Confirmed right after it was asked for, accepted long after.
        let accepted = place(&world, |record| matches!(record, Record::Accepted { .. }));
        let mut rest = world.records.split_off(accepted);
        world.wait(nanos / 2);
        if busy {
            world.submit(NORMAL);
        }
        world.wait(nanos / 2);
        let now = world.now();
        for record in &mut rest {
            *record = record.clone().committed(1, now);
        }
        world.records.append(&mut rest);
        world.drain();
        world.wait(SECOND);
        world.stop();
        findings(&world)[0].count(Promise::I6)
    };
    assert_eq!(late(2 * IDLE, false), 1);
    assert_eq!(late(IDLE / 2, false), 0);
    // It makes rounds; there is more to do than it can.
    assert_eq!(late(IDLE + IDLE / 2, true), 0);
}

#[test]
fn i6_under_faults_an_owner_may_do_nothing() {
    let mut world = World::new(1);
    let id = world.submit(NORMAL);
    world.program(id, true);
    world.fault(FaultPhase::Begin);
    world.push(|t_ns| Record::Forwarded {
        execution_id: id,
        attempt: Attempt(1),
        status: Status::Succeeded,
        t_ns,
    });
    world.wait(2 * IDLE);
    world.fault(FaultPhase::End);
    world.finish(id);
    world.drain();
    world.stop();
    assert_clean(&world);
}
