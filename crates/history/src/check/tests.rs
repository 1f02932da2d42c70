//! Broken histories of I1 and I2, and good ones.

use attune_core::{ExecutionId, Priority, RequestId, Status};
use attune_record::FaultPhase;
use uuid::Uuid;

use super::world::{World, request};
use super::*;

pub(super) const NORMAL: Priority = Priority::Normal;

impl World {
    pub(super) fn fault(&mut self, phase: FaultPhase) {
        self.push(|t_ns| Record::Fault {
            name: "pause".to_owned(),
            target: "something".to_owned(),
            phase,
            t_ns,
        });
    }
}

/// Judges with the rows of the store, and without.
pub(super) fn findings(world: &World) -> [Findings; 2] {
    [
        check(&world.records, Some(world.lines())),
        check(&world.records, None::<Vec<FinalLine>>),
    ]
}

pub(super) fn assert_clean(world: &World) {
    for findings in findings(world) {
        assert_eq!(findings.violations, [], "{:#?}", world.records);
    }
}

/// Which promises are broken, each once.
pub(super) fn broken(findings: &Findings) -> Vec<Promise> {
    let mut broken: Vec<_> = findings.violations.iter().map(|v| v.promise).collect();
    broken.dedup();
    broken
}

/// Checks that exactly this promise is broken, as judged with the rows of the store.
pub(super) fn assert_breaks(world: &World, promise: Promise) {
    let findings = check(&world.records, Some(world.lines()));
    assert_eq!(broken(&findings), [promise], "{:#?}", findings.violations);
    for violation in &findings.violations {
        let known = world.records.len();
        assert!(violation.records.iter().all(|n| (*n as usize) < known));
    }
}

/// A history with some of everything in it, and its executions.
pub(super) fn busy(limit: u32) -> (World, Vec<ExecutionId>) {
    let mut world = World::new(limit);
    let mut ids: Vec<_> = (0..4).map(|_| world.submit(NORMAL)).collect();
    ids.push(world.submit(Priority::High));
    world.finish(ids[0]);
    world.takeover();
    ids.push(world.submit(NORMAL));
    (world, ids)
}

fn place(world: &World, wanted: impl Fn(&Record) -> bool) -> usize {
    world.records.iter().position(wanted).unwrap()
}

#[test]
fn good_histories_are_clean_and_say_what_they_saw() {
    for limit in [1, 2, 5] {
        let (mut world, ids) = busy(limit);
        world.repeat_completion(ids[0]);
        world.drain();
        assert_clean(&world);
        let [seen, _] = findings(&world);
        assert_eq!((seen.executions, seen.runs, seen.unended), (6, 6, 0));
        assert_eq!((seen.takeovers, seen.duplicates_dropped), (1, 1));
    }
    assert_eq!(check(&[], None::<Vec<FinalLine>>), Findings::default());
}

#[test]
fn the_summary_is_what_programs_read() {
    let (mut world, _) = busy(1);
    world.drain();
    let summary = findings(&world)[0].summary();
    let expected = serde_json::json!({
        "faults": 0, "executions": 6, "takeovers": 1, "fence_rejections": 0, "duplicates_dropped": 0,
        "violations": {"I1": 0, "I2": 0, "I3": 0, "I4": 0, "I5": 0, "I6": 0, "I7": 0, "I8": 0,
            "I9": 0, "I10": 0, "I11": 0, "I12": 0},
        "slots_freed_ms": {"count": 0, "p50": null, "p99": null, "max": null},
        "unowned_ms": {"count": 1, "p50": 0, "p99": 0, "max": 0},
        "judged": {"answers": 6, "refusals": 0, "completions": 6, "stats": 0, "deaths": 0,
            "partitions": 0, "pauses": 0, "confirms": 6, "priorities": 6, "rates": 0, "limits": 0, "orders": 0,
            "retries": 0, "rounds": 0, "waits": 0, "calms": 0, "operations": 0, "policies": 0, "shares": 0,
            "documents": 0, "starts": 6},
    });
    assert_eq!(summary, expected);
}

