//! Histories in which policy documents change.

use attune_record::{PolicyChange, PolicyInForce, Record};
use uuid::Uuid;

use super::tests::{NORMAL, assert_breaks, assert_clean, findings};
use super::world::{PARTITION, World};
use super::*;

impl World {
    /// The owner decides under this version from now on.
    fn go_by(&mut self, set_version: i64) {
        self.decide(|epoch| {
            Record::Policy(PolicyInForce {
                partition: PARTITION,
                set_version,
                epoch,
                round: 1,
                t_ns: 0,
            })
        });
    }

    fn change_policies(&mut self, target: &str, set_version: i64, in_force: bool) {
        let policy_id = Uuid::new_v4();
        let targets = vec![target.to_owned()];
        self.push(|t_ns| {
            Record::Policies(PolicyChange::Asked {
                policy_id,
                targets,
                t_ns,
            })
        });
        self.push(|t_ns| {
            Record::Policies(PolicyChange::Told {
                policy_id,
                set_version,
                in_force,
                t_ns,
            })
        });
    }
}

fn history(change: impl FnOnce(&mut World)) -> World {
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
fn a_version_that_falls_is_accused() {
    let falls = history(|world| {
        world.go_by(3);
        world.go_by(2);
    });
    assert_breaks(&falls, Promise::I12);
    let rises = history(|world| {
        world.go_by(2);
        world.go_by(3);
        world.change_policies("global", 3, true);
    });
    assert_clean(&rises);
    assert_eq!(findings(&rises)[0].judged.policies, 2);
}

#[test]
fn who_takes_over_and_goes_by_an_older_set_than_was_told_is_accused() {
    let of = |told: bool, version: i64| {
        history(|world| {
            world.go_by(2);
            world.change_policies("pack core", 2, told);
            world.takeover();
            world.go_by(version);
        })
    };
    assert_clean(&of(true, 2));
    assert_clean(&of(true, 3));
    assert_breaks(&of(true, 1), Promise::I12);
}

#[test]
fn what_is_inherited_is_no_order_that_nobody_asked_for() {
    let mut world = history(|_| ());
    world
        .records
        .retain(|record| !matches!(record, Record::Policies(_)));
    assert_clean(&world);
    let judged = |world: &World| {
        let judged = findings(world)[0].judged;
        (judged.orders > 0, judged.priorities > 0)
    };
    let plain = judged(&world);
    let inherits = history(|world| world.change_policies("global", 1, false));
    assert_clean(&inherits);
    assert_eq!(judged(&inherits), (false, false));
    let other = history(|world| world.change_policies("pack other", 1, false));
    assert_eq!(judged(&other), plain);
}
