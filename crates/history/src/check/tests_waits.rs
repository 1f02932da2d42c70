//! Work that lies for long, and slots that stay free for long (I6), though rounds are made.

use attune_core::{Attempt, Epoch, ExecutionId, RequestId, Status};

use super::rounds::PATIENCE;
use super::tests::{NORMAL, assert_breaks, assert_clean, findings};
use super::world::{ACTION, PARTITION, SECOND, World, request};
use super::*;
use attune_record::{FaultPhase, ProcessPhase};

const STEP: i64 = 5 * SECOND;
const LONG: i64 = PATIENCE + 2 * STEP;
const SHORT: i64 = PATIENCE - 2 * STEP;

/// So long, the owner makes rounds for others; in the middle of it something else happens.
fn go_on(world: &mut World, nanos: i64, in_the_middle: impl FnOnce(&mut World)) {
    let rounds = |world: &mut World| {
        for _ in 0..nanos / STEP / 2 {
            let other = world.submit(NORMAL);
            world.finish(other);
            world.wait(STEP);
        }
    };
    rounds(world);
    in_the_middle(world);
    rounds(world);
}

fn nothing(_: &mut World) {}

fn fault(world: &mut World) {
    world.fault(FaultPhase::Begin);
    world.fault(FaultPhase::End);
}

fn finish(mut world: World) -> World {
    world.drain();
    world.wait(2 * PATIENCE);
    world.stop();
    world
}

/// A completion that was handed over, and lies for so long.
fn completion(nanos: i64, in_the_middle: impl FnOnce(&mut World)) -> World {
    let mut world = World::new(9);
    let id = world.submit(NORMAL);
    world.program(id, true);
    world.push(|t_ns| Record::Forwarded {
        execution_id: id,
        attempt: Attempt(1),
        status: Status::Succeeded,
        t_ns,
    });
    go_on(&mut world, nanos, in_the_middle);
    world.finish(id);
    finish(world)
}

/// A submission that the broker confirmed so long before it was accepted.
fn submission(nanos: i64, in_the_middle: impl FnOnce(&mut World)) -> (World, ExecutionId) {
    let mut world = World::new(9);
    go_on(&mut world, nanos, in_the_middle);
    let id = world.submit(NORMAL);
    asked_before(&mut world, id, nanos);
    (finish(world), id)
}

/// An execution was asked for earlier, and the broker confirmed it then.
fn asked_before(world: &mut World, id: ExecutionId, nanos: i64) {
    let of = request(id);
    for record in &mut world.records {
        if let Record::SubmitInvoke {
            request_id, t_ns, ..
        }
        | Record::Confirmed { request_id, t_ns } = record
            && *request_id == of
        {
            *t_ns -= nanos;
        }
    }
}

fn the_words(world: &World) -> String {
    let [findings, _] = findings(world);
    assert_eq!(findings.violations.len(), 1, "{:#?}", findings.violations);
    findings.violations[0].what.clone()
}

#[test]
fn i6_a_completion_that_lies_while_its_owner_makes_rounds() {
    let slow = completion(LONG, nothing);
    assert_breaks(&slow, Promise::I6);
    let words = the_words(&slow);
    assert!(words.contains("left the end of attempt 1 of"), "{words}");
    let quick = completion(SHORT, nothing);
    assert_clean(&quick);
    assert!(findings(&quick)[0].judged.waits > 0);
}

#[test]
fn i6_a_submission_that_lies_while_its_owner_makes_rounds() {
    let (slow, id) = submission(LONG, nothing);
    assert_breaks(&slow, Promise::I6);
    let words = the_words(&slow);
    assert!(
        words.contains(&format!("left request {}", request(id))),
        "{words}"
    );
    assert_clean(&submission(SHORT, nothing).0);
}

#[test]
fn i6_whatever_disturbs_gives_more_time() {
    let daemon_stops = |world: &mut World| {
        world.push(|t_ns| Record::Process {
            role: "api".to_owned(),
            pid: 77,
            phase: ProcessPhase::Stopping,
            t_ns,
        });
    };
    let daemon_dies = |world: &mut World| {
        world.push(|t_ns| Record::ProcessExit {
            pid: 2,
            executions: Vec::new(),
            t_ns,
        });
    };
    let away = |world: &mut World| {
        world.exit_owner();
        world.wait(LONG);
        world.acquire();
    };
    for disturb in [fault, daemon_stops, daemon_dies, World::takeover, away] {
        assert_clean(&completion(LONG, disturb));
        assert_clean(&submission(LONG, disturb).0);
        assert_clean(&granted_after(LONG, disturb));
    }
    // The broker is away for all of the time but the end.
    let broker_away = |world: &mut World| {
        world.fault(FaultPhase::Begin);
        world.wait(LONG);
        world.fault(FaultPhase::End);
    };
    assert_clean(&submission(SHORT, broker_away).0);
    // Calm lasts long enough after it.
    assert_breaks(&completion(2 * LONG, fault), Promise::I6);
    assert_breaks(&granted_after(2 * LONG, fault), Promise::I6);
}

