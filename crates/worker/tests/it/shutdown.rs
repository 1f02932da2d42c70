//! Stopping.

use std::time::Duration;

use attune_core::Status;

use crate::owner::returned;
use crate::rig::{Rig, again, echo, is_gone, pid_in, sleep, stubborn, until};

#[tokio::test]
async fn what_runs_ends_in_peace_and_what_waits_is_given_back() {
    let mut rig = Rig::start_with(|options| options.slots = 2).await;
    let waiting = echo(3);
    rig.grant(&[sleep(1, 0.3), sleep(2, 0.3), waiting.clone()])
        .await;
    rig.all_is_taken().await;
    assert_eq!(rig.worker.counters().runs.get(), 2);
    rig.shutdown.cancel();
    rig.gives_back(&[&waiting]).await;
    rig.store.until_draining(true).await;
    // Who has not heard of it yet gets everything back.
    let late = again(&waiting);
    rig.grant(std::slice::from_ref(&late)).await;
    let report = rig.report("it is given back", |report| {
        returned(report).contains(&late.key())
    });
    assert_eq!(
        report.await.returned.last().unwrap().why,
        "its worker stops"
    );
    rig.end().await.unwrap();
    for completion in rig.completions(2).await {
        assert_eq!(completion.status, Status::Succeeded);
    }
    assert!(!rig.has_more());
    assert_eq!(rig.worker.counters().runs.get(), 2);
    let (registered, retired) = rig
        .store
        .change(|state| (state.registered.clone(), state.retired.clone()));
    assert_eq!(registered, retired);
}

/// Executors are told once its row says so.
#[tokio::test]
async fn a_worker_that_stops_says_so_in_its_row_and_then_to_executors() {
    let mut rig = Rig::start().await;
    let long = sleep(1, 300.0);
    let worker = rig.grant(std::slice::from_ref(&long)).await;
    rig.all_is_taken().await;
    assert!(!rig.store.change(|state| state.draining[&worker]));
    rig.shutdown.cancel();
    assert_eq!(rig.owner.hello().await, worker);
    assert!(rig.store.change(|state| state.draining[&worker]));
    // A cancel is still heard.
    rig.cancel(&[&long]).await;
    assert_eq!(rig.completion().await.status, Status::Cancelled);
    rig.end().await.unwrap();
}

#[tokio::test]
async fn past_the_drain_what_runs_is_killed_and_left_to_its_owner() {
    let mut rig = Rig::start_with(|options| options.drain = Duration::from_millis(100)).await;
    let sign = rig.sign("pid");
    let killed = [stubborn(1, &sign), sleep(2, 300.0)];
    let [stubborn, sleeper] = killed.clone();
    rig.grant(&[stubborn, sleeper, echo(3)]).await;
    let pid = pid_in(&sign).await;
    rig.stop().await;
    is_gone(&pid).await;
    let mut begun = rig.store.change(|state| state.begun.clone()).unwrap();
    begun.sort_unstable();
    assert_eq!(begun, killed.map(|grant| grant.key()));
    assert_eq!(rig.completion().await.execution_id, echo(3).execution_id);
    assert!(!rig.has_more());
    assert_eq!(rig.worker.counters().abandoned.get(), 2);
    let (registered, retired) = rig
        .store
        .change(|state| (state.registered.clone(), state.retired.clone()));
    assert_eq!(registered, retired);
}

/// Its owner does not know yet that it stops.
#[tokio::test]
async fn what_is_granted_to_a_worker_that_stops_idle_is_given_back() {
    let mut rig = Rig::start().await;
    rig.grant(&[echo(1)]).await;
    rig.completion().await;
    rig.all_is_taken().await;
    rig.shutdown.cancel();
    rig.grant(&[echo(2)]).await;
    rig.gives_back(&[&echo(2)]).await;
    rig.end().await.unwrap();
    assert!(!rig.has_more());
    assert_eq!(rig.worker.counters().runs.get(), 1);
}

/// A broker's confirm is not enough to go by: the lease stays until the owner has it.
#[tokio::test]
async fn before_its_lease_is_given_back_everything_is_settled() {
    let mut rig = Rig::start_with(|options| {
        options.retell_after = Duration::from_millis(50);
    })
    .await;
    rig.settles = false;
    let worker = rig.grant(&[echo(1)]).await;
    rig.completion().await;
    rig.shutdown.cancel();
    rig.store.until_draining(true).await;
    let retold = rig.worker.counters().retold.get();
    until("it is told again", || {
        rig.worker.counters().retold.get() >= retold + 2
    })
    .await;
    assert_eq!(rig.store.change(|state| state.retired.clone()), []);
    rig.owner.settle(worker, &[echo(1).key()]).await;
    rig.end().await.unwrap();
    assert_eq!(rig.store.change(|state| state.retired.clone()), [worker]);
    assert_eq!(rig.worker.counters().kept.get(), 0);
}

/// What its owner, which is away, never took back had not begun, except for what has.
#[tokio::test]
async fn with_its_lease_goes_what_has_begun() {
    let mut rig = Rig::start_with(|options| options.slots = 1).await;
    rig.settles = false;
    let (ends, waits) = (sleep(1, 0.2), echo(2));
    let worker = rig.grant(&[ends.clone(), waits]).await;
    rig.all_is_taken().await;
    rig.stop().await;
    assert_eq!(rig.completion().await.execution_id, ends.execution_id);
    let said = rig
        .store
        .change(|state| (state.retired.clone(), state.begun.clone()));
    assert_eq!(said, (vec![worker], Some(vec![ends.key()])));
}
