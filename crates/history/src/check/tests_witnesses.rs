//! Broken histories as the API, listeners, the stats persister and clocks show them.

use attune_core::{Attempt, Epoch, ExecutionId, Priority, RequestId, Status};
use uuid::Uuid;

use super::tests::{NORMAL, assert_breaks, assert_clean, broken, busy, findings};
use super::world::{SECOND, World, request};
use super::*;
use attune_record::{FaultPhase, ProcessPhase};

/// A good history with an end.
fn whole(limit: u32) -> (World, Vec<ExecutionId>) {
    let (mut world, ids) = busy(limit);
    world.drain();
    world.stop();
    assert_clean(&world);
    (world, ids)
}

fn judged(world: &World) -> Judged {
    findings(world)[0].judged
}

fn forget(world: &mut World, unwanted: impl Fn(&Record) -> bool) {
    world.records.retain(|record| !unwanted(record));
}

fn is_of_client(record: &Record) -> bool {
    matches!(
        record,
        Record::SubmitInvoke { .. }
            | Record::SubmitOk { .. }
            | Record::SubmitFail { .. }
            | Record::SubmitInfo { .. }
    )
}

/// What the owners recorded of how things entered.
fn is_accepted(record: &Record) -> bool {
    matches!(record, Record::Accepted { .. })
}

#[test]
fn i1_what_only_the_api_knows_is_accepted() {
    let (mut world, ids) = whole(2);
    forget(&mut world, |record| {
        is_of_client(record) || is_accepted(record)
    });
    assert_eq!(judged(&world).answers, 6);
    let row = world.rows.remove(&ids[3]).unwrap();
    // The counts show that the owner's records are not whole, which is not the matter here.
    assert_eq!(findings(&world)[0].count(Promise::I1), 1);
    // Stored, but for another request.
    let other = Some(RequestId(Uuid::from_u128(99)));
    let row = FinalRow {
        request_id: other,
        ..row
    };
    world.rows.insert(ids[3], row);
    assert_eq!(findings(&world)[0].count(Promise::I1), 1);
}

#[test]
fn i1_what_only_the_api_knows_was_asked_for() {
    let (mut world, ids) = whole(2);
    // Its client recorded nothing, though others did.
    forget(&mut world, |record| match record {
        Record::SubmitInvoke { request_id, .. } | Record::SubmitOk { request_id, .. } => {
            *request_id == request(ids[1])
        }
        _ => false,
    });
    assert_clean(&world);
}

#[test]
fn i1_one_request_with_two_answers() {
    let (mut world, ids) = whole(2);
    world.answer(request(ids[1]), 200, Some(ids[1]));
    assert_clean(&world);
    world.answer(request(ids[1]), 200, Some(ids[2]));
    assert!(findings(&world)[0].count(Promise::I1) > 0);
}

#[test]
fn i1_what_the_api_refused_is_stored() {
    let (mut world, ids) = whole(2);
    let other = RequestId(Uuid::from_u128(99));
    world.refuse(other);
    assert_clean(&world);
    assert_eq!(judged(&world).refusals, 1);
    let mut row = world.rows[&ids[0]].clone();
    row.id = ExecutionId(i64::from(u32::MAX) << 20);
    row.request_id = Some(other);
    world.rows.insert(row.id, row);
    assert_breaks(&world, Promise::I1);
    // Asked for once more, it may be from then, though that answer is lost; or from a time of
    // which nobody knows; and a conflict is one with something stored.
    let refused = world.records.clone();
    world.records.push(Record::SubmitInfo {
        request_id: other,
        t_ns: 1,
    });
    assert_clean(&world);
    world.records.clone_from(&refused);
    world.answer(other, 503, None);
    assert_clean(&world);
    world.records.clone_from(&refused);
    for record in &mut world.records {
        if let Record::Answered { http_status, .. } = record
            && *http_status == 429
        {
            *http_status = 409;
        }
    }
    assert_clean(&world);
    world.records = refused;
    forget(&mut world, is_of_client);
    assert_clean(&world);
}

/// What is refused and recorded is no lost request, however often it is asked for; told as accepted it
/// is one.
#[test]
fn i1_what_is_recorded_as_rejected_stays_refused() {
    let (mut world, ids) = whole(2);
    let other = RequestId(Uuid::from_u128(99));
    world.invoke(other, NORMAL);
    let mut row = world.rows[&ids[0]].clone();
    row.id = ExecutionId(i64::from(u32::MAX) << 20);
    (row.request_id, row.status) = (Some(other), Status::Rejected);
    let id = row.id;
    world.rows.insert(id, row);
    world.push(|t_ns| Record::Answered {
        request_id: other,
        http_status: 409,
        execution_id: None,
        code: Some("ALREADY_REJECTED".to_owned()),
        t_ns,
    });
    world.push(|t_ns| Record::SubmitFail {
        request_id: other,
        code: "ALREADY_REJECTED".to_owned(),
        t_ns,
    });
    assert_clean(&world);
    assert_eq!(judged(&world).refusals, 1);
    world.answer(other, 200, Some(id));
    assert_breaks(&world, Promise::I1);
}

