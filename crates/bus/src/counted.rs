//! A bus that counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;

use crate::port::{Bus, BusError, Outgoing, PublishError, Subscriber, Subscription, Topic};

/// Passes everything on to a bus and counts the messages that it has taken.
pub struct Counted {
    bus: Arc<dyn Bus>,
    published: Arc<AtomicU64>,
}

impl Counted {
    /// Counts what goes through here to `bus`.
    pub fn new(bus: Arc<dyn Bus>) -> Self {
        Self {
            bus,
            published: Arc::default(),
        }
    }

    /// How many messages were confirmed, from 0 at the start. What was published again because
    /// nobody knew what had become of it counts once.
    pub fn published(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.published)
    }
}

#[async_trait]
impl Bus for Counted {
    async fn publish(&self, messages: Vec<Outgoing>) -> Result<(), PublishError> {
        let count = messages.len() as u64;
        let published = self.bus.publish(messages).await;
        let taken = match &published {
            Ok(()) => count,
            Err(PublishError::Refused(refused)) => count.saturating_sub(refused.len() as u64),
            Err(_) => 0,
        };
        self.published.fetch_add(taken, Ordering::Relaxed);
        published
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryBus, Room};
    use uuid::Uuid;

    #[tokio::test]
    async fn what_is_refused_or_unknown_does_not_count() {
        let room = Room {
            messages: 3,
            bytes: 1 << 20,
        };
        let bus = Counted::new(Arc::new(MemoryBus::with_bounds(room, 1 << 20)));
        let published = bus.published();
        let messages = |count| {
            let message = || Outgoing::new(Topic::Completed, Uuid::now_v7(), "[]");
            std::iter::repeat_with(message).take(count).collect()
        };
        bus.declare(&Topic::Completed).await.unwrap();
        bus.publish(messages(2)).await.unwrap();
        assert_eq!(published.load(Ordering::Relaxed), 2);
        let refused = bus.publish(messages(4)).await.unwrap_err();
        assert!(matches!(refused, PublishError::Refused(_)), "{refused}");
        assert_eq!(published.load(Ordering::Relaxed), 3);
        bus.close().await;
        bus.publish(messages(1)).await.unwrap_err();
        assert_eq!(published.load(Ordering::Relaxed), 3);
    }
}
