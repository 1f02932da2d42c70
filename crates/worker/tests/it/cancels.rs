//! Cancelling before, at and after the claim.

use attune_bus::{Bus, Subscription, Topic};
use attune_core::Status;
use attune_record::Record;

use crate::rig::{Rig, echo, is_gone, key, pid_in, sleep, stubborn, until};

#[tokio::test]
async fn what_was_cancelled_before_the_claim_is_reported_and_never_run() {
    let mut rig = Rig::start().await;
    let request = echo(1);
    rig.store
        .change(|state| state.requested.insert(key(&request), true));
    rig.send(&[request]).await;
    let completion = rig.completion().await;
    assert_eq!(completion.status, Status::Cancelled);
    assert_eq!(completion.error.as_deref(), Some("cancelled before it ran"));
    assert!(completion.started_at.is_none());
    rig.stop().await;
    assert_eq!(rig.records(), []);
    assert_eq!(rig.worker.counters().runs.get(), 0);
}

#[tokio::test]
async fn a_cancel_between_the_claim_and_the_run_is_not_missed() {
    let mut rig = Rig::start().await;
    let witness = sleep(1, 300.0);
    rig.request(std::slice::from_ref(&witness)).await;
    until("the witness runs", || rig.worker.counters().runs.get() == 1).await;
    // The claim of the second is committed, its answer not here yet.
    rig.store.change(|state| state.hold_claims = true);
    let request = sleep(2, 300.0);
    rig.request(std::slice::from_ref(&request)).await;
    rig.store
        .until("it is claimed", |state| {
            state.running.contains_key(&key(&request))
        })
        .await;
    // When the witness is seen to end, the word about the other has arrived as well.
    rig.cancel(&[&request, &witness]).await;
    let first = rig.completion().await;
    assert_eq!(
        (first.execution_id, first.status),
        (witness.execution_id, Status::Cancelled)
    );
    rig.store.change(|state| state.hold_claims = false);
    let second = rig.completion().await;
    assert_eq!(
        (second.execution_id, second.status),
        (request.execution_id, Status::Cancelled)
    );
    rig.stop().await;
    assert_eq!(rig.worker.counters().runs.get(), 1);
}

#[tokio::test]
async fn a_cancel_ends_a_running_program_and_only_that_attempt() {
    let mut rig = Rig::start().await;
    let (sign, other_sign) = (rig.sign("one"), rig.sign("two"));
    let (request, other) = (stubborn(1, &sign), stubborn(2, &other_sign));
    rig.request(&[request.clone(), other.clone()]).await;
    let pid = pid_in(&sign).await;
    pid_in(&other_sign).await;
    // A cancel of another attempt and of something unknown means nothing here.
    let mut wrong_attempt = other.clone();
    wrong_attempt.attempt = wrong_attempt.attempt.next();
    rig.cancel(&[&wrong_attempt, &echo(99), &request]).await;
    let completion = rig.completion().await;
    assert_eq!(completion.execution_id, request.execution_id);
    assert_eq!(completion.status, Status::Cancelled);
    is_gone(&pid).await;
    assert!(!rig.has_more());
    rig.cancel(&[&other]).await;
    assert_eq!(rig.completion().await.execution_id, other.execution_id);
    rig.stop().await;
    let ends = rig.records().into_iter().filter(|record| {
        matches!(
            record,
            Record::End {
                status: Some(Status::Cancelled),
                ..
            }
        )
    });
    assert_eq!(ends.count(), 2);
}

/// A newer owner's cancel, which this worker cannot read: it is no garbage.
#[tokio::test]
async fn a_cancel_of_a_newer_version_is_passed_over() {
    let mut rig = Rig::start().await;
    let letters = Subscription {
        topic: Topic::DeadLetters,
        prefetch: 10,
    };
    let mut letters = rig.bus.subscribe(letters).await.unwrap();
    let newer = r#"{"message_id":"0198c1f0-0000-7000-8000-000000000000","message_type":"execution.cancel","version":2,"timestamp":"2026-01-02T03:04:05Z","payload":{}}"#;
    rig.publish(Topic::Cancel, newer.into()).await;
    // It goes on with those that it can read.
    let request = sleep(1, 300.0);
    rig.request(std::slice::from_ref(&request)).await;
    until("it runs", || rig.worker.counters().runs.get() == 1).await;
    rig.cancel(&[&request]).await;
    assert_eq!(rig.completion().await.status, Status::Cancelled);
    rig.all_is_settled().await;
    rig.stop().await;
    assert!(letters.try_next().is_none());
    assert_eq!(rig.worker.counters().dead_letters.get(), 0);
}
