//! Histories with bulk operations: good ones, and broken ones of each kind.

use attune_core::{
    Attempt, ExecutionId, OperationFilter, OperationId, OperationKind, OperationProgress, Priority,
    RequestId, Seq,
};
use attune_record::{MovedExecution, Operated, OperationAsked, OperationTold, Record};
use uuid::Uuid;

use super::tests::{NORMAL, assert_breaks, assert_clean, broken, findings};
use super::world::{ACTION, PARTITION, World};
use super::*;

const OPERATION: OperationId = OperationId(3);
const REQUEST: RequestId = RequestId(Uuid::nil());

fn progress(upto: ExecutionId, done: u64, skipped: u64) -> OperationProgress {
    OperationProgress {
        upto: Some(upto.seq()),
        cursor: Some(upto.seq()),
        matched: done + skipped,
        done,
        skipped,
        finished: false,
    }
}

impl World {
    fn ask(&mut self, what: OperationKind) {
        let filter = OperationFilter {
            all: true,
            ..OperationFilter::default()
        };
        self.push(|t_ns| {
            Record::OperationAsked(Box::new(OperationAsked {
                request_id: REQUEST,
                what,
                filter,
                t_ns,
            }))
        });
    }

    fn tell(&mut self, matched: u64, done: u64) {
        self.push(|t_ns| {
            Record::OperationTold(OperationTold {
                operation: OPERATION,
                request_id: REQUEST,
                partitions: 1,
                matched,
                done,
                t_ns,
            })
        });
    }

    fn page(
        &mut self,
        what: &str,
        progress: OperationProgress,
        done: &[ExecutionId],
        skipped: &[ExecutionId],
    ) {
        self.decide(|epoch| {
            Record::Operated(Box::new(Operated {
                operation: OPERATION,
                what: what.to_owned(),
                partition: PARTITION,
                progress,
                done: done.to_vec(),
                skipped: skipped.to_vec(),
                epoch,
                round: 0,
                t_ns: 0,
            }))
        });
    }

    /// Somebody stands elsewhere from now on; `as_if` is the priority with which that is the same.
    fn move_to(&mut self, id: ExecutionId, (priority, front): (Priority, bool), as_if: Priority) {
        self.waiting.retain(|(_, waiting)| *waiting != id);
        self.waiting.insert((as_if, id));
        self.accepted.get_mut(&id).unwrap().0 = as_if;
        self.decide(|epoch| {
            Record::Moved(MovedExecution {
                execution_id: id,
                action_id: ACTION,
                priority,
                front,
                epoch,
                round: 0,
                t_ns: 0,
            })
        });
    }
}

const HIGH: OperationKind = OperationKind::Reprioritise {
    priority: Priority::High,
};

/// Four wait behind one; two of them get another priority in two pages, between which the owner changes
/// where that is wanted.
fn raised(
    change: impl FnOnce(&mut [OperationProgress; 3]),
    takeover: bool,
    move_them: bool,
) -> World {
    let mut world = World::new(1);
    let ids: Vec<_> = (0..5).map(|_| world.submit(NORMAL)).collect();
    world.ask(HIGH);
    let mut pages = [
        progress(ids[4], 0, 0),
        progress(ids[4], 1, 0),
        progress(ids[4], 2, 1),
    ];
    (pages[0].cursor, pages[1].cursor) = (None, Some(ids[3].seq()));
    pages[2].finished = true;
    change(&mut pages);
    world.page("reprioritise", pages[0], &[], &[]);
    if move_them {
        world.move_to(ids[3], (Priority::High, false), Priority::High);
    }
    world.page("reprioritise", pages[1], &[ids[3]], &[]);
    if takeover {
        world.takeover();
    }
    if move_them {
        world.move_to(ids[4], (Priority::High, false), Priority::High);
    }
    world.page("reprioritise", pages[2], &[ids[4]], &[ids[2]]);
    world.tell(3, 2);
    world.drain();
    world.stop();
    world
}

#[test]
fn who_was_moved_stands_there_and_nobody_is_accused() {
    for takeover in [false, true] {
        let world = raised(|_| (), takeover, true);
        assert_clean(&world);
        assert_eq!(findings(&world)[0].judged.operations, 1);
    }
    // Before all others, whatever its priority.
    let mut world = World::new(1);
    let ids: Vec<_> = (0..3).map(|_| world.submit(Priority::High)).collect();
    world.move_to(ids[2], (Priority::High, true), Priority::Critical);
    world.drain();
    assert_clean(&world);
}

#[test]
fn who_passes_the_moved_is_accused() {
    let mut world = World::new(1);
    let ids: Vec<_> = (0..4).map(|_| world.submit(NORMAL)).collect();
    // It is recorded, and not followed.
    world.move_to(ids[3], (Priority::High, false), NORMAL);
    world.drain();
    assert_breaks(&world, Promise::I3);
}

