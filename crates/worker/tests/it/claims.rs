//! Receiving and claiming.

use std::time::Duration;

use attune_bus::{Bus, Subscription, Topic};
use attune_core::{Attempt, Status};
use attune_messages::v1::Completion;
use attune_record::Record;

use crate::rig::{Mood, Rig, echo, key, noop, sleep, until};

#[tokio::test]
async fn what_is_claimed_is_run_reported_and_recorded() {
    let mut rig = Rig::start().await;
    let requests: Vec<_> = (1..=5).map(echo).collect();
    rig.request(&requests).await;
    let completions = rig.completions(5).await;
    let worker = rig.store.change(|state| state.registered[0]);
    for (completion, request) in completions.iter().zip(&requests) {
        assert_eq!((completion.execution_id, completion.attempt), key(request));
        assert_eq!(completion.status, Status::Succeeded);
        assert_eq!(
            completion.result.as_ref().unwrap().get(),
            request.parameters.get()
        );
        assert_eq!(completion.worker, Some(worker));
        assert_eq!(completion.partition.unwrap().0, 5);
        assert!(completion.started_at.unwrap() <= completion.finished_at.unwrap());
    }
    rig.all_is_settled().await;
    rig.stop().await;
    let counters = rig.worker.counters();
    assert_eq!(
        (
            counters.claims_won.get(),
            counters.runs.get(),
            counters.reported.get()
        ),
        (5, 5, 5)
    );
    assert_eq!(
        (
            counters.claims_lost.get(),
            counters.duplicates.get(),
            counters.busy.get()
        ),
        (0, 0, 0)
    );
    let records = rig.records();
    assert_eq!(records.len(), 10);
    for (pair, request) in records.chunks(2).zip(&requests) {
        let [
            Record::Start {
                execution_id: started,
                t_ns: from,
                ..
            },
            Record::End {
                execution_id: ended,
                status: Some(Status::Succeeded),
                t_ns: to,
                ..
            },
        ] = pair
        else {
            panic!("{pair:?}");
        };
        assert_eq!(
            (*started, *ended),
            (request.execution_id, request.execution_id)
        );
        assert!(from <= to);
    }
}

#[tokio::test]
async fn a_lost_claim_is_dropped_and_its_message_is_done() {
    let mut rig = Rig::start().await;
    let requests: Vec<_> = (1..=3).map(echo).collect();
    rig.store
        .change(|state| state.requested.insert(key(&requests[1]), false));
    rig.send(&requests).await;
    assert_eq!(
        rig.completion().await.execution_id,
        requests[1].execution_id
    );
    rig.all_is_settled().await;
    rig.stop().await;
    assert!(!rig.has_more());
    let counters = rig.worker.counters();
    assert_eq!(
        (
            counters.claims_won.get(),
            counters.claims_lost.get(),
            counters.runs.get()
        ),
        (1, 2, 1)
    );
}

#[tokio::test]
async fn a_message_that_comes_again_changes_nothing() {
    let mut rig = Rig::start().await;
    let long = sleep(1, 300.0);
    let short = echo(2);
    rig.request(&[long.clone(), short.clone()]).await;
    assert_eq!(rig.completion().await.execution_id, short.execution_id);
    rig.send(&[long.clone(), short.clone()]).await;
    rig.all_is_settled().await;
    assert_eq!(rig.worker.counters().duplicates.get(), 2);
    assert_eq!(rig.store.change(|state| state.claims.len()), 1);
    // The next attempt is another matter.
    let again = attune_messages::v1::ExecutionRequested {
        attempt: Attempt(2),
        ..short
    };
    rig.request(&[again]).await;
    assert_eq!(rig.completion().await.attempt, Attempt(2));
    rig.cancel(&[&long]).await;
    assert_eq!(rig.completion().await.status, Status::Cancelled);
    rig.stop().await;
    assert!(!rig.has_more());
}

#[tokio::test]
async fn a_message_is_acknowledged_only_after_the_claim() {
    let mut rig = Rig::start().await;
    rig.store.change(|state| state.hold_claims = true);
    rig.request(&[echo(1)]).await;
    rig.store
        .until("the claim is under way", |state| state.claims.len() == 1)
        .await;
    // What arrives while a claim is under way goes together in the next one.
    rig.request(&[echo(2)]).await;
    // Whether they have arrived shows when a duplicate of one of them is seen.
    rig.request(&[echo(3), echo(4), echo(2)]).await;
    until("they have arrived", || {
        rig.worker.counters().duplicates.get() == 1
    })
    .await;
    assert_eq!(rig.unsettled(), 3);
    rig.store.change(|state| state.hold_claims = false);
    let ids: Vec<_> = rig
        .completions(4)
        .await
        .iter()
        .map(|completion| completion.execution_id)
        .collect();
    assert_eq!(ids, [1, 2, 3, 4].map(|id| echo(id).execution_id));
    rig.all_is_settled().await;
    let claims = rig.store.change(|state| state.claims.clone());
    assert_eq!(claims.iter().map(Vec::len).collect::<Vec<_>>(), [1, 3]);
    rig.stop().await;
}