/// Copies of a request are decided in their order: the refusal of the last says that those before it
/// came to nothing, whatever was known of them.
#[test]
fn i1_what_was_unknown_and_then_refused_is_stored() {
    for (http_status, code) in [(429, "QUEUE_FULL"), (503, "QUEUE_DRAINING")] {
        unknown_and_then_refused(http_status, code);
    }
}

fn unknown_and_then_refused(http_status: u16, code: &str) {
    let (mut world, ids) = whole(2);
    let other = RequestId(Uuid::from_u128(99));
    world.invoke(other, NORMAL);
    world.answer(other, 503, None);
    world.push(|t_ns| Record::SubmitInfo {
        request_id: other,
        t_ns,
    });
    let mut row = world.rows[&ids[0]].clone();
    row.id = ExecutionId(i64::from(u32::MAX) << 20);
    row.request_id = Some(other);
    world.rows.insert(row.id, row);
    assert_clean(&world);
    world.invoke(other, NORMAL);
    world.push(|t_ns| Record::Answered {
        request_id: other,
        http_status,
        execution_id: None,
        code: Some(code.to_owned()),
        t_ns,
    });
    let refused = world.records.clone();
    assert_breaks(&world, Promise::I1);
    // Asked for once more, it may be from then.
    world.invoke(other, NORMAL);
    assert_clean(&world);
    world.records = refused;
    world.answer(other, 503, None);
    assert_clean(&world);
}

#[test]
fn i2_the_end_of_a_process_that_had_the_number_of_a_program_before() {
    let mut world = World::new(1);
    let id = world.submit(NORMAL);
    world.submit(NORMAL);
    world.lose(id);
    world.drain();
    let last = world.now();
    // Nobody saw the end of the program; a daemon gets its number, and is killed.
    for record in &mut world.records {
        if let Record::ProcessExit { pid, t_ns, .. } = record {
            *t_ns = last;
            let began = Record::Process {
                role: "worker".to_owned(),
                pid: *pid,
                phase: ProcessPhase::Began,
                t_ns: last - 1,
            };
            world.records.push(began);
            break;
        }
    }
    assert_clean(&world);
}

#[test]
fn i3_the_order_in_which_the_api_answered() {
    let mut world = World::new(1);
    let ids: Vec<_> = (0..2).map(|_| world.submit(NORMAL)).collect();
    world.drain();
    forget(&mut world, |record| {
        matches!(record, Record::SubmitOk { .. })
    });
    assert_clean(&world);
    // The second was asked for after the answer to the first, and stands before it.
    let other = |id| ids[usize::from(id == ids[0])];
    for record in &mut world.records {
        match record {
            Record::Accepted {
                execution_id,
                request_id,
                ..
            } => *request_id = request(other(*execution_id)),
            Record::Answered { execution_id, .. } => *execution_id = execution_id.map(other),
            _ => {}
        }
    }
    for row in world.rows.values_mut() {
        row.request_id = Some(request(other(row.id)));
    }
    assert_breaks(&world, Promise::I3);
}

#[test]
fn i5_an_end_that_nobody_reported() {
    let (mut world, ids) = whole(2);
    assert_eq!(judged(&world).completions, 6);
    let is_of = |record: &Record, wanted: ExecutionId| {
        matches!(record, Record::Forwarded { execution_id, .. } | Record::End { execution_id, .. }
            if *execution_id == wanted)
    };
    // One of the two is enough.
    let all = world.records.clone();
    forget(&mut world, |record| {
        matches!(record, Record::Forwarded { .. })
    });
    assert_clean(&world);
    world.records.clone_from(&all);
    forget(&mut world, |record| matches!(record, Record::End { .. }));
    assert_clean(&world);
    world.records.clone_from(&all);
    forget(&mut world, |record| is_of(record, ids[1]));
    assert_breaks(&world, Promise::I5);
    // Another outcome than the one that was reported.
    for record in &mut world.records {
        if let Record::Ended {
            execution_id,
            status,
            ..
        } = record
            && *execution_id == ids[2]
        {
            *status = Status::Failed;
        }
    }
    world.rows.get_mut(&ids[2]).unwrap().status = Status::Failed;
    assert_eq!(findings(&world)[0].count(Promise::I5), 2);
    // What was killed may have known; a listener and the worker are two.
    let ended = |role: &'static str| {
        move |record: &Record| {
            matches!(record, Record::Process { role: of, phase: ProcessPhase::Ended, .. }
                if of == role)
        }
    };
    forget(&mut world, ended("completion-listener"));
    assert_eq!(findings(&world)[0].count(Promise::I5), 2);
    forget(&mut world, ended("worker"));
    // What somebody did tell is not what is stored, whoever else may have told something.
    assert_eq!(findings(&world)[0].count(Promise::I5), 1);
    world.rows.get_mut(&ids[2]).unwrap().status = Status::Succeeded;
    forget(
        &mut world,
        |record| matches!(record, Record::Ended { execution_id, .. } if *execution_id == ids[2]),
    );
    let findings = check(&world.records, Some(world.lines()));
    assert_eq!(findings.count(Promise::I5), 0);
}

