//! Histories in which operators hold queues.

use attune_core::PauseMode;
use attune_record::Record;
use uuid::Uuid;

use super::tests::{NORMAL, assert_breaks, assert_clean, findings};
use super::world::{ACTION_REF, World};
use super::*;

impl World {
    /// An operator asks for something, and is answered.
    fn pause(&mut self, scope: &str, target: &str, mode: Option<PauseMode>, in_force: bool) {
        let pause_id = Uuid::new_v4();
        let (scope, target) = (scope.to_owned(), target.to_owned());
        self.push(|t_ns| Record::PauseInvoke {
            pause_id,
            scope,
            target,
            mode,
            t_ns,
        });
        self.push(|t_ns| Record::PauseOk {
            pause_id,
            in_force,
            t_ns,
        });
    }
}

const PAUSE: Option<PauseMode> = Some(PauseMode::Pause);

/// One is submitted and granted after this.
fn granted_after(change: impl FnOnce(&mut World)) -> World {
    let mut world = World::new(2);
    let first = world.submit(NORMAL);
    world.finish(first);
    change(&mut world);
    world.submit(NORMAL);
    world.drain();
    world.stop();
    world
}

#[test]
fn a_grant_while_operators_hold_the_queue_is_accused() {
    let pack = ACTION_REF.split('.').next().unwrap();
    for (scope, target) in [("action", ACTION_REF), ("pack", pack), ("all", "")] {
        let world = granted_after(|world| world.pause(scope, target, PAUSE, true));
        assert_breaks(&world, Promise::I2);
        let resumed = granted_after(|world| {
            world.pause(scope, target, PAUSE, true);
            world.pause(scope, target, None, false);
        });
        assert_clean(&resumed);
        assert_eq!(findings(&resumed)[0].judged.pauses, 1);
    }
    // What is drained accepts nothing: the first that is wrong is told.
    let world = granted_after(|world| world.pause("all", "", Some(PauseMode::Drain), true));
    assert_breaks(&world, Promise::I2);
    let first = &findings(&world)[0].violations[0];
    assert!(first.what.contains("was accepted"), "{first:?}");
}

#[test]
fn what_may_not_have_been_held_is_not_accused() {
    let clean = [
        // Not every owner has said that it goes by it.
        granted_after(|world| world.pause("all", "", PAUSE, false)),
        granted_after(|world| world.pause("pack", "other", PAUSE, true)),
        granted_after(|world| world.pause("action", "core.other", PAUSE, true)),
    ];
    clean.iter().for_each(assert_clean);
    // An API that was killed while somebody resumed it may have done that.
    let mut killed = granted_after(|world| {
        world.pause("all", "", PAUSE, true);
        world.pause("all", "", None, false);
    });
    let mut answers = 0;
    killed.records.retain(|record| {
        answers += i32::from(matches!(record, Record::PauseOk { .. }));
        !matches!(record, Record::PauseOk { .. }) || answers != 2
    });
    assert_clean(&killed);
}

#[test]
fn a_kill_of_an_api_long_before_hides_nothing() {
    let mut world = granted_after(|world| {
        world.pause("all", "", None, false);
        world.pause("all", "", PAUSE, true);
    });
    // The first is never answered, and was asked for more than a minute before the second.
    let mut seen = 0;
    world.records.retain_mut(|record| match record {
        Record::PauseInvoke { t_ns, .. } => {
            seen += 1;
            *t_ns -= if seen == 1 { 61_000_000_000 } else { 0 };
            true
        }
        Record::PauseOk { .. } => seen > 1,
        Record::Process { role, phase, .. } => {
            !(role == "api" && *phase == attune_record::ProcessPhase::Ended)
        }
        _ => true,
    });
    assert!(findings(&world)[0].count(Promise::I2) > 0);
}

#[test]
fn a_slot_that_operators_keep_free_is_not_accused() {
    let mut world = World::new(1);
    let ids: Vec<_> = (0..3).map(|_| world.submit(NORMAL)).collect();
    // The completion's own round grants nothing; something else wakes the queue later.
    world.limit = 0;
    world.pool_closed = true;
    world.finish(ids[0]);
    world.limit = 1;
    world.pool_closed = false;
    world.submit(NORMAL);
    world.drain();
    for record in &mut world.records {
        if let Record::Totals {
            pool_closed,
            paused,
            ..
        } = record
        {
            *paused = std::mem::take(pool_closed);
        }
    }
    assert_clean(&world);
}