#[test]
fn i6_an_owner_that_is_behind_is_only_slow() {
    let (mut world, _) = submission(LONG, nothing);
    // Something that was asked for before has just been taken, by a client that hears nothing of
    // the broker.
    let mut accepted = world
        .records
        .iter()
        .rev()
        .filter_map(|record| match record {
            Record::Accepted { execution_id, .. } => Some(*execution_id),
            _ => None,
        });
    let earlier = accepted.nth(3).unwrap();
    let of: RequestId = request(earlier);
    world.records.retain(
        |record| !matches!(record, Record::Confirmed { request_id, .. } if *request_id == of),
    );
    asked_before(&mut world, earlier, 2 * LONG);
    assert_clean(&world);
}

#[test]
fn i6_what_was_asked_for_again_may_have_been_refused_before() {
    let (mut world, id) = submission(LONG, nothing);
    world.invoke(request(id), NORMAL);
    assert_clean(&world);
    // Or somebody sent it again, unseen, in a later fault.
    let (mut world, id) = submission(LONG, nothing);
    let accepted = world.records.iter().find_map(|record| match record {
        Record::Accepted {
            execution_id, t_ns, ..
        } if *execution_id == id => Some(*t_ns),
        _ => None,
    });
    for (phase, before) in [(FaultPhase::Begin, 2), (FaultPhase::End, 1)] {
        world.records.push(Record::Fault {
            name: "replay".to_owned(),
            target: "messages".to_owned(),
            phase,
            t_ns: accepted.unwrap() - before,
        });
    }
    assert_clean(&world);
}

/// One of two slots is free and an execution waits for it for so long; no round touches the queue.
fn granted_after(nanos: i64, in_the_middle: impl FnOnce(&mut World)) -> World {
    let mut world = World::new(2);
    world.set_limit(2);
    world.submit(NORMAL);
    let id = world.submit(NORMAL);
    let granted = |record: &Record| matches!(record, Record::Granted { execution_id, .. } if *execution_id == id);
    let place = world.records.iter().position(granted).unwrap();
    let mut rest = world.records.split_off(place);
    let attempt = world.holders.remove(&id).unwrap();
    world.waiting.insert((NORMAL, id));
    world.wait(nanos / 2);
    in_the_middle(&mut world);
    world.wait(nanos / 2);
    world.waiting.clear();
    world.holders.insert(id, attempt);
    let last = world
        .records
        .iter()
        .filter_map(super::random::epoch_of)
        .max();
    let now = world.now();
    for record in &mut rest {
        *record = record.clone().committed(100, now);
        match record {
            Record::Granted { epoch, .. } | Record::Totals { epoch, .. } => *epoch = last.unwrap(),
            Record::Taken { t_ns, .. }
            | Record::ProgramStart { t_ns, .. }
            | Record::Answered { t_ns, .. }
            | Record::SubmitOk { t_ns, .. } => *t_ns = now,
            _ => {}
        }
    }
    world.records.append(&mut rest);
    finish(world)
}

/// The execution of `granted_after`.
fn second() -> ExecutionId {
    ExecutionId::new(PARTITION, attune_core::Seq::new(Epoch(1), 1))
}

#[test]
fn i6_a_slot_that_stays_free_while_somebody_waits() {
    let slow = granted_after(LONG, nothing);
    assert_breaks(&slow, Promise::I6);
    let words = the_words(&slow);
    let expected = format!("of calm while execution {} waited for it", second());
    assert!(words.contains(&expected), "{words}");
    let quick = granted_after(SHORT, nothing);
    assert_clean(&quick);
    assert!(findings(&quick)[0].judged.calms > 0);
}

#[test]
fn i6_a_new_owner_that_forgets_who_waits() {
    let slow = granted_after(3 * LONG, World::takeover);
    assert_breaks(&slow, Promise::I6);
    // It has said nothing of the limit, nor has anybody else.
    let mut unknown = slow;
    unknown
        .records
        .retain(|record| !matches!(record, Record::ApplyInvoke { .. } | Record::ApplyOk { .. }));
    assert_clean(&unknown);
}

#[test]
fn i6_who_may_not_have_the_slot_waits() {
    // The limit is reached, or the action paused.
    for limit in [1, 0] {
        let mut world = World::new(1);
        world.set_limit(limit);
        world.submit(NORMAL);
        world.submit(NORMAL);
        world.wait(2 * LONG);
        assert_clean(&finish(world));
    }
    // It is not to start before a time.
    let mut world = granted_after(LONG, nothing);
    for record in &mut world.records {
        match record {
            Record::SubmitInvoke {
                request_id,
                delayed,
                ..
            }
            | Record::Accepted {
                request_id,
                delayed,
                ..
            } if *request_id == request(second()) => *delayed = true,
            _ => {}
        }
    }
    assert_clean(&world);
    // Its pool is closed.
    let mut world = granted_after(LONG, nothing);
    let is_accepted = |record: &Record| matches!(record, Record::Accepted { execution_id, .. } if *execution_id == second());
    let place = world.records.iter().position(is_accepted).unwrap();
    let Record::Accepted { t_ns, .. } = world.records[place] else {
        panic!("it is one");
    };
    let closed = Record::Totals {
        action_id: ACTION,
        enqueued: 2,
        completed: 0,
        cancelled: 0,
        expired: 0,
        waiting: 1,
        active: 1,
        pool_closed: true,
        paused: false,
        regrouping: false,
        goes_on: false,
        rate_until: None,
        epoch: Epoch(1),
        round: 3,
        t_ns,
    };
    world.records.insert(place + 1, closed);
    assert_clean(&world);
}
