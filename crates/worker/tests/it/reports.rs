//! Reporting until it is confirmed.

use std::sync::Arc;
use std::time::Duration;

use attune_bus::{Bus, Subscription, Topic};
use attune_core::Status;
use attune_messages::decode;
use attune_messages::v1::ExecutionCompleted;
use attune_worker::{Worker, WorkerError};
use tokio_util::sync::CancellationToken;

use crate::buses::Troubled;
use crate::owner::Owner;
use crate::rig::{Rig, echo, options, sleep, until};
use crate::store::TestStore;

#[tokio::test]
async fn a_lost_confirm_is_answered_with_the_same_message_where_it_lasts() {
    let troubled = Troubled::without_confirms(3);
    let mut rig = Rig::start_on(troubled.clone(), troubled.bus.clone(), |options| {
        options.retell_after = Duration::from_millis(50);
    })
    .await;
    rig.grant(&[echo(1)]).await;
    rig.completed.next().await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..3 {
        let delivery = rig.lasting.next().await.unwrap();
        let (id, items) = decode::<ExecutionCompleted>(&delivery.body, 100_000).unwrap();
        assert_eq!(items.len(), 1);
        assert_eq!(delivery.message_id, Some(id.to_string()));
        ids.push(id);
    }
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    until("it is confirmed", || {
        rig.worker.counters().reported.get() > 0
    })
    .await;
    let worker = rig.life().await;
    rig.owner.settle(worker, &[echo(1).key()]).await;
    rig.stop().await;
    assert!(rig.lasting.try_next().is_none());
}

#[tokio::test]
async fn completions_gather_while_a_message_is_under_way() {
    let troubled = Troubled::held_back();
    let bus = troubled.bus.clone();
    let mut rig = Rig::start_on(troubled.clone(), bus, |options| options.slots = 250).await;
    rig.grant(&[echo(0)]).await;
    until("the first is under way", || troubled.publishes() == 1).await;
    for pack in 0..25 {
        rig.grant(
            &(1..=10)
                .map(|item| echo(pack * 10 + item))
                .collect::<Vec<_>>(),
        )
        .await;
    }
    until("all have run", || rig.worker.counters().runs.get() == 251).await;
    troubled.permits.add_permits(2);
    let mut counts = Vec::new();
    let mut ids = Vec::new();
    while ids.len() < 251 {
        let delivery = rig.completed.next().await.unwrap();
        let (_, items) = decode::<ExecutionCompleted>(&delivery.body, 1_000_000).unwrap();
        counts.push(items.len());
        ids.extend(items.into_iter().map(|item| item.0.execution_id));
    }
    assert_eq!(counts, [1, 100, 100, 50]);
    assert!(
        ids.into_iter()
            .eq((0..=250).map(|id| echo(id).execution_id))
    );
    assert_eq!(troubled.publishes(), 2);
    let worker = rig.life().await;
    let keys: Vec<_> = (0..=250).map(|id| echo(id).key()).collect();
    rig.owner.settle(worker, &keys).await;
    rig.stop().await;
}

#[tokio::test]
async fn completions_wait_for_the_first_listener() {
    let dir = tempfile::tempdir().unwrap();
    let troubled = Troubled::well();
    let mut owner = Owner::new(&troubled.bus).await;
    let store = Arc::new(TestStore::default());
    let shutdown = CancellationToken::new();
    let worker = Worker::start(
        options(dir.path()),
        troubled.clone(),
        store.clone(),
        None,
        shutdown.clone(),
    )
    .await
    .unwrap();
    let life = owner.life().await;
    let section = owner.grant(life, &[echo(1)]);
    owner.send(&section).await.unwrap();
    until("it was refused twice", || troubled.publishes() >= 2).await;
    assert_eq!(worker.counters().reported.get(), 0);
    let completed = Subscription {
        topic: Topic::Completed,
        prefetch: 1,
    };
    let mut completed = troubled.bus.subscribe(completed).await.unwrap();
    let delivery = completed.next().await.unwrap();
    let (_, items) = decode::<ExecutionCompleted>(&delivery.body, 100_000).unwrap();
    assert_eq!(items[0].0.status, Status::Succeeded);
    owner.settle(life, &[echo(1).key()]).await;
    shutdown.cancel();
    worker.await.unwrap();
}

#[tokio::test]
async fn a_bus_that_closes_ends_the_worker_and_what_it_runs() {
    let mut rig = Rig::start_with(|options| options.drain = std::time::Duration::ZERO).await;
    rig.grant(&[sleep(1, 300.0)]).await;
    until("it runs", || rig.worker.counters().runs.get() == 1).await;
    rig.bus.close().await;
    assert!(matches!(rig.end().await, Err(WorkerError::BusClosed)));
    assert_eq!(rig.store.change(|state| state.retired.len()), 1);
    assert_eq!(rig.worker.counters().abandoned.get(), 1);
}