#[tokio::test]
async fn no_more_than_the_slots_run_at_once_and_the_rest_is_left_to_others() {
    const SLOTS: usize = 3;
    let mut rig = Rig::start_with(|options| options.slots = SLOTS).await;
    let requests: Vec<_> = (1..=20).map(|id| sleep(id, 0.02)).collect();
    for request in &requests {
        rig.request(std::slice::from_ref(request)).await;
    }
    let completions = rig.completions(requests.len()).await;
    assert!(
        completions
            .iter()
            .all(|completion| completion.status == Status::Succeeded)
    );
    rig.stop().await;
    let (mut running, mut most) = (0_usize, 0);
    for record in rig.records() {
        match record {
            Record::Start { .. } => running += 1,
            Record::End { .. } => running -= 1,
            other => panic!("{other:?}"),
        }
        most = most.max(running);
    }
    assert_eq!(most, SLOTS);
    let claims = rig.store.change(|state| state.claims.clone());
    assert!(claims.iter().all(|claim| claim.len() <= SLOTS));
}

#[tokio::test]
async fn a_worker_without_free_slots_keeps_little_from_others() {
    let mut rig = Rig::start_with(|options| options.slots = 1).await;
    let long = sleep(1, 300.0);
    rig.request(std::slice::from_ref(&long)).await;
    rig.store
        .until("it runs", |state| state.running.len() == 1)
        .await;
    rig.all_is_settled().await;
    for id in 2..=20 {
        rig.request(&[echo(id)]).await;
    }
    // Another subscriber gets all but what the first one may hold.
    let topic = Topic::Requested("default".to_owned());
    let mut other = rig
        .bus
        .subscribe(Subscription {
            topic,
            prefetch: 100,
        })
        .await
        .unwrap();
    for _ in 0..19 - 3 {
        let delivery = other.next().await.unwrap();
        other.settler().ack(&[delivery.tag]).await;
    }
    until("the rest is here", || rig.unsettled() == 3).await;
    assert!(other.try_next().is_none());
    assert_eq!(rig.store.change(|state| state.claims.len()), 1);
    rig.cancel(&[&long]).await;
    rig.completions(4).await;
    rig.stop().await;
}

#[tokio::test]
async fn claims_are_repeated_until_the_store_answers() {
    let mut rig = Rig::start().await;
    for (mood, ids) in [(Mood::Away, [1, 2]), (Mood::Mute, [3, 4])] {
        let before = rig.store.change(|state| {
            state.claiming = mood;
            state.claims.len()
        });
        rig.request(&ids.map(noop)).await;
        rig.store
            .until("it was tried again", |state| {
                state.claims.len() >= before + 3
            })
            .await;
        rig.store.change(|state| state.claiming = Mood::Fine);
        let completions = rig.completions(2).await;
        let found: Vec<_> = completions.iter().map(|item| item.execution_id).collect();
        assert_eq!(found, ids.map(|id| noop(id).execution_id));
    }
    rig.all_is_settled().await;
    rig.stop().await;
    assert!(!rig.has_more());
    assert_eq!(rig.worker.counters().runs.get(), 4);
}

/// One execution that the store refuses to have claimed holds up no other, and is claimed when it
/// can be.
#[tokio::test]
async fn what_cannot_be_claimed_is_set_aside() {
    let mut rig = Rig::start().await;
    let bad = noop(3);
    let others = [1, 2, 4, 5, 6].map(noop);
    rig.store
        .change(|state| state.unclaimable.insert(bad.execution_id));
    rig.request(&[&others[..2], std::slice::from_ref(&bad), &others[2..]].concat())
        .await;
    let ids = |items: Vec<Completion>| {
        let mut ids: Vec<_> = items.iter().map(|item| item.execution_id).collect();
        ids.sort_unstable();
        ids
    };
    let expected: Vec<_> = others.iter().map(|item| item.execution_id).collect();
    assert_eq!(ids(rig.completions(5).await), expected);
    // Its owner dispatches it again and again; what comes later goes past all copies.
    for _ in 0..40 {
        rig.request(std::slice::from_ref(&bad)).await;
    }
    rig.request(&[noop(7)]).await;
    assert_eq!(ids(rig.completions(1).await), [noop(7).execution_id]);
    rig.store.change(|state| state.unclaimable.clear());
    assert_eq!(ids(rig.completions(1).await), [bad.execution_id]);
    rig.all_is_settled().await;
    rig.stop().await;
}

