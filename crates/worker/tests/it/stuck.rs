//! A worker that can start nothing, and one whose lease is not renewed.

use std::time::{Duration, Instant};

use attune_bus::{Bus, Subscription, Topic};
use attune_core::{Run, Status};
use attune_messages::decode_batch;
use attune_messages::v1::{ExecutionRequested, ForceRelease};
use serde_json::json;

use crate::rig::{Mood, Rig, State, echo, key, request, sleep, until};

fn program(id: i64) -> ExecutionRequested {
    let argv = ["/bin/sh", "-c", "exit 0"].map(str::to_owned);
    request(id, Run::Program(argv.into()), json!({}))
}

/// Waits until the worker says what keeps it from its work, or that nothing does.
async fn told(rig: &Rig, is_trouble: bool) -> Option<String> {
    let mut troubles = rig.worker.troubles();
    let told = troubles.wait_for(|told| told.is_some() == is_trouble);
    let told = tokio::time::timeout(Duration::from_secs(20), told).await;
    told.expect("the worker did not say it").unwrap().clone()
}

/// Its work directory cannot be made, as on a full disk: what it has claimed waits for its start,
/// what it has not claimed goes to others, and nothing fails.
#[tokio::test]
async fn a_worker_that_can_start_nothing_fails_nothing_and_takes_nothing() {
    let mut rig = Rig::start_with(|options| options.slots = 1).await;
    let in_the_way = rig.sign("runs");
    std::fs::write(&in_the_way, "no folder").unwrap();
    rig.request(&[program(1)]).await;
    let why = told(&rig, true).await.unwrap();
    assert!(why.contains("cannot be made"), "{why}");
    assert_eq!(rig.worker.counters().stuck.get(), 1);

    // Another worker of the pool gets what comes.
    let mut other = rig
        .bus
        .subscribe(Subscription {
            topic: Topic::Requested("default".to_owned()),
            prefetch: 8,
        })
        .await
        .unwrap();
    rig.request(&[echo(2), echo(3)]).await;
    let delivery = tokio::time::timeout(Duration::from_secs(20), other.next());
    let delivery = delivery.await.expect("nobody gets it").unwrap();
    let requests = decode_batch::<ExecutionRequested>(&delivery.body, 1 << 20).unwrap();
    assert_eq!(requests.len(), 2);
    assert!(!rig.has_more(), "nothing has failed");
    drop(other);

    std::fs::remove_file(&in_the_way).unwrap();
    let mut completions = rig.completions(3).await;
    completions.sort_by_key(|completion| completion.execution_id);
    for completion in &completions {
        assert_eq!(completion.status, Status::Succeeded, "{completion:?}");
        assert_eq!(completion.attempt.0, 1, "not even an attempt is counted");
    }
    told(&rig, false).await;
    assert_eq!(rig.worker.counters().stuck.get(), 0);
    assert_eq!(rig.worker.counters().stuck_total.get(), 1);
    rig.stop().await;
}

/// A program that is missing is the execution's own failure; its worker goes on.
#[tokio::test]
async fn a_missing_program_does_not_stop_its_worker() {
    let mut rig = Rig::start().await;
    let missing = Run::Program(vec!["/no/such/program".to_owned()]);
    rig.request(&[request(1, missing, json!({})), program(2)])
        .await;
    let mut completions = rig.completions(2).await;
    completions.sort_by_key(|completion| completion.execution_id);
    let statuses: Vec<_> = completions.iter().map(|of| of.status).collect();
    assert_eq!(statuses, [Status::Failed, Status::Succeeded]);
    assert_eq!(rig.worker.counters().stuck_total.get(), 0);
    rig.stop().await;
}

/// What waits for its start can be cancelled, and a worker that stops does not wait for it.
#[tokio::test]
async fn what_waits_for_its_start_can_be_cancelled_and_the_worker_stopped() {
    let mut rig = Rig::start_with(|options| options.drain = Duration::from_millis(50)).await;
    std::fs::write(rig.sign("runs"), "no folder").unwrap();
    let (first, second) = (program(1), program(2));
    rig.request(&[first.clone(), second]).await;
    told(&rig, true).await;
    rig.cancel(&[&first]).await;
    let cancelled = rig.completion().await;
    assert_eq!(cancelled.status, Status::Cancelled);
    rig.stop().await;
    assert!(!rig.has_more());
    let retired = rig.store.change(|state| state.retired.len());
    assert_eq!(retired, 1, "its lease is given back, so that others run it");
}

