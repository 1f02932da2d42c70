//! Who is said to go before whom: nobody is told that it is next where another one is.

use attune_core::explain::{Lack, Reason};
use attune_core::policy::{Fairness, OnRate, Path, RateLimit};
use attune_core::{ActionPolicy, Priority, Submission};

use super::test_world::{World, action, submitted};
use super::*;

/// A world with one action of this policy.
fn world(change: impl FnOnce(&mut ActionPolicy)) -> World {
    let mut world = World::new(None, 100);
    let mut changed = action(None);
    changed.version = 2;
    change(&mut changed.spec.policy);
    world.round(vec![Event::ActionKnown(Box::new(changed))]);
    world
}

fn by_user() -> Fairness {
    Fairness {
        by: vec![path("user")],
        weights: std::collections::BTreeMap::new(),
        default_weight: None,
    }
}

fn path(words: &str) -> Path {
    words.parse().unwrap()
}

/// Submits for a user, in a group, and tells which execution it is.
fn submit(world: &mut World, user: &str, group: &str, priority: Priority) -> ExecutionId {
    let mut submission = Submission::new("core.noop");
    submission.requested_by = Some(user.to_owned());
    submission.group = (!group.is_empty()).then(|| group.to_owned());
    submission.priority = Some(priority);
    let request = RequestId::fresh();
    world.round(vec![submitted(request, submission, OnReject::Answer)]);
    *world.stored.active.keys().next_back().unwrap()
}

fn reasons(world: &World, id: ExecutionId) -> Vec<Reason> {
    world
        .partition
        .explanation(world.now, id)
        .unwrap()
        .waits_for
}

fn rate_ahead(world: &World, id: ExecutionId) -> Option<u64> {
    let reasons = reasons(world, id);
    reasons.iter().find_map(|reason| match reason {
        Reason::Rate { ahead, .. } => Some(*ahead),
        _ => None,
    })
}

fn limit(world: &World, id: ExecutionId) -> Option<Lack> {
    let reasons = reasons(world, id);
    reasons.into_iter().find_map(|reason| match reason {
        Reason::Limit(lack) => Some(lack),
        _ => None,
    })
}

fn group_limit(world: &World, id: ExecutionId) -> Option<Lack> {
    let reasons = reasons(world, id);
    reasons.into_iter().find_map(|reason| match reason {
        Reason::GroupLimit(lack) => Some(lack),
        _ => None,
    })
}

#[test]
fn all_who_wait_for_one_rate_are_counted_whatever_group_they_are_of() {
    let mut world = world(|policy| {
        policy.concurrency.group_by = vec![path("user")];
        policy.concurrency.group_limit = Some(1);
        policy.rate_limit = Some(RateLimit {
            max_executions: 1,
            window_seconds: 60,
            by: vec![path("group")],
            on_limit: OnRate::Wait,
        });
    });
    let [_, bob, cy] = [("zoe", "x"), ("bob", "x"), ("cy", "x")]
        .map(|(user, group)| submit(&mut world, user, group, Priority::Normal));
    assert_eq!(rate_ahead(&world, bob), Some(0));
    assert_eq!(rate_ahead(&world, cy), Some(1));
}

#[test]
fn whom_its_group_alone_keeps_is_not_told_of_the_slots_of_the_action() {
    let mut world = world(|policy| {
        policy.concurrency.limit = Some(2);
        policy.concurrency.group_by = vec![path("user")];
        policy.concurrency.group_limit = Some(1);
    });
    let ids = [(); 4].map(|()| submit(&mut world, "ann", "", Priority::Normal));
    let lack = group_limit(&world, ids[3]).unwrap();
    assert_eq!((lack.used, lack.ahead), (1, 2));
    assert_eq!(limit(&world, ids[3]), None, "one of two is free");
}

#[test]
fn whose_turn_it_is_in_a_group_goes_before_who_shares_it() {
    let mut world = world(|policy| {
        policy.concurrency.limit = Some(1);
        policy.concurrency.group_by = vec![path("group")];
        policy.concurrency.group_limit = Some(1);
        policy.fairness = Some(by_user());
    });
    let [_, _, bob] = [("ann", "a"), ("ann", "c"), ("bob", "c")]
        .map(|(user, group)| submit(&mut world, user, group, Priority::Normal));
    let lack = group_limit(&world, bob);
    assert!(
        lack.as_ref()
            .is_none_or(|lack| lack.ahead == 1 && !lack.is_shared),
        "{lack:?}"
    );
}

#[test]
fn those_of_higher_priority_go_before_where_slots_are_shared() {
    let mut world = world(|policy| {
        policy.concurrency.limit = Some(1);
        policy.fairness = Some(by_user());
    });
    submit(&mut world, "eve", "", Priority::Normal);
    let fay = submit(&mut world, "fay", "", Priority::Low);
    submit(&mut world, "eve", "", Priority::Normal);
    submit(&mut world, "gus", "", Priority::Normal);
    let lack = limit(&world, fay).unwrap();
    assert_eq!((lack.ahead, lack.is_shared), (2, true));
}
