//! Broken histories of who begins an attempt (I5), and good ones.

use attune_core::{Attempt, Epoch, ExecutionId, Status, WorkerId};
use uuid::Uuid;

use super::tests::{NORMAL, assert_breaks, assert_clean, busy};
use super::world::{ACTION, SECOND, World};
use super::*;

const STRANGER: WorkerId = WorkerId(Uuid::from_u128(2));

/// The place of the first record of an execution that is wanted.
fn place(world: &World, id: ExecutionId, wanted: fn(&Record) -> Option<ExecutionId>) -> usize {
    let mut records = world.records.iter();
    records.position(|r| wanted(r) == Some(id)).unwrap()
}

fn taken(record: &Record) -> Option<ExecutionId> {
    match record {
        Record::Taken { execution_id, .. } => Some(*execution_id),
        _ => None,
    }
}

fn granted(record: &Record) -> Option<ExecutionId> {
    match record {
        Record::Granted { execution_id, .. } => Some(*execution_id),
        _ => None,
    }
}

fn revoked(record: &Record) -> Option<ExecutionId> {
    match record {
        Record::Revoked { execution_id, .. } => Some(*execution_id),
        _ => None,
    }
}

/// Changes whom the grant of an execution names.
fn grant_to(world: &mut World, id: ExecutionId, to: Option<WorkerId>) {
    let place = place(world, id, granted);
    if let Record::Granted { worker, .. } = &mut world.records[place] {
        *worker = to;
    }
}

fn never_began(world: &mut World, id: ExecutionId) {
    let place = place(world, id, revoked);
    if let Record::Revoked { never_begun, .. } = &mut world.records[place] {
        *never_begun = true;
    }
}

fn start(world: &mut World, execution_id: ExecutionId, attempt: i32) {
    world.push(|t_ns| Record::Start {
        execution_id,
        attempt: Attempt(attempt),
        action_id: ACTION,
        t_ns,
    });
}

fn end(world: &mut World, execution_id: ExecutionId, attempt: i32, status: Option<Status>) {
    world.push(|t_ns| Record::End {
        execution_id,
        attempt: Attempt(attempt),
        action_id: ACTION,
        status,
        t_ns,
    });
}

#[test]
fn i5_an_attempt_that_is_taken_or_started_twice() {
    let (mut world, ids) = busy(1);
    world.drain();
    let first = world.records[place(&world, ids[1], taken)].clone();
    for by in [STRANGER, world.worker()] {
        let mut again = first.clone();
        if let Record::Taken { worker, .. } = &mut again {
            *worker = by;
        }
        world.records.push(again);
        assert_breaks(&world, Promise::I5);
        world.records.pop();
    }
    assert_clean(&world);

    let mut world = World::new(2);
    let id = world.submit(NORMAL);
    world.program(id, false);
    world.finish(id);
    assert_breaks(&world, Promise::I5);
}

#[test]
fn i5_an_attempt_that_its_worker_starts_twice_though_its_program_began_once() {
    let mut world = World::new(1);
    let id = world.submit(NORMAL);
    start(&mut world, id, 1);
    world.finish(id);
    assert_clean(&world);
    let first = place(&world, id, |record| match record {
        Record::Start { execution_id, .. } => Some(*execution_id),
        _ => None,
    });
    world.records.push(world.records[first].clone());
    assert_breaks(&world, Promise::I5);
}

#[test]
fn i5_a_grant_to_another_than_the_one_that_begins() {
    let (mut world, ids) = busy(2);
    world.drain();
    grant_to(&mut world, ids[1], Some(STRANGER));
    assert_breaks(&world, Promise::I5);
    // As earlier releases recorded it.
    grant_to(&mut world, ids[1], None);
    assert_clean(&world);
}

#[test]
fn i5_a_start_before_the_grant() {
    let (mut world, ids) = busy(2);
    world.drain();
    let at = match world.records[place(&world, ids[1], granted)] {
        Record::Granted { t_ns, .. } => t_ns,
        _ => unreachable!(),
    };
    let begin = place(&world, ids[1], taken);
    if let Record::Taken { t_ns, .. } = &mut world.records[begin] {
        *t_ns = at - 1;
    }
    assert_breaks(&world, Promise::I5);
    // An earlier release: the owner after one that stood still may have told somebody before that recorded it.
    grant_to(&mut world, ids[1], None);
    assert_clean(&world);
}

#[test]
fn i5_a_start_that_nobody_granted() {
    let began = |ends_well: bool| {
        let mut world = World::new(1);
        let id = world.submit(NORMAL);
        world.finish(id);
        // A second attempt, of which no owner says anything.
        start(&mut world, id, 2);
        end(&mut world, id, 2, None);
        world.rows.get_mut(&id).unwrap().attempt = Attempt(2);
        world.records.retain(
            |record| !matches!(record, Record::Ended { execution_id, .. } if *execution_id == id),
        );
        if ends_well {
            world.stop();
        }
        let findings = check(&world.records, Some(world.lines()));
        let mut all = findings.violations.into_iter();
        all.any(|violation| violation.what.contains("nobody granted it"))
    };
    assert!(began(true));
    // The record of the grant may be lost.
    assert!(!began(false));
}

#[test]
fn i5_what_a_later_owner_found_may_have_been_granted_by_one_that_was_killed() {
    let mut world = World::new(1);
    let id = world.submit(NORMAL);
    world.takeover();
    world.finish(id);
    world.stop();
    let grant = place(&world, id, granted);
    let mut later = world.records.split_off(grant);
    later.retain(|record| super::random::epoch_of(record) != Some(Epoch(1)));
    world.records.append(&mut later);
    assert_clean(&world);
}