/// Half a lease without a renewal is told before anything is killed, and is over with the next.
#[tokio::test]
async fn a_lease_that_is_not_renewed_is_told_before_it_is_lost() {
    let mut rig = Rig::start_with(|options| options.lease_ttl = Duration::from_secs(6)).await;
    until("it is well", || rig.worker.troubles().borrow().is_none()).await;
    rig.store.change(|state| state.renewing = Mood::Away);
    let why = told(&rig, true).await.unwrap();
    assert!(why.contains("could not be renewed"), "{why}");
    rig.store.change(|state| state.renewing = Mood::Fine);
    told(&rig, false).await;
    assert_eq!(rig.worker.counters().lease_lost.get(), 0);
    rig.stop().await;
}

/// What waits for its start beside a run that goes on: its slot is given back to its owner, and
/// the run is left alone.
#[tokio::test]
async fn what_waits_too_long_beside_a_run_is_given_back() {
    let mut rig = Rig::start_with(|options| {
        options.slots = 3;
        options.name = "w-7".to_owned();
        options.start_patience = Duration::from_millis(100);
        options.lease_ttl = Duration::from_secs(6);
    })
    .await;
    let (long, stuck) = (sleep(1, 300.0), program(2));
    let owner = Subscription {
        topic: Topic::Commands(stuck.execution_id.partition()),
        prefetch: 8,
    };
    let mut owner = rig.bus.subscribe(owner).await.unwrap();
    rig.request(std::slice::from_ref(&long)).await;
    until("it runs", || rig.worker.counters().runs.get() == 1).await;
    let in_the_way = rig.sign("runs");
    std::fs::write(&in_the_way, "no folder").unwrap();
    rig.request(std::slice::from_ref(&stuck)).await;
    let command = tokio::time::timeout(Duration::from_secs(20), owner.next());
    let command = command.await.expect("its owner hears nothing").unwrap();
    let released = decode_batch::<ForceRelease>(&command.body, 1 << 20).unwrap();
    assert_eq!(released.len(), 1);
    assert_eq!((released[0].execution_id, released[0].attempt), key(&stuck));
    assert_eq!(released[0].who, "w-7");
    assert!(released[0].never_begun, "it counts as no lost worker");
    assert!(!rig.has_more(), "nothing has failed");
    assert_eq!(rig.worker.counters().lease_lost.get(), 0);

    // It is not begun here any more, and everything else is.
    std::fs::remove_file(&in_the_way).unwrap();
    told(&rig, false).await;
    rig.request(&[program(3)]).await;
    let next = rig.completion().await;
    assert_eq!(next.status, Status::Succeeded, "{next:?}");
    rig.cancel(&[&long]).await;
    let cancelled = rig.completion().await;
    assert_eq!(
        (cancelled.execution_id, cancelled.status),
        (long.execution_id, Status::Cancelled)
    );
    rig.stop().await;
    assert!(!rig.has_more() && owner.try_next().is_none());
}

/// What could claim nothing for a while says why, and is well with the first claim that succeeds.
/// Those that are refused after that are to blame themselves.
#[tokio::test]
async fn a_worker_whose_every_claim_is_refused_says_so() {
    const PATIENCE: Duration = Duration::from_millis(300);
    let mut rig = Rig::start_with(|options| options.claim_patience = PATIENCE).await;
    let refused = [1, 2].map(echo);
    rig.store.change(|state| {
        state.unclaimable = refused.iter().map(|item| item.execution_id).collect();
    });
    let began = Instant::now();
    rig.request(&refused).await;
    let why = told(&rig, true).await.unwrap();
    let words = "nothing can be claimed: the store refuses for now: a row cannot be read";
    assert_eq!(why, words);
    assert!(began.elapsed() >= PATIENCE, "a moment is nobody's business");

    rig.request(&[echo(3)]).await;
    assert_eq!(rig.completion().await.status, Status::Succeeded);
    told(&rig, false).await;
    let mut troubles = rig.worker.troubles();
    troubles.mark_unchanged();
    let tried = rig.store.change(|state| state.claims.len());
    let again = "those that are refused are tried again and again";
    let is_again = |state: &State| state.claims.len() >= tried + 2;
    rig.store.until(again, is_again).await;
    assert!(!troubles.has_changed().unwrap(), "it says nothing of them");

    rig.store.change(|state| state.unclaimable.clear());
    assert_eq!(rig.completions(2).await.len(), 2);
    rig.stop().await;
}

/// The same where the store does not answer to claims, while leases are renewed.
#[tokio::test]
async fn a_worker_whose_every_claim_fails_says_so() {
    let patience = Duration::from_millis(300);
    let mut rig = Rig::start_with(|options| options.claim_patience = patience).await;
    rig.store.change(|state| state.claiming = Mood::Away);
    rig.request(&[echo(1)]).await;
    let why = told(&rig, true).await.unwrap();
    let words = "nothing can be claimed: the store cannot be reached: away";
    assert_eq!(why, words);
    rig.store.change(|state| state.claiming = Mood::Fine);
    assert_eq!(rig.completion().await.status, Status::Succeeded);
    told(&rig, false).await;
    rig.stop().await;
}
