//! Tests of policy documents on their way to the queues.

use attune_core::policy::{ActionDefaults, UserPolicy};
use attune_core::{Priority, Submission};
use serde_json::json;

use super::test_world::{ACTION, World, action, submitted};
use super::*;

fn set(version: i64, global: serde_json::Value) -> PolicySet {
    let global: ActionDefaults = serde_json::from_value(global).unwrap();
    PolicySet {
        version,
        global: Some(global),
        ..PolicySet::default()
    }
}

fn policies(set: PolicySet) -> Event {
    Event::Policies(Arc::new(set))
}

fn written(effects: &[Effect]) -> Vec<i64> {
    let versions = effects.iter().filter_map(|effect| match effect {
        Effect::GoesBy(version) => Some(*version),
        _ => None,
    });
    versions.collect()
}

impl World {
    fn limits(&self) -> crate::policy::QueueLimits {
        let queues = &self.partition.queues;
        let limits = queues.with_existing(ACTION, |queue| queue.limits().clone());
        limits.unwrap()
    }

    /// The priority of somebody who is accepted now.
    fn priority_of(&mut self, submission: &Submission) -> Priority {
        let answered = self.stored.answers.len();
        self.step(submitted(
            RequestId::fresh(),
            submission.clone(),
            OnReject::Answer,
        ));
        let answer = self.stored.answers[answered].as_ref().unwrap();
        answer.priority.unwrap()
    }
}

#[test]
fn a_newer_set_is_in_force_of_every_queue_and_an_older_one_of_none() {
    let mut world = World::new(Some(1), 100);
    let (length, timeout) = (world.limits().max_length, world.limits().timeout_seconds);
    let first = set(3, json!({"queue": {"max_length": 7, "timeout_seconds": 9}}));
    let effects = world.step(policies(first.clone()));
    assert_eq!(written(&effects), [3]);
    assert_eq!(
        (world.limits().max_length, world.limits().timeout_seconds),
        (7, 9)
    );
    // Read twice, and one that was read before.
    assert!(written(&world.step(policies(first))).is_empty());
    let older = set(2, json!({"queue": {"max_length": 5}}));
    assert!(written(&world.step(policies(older))).is_empty());
    assert_eq!(world.limits().max_length, 7);
    // What the action says itself goes before it, now and after the next set.
    let mut own = action(Some(1));
    own.version += 1;
    own.spec.policy.queue.max_length = Some(50);
    world.step(Event::ActionKnown(Box::new(own)));
    assert_eq!(
        (world.limits().max_length, world.limits().timeout_seconds),
        (50, 9)
    );
    world.step(policies(set(4, json!({"queue": {"max_length": 6}}))));
    assert_eq!(
        (world.limits().max_length, world.limits().timeout_seconds),
        (50, timeout)
    );
    world.step(policies(PolicySet {
        version: 5,
        ..PolicySet::default()
    }));
    assert!(
        world.partition.own.is_empty(),
        "nothing is kept of what inherits nothing"
    );
    let mut plain = action(Some(1));
    plain.version += 2;
    world.step(Event::ActionKnown(Box::new(plain)));
    assert_eq!(world.limits().max_length, length);
}

#[test]
fn whoever_takes_over_goes_by_the_set_before_anything_is_granted() {
    let mut world = World::new(Some(1), 100);
    world.step(policies(set(3, json!({"queue": {"timeout_seconds": 9}}))));
    world.submit(2);
    let mut world = world.take_over(Some(1));
    assert_eq!(world.limits().timeout_seconds, 9);
    let noted = world
        .stored
        .facts
        .iter()
        .rposition(|fact| matches!(fact, Fact::Policies { set_version: 3 }));
    let bounds = world
        .stored
        .facts
        .iter()
        .rposition(|fact| matches!(fact, Fact::Bounds { .. }));
    assert!(noted.unwrap() < bounds.unwrap(), "{:?}", world.stored.facts);
    // That it goes by it is written by its owner, who knows the set.
    assert_eq!(world.partition.goes_by(), 0);
    let again = Arc::clone(&world.partition.policies);
    assert_eq!(written(&world.step(Event::Policies(again))), [3]);
}

#[test]
fn what_a_new_set_lets_through_is_served_by_the_tick_of_its_round() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(3);
    assert_eq!(world.holders(), [ids[0]]);
    world.round(vec![
        policies(set(1, json!({"queue": {"timeout_seconds": 1}}))),
        Event::Tick,
    ]);
    world.now += 1_500;
    world.step(Event::Tick);
    assert_eq!(
        world.partition.stats(ACTION).unwrap().queue_length,
        0,
        "they waited too long"
    );
}

#[test]
fn a_user_has_the_tier_of_a_document_and_no_higher_priority_than_it_says() {
    let rules = json!({"priority": {"rules": [
        {"when": {"user.tier": ["gold", "silver"]}, "then": "high"},
        {"when": {"user.tier": {"exists": true}}, "then": "low"}]}});
    let mut all = set(1, rules);
    let user = |tier: &str, max_priority| UserPolicy {
        tier: Some(tier.to_owned()),
        max_priority,
    };
    all.users.insert("ann".to_owned(), user("gold", None));
    all.users
        .insert("bob".to_owned(), user("gold", Some(Priority::Normal)));
    all.users
        .insert("*".to_owned(), user("bronze", Some(Priority::Low)));
    let mut world = World::new(Some(1), 100);
    world.step(policies(all));
    let by = |user: Option<&str>, priority: Option<Priority>| Submission {
        requested_by: user.map(str::to_owned),
        priority,
        labels: [("user.tier".to_owned(), "gold".to_owned())].into(),
        ..Submission::new("core.noop")
    };
    let cases = [
        (Some("ann"), None, Priority::High),
        (Some("ann"), Some(Priority::Critical), Priority::Critical),
        (Some("bob"), None, Priority::Normal),
        (Some("cy"), None, Priority::Low),
        (Some("cy"), Some(Priority::Critical), Priority::Low),
        (Some("cy"), Some(Priority::Background), Priority::Background),
        // Who names no user is nobody's, whatever its labels say.
        (None, None, Priority::Normal),
        (None, Some(Priority::Critical), Priority::Critical),
    ];
    for (user, asked, expected) in cases {
        let given = world.priority_of(&by(user, asked));
        assert_eq!(given, expected, "{user:?} {asked:?}");
    }
}