#[test]
fn i5_a_begun_attempt_that_is_given_back_as_never_begun() {
    let (mut world, _) = busy(2);
    let lost = world.holders.keys().next().copied().unwrap();
    world.lose(lost);
    world.drain();
    assert_clean(&world);
    never_began(&mut world, lost);
    assert_breaks(&world, Promise::I5);
}

#[test]
fn what_its_worker_could_not_start_is_given_back_as_never_begun() {
    let mut world = World::new(1);
    world.returning = 1;
    let id = world.submit(NORMAL);
    assert_eq!(world.holders[&id], Attempt(2), "it was granted again");
    let back = place(&world, id, revoked);
    let mut later = world.records.split_off(back);
    // It takes it and says that it begins it, and finds that no program can be started.
    let worker = world.worker();
    world.push(|t_ns| Record::Taken {
        execution_id: id,
        attempt: Attempt(1),
        worker,
        pid: Some(1000),
        t_ns,
    });
    start(&mut world, id, 1);
    end(&mut world, id, 1, None);
    for record in &mut later {
        let now = world.now();
        match record {
            Record::Taken { t_ns, .. } | Record::ProgramStart { t_ns, .. } => *t_ns = now,
            _ => *record = record.clone().committed(100, now),
        }
    }
    let length = world.records.len();
    world.records.append(&mut later);
    world.finish(id);
    assert_clean(&world);
    // It was killed in the middle of it.
    let end = world.records.remove(length - 1);
    assert_breaks(&world, Promise::I5);
    world.records.insert(length - 1, end);
    // It has run it.
    if let Record::End { status, .. } = &mut world.records[length - 1] {
        *status = Some(Status::Failed);
    }
    assert_breaks(&world, Promise::I5);
}

#[test]
fn i5_a_start_of_what_was_given_back() {
    let mut world = World::new(1);
    world.returning = 1;
    let id = world.submit(NORMAL);
    // By then the second attempt runs, and ends.
    world.finish(id);
    assert_clean(&world);
    world.push(|t_ns| Record::ProgramStart {
        execution_id: id,
        attempt: Attempt(1),
        action_ref: "core.test".to_owned(),
        pid: 77,
        t_ns,
    });
    assert_breaks(&world, Promise::I5);
}

#[test]
fn i5_a_start_after_the_end_that_was_reported() {
    let mut world = World::new(1);
    let id = world.submit(NORMAL);
    world.finish(id);
    // Nobody saw how it began first.
    world.records.retain(|record| {
        !matches!(
            record,
            Record::ProgramStart { .. } | Record::ProgramEnd { .. } | Record::Taken { .. }
        )
    });
    assert_clean(&world);
    start(&mut world, id, 1);
    assert_breaks(&world, Promise::I5);
}

#[test]
fn i5_a_start_long_after_its_slot_was_taken_back_by_force() {
    for (seconds, is_disturbed, is_right) in
        [(20, false, true), (40, false, false), (40, true, true)]
    {
        let mut world = World::new(1);
        let id = world.submit(NORMAL);
        // It waits at its worker still when somebody takes its slot by force.
        world
            .records
            .retain(|record| !matches!(record, Record::ProgramStart { .. } | Record::Taken { .. }));
        let attempt = world.holders[&id];
        world.lose(id);
        world.wait(SECOND * seconds / 2);
        if is_disturbed {
            world.fault(attune_record::FaultPhase::Begin);
            world.fault(attune_record::FaultPhase::End);
        }
        world.wait(SECOND * seconds / 2);
        start(&mut world, id, attempt.0);
        end(&mut world, id, attempt.0, None);
        // Its slot is somebody's, so that it does run beside others: that is not what is judged here.
        let other = world.submit(NORMAL);
        world.finish(id);
        world.finish(other);
        let findings = check(&world.records, Some(world.lines()));
        let of_starts = findings.violations.iter();
        let of_starts = of_starts.filter(|violation| violation.promise == Promise::I5);
        assert_eq!(
            of_starts.count() == 0,
            is_right,
            "{:#?}",
            findings.violations
        );
    }
}

#[test]
fn starts_are_counted_where_grants_name_who_may_begin() {
    let (mut world, ids) = busy(2);
    world.drain();
    let count = |world: &World| check(&world.records, Some(world.lines())).judged.starts;
    let all = count(&world);
    assert!(all >= ids.len() as u64);
    grant_to(&mut world, ids[0], None);
    assert_eq!(count(&world), all - 1);
}

#[test]
fn i4_what_was_granted_to_a_worker_that_died_before_it_took_it() {
    for (after, is_right) in [(7 * SECOND, true), (9 * SECOND, false)] {
        let mut world = World::new(2);
        let first = world.submit(NORMAL);
        let id = world.submit(NORMAL);
        world.records.retain(|record| {
            taken(record) != Some(id)
                && !matches!(record, Record::ProgramStart { execution_id, .. } if *execution_id == id)
        });
        world.kill_worker(after);
        world.finish(first);
        world.finish(id);
        let findings = check(&world.records, Some(world.lines()));
        let of_it = format!("attempt 1 of execution {id} held its slot");
        let is_accused = findings
            .violations
            .iter()
            .any(|v| v.what.starts_with(&of_it));
        assert_eq!(is_accused, !is_right, "{:#?}", findings.violations);
    }
}
