//! What a full queue says about when a place comes free.

use attune_core::Submission;
use attune_core::policy::{OnRate, RateLimit};
use chrono::DateTime;

use super::test_world::{World, action, submitted};
use super::*;

#[test]
fn a_full_queue_says_when_a_place_comes_free() {
    let mut world = World::new(Some(2), 3);
    world.submit(5);
    let refused = |world: &mut World| {
        world.submit(1);
        world
            .refused()
            .and_then(|reject| reject.retry_after_seconds)
    };
    assert_eq!(refused(&mut world), Some(1), "nothing has ended yet");
    for _ in 0..6 {
        world.now += 20_000;
        for holder in world.holders() {
            let attempt = world.partition.holds(holder).unwrap();
            world.complete(holder, attempt.0);
        }
        world.submit(3);
    }
    assert_eq!(refused(&mut world), Some(10), "two slots for 20 s each");
}

#[test]
fn a_full_queue_that_waits_for_its_rate_or_for_a_time_says_so() {
    let after = |world: &mut World| {
        world.submit(1);
        world
            .refused()
            .and_then(|reject| reject.retry_after_seconds)
    };
    let mut world = World::new(None, 2);
    let mut rated = action(None);
    rated.version = 2;
    rated.spec.policy.rate_limit = Some(RateLimit {
        max_executions: 1,
        window_seconds: 90,
        by: vec![],
        on_limit: OnRate::Wait,
    });
    world.round(vec![Event::ActionKnown(Box::new(rated.clone()))]);
    world.submit(3);
    world.now += 20_000;
    assert_eq!(after(&mut world), Some(70), "one may start every 90 s");

    // With a limit that is reached as well, whichever comes later.
    rated.version = 3;
    rated.spec.policy.concurrency.limit = Some(1);
    world.round(vec![Event::ActionKnown(Box::new(rated))]);
    assert_eq!(after(&mut world), Some(70));

    let mut world = World::new(Some(1), 2);
    world.submit(1);
    for _ in 0..2 {
        let mut submission = Submission::new("core.noop");
        submission.not_before = DateTime::from_timestamp_millis(40_000);
        world.round(vec![submitted(
            RequestId::fresh(),
            submission,
            OnReject::Answer,
        )]);
    }
    assert_eq!(after(&mut world), Some(40), "both wait for their time");
}
