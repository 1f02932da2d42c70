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
            Record::Revoked { retried, .. } => *retried = Some(Retried { end, not_before }),
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
