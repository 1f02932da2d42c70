//! What is counted for rates and quotas: once for each request, and with the round that it belongs to.

use attune_core::policy::{Calendar, OnRate, Quota, RateLimit};
use attune_core::{RejectCode, Submission};

use super::test_world::{ACTION, World, action, submitted};
use super::*;
use crate::queue::Blocked;

fn counting(change: impl FnOnce(&mut attune_core::ActionPolicy)) -> World {
    let mut world = World::new(None, 100);
    let mut action = action(None);
    action.version = 2;
    change(&mut action.spec.policy);
    action.spec.policy.check(None).unwrap();
    world.round(vec![Event::ActionKnown(Box::new(action))]);
    world
}

fn ask(request_id: RequestId) -> Event {
    let submission = Submission::new("core.noop");
    submitted(request_id, submission, OnReject::Answer)
}

fn pass(world: &mut World, millis: Millis) {
    world.now += millis;
    world.round(vec![]);
}

fn codes(world: &World) -> Vec<Option<RejectCode>> {
    let answers = world.stored.answers.iter();
    answers
        .map(|answer| answer.as_ref().err().map(|reject| reject.code))
        .collect()
}

#[test]
fn a_request_counts_once_however_often_it_comes() {
    let mut world = counting(|policy| {
        policy.quotas = vec![Quota {
            per: Calendar::Day,
            max: 2,
            by: vec![],
        }];
    });
    let [first, second, third] = [(); 3].map(|()| RequestId::fresh());
    // In one round, and in the next, when the store knows it.
    world.round(vec![ask(first), ask(first)]);
    world.round(vec![ask(first), ask(second)]);
    world.round(vec![ask(third), ask(second)]);
    let refused = Some(RejectCode::QuotaExceeded);
    assert_eq!(codes(&world), [None, None, None, None, refused, None]);
    let answer = world.stored.answers[4].clone().unwrap_err();
    assert_eq!(answer.retry_after_seconds, Some(86_400));
    pass(&mut world, 86_400_000);
    world.round(vec![ask(third)]);
    assert_eq!(codes(&world).last(), Some(&None), "another day");
}

#[test]
fn whoever_cannot_be_told_apart_is_refused_and_counts_for_nobody() {
    let mut world = counting(|policy| {
        policy.quotas = vec![Quota {
            per: Calendar::Day,
            max: 1,
            by: vec!["parameters.host".parse().unwrap()],
        }];
    });
    let of_host = |host: &str| {
        let mut submission = Submission::new("core.noop");
        let text = serde_json::json!({"host": host}).to_string();
        submission.parameters = serde_json::from_str(&text).unwrap();
        submitted(RequestId::fresh(), submission, OnReject::Answer)
    };
    let long = "x".repeat(5_000);
    world.round(vec![of_host(&long), of_host("a"), of_host(&long)]);
    let refused = Some(RejectCode::InvalidInput);
    assert_eq!(codes(&world), [refused, None, refused]);
    let answer = world.stored.answers[0].clone().unwrap_err();
    assert_eq!(answer.field.as_deref(), Some("parameters.host"));
}

#[test]
fn a_start_waits_for_its_rate_until_a_deadline() {
    let rate = |on_limit| RateLimit {
        max_executions: 1,
        window_seconds: 10,
        by: vec![],
        on_limit,
    };
    let mut world = counting(|policy| policy.rate_limit = Some(rate(OnRate::Wait)));
    world.round(vec![ask(RequestId::fresh()), ask(RequestId::fresh())]);
    assert_eq!(world.holders().len(), 1);
    let until = 10_000;
    assert_eq!(
        world.partition.blocked(ACTION),
        Some(Blocked::Rate { until })
    );
    assert_eq!(world.partition.next_deadline(), Some(until));
    let counted = world.partition.counted(world.now);
    assert_eq!(counted[0].place.limit_id, "action/core.noop/rate_limit");
    assert!(counted[0].expires_at >= until);
    // The commit was answered late.
    world.partition.settle_counted(500);
    assert!(world.partition.counted(world.now).is_empty());
    pass(&mut world, until);
    assert_eq!(world.holders().len(), 1);
    pass(&mut world, 500);
    assert_eq!(world.holders().len(), 2);
    // From now on what comes is refused.
    let mut action = action(None);
    action.version = 3;
    action.spec.policy.rate_limit = Some(rate(OnRate::Reject));
    world.round(vec![Event::ActionKnown(Box::new(action))]);
    world.round(vec![ask(RequestId::fresh())]);
    assert_eq!(codes(&world).last(), Some(&Some(RejectCode::RateLimited)));
}

#[test]
fn whoever_takes_over_goes_on_counting() {
    let mut world = counting(|policy| {
        policy.rate_limit = Some(RateLimit {
            max_executions: 1,
            window_seconds: 10,
            by: vec![],
            on_limit: OnRate::Wait,
        });
    });
    world.round(vec![ask(RequestId::fresh())]);
    let counted = world.partition.counted(world.now);
    let rows = counted.into_iter().map(|meter| crate::stored::StoredMeter {
        place: meter.place,
        state: meter.state,
        written_at: 2_000,
    });
    let mut next = counting(|policy| {
        policy.rate_limit = Some(RateLimit {
            max_executions: 1,
            window_seconds: 10,
            by: vec![],
            on_limit: OnRate::Wait,
        });
    });
    let of_nobody = crate::stored::StoredMeter {
        place: crate::stored::MeterPlace {
            limit_id: "pack/core/rate_limit".to_owned(),
            key: attune_core::GroupKey::default(),
        },
        state: vec![],
        written_at: 0,
    };
    let rows: Vec<_> = rows.chain([of_nobody]).collect();
    assert!(next.partition.counts());
    pass(&mut next, 3_000);
    let now = next.now;
    next.partition.step(now, Event::RecoverMeters(rows));
    next.round(vec![ask(RequestId::fresh())]);
    assert_eq!(next.holders().len(), 0);
    let until = 12_000;
    assert_eq!(
        next.partition.blocked(ACTION),
        Some(Blocked::Rate { until }),
        "since it was written"
    );
    pass(&mut next, until - now);
    assert_eq!(next.holders().len(), 1);
}
