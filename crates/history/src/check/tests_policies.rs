//! Histories in which policy documents change.

use attune_core::Priority;
use attune_record::{PolicyChange, PolicyInForce, Record};
use serde_json::{Value, json};
use uuid::Uuid;

use super::tests::{NORMAL, assert_breaks, assert_clean, findings};
use super::world::{ACTION, PARTITION, World};
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
        self.say(target, set_version, in_force, Vec::new());
    }

    /// A document that is in force everywhere; `None` takes it back.
    fn document(&mut self, target: &str, set_version: i64, says: Option<Value>) {
        self.say(target, set_version, true, vec![says]);
    }

    /// An owner goes by a version, and by so many that may wait.
    pub(super) fn allow(&mut self, set_version: i64, max_length: u32) {
        self.round += 1;
        self.go_by(set_version);
        let limit = Some(self.limit);
        self.decide(|epoch| Record::Limit {
            action_id: ACTION,
            limit,
            group_limit: None,
            demands: None,
            max_length: Some(max_length),
            epoch,
            round: 0,
            t_ns: 0,
        });
    }

    fn say(&mut self, target: &str, set_version: i64, in_force: bool, says: Vec<Option<Value>>) {
        let policy_id = Uuid::new_v4();
        let targets = vec![target.to_owned()];
        self.push(|t_ns| {
            Record::Policies(PolicyChange::Asked {
                policy_id,
                targets,
                says,
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

fn at_most(max_length: u32) -> Option<Value> {
    Some(json!({"action_defaults": {"queue": {"max_length": max_length}}}))
}

/// An action that leaves it to documents how many may wait, and three executions after `change`.
fn bound(change: impl FnOnce(&mut World)) -> World {
    let mut world = World::new(2);
    let apply_id = Uuid::new_v4();
    world.ask_limit(apply_id, Some(2));
    world.limit_is_stored(apply_id, true);
    change(&mut world);
    for _ in 0..3 {
        world.submit(NORMAL);
    }
    world.drain();
    world.stop();
    for record in &mut world.records {
        if let Record::ApplyInvoke {
            inherits_length, ..
        } = record
        {
            *inherits_length = true;
        }
    }
    world
}

/// How much was held against documents; everything must be in order.
fn held_against(world: &World) -> u64 {
    assert_clean(world);
    findings(world)[0].judged.documents
}

#[test]
fn a_queue_that_takes_more_than_its_version_says_is_accused() {
    let right = bound(|world| {
        world.document("global", 1, at_most(3));
        world.document("pack core", 2, at_most(5));
        world.allow(2, 5);
    });
    assert!(held_against(&right) >= 3);
    let late = bound(|world| {
        world.document("global", 1, at_most(3));
        world.allow(1, 3);
        world.document("global", 2, at_most(2));
        world.go_by(2);
    });
    assert_breaks(&late, Promise::I12);
    let of_the_wrong_scope = bound(|world| {
        world.document("global", 1, at_most(3));
        world.document("pack core", 2, at_most(5));
        world.allow(2, 3);
    });
    assert_breaks(&of_the_wrong_scope, Promise::I12);
    let taken_back = |length| {
        bound(|world| {
            world.document("global", 1, at_most(3));
            world.document("pack core", 2, at_most(5));
            world.document("pack core", 3, None);
            world.allow(3, length);
        })
    };
    assert!(held_against(&taken_back(3)) >= 3);
    assert_breaks(&taken_back(5), Promise::I12);
}

#[test]
fn what_is_not_known_of_documents_accuses_nobody() {
    let wrong = || {
        bound(|world| {
            world.document("global", 1, at_most(3));
            world.allow(1, 5);
        })
    };
    assert_breaks(&wrong(), Promise::I12);
    // The records of an earlier release do not say what a document says, nor whether an action inherits.
    let mut earlier = wrong();
    let mut own = wrong();
    let mut lost = wrong();
    for record in &mut earlier.records {
        if let Record::Policies(PolicyChange::Asked { says, .. }) = record {
            says.clear();
        }
    }
    for record in &mut own.records {
        if let Record::ApplyInvoke {
            inherits_length, ..
        } = record
        {
            *inherits_length = false;
        }
    }
    // An API that was killed has told nobody what it stored.
    lost.records
        .retain(|record| !matches!(record, Record::Policies(PolicyChange::Told { .. })));
    let after_a_lost_one = bound(|world| {
        world.document("global", 1, at_most(3));
        world.document("user ann", 3, Some(json!({"tier": "gold"})));
        world.allow(3, 5);
    });
    let by_settings = bound(|world| {
        world.document("pack other", 1, at_most(3));
        world.allow(1, 5);
    });
    for world in [earlier, own, lost, after_a_lost_one, by_settings] {
        assert_eq!(held_against(&world), 0);
    }
}

/// Ann asks with a high priority under these documents.
fn ann(documents: &[(&str, Option<Value>)]) -> World {
    let mut world = World::new(2);
    for (version, (target, says)) in (1..).zip(documents) {
        world.document(target, version, says.clone());
        world.go_by(version);
    }
    world.submit(Priority::High);
    world.drain();
    world.stop();
    for record in &mut world.records {
        if let Record::SubmitInvoke { requested_by, .. } = record {
            *requested_by = Some("ann".to_owned());
        }
    }
    world
}

#[test]
fn a_priority_above_that_of_its_user_is_accused() {
    let max = |priority: &str| Some(json!({"policy": {"priority": {"max": priority}}}));
    let tier = || Some(json!({"tier": "gold"}));
    assert_breaks(&ann(&[("user ann", max("normal"))]), Promise::I12);
    assert_breaks(&ann(&[("user *", max("normal"))]), Promise::I12);
    assert_eq!(held_against(&ann(&[("user ann", max("high"))])), 1);
    // A document of one's own takes the place of the one of every user as a whole.
    let own = ann(&[("user *", max("normal")), ("user ann", tier())]);
    assert_eq!(held_against(&own), 0);
    let taken_back = ann(&[("user ann", max("low")), ("user ann", None)]);
    assert_eq!(held_against(&taken_back), 0);
    let mut unknown = ann(&[("user ann", max("normal"))]);
    for record in &mut unknown.records {
        if let Record::SubmitInvoke { requested_by, .. } = record {
            *requested_by = None;
        }
    }
    assert_eq!(held_against(&unknown), 0);
}

#[test]
fn what_users_may_have_says_nothing_of_others() {
    let judged = |says: Option<Value>| {
        let mut world = World::new(2);
        world.document("user bob", 1, says);
        let id = world.submit(NORMAL);
        world.drain();
        world.stop();
        for record in &mut world.records {
            match record {
                Record::SubmitInvoke { requested_by, .. } => *requested_by = Some("ann".to_owned()),
                Record::Accepted {
                    execution_id,
                    priority,
                    ..
                } if *execution_id == id => *priority = Priority::Low,
                _ => {}
            }
        }
        world
    };
    let max = json!({"policy": {"priority": {"max": "low"}}});
    assert_breaks(&judged(Some(max)), Promise::I3);
}

#[test]
fn who_comes_to_a_full_queue_and_waits_is_accused() {
    let of = |max_length: u32| {
        let mut world = World::new(2);
        world.allow(0, max_length);
        for _ in 0..4 {
            world.submit(NORMAL);
        }
        world.drain();
        world.stop();
        world
    };
    assert_clean(&of(2));
    assert_breaks(&of(1), Promise::I2);
    // One that was lowered takes nobody out.
    let mut lowered = World::new(2);
    lowered.allow(0, 5);
    let ids: Vec<_> = (0..5).map(|_| lowered.submit(NORMAL)).collect();
    lowered.allow(0, 1);
    lowered.finish(ids[0]);
    lowered.drain();
    lowered.stop();
    assert_clean(&lowered);
}
