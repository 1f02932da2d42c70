//! A worker that can start nothing, and one whose lease is not renewed.

use std::time::Duration;

use attune_core::{Run, Status};
use attune_messages::v2::Grant;
use serde_json::json;

use crate::rig::{Rig, again, echo, request, sleep, until};
use crate::store::Mood;

fn program(id: i64) -> Grant {
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

/// Its work directory cannot be made, as on a full disk: what it has begun waits for its start, what
/// is granted to it goes back, and nothing fails.
#[tokio::test]
async fn a_worker_that_can_start_nothing_fails_nothing_and_takes_nothing() {
    let mut rig = Rig::start_with(|options| options.slots = 1).await;
    let in_the_way = rig.sign("runs");
    std::fs::write(&in_the_way, "no folder").unwrap();
    let worker = rig.grant(&[program(1)]).await;
    let why = told(&rig, true).await.unwrap();
    assert!(why.contains("cannot be made"), "{why}");
    assert_eq!(rig.worker.counters().stuck.get(), 1);

    // Owners see that others must run what comes, and are told to look.
    assert_eq!(rig.owner.hello().await, worker);
    rig.store.until_draining(true).await;
    rig.grant(&[echo(2), echo(3)]).await;
    let report = rig.gives_back(&[&echo(2), &echo(3)]).await;
    assert_eq!(report.returned[0].why, "its worker can start nothing");
    assert!(!rig.has_more(), "nothing has failed");

    let removed = chrono::Utc::now();
    std::fs::remove_file(&in_the_way).unwrap();
    let completion = rig.completion().await;
    assert_eq!(completion.status, Status::Succeeded, "{completion:?}");
    assert_eq!(completion.execution_id, program(1).execution_id);
    assert!(
        completion.started_at >= Some(removed),
        "it ran since then, not since it was to"
    );
    assert_eq!(rig.owner.hello().await, worker);
    rig.store.until_draining(false).await;
    told(&rig, false).await;
    rig.grant(&[again(&echo(2))]).await;
    assert_eq!(rig.completion().await.status, Status::Succeeded);
    assert_eq!(rig.worker.counters().stuck.get(), 0);
    assert_eq!(rig.worker.counters().stuck_total.get(), 1);
    rig.stop().await;
}

/// A program that is missing is the execution's own failure; its worker goes on.
#[tokio::test]
async fn a_missing_program_does_not_stop_its_worker() {
    let mut rig = Rig::start().await;
    let missing = Run::Program(vec!["/no/such/program".to_owned()]);
    rig.grant(&[request(1, missing, json!({})), program(2)])
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
    rig.grant(&[first.clone(), second]).await;
    told(&rig, true).await;
    rig.cancel(&[&first]).await;
    let cancelled = rig.completion().await;
    assert_eq!(cancelled.status, Status::Cancelled);
    assert_eq!((cancelled.started_at, cancelled.finished_at), (None, None));
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
        options.start_patience = Duration::from_millis(100);
        options.lease_ttl = Duration::from_secs(6);
    })
    .await;
    let (long, stuck) = (sleep(1, 300.0), program(2));
    rig.grant(std::slice::from_ref(&long)).await;
    until("it runs", || rig.worker.counters().runs.get() == 1).await;
    let in_the_way = rig.sign("runs");
    std::fs::write(&in_the_way, "no folder").unwrap();
    rig.grant(std::slice::from_ref(&stuck)).await;
    let report = rig.gives_back(&[&stuck]).await;
    let why = &report.returned[0].why;
    assert!(why.starts_with("it was never begun"), "{why}");
    assert!(!rig.has_more(), "nothing has failed");
    assert_eq!(rig.worker.counters().lease_lost.get(), 0);

    // It is not begun here any more, and everything else is.
    std::fs::remove_file(&in_the_way).unwrap();
    told(&rig, false).await;
    rig.grant(&[program(3)]).await;
    let next = rig.completion().await;
    assert_eq!(next.status, Status::Succeeded, "{next:?}");
    rig.cancel(&[&long]).await;
    let cancelled = rig.completion().await;
    assert_eq!(
        (cancelled.execution_id, cancelled.status),
        (long.execution_id, Status::Cancelled)
    );
    rig.stop().await;
    assert!(!rig.has_more());
}