#[test]
fn i1_an_accepted_execution_that_is_gone() {
    let (mut world, ids) = busy(1);
    world.drain();
    world.rows.remove(&ids[3]);
    assert_breaks(&world, Promise::I1);
}

#[test]
fn i1_an_end_that_is_missing_where_no_record_can_be_lost() {
    let mut world = World::new(1);
    let id = world.submit(NORMAL);
    world.finish(id);
    world
        .records
        .retain(|record| !matches!(record, Record::Ended { .. }));
    let without = &findings(&world)[1];
    // The counts and the slot show it as well.
    assert!(without.count(Promise::I1) == 1 && without.count(Promise::I4) == 1);
    // With a later owner, the record may have been lost.
    world.takeover();
    assert_eq!(findings(&world)[1].count(Promise::I1), 0);
}

#[test]
fn i1_a_refused_request_that_is_stored() {
    let (mut world, ids) = busy(1);
    world.drain();
    let told = place(
        &world,
        |record| matches!(record, Record::SubmitOk { execution_id, .. } if *execution_id == ids[2]),
    );
    let fail = |request_id| Record::SubmitFail {
        request_id,
        code: "QUEUE_FULL".to_owned(),
        t_ns: 0,
    };
    world.records[told] = fail(request(ids[2]));
    assert_breaks(&world, Promise::I1);
    // Asked a second time, it may be from then.
    world.invoke(request(ids[2]), NORMAL);
    assert_clean(&world);
    // A refusal of which nothing is stored is what it should be.
    let other = RequestId(Uuid::from_u128(99));
    world.invoke(other, NORMAL);
    world.records.push(fail(other));
    assert_clean(&world);
}

#[test]
fn i1_unknown_outcomes_may_be_either() {
    let (mut world, ids) = busy(1);
    world.drain();
    let told = place(
        &world,
        |record| matches!(record, Record::SubmitOk { execution_id, .. } if *execution_id == ids[2]),
    );
    let info = |request_id| Record::SubmitInfo {
        request_id,
        t_ns: 0,
    };
    world.records[told] = info(request(ids[2]));
    let other = RequestId(Uuid::from_u128(99));
    world.invoke(other, NORMAL);
    world.records.push(info(other));
    assert_clean(&world);
}

#[test]
fn i1_a_redelivered_request_is_one_execution() {
    let (mut world, ids) = busy(1);
    world.drain();
    // Told again, it is the same.
    world.records.push(Record::SubmitOk {
        request_id: request(ids[1]),
        execution_id: ids[1],
        t_ns: world.records.len() as i64 * 10,
    });
    assert_clean(&world);
    for record in &mut world.records {
        if let Record::Accepted { request_id, .. } = record
            && *request_id == request(ids[2])
        {
            *request_id = request(ids[1]);
        }
    }
    assert_breaks(&world, Promise::I1);
}

#[test]
fn i1_something_that_nobody_asked_for() {
    let (mut world, ids) = busy(1);
    world.drain();
    let mut stranger = world.rows[&ids[0]].clone();
    stranger.id = ExecutionId(i64::from(u32::MAX) << 20);
    stranger.request_id = Some(RequestId(Uuid::from_u128(99)));
    world.rows.insert(stranger.id, stranger.clone());
    assert_breaks(&world, Promise::I1);
    stranger.status = Status::Rejected;
    world.rows.insert(stranger.id, stranger);
    assert_clean(&world);
}

#[test]
fn i2_programs_that_overlap() {
    let (mut world, ids) = busy(1);
    world.drain();
    let (end, start) = world.handoffs[1];
    let Record::ProgramEnd { t_ns, .. } = world.records[end] else {
        panic!("{:?}", world.records[end])
    };
    if let Record::ProgramStart { t_ns: start, .. } = &mut world.records[start] {
        *start = t_ns - 1;
    }
    // What begins before the end that frees its slot begins before it is granted it.
    let findings = &findings(&world)[0];
    assert_eq!(broken(findings), [Promise::I2, Promise::I5]);
    assert_eq!(ids.len(), 6);
}