/// A store that refuses everything for a while costs nothing once it does not.
#[tokio::test]
async fn a_store_that_refused_every_claim_is_asked_again_at_once() {
    let mut rig = Rig::start().await;
    let all: Vec<_> = (1..=6).map(noop).collect();
    rig.store.change(|state| {
        state.unclaimable = all.iter().map(|item| item.execution_id).collect();
    });
    rig.request(&all).await;
    rig.store
        .until("each was tried alone", |state| {
            let alone = state.claims.iter().filter(|keys| keys.len() == 1);
            alone
                .map(|keys| keys[0])
                .collect::<std::collections::HashSet<_>>()
                .len()
                == 6
        })
        .await;
    rig.store.change(|state| state.unclaimable.clear());
    assert_eq!(rig.completions(6).await.len(), 6);
    rig.all_is_settled().await;
    rig.stop().await;
}

#[tokio::test]
async fn what_cannot_be_read_goes_to_the_dead_letters() {
    let mut rig = Rig::start().await;
    let letters = Subscription {
        topic: Topic::DeadLetters,
        prefetch: 10,
    };
    let mut letters = rig.bus.subscribe(letters).await.unwrap();
    rig.publish(Topic::Requested("default".to_owned()), b"nonsense".to_vec())
        .await;
    let letter = letters.next().await.unwrap();
    assert_eq!(&letter.body[..], b"nonsense");
    assert!(
        letter
            .headers
            .iter()
            .any(|(_, value)| value.starts_with("not a message envelope"))
    );
    rig.publish(Topic::Cancel, b"{}".to_vec()).await;
    assert_eq!(&letters.next().await.unwrap().body[..], b"{}");
    rig.request(&[echo(1)]).await;
    assert_eq!(rig.completion().await.status, Status::Succeeded);
    rig.all_is_settled().await;
    assert_eq!(rig.worker.counters().dead_letters.get(), 2);
    rig.stop().await;
}

/// More dispatches of a newer version than the worker may hold: it goes on with the others, and
/// a newer worker gets them as they came.
#[tokio::test]
async fn dispatches_of_a_newer_version_wait_and_hold_up_nothing() {
    const NEWER: usize = 40;
    let mut rig = Rig::start().await;
    let letters = Subscription {
        topic: Topic::DeadLetters,
        prefetch: 10,
    };
    let mut letters = rig.bus.subscribe(letters).await.unwrap();
    let pool = Topic::Requested("default".to_owned());
    let newer = r#"{"message_id":"0198c1f0-0000-7000-8000-000000000000","message_type":"execution.requested","version":2,"timestamp":"2026-01-02T03:04:05Z","payload":{}}"#;
    for _ in 0..NEWER {
        rig.publish(pool.clone(), newer.into()).await;
    }
    rig.request(&[echo(1)]).await;
    assert_eq!(rig.completion().await.status, Status::Succeeded);
    rig.stop().await;
    let subscription = Subscription {
        topic: pool,
        prefetch: 100,
    };
    let mut next = rig.bus.subscribe(subscription).await.unwrap();
    for _ in 0..NEWER {
        assert_eq!(next.next().await.unwrap().body, newer.as_bytes());
    }
    assert!(letters.try_next().is_none());
    assert_eq!(rig.worker.counters().dead_letters.get(), 0);
}

#[tokio::test]
async fn a_claim_that_is_never_answered_is_made_again() {
    let mut rig = Rig::start_with(|options| options.lease_ttl = Duration::from_secs(2)).await;
    rig.store.change(|state| state.claiming = Mood::Stuck);
    rig.request(&[echo(1)]).await;
    rig.store
        .until("it is under way", |state| state.claims.len() == 1)
        .await;
    rig.store.change(|state| state.claiming = Mood::Fine);
    assert_eq!(rig.completion().await.status, Status::Succeeded);
    rig.all_is_settled().await;
    rig.stop().await;
    assert_eq!(rig.worker.counters().lease_lost.get(), 0);
}
