//! Stopping.

use std::time::Duration;

use attune_core::Status;

use crate::rig::{Rig, echo, is_gone, pid_in, sleep, stubborn, until};

#[tokio::test]
async fn what_runs_ends_in_peace_and_what_waits_goes_back() {
    let mut rig = Rig::start_with(|options| options.slots = 2).await;
    let waiting = echo(3);
    rig.request(&[sleep(1, 0.3), sleep(2, 0.3)]).await;
    until("both run", || rig.worker.counters().runs.get() == 2).await;
    rig.all_is_settled().await;
    rig.request(std::slice::from_ref(&waiting)).await;
    rig.send(&[waiting]).await;
    until("it has arrived", || {
        rig.worker.counters().duplicates.get() == 1
    })
    .await;
    rig.stop().await;
    for completion in rig.completions(2).await {
        assert_eq!(completion.status, Status::Succeeded);
    }
    assert!(!rig.has_more());
    assert_eq!(rig.unsettled(), 2, "what was not claimed is for others");
    assert_eq!(rig.store.change(|state| state.claims.len()), 1);
    let (registered, retired) = rig
        .store
        .change(|state| (state.registered.clone(), state.retired.clone()));
    assert_eq!(registered, retired);
}

#[tokio::test]
async fn a_claim_under_way_is_still_honoured() {
    let mut rig = Rig::start().await;
    rig.store.change(|state| state.hold_claims = true);
    rig.request(&[sleep(1, 0.05)]).await;
    rig.store
        .until("it is claimed", |state| state.running.len() == 1)
        .await;
    rig.shutdown.cancel();
    rig.store.change(|state| state.hold_claims = false);
    assert_eq!(rig.completion().await.status, Status::Succeeded);
    rig.end().await.unwrap();
}

#[tokio::test]
async fn past_the_drain_what_runs_is_killed_and_left_to_its_owner() {
    let mut rig = Rig::start_with(|options| options.drain = Duration::from_millis(100)).await;
    let sign = rig.sign("pid");
    rig.request(&[stubborn(1, &sign), sleep(2, 300.0), echo(3)])
        .await;
    let pid = pid_in(&sign).await;
    rig.stop().await;
    is_gone(&pid).await;
    assert_eq!(rig.completion().await.execution_id, echo(3).execution_id);
    assert!(!rig.has_more());
    assert_eq!(rig.worker.counters().abandoned.get(), 2);
    let (registered, retired) = rig
        .store
        .change(|state| (state.registered.clone(), state.retired.clone()));
    assert_eq!(registered, retired);
}

#[tokio::test]
async fn a_cancel_is_still_heard_while_draining() {
    let mut rig = Rig::start().await;
    let request = sleep(1, 300.0);
    rig.request(std::slice::from_ref(&request)).await;
    until("it runs", || rig.worker.counters().runs.get() == 1).await;
    rig.shutdown.cancel();
    rig.cancel(&[&request]).await;
    assert_eq!(rig.completion().await.status, Status::Cancelled);
    rig.end().await.unwrap();
}
