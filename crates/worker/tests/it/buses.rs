//! Buses with troubles.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use attune_bus::memory::MemoryBus;
use attune_bus::{Bus, BusError, Depth, Outgoing, PublishError, Subscriber, Subscription, Topic};
use tokio::sync::{Semaphore, watch};

/// What goes wrong with messages of completions, and with links.
pub(crate) struct Troubled {
    pub(crate) bus: Arc<MemoryBus>,
    /// So many publishes are confirmed and lost.
    lost: AtomicUsize,
    /// So many publishes lose their confirm.
    unconfirmed: AtomicUsize,
    pub(crate) publishes: AtomicUsize,
    /// Each publish takes one; none are there at first when the test holds them back.
    pub(crate) permits: Semaphore,
    /// How often the links were made anew.
    pub(crate) renewals: watch::Sender<u64>,
}

impl Troubled {
    fn new(lost: usize, unconfirmed: usize, permits: usize) -> Arc<Self> {
        Arc::new(Self {
            bus: Arc::new(MemoryBus::new()),
            lost: AtomicUsize::new(lost),
            unconfirmed: AtomicUsize::new(unconfirmed),
            publishes: AtomicUsize::new(0),
            permits: Semaphore::new(permits),
            renewals: watch::Sender::default(),
        })
    }

    pub(crate) fn well() -> Arc<Self> {
        Self::new(0, 0, Semaphore::MAX_PERMITS)
    }

    pub(crate) fn losing(count: usize) -> Arc<Self> {
        Self::new(count, 0, Semaphore::MAX_PERMITS)
    }

    pub(crate) fn without_confirms(count: usize) -> Arc<Self> {
        Self::new(0, count, Semaphore::MAX_PERMITS)
    }

    pub(crate) fn held_back() -> Arc<Self> {
        Self::new(0, 0, 0)
    }

    pub(crate) fn publishes(&self) -> usize {
        self.publishes.load(Ordering::SeqCst)
    }
}

/// Counts one down; `false` when nothing was left.
fn takes_one(left: &AtomicUsize) -> bool {
    let less = |count: usize| count.checked_sub(1);
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
        .is_ok()
}

#[async_trait]
impl Bus for Troubled {
    async fn publish(&self, messages: Vec<Outgoing>) -> Result<(), PublishError> {
        if !matches!(messages[0].topic, Topic::Completed | Topic::CompletedKept) {
            return self.bus.publish(messages).await;
        }
        self.publishes.fetch_add(1, Ordering::SeqCst);
        self.permits.acquire().await.unwrap().forget();
        if takes_one(&self.lost) {
            return Ok(());
        }
        self.bus.publish(messages).await?;
        if takes_one(&self.unconfirmed) {
            return Err(PublishError::Unconfirmed("the confirm was lost".to_owned()));
        }
        Ok(())
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Subscriber, BusError> {
        let subscriber = self.bus.subscribe(subscription).await?;
        Ok(subscriber.renewed_by(self.renewals.clone()))
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

    async fn depth(&self, topic: &Topic) -> Result<Option<Depth>, BusError> {
        self.bus.depth(topic).await
    }

    async fn close(&self) {
        self.bus.close().await;
    }
}