#[test]
fn i2_more_slots_than_the_limit() {
    let mut world = World::new(2);
    let ids: Vec<_> = (0..2).map(|_| world.submit(NORMAL)).collect();
    ids.iter().for_each(|id| world.finish(*id));
    for record in &mut world.records {
        if let Record::Granted { limit, .. } = record {
            *limit = Some(1);
        }
    }
    // The programs ran at once as well; what they tell apart is who is to blame.
    let findings = &findings(&world)[0];
    assert_eq!(broken(findings), [Promise::I2]);
    assert_eq!(findings.count(Promise::I2), 2);
    world.records.retain(|record| {
        !matches!(
            record,
            Record::ProgramStart { .. } | Record::ProgramEnd { .. }
        )
    });
    let findings = check(&world.records, Some(world.lines()));
    assert_eq!(findings.count(Promise::I2), 1);
}

#[test]
fn i2_a_lowered_limit_counts_from_the_next_grant() {
    let mut world = World::new(3);
    let ids: Vec<_> = (0..6).map(|_| world.submit(NORMAL)).collect();
    world.set_limit(1);
    world.finish(ids[0]);
    world.drain();
    assert_clean(&world);
    // One granted too early: two others still hold their slots under the new limit.
    let mut world = World::new(3);
    let ids: Vec<_> = (0..4).map(|_| world.submit(NORMAL)).collect();
    world.set_limit(1);
    world.limit = 3;
    world.finish(ids[0]);
    for record in &mut world.records {
        if let Record::Granted {
            execution_id,
            limit,
            ..
        } = record
            && *execution_id == ids[3]
        {
            *limit = Some(1);
        }
    }
    world.limit = 1;
    world.drain();
    let findings = &findings(&world)[0];
    assert_eq!(
        broken(findings),
        [Promise::I2],
        "{:#?}",
        findings.violations
    );
}

#[test]
fn i2_a_retry_after_a_revoked_slot_and_a_killed_program() {
    let mut world = World::new(1);
    let ids: Vec<_> = (0..3).map(|_| world.submit(NORMAL)).collect();
    world.lose(ids[0]);
    let urgent = world.submit(Priority::Critical);
    world.lose(ids[0]);
    assert!(
        world.holders.contains_key(&urgent),
        "it goes before the retry"
    );
    world.drain();
    assert_clean(&world);
    assert_eq!(findings(&world)[0].revoked, 2);
    // Without anybody who saw its process end, the owner's word stands for it.
    let seen = world.records.clone();
    world
        .records
        .retain(|record| !matches!(record, Record::ProcessExit { .. }));
    assert_clean(&world);
    assert_eq!(findings(&world)[0].unended, 2);
    // A program that lives on after its slot was taken back overlaps with the next.
    world.records = seen;
    for record in &mut world.records {
        if let Record::ProcessExit { t_ns, .. } = record {
            *t_ns += 100;
        }
    }
    assert_breaks(&world, Promise::I2);
}

#[test]
fn i2_a_program_taken_down_with_its_worker() {
    let mut world = World::new(1);
    let id = world.submit(NORMAL);
    world.lose(id);
    world.drain();
    for record in &mut world.records {
        if let Record::ProcessExit {
            pid, executions, ..
        } = record
        {
            (*pid, *executions) = (1, vec![id]);
        }
    }
    assert_clean(&world);
    assert_eq!(findings(&world)[0].unended, 0);
}

#[test]
fn i2_a_second_slot_for_the_same_execution() {
    let mut world = World::new(2);
    let id = world.submit(NORMAL);
    world.lose(id);
    world.finish(id);
    world
        .records
        .retain(|record| !matches!(record, Record::Revoked { .. } | Record::ProcessExit { .. }));
    let findings = &findings(&world)[0];
    assert!(
        findings.count(Promise::I2) > 0,
        "{:#?}",
        findings.violations
    );
}