#[test]
fn i5_an_attempt_that_is_handed_over_with_two_outcomes() {
    let (mut world, ids) = whole(1);
    let forwarded = |status| Record::Forwarded {
        execution_id: ids[0],
        attempt: Attempt(1),
        status,
        t_ns: 1,
    };
    world.records.push(forwarded(Status::Succeeded));
    assert_clean(&world);
    world.records.push(forwarded(Status::Failed));
    assert_breaks(&world, Promise::I5);
}

/// A snapshot that was written, counted from the last.
fn written(world: &mut World, from_last: usize) -> &mut Record {
    let records = world.records.iter_mut().rev();
    let mut written = records.filter(|record| matches!(record, Record::StatsWritten { .. }));
    written.nth(from_last).unwrap()
}

#[test]
fn i7_snapshots_that_go_back_or_were_never_counted() {
    let mut world = World::new(2);
    for priority in Priority::ALL {
        world.submit(priority);
        world.write_stats();
    }
    world.drain();
    world.stop();
    // An older one may be written after a newer one, and again.
    let again = written(&mut world, 3).clone();
    world.records.push(again);
    assert_clean(&world);
    assert_eq!(judged(&world).stats, 6);
    let clean = world.records.clone();
    if let Record::StatsWritten { waiting, .. } = written(&mut world, 2) {
        *waiting += 1;
    }
    assert_breaks(&world, Promise::I7);
    world.records.clone_from(&clean);
    if let Record::StatsWritten { version, .. } = written(&mut world, 0) {
        *version += 1000;
    }
    assert_breaks(&world, Promise::I7);
    // What only a killed owner had recorded is held against nobody.
    world.records = clean;
    forget(&mut world, |record| {
        matches!(record, Record::Lost(_) | Record::Totals { .. })
    });
    assert_clean(&world);
    assert_eq!(judged(&world).stats, 0);
}

/// An owner publishes what it has loaded, too: nobody counted that in its epoch.
#[test]
fn i7_a_snapshot_of_what_was_loaded() {
    let mut world = World::new(2);
    let id = world.submit(NORMAL);
    world.finish(id);
    world.takeover();
    // Only queues with holders are counted when they are loaded.
    let counted = |record: &Record| matches!(record, Record::Totals { epoch, .. } if epoch.0 == 2);
    world.records.retain(|record| !counted(record));
    world.write_stats();
    world.submit(NORMAL);
    world.drain();
    world.stop();
    assert_clean(&world);
    // But an earlier owner must have.
    if let Record::StatsWritten {
        completed, waiting, ..
    } = written(&mut world, 0)
    {
        (*completed, *waiting) = (0, 5);
    }
    assert_breaks(&world, Promise::I7);
}

/// A worker dies with two slots, which are free so many seconds later; another it freed before.
fn death(seconds: i64) -> World {
    let mut world = World::new(2);
    let ids: Vec<_> = (0..4).map(|_| world.submit(NORMAL)).collect();
    world.finish(ids[0]);
    world.wait(10 * SECOND);
    world.kill_worker(seconds * SECOND);
    world.drain();
    world.wait(20 * SECOND);
    world.stop();
    world
}

#[test]
fn i4_a_slot_that_stays_with_a_dead_worker() {
    let quick = death(7);
    assert_clean(&quick);
    let [seen, _] = findings(&quick);
    assert_eq!((seen.judged.deaths, seen.slots_freed_ns.len()), (2, 2));
    assert!(
        seen.slots_freed_ns
            .iter()
            .all(|t| *t > 7 * SECOND && *t < 8 * SECOND)
    );
    let slow = death(9);
    assert_breaks(&slow, Promise::I4);
    // Without the bounds, nothing is too slow.
    let mut unbounded = slow;
    forget(&mut unbounded, |record| matches!(record, Record::Bounds(_)));
    assert_clean(&unbounded);
    // A worker that says itself that it lost its lease is as dead.
    let mut lost = death(9);
    for record in &mut lost.records {
        if let Record::ProcessExit {
            pid: 1000, t_ns, ..
        } = record
        {
            *record = Record::WorkerLost {
                worker: attune_core::WorkerId(Uuid::from_u128(1000)),
                t_ns: *t_ns,
            };
        }
    }
    assert_breaks(&lost, Promise::I4);
}

