//! Reporting until it is confirmed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use attune_bus::memory::MemoryBus;
use attune_bus::{Bus, BusError, Outgoing, PublishError, Subscriber, Subscription, Topic};
use attune_core::Status;
use attune_messages::decode;
use attune_messages::v1::ExecutionCompleted;
use attune_worker::{Worker, WorkerError, WorkerOptions};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::rig::{Rig, TestStore, echo, key, options, sleep, until};

/// A bus whose publishing has troubles.
struct Troubled {
    bus: Arc<MemoryBus>,
    /// So many publishes lose their confirm.
    unconfirmed: AtomicUsize,
    publishes: AtomicUsize,
    /// Each publish takes one; none are there at first when the test holds them back.
    permits: Semaphore,
}

impl Troubled {
    fn new(unconfirmed: usize, permits: usize) -> Arc<Self> {
        Arc::new(Self {
            bus: Arc::new(MemoryBus::new()),
            unconfirmed: AtomicUsize::new(unconfirmed),
            publishes: AtomicUsize::new(0),
            permits: Semaphore::new(permits),
        })
    }
}

#[async_trait]
impl Bus for Troubled {
    async fn publish(&self, messages: Vec<Outgoing>) -> Result<(), PublishError> {
        self.publishes.fetch_add(1, Ordering::SeqCst);
        self.permits.acquire().await.unwrap().forget();
        self.bus.publish(messages).await?;
        // Publishes follow each other, so nobody else changes it in between.
        if self.unconfirmed.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        self.unconfirmed.fetch_sub(1, Ordering::SeqCst);
        Err(PublishError::Unconfirmed("the confirm was lost".to_owned()))
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Subscriber, BusError> {
        self.bus.subscribe(subscription).await
    }

    async fn declare(&self, topic: &Topic) -> Result<(), BusError> {
        self.bus.declare(topic).await
    }

    async fn check(&self) -> Result<(), BusError> {
        self.bus.check().await
    }

    fn reach(&self) -> Result<(), BusError> {
        self.bus.reach()
    }

    async fn close(&self) {
        self.bus.close().await;
    }
}

/// A broker that confirms the first message with completions and loses it.
struct Forgetful {
    bus: Arc<MemoryBus>,
    publishes: AtomicUsize,
}

#[async_trait]
impl Bus for Forgetful {
    async fn publish(&self, messages: Vec<Outgoing>) -> Result<(), PublishError> {
        match self.publishes.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(()),
            _ => self.bus.publish(messages).await,
        }
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Subscriber, BusError> {
        self.bus.subscribe(subscription).await
    }

    async fn declare(&self, topic: &Topic) -> Result<(), BusError> {
        self.bus.declare(topic).await
    }

    async fn check(&self) -> Result<(), BusError> {
        self.bus.check().await
    }

    fn reach(&self) -> Result<(), BusError> {
        self.bus.reach()
    }

    async fn close(&self) {
        self.bus.close().await;
    }
}

/// The store still shows the execution as running, so it is told again; when it has ended there,
/// nobody hears of it any more.
#[tokio::test]
async fn a_completion_that_the_broker_has_lost_is_told_again() {
    let bus = Arc::new(MemoryBus::new());
    let forgetful = Arc::new(Forgetful {
        bus: Arc::clone(&bus),
        publishes: AtomicUsize::new(0),
    });
    let retell = |options: &mut WorkerOptions| options.retell_after = Duration::from_millis(50);
    let mut rig = Rig::start_on(forgetful.clone(), bus, retell).await;
    let request = echo(1);
    rig.request(std::slice::from_ref(&request)).await;
    let completion = rig.completion().await;
    assert_eq!(
        (
            completion.execution_id,
            completion.attempt,
            completion.status
        ),
        (request.execution_id, request.attempt, Status::Succeeded)
    );
    let counters = rig.worker.counters();
    assert!(counters.retold.get() > 0);
    rig.store.change(|state| state.running.clear());
    until("it is forgotten", || counters.told.get() == 0).await;
    let publishes = forgetful.publishes.load(Ordering::SeqCst);

    // What arrives is asked for once and told once.
    let second = echo(2);
    rig.request(std::slice::from_ref(&second)).await;
    until("it was published", || {
        forgetful.publishes.load(Ordering::SeqCst) > publishes
    })
    .await;
    rig.store.change(|state| state.running.clear());
    until("it is forgotten", || counters.told.get() == 0).await;
    rig.stop().await;
}

#[tokio::test]
async fn a_lost_confirm_is_answered_with_the_same_message() {
    let troubled = Troubled::new(2, Semaphore::MAX_PERMITS);
    let mut rig = Rig::start_on(troubled.clone(), troubled.bus.clone(), |_| {}).await;
    rig.request(&[echo(1)]).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let delivery = rig.completed.next().await.unwrap();
        let (id, items) = decode::<ExecutionCompleted>(&delivery.body, 100_000).unwrap();
        assert_eq!(items.len(), 1);
        assert_eq!(delivery.message_id, Some(id.to_string()));
        ids.push(id);
    }
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    until("it is confirmed", || {
        rig.worker.counters().reported.get() == 1
    })
    .await;
    rig.stop().await;
    assert!(rig.completed.try_next().is_none());
}

#[tokio::test]
async fn completions_gather_while_a_message_is_under_way() {
    let troubled = Troubled::new(0, 0);
    let bus = troubled.bus.clone();
    let mut rig = Rig::start_on(troubled.clone(), bus, |options| options.slots = 250).await;
    rig.request(&[echo(0)]).await;
    until("the first is under way", || {
        troubled.publishes.load(Ordering::SeqCst) == 1
    })
    .await;
    for pack in 0..25 {
        rig.request(
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
    assert_eq!(troubled.publishes.load(Ordering::SeqCst), 2);
    rig.stop().await;
}

#[tokio::test]
async fn completions_wait_for_the_first_listener() {
    let dir = tempfile::tempdir().unwrap();
    let troubled = Troubled::new(0, Semaphore::MAX_PERMITS);
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
    let request = echo(1);
    store.change(|state| state.requested.insert(key(&request), false));
    let id = uuid::Uuid::now_v7();
    let body = attune_messages::encode(id, chrono::Utc::now(), &[request]);
    let topic = Topic::Requested("default".to_owned());
    troubled
        .bus
        .publish(vec![Outgoing::new(topic, id, body)])
        .await
        .unwrap();
    until("it was refused twice", || {
        troubled.publishes.load(Ordering::SeqCst) >= 2
    })
    .await;
    assert_eq!(worker.counters().reported.get(), 0);
    let completed = Subscription {
        topic: Topic::Completed,
        prefetch: 1,
    };
    let mut completed = troubled.bus.subscribe(completed).await.unwrap();
    let delivery = completed.next().await.unwrap();
    let (_, items) = decode::<ExecutionCompleted>(&delivery.body, 100_000).unwrap();
    assert_eq!(items[0].0.status, Status::Succeeded);
    shutdown.cancel();
    worker.await.unwrap();
}

#[tokio::test]
async fn a_bus_that_closes_ends_the_worker_and_what_it_runs() {
    let mut rig = Rig::start_with(|options| options.drain = std::time::Duration::ZERO).await;
    rig.request(&[sleep(1, 300.0)]).await;
    until("it runs", || rig.worker.counters().runs.get() == 1).await;
    rig.bus.close().await;
    assert!(matches!(rig.end().await, Err(WorkerError::BusClosed)));
    assert_eq!(rig.store.change(|state| state.retired.len()), 1);
    assert_eq!(rig.worker.counters().abandoned.get(), 1);
}
