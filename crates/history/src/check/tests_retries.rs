//! What is tried again: not before its time, at its place, and as somebody has said.

use attune_core::policy::TryEnd;
use attune_core::{ExecutionId, Priority};
use attune_record::{Record, Retried};

use super::Promise;
use super::tests::{assert_breaks, assert_clean};
use super::world::World;

/// The first of three is lost and waits for its next try until `not_before`. The owner grants, a second
/// after one another: its first slot, those of the others, and its second slot.
fn retried(not_before: i64, end: TryEnd) -> World {
    let mut world = World::new(1);
    let first = world.submit(Priority::Low);
    let others = [Priority::Normal; 2].map(|priority| world.submit(priority));
    world.lose(first);
    for id in others {
        world.finish(id);
    }
    world.drain();
    let mut now = 1_000_000;
    for record in &mut world.records {
        match record {
            Record::Granted { at, .. } => {
                *at = Some(now);
                now += 1_000;
            }
            Record::Revoked { retried, .. } => {
                *retried = Some(Retried {
                    end,
                    not_before,
                    keeps_slot: false,
                });
            }
            // Without its back-off it would have gone before the others.
            Record::SubmitInvoke {
                request_id,
                priority,
                ..
            } if *request_id == super::world::request(first) => *priority = Priority::Critical,
            Record::Accepted {
                execution_id,
                priority,
                ..
            } if *execution_id == first => *priority = Priority::Critical,
            _ => {}
        }
    }
    world
}

fn slots_of(world: &World, id: ExecutionId) -> usize {
    let is_its = |record: &&Record| matches!(record, Record::Granted { execution_id, .. } if *execution_id == id);
    world.records.iter().filter(is_its).count()
}

#[test]
fn who_is_tried_again_comes_at_its_time_and_at_its_place() {
    let lost = TryEnd::WorkerLost;
    // A second late is within a step of the owner.
    for not_before in [1_002_000, 1_003_000] {
        let world = retried(not_before, lost);
        let ids: Vec<_> = world.rows.keys().copied().collect();
        assert_eq!(slots_of(&world, ids[0]), 2);
        assert_clean(&world);
    }
    assert_breaks(&retried(1_003_001, lost), Promise::I3);
    assert_breaks(&retried(1_000_500, lost), Promise::I3);
}

#[test]
fn a_try_that_is_said_to_have_failed_was_reported() {
    let mut world = retried(1_003_000, TryEnd::Failed);
    assert_clean(&world);
    // Whoever would have reported it has lost no record.
    world.stop();
    assert_breaks(&world, Promise::I5);
}

/// The first of two fails and keeps its slot until then; its next attempt begins at 1,001,000.
fn kept(not_before: i64) -> World {
    let mut world = World::new(1);
    let ids = [Priority::High, Priority::Normal].map(|priority| world.submit(priority));
    world.lose(ids[0]);
    world.finish(ids[0]);
    world.drain();
    let end = TryEnd::WorkerLost;
    keep(
        &mut world,
        Retried {
            end,
            not_before,
            keeps_slot: true,
        },
    );
    world
}

/// What was put back has kept its slot instead; the owner grants, a second after one another.
fn keep(world: &mut World, kept: Retried) {
    let mut now = 1_000_000;
    for record in &mut world.records {
        match record {
            Record::Granted { at, .. } => {
                *at = Some(now);
                now += 1_000;
            }
            Record::Revoked { retried, .. } => *retried = Some(kept),
            _ => {}
        }
    }
}

#[test]
fn who_keeps_its_slot_begins_anew_at_its_time_and_in_its_slot() {
    assert_clean(&kept(1_001_000));
    assert_breaks(&kept(1_001_001), Promise::I3);
    // Others were given its slot meanwhile.
    let lost = TryEnd::WorkerLost;
    let mut world = retried(1_002_000, lost);
    assert_clean(&world);
    keep(
        &mut world,
        Retried {
            end: lost,
            not_before: 1_002_000,
            keeps_slot: true,
        },
    );
    // What its owner counts is wrong then, too.
    let is_count = |record: &Record| matches!(record, Record::Totals { .. });
    world.records.retain(|record| !is_count(record));
    assert_breaks(&world, Promise::I2);
}

#[test]
fn a_limit_that_was_lowered_is_not_exceeded_by_a_try_in_a_kept_slot() {
    let lowered = |keeps_slot: bool| {
        let mut world = World::new(2);
        let ids = [Priority::High, Priority::Normal].map(|priority| world.submit(priority));
        world.lose(ids[0]);
        world.drain();
        let end = TryEnd::WorkerLost;
        let retried = Retried {
            end,
            not_before: 1_000_000,
            keeps_slot,
        };
        keep(&mut world, retried);
        // It was lowered before the next try, while the other runs.
        for record in &mut world.records {
            if let Record::Granted { limit, attempt, .. } = record
                && attempt.0 == 2
            {
                *limit = Some(1);
            }
        }
        let is_count = |record: &Record| matches!(record, Record::Totals { .. });
        world.records.retain(|record| !is_count(record));
        world
    };
    assert_clean(&lowered(true));
    assert_breaks(&lowered(false), Promise::I2);
}

#[test]
fn the_next_owner_says_who_keeps_its_slot() {
    let takeover = |until: Option<i64>| {
        let mut world = World::new(1);
        let id = world.submit(Priority::Normal);
        world.takeover();
        world.lose(id);
        world.drain();
        // The owner before has let it keep its slot, and died before it wrote that down.
        world
            .records
            .retain(|record| !matches!(record, Record::Revoked { .. }));
        for record in &mut world.records {
            match record {
                Record::Held { kept_until, .. } => *kept_until = until,
                Record::Granted { at, attempt, .. } => *at = Some(1_000 * i64::from(attempt.0)),
                _ => {}
            }
        }
        world
    };
    assert_clean(&takeover(Some(2_000)));
    assert_breaks(&takeover(Some(2_001)), Promise::I3);
    assert_breaks(&takeover(None), Promise::I2);
}