#[test]
fn counts_that_are_not_what_was_done_are_accused() {
    let broken: [fn(&mut [OperationProgress; 3]); 6] = [
        |pages| pages[1].done = 2,
        |pages| (pages[1].done, pages[1].matched) = (2, 2),
        |pages| pages[2].matched = 4,
        |pages| pages[1].finished = true,
        |pages| pages[2].cursor = Some(Seq(1)),
        |pages| pages[2].upto = Some(Seq(1)),
    ];
    for change in broken {
        assert_breaks(&raised(change, false, true), Promise::I11);
    }
    // Another owner may have done more, and never less.
    let more = |pages: &mut [OperationProgress; 3]| {
        let last = &mut pages[2];
        (last.done, last.matched, last.finished) = (3, 4, false);
    };
    let world = raised(more, true, true);
    assert!(
        findings(&world)[0]
            .violations
            .iter()
            .all(|it| it.what.contains("is told"))
    );
    let less = |pages: &mut [OperationProgress; 3]| {
        let last = &mut pages[2];
        (last.done, last.matched) = (1, 2);
    };
    assert_breaks(&raised(less, true, true), Promise::I11);
}

#[test]
fn who_is_said_to_be_moved_and_was_not_is_accused() {
    assert_breaks(&raised(|_| (), false, false), Promise::I11);
}

#[test]
fn what_is_told_must_be_what_was_counted() {
    for (matched, done) in [(3, 1), (4, 2)] {
        let mut world = raised(|_| (), false, true);
        for record in &mut world.records {
            if let Record::OperationTold(told) = record {
                (told.matched, told.done) = (matched, done);
            }
        }
        assert_breaks(&world, Promise::I11);
    }
}

#[test]
fn one_that_is_touched_twice_or_came_later_is_accused() {
    for which in [0, 4] {
        let mut world = raised(|_| (), false, true);
        let first = world.records.iter().find_map(|record| match record {
            Record::Operated(page) => page.done.first().copied(),
            _ => None,
        });
        for record in &mut world.records {
            if let Record::Operated(page) = record
                && page.progress.finished
            {
                // The first page had it, or nobody had accepted it.
                let later = ExecutionId(first.unwrap().0 + 256 * 100);
                page.skipped = vec![if which == 0 { first.unwrap() } else { later }];
            }
        }
        assert_breaks(&world, Promise::I11);
    }
}

#[test]
fn who_is_left_in_a_queue_that_was_cleared_is_accused() {
    for cleared in [4, 3] {
        let mut world = World::new(1);
        let ids: Vec<_> = (0..5).map(|_| world.submit(NORMAL)).collect();
        world.ask(OperationKind::Clear);
        let gone = &ids[1..=cleared];
        for id in gone {
            world.cancel(*id);
        }
        let many = gone.len() as u64;
        let mut last = progress(ids[4], many, 0);
        last.finished = true;
        world.page("clear", progress(ids[4], 0, 0), &[], &[]);
        world.page("clear", last, gone, &[]);
        world.tell(many, many);
        let later = world.submit(NORMAL);
        assert_eq!(world.rows[&later].status, Status::Queued);
        world.drain();
        if cleared == 4 {
            assert_clean(&world);
        } else {
            assert_breaks(&world, Promise::I11);
        }
    }
    // It says so, and ended nobody.
    let mut world = World::new(1);
    let ids: Vec<_> = (0..2).map(|_| world.submit(NORMAL)).collect();
    world.page("clear", progress(ids[1], 1, 0), &[ids[1]], &[]);
    world.drain();
    assert_breaks(&world, Promise::I11);
}

/// An operation that leaves alone what runs ends nobody whom a worker has begun.
#[test]
fn who_had_begun_ahead_of_its_slot_is_not_ended_by_an_operation_that_ends_who_waits() {
    let kinds = [
        OperationKind::Clear,
        OperationKind::Cancel {
            include_running: false,
        },
    ];
    for (kind, has_begun) in kinds.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let mut world = World::new(1);
        let ids: Vec<_> = (0..2).map(|_| world.submit(NORMAL)).collect();
        world.ask(kind);
        world.grant(ids[1], true);
        if has_begun {
            let worker = world.worker();
            world.push(|t_ns| Record::Taken {
                execution_id: ids[1],
                attempt: Attempt(1),
                worker,
                pid: None,
                t_ns,
            });
        }
        world.cancel(ids[1]);
        let mut last = progress(ids[1], 1, 0);
        last.finished = true;
        world.page(kind.name(), last, &ids[1..], &[]);
        world.tell(1, 1);
        world.drain();
        let found = findings(&world);
        let broken = found.first().map(broken).unwrap_or_default();
        assert_eq!(
            broken.contains(&Promise::I11),
            has_begun,
            "{kind:?}: {found:?}"
        );
    }
}

#[test]
fn who_is_said_to_be_cancelled_has_ended_or_was_asked_to() {
    let mut world = World::new(1);
    let ids: Vec<_> = (0..3).map(|_| world.submit(NORMAL)).collect();
    // The first one holds the slot, and is asked to end.
    world.cancel(ids[1]);
    world.page("cancel", progress(ids[2], 0, 0), &[], &[]);
    world.page("cancel", progress(ids[2], 2, 0), &ids[..2], &[]);
    world.drain();
    assert_clean(&world);
    let mut world = World::new(1);
    let ids: Vec<_> = (0..2).map(|_| world.submit(NORMAL)).collect();
    world.page("cancel", progress(ids[1], 1, 0), &[ids[1]], &[]);
    world.stop();
    // It waits in the end, which is accused as well.
    let broken = broken(&findings(&world)[0]);
    assert!(broken.contains(&Promise::I11), "{broken:?}");
}