#[test]
fn i4_faults_and_other_owners_give_more_time() {
    let death = |seconds, at: i64, record: fn(i64) -> Vec<Record>| {
        let mut world = death(seconds);
        let exit = world.records.iter().find_map(|record| match record {
            Record::ProcessExit {
                pid: 1000, t_ns, ..
            } => Some(*t_ns),
            _ => None,
        });
        world.records.extend(record(exit.unwrap() + at * SECOND));
        world
    };
    let fault = |t_ns: i64| {
        let phase = |phase, t_ns| Record::Fault {
            name: "cut".to_owned(),
            target: "way".to_owned(),
            phase,
            t_ns,
        };
        vec![
            phase(FaultPhase::Begin, t_ns),
            phase(FaultPhase::End, t_ns + 2 * SECOND),
        ]
    };
    assert_clean(&death(13, 4, fault));
    assert_breaks(&death(15, 4, fault), Promise::I4);
    // Over before the death, or after the time.
    assert_breaks(&death(9, -3, fault), Promise::I4);
    assert_breaks(&death(12, 9, fault), Promise::I4);
    // Another owner came before the time was up.
    let mut world = World::new(1);
    world.submit(NORMAL);
    world.kill_worker_under(&[4 * SECOND, 5 * SECOND]);
    world.drain();
    world.stop();
    assert_clean(&world);
    assert_eq!(judged(&world).deaths, 0);
    // Nobody knows what an owner recorded that was killed before the time was up.
    let mut world = World::new(1);
    world.submit(NORMAL);
    world.kill_worker(7 * SECOND);
    forget(&mut world, |record| {
        matches!(record, Record::Revoked { .. })
    });
    world.wait(SECOND);
    world.exit_owner();
    assert_eq!(
        findings(&world)[0].count(Promise::I4),
        1,
        "the row that is open"
    );
    assert_eq!(judged(&world).deaths, 0);
}

/// The owner is killed in a fault; another comes after each of so many seconds, and all but the
/// last are killed at once.
fn gaps(seconds: &[i64]) -> World {
    let (mut world, _) = busy(1);
    world.drain();
    world.fault(FaultPhase::Begin);
    world.exit_owner();
    world.fault(FaultPhase::End);
    for (number, seconds) in seconds.iter().enumerate() {
        if number > 0 {
            world.exit_owner();
        }
        world.wait(seconds * SECOND);
        world.acquire();
    }
    world.drain();
    world.wait(20 * SECOND);
    world.stop();
    world
}

#[test]
fn i4_a_partition_without_an_owner_after_the_last_fault() {
    let quick = gaps(&[5]);
    assert_clean(&quick);
    let [seen, _] = findings(&quick);
    assert_eq!(seen.judged.partitions, 1);
    assert_eq!(seen.unowned_ns.iter().max().unwrap() / SECOND, 5);
    let slow = gaps(&[7]);
    assert_breaks(&slow, Promise::I4);
    assert_eq!(broken(&findings(&slow)[1]), [Promise::I4]);
    // With no executor there that lives and stays, nobody could have taken it.
    let mut alone = gaps(&[7]);
    forget(&mut alone, |record| {
        matches!(record, Record::Process { role, pid: 4, phase, .. }
            if role == "executor" && *phase != ProcessPhase::Began)
    });
    assert_clean(&alone);
}

#[test]
fn i4_an_owner_that_was_killed_before_it_recorded_anything() {
    let of_owner = |record: &Record, number: i64| {
        super::random::epoch_of(record) == Some(Epoch(number))
            || matches!(record, Record::Lost(one) if one.epoch == Epoch(number))
    };
    let mut between = gaps(&[3, 9]);
    assert_clean(&between);
    forget(&mut between, |record| of_owner(record, 3));
    assert_clean(&between);
    assert_eq!(judged(&between).partitions, 0);
    // Nobody ever took it; or somebody did who was killed, unseen.
    let mut never = gaps(&[3]);
    forget(&mut never, |record| of_owner(record, 3));
    assert_breaks(&never, Promise::I4);
    forget(&mut never, |record| {
        matches!(record, Record::Process { pid: 10_003, phase, .. }
            if *phase != ProcessPhase::Began)
    });
    assert_clean(&never);
}
