//! A bus that is measured.

use std::sync::Arc;

use async_trait::async_trait;
use attune_bus::{Bus, BusError, Outgoing, PublishError, Subscriber, Subscription, Topic};
use tokio::time::Instant;

attune_runtime::counters! {
    /// What goes through a bus, as one process sees it.
    pub(crate) struct BusFigures {
        /// Messages that the bus has taken from this process; what was published again because nobody knew
        /// what had become of it counts once.
        published: Counter = "bus.published.total",
        /// Messages that the bus has refused: nobody receives them, their queue is full, or they are too large.
        refused: Counter = "bus.refused.total",
        /// Messages of which the bus did not say in time whether it has taken them.
        unconfirmed: Counter = "bus.unconfirmed.total",
        /// How long the bus took to confirm what was published together.
        confirmed_after: Timing = "bus.publish_seconds",
        /// Connections to the broker that were made in place of one that was lost.
        reconnects: Counter = "bus.reconnects.total",
        /// 1 while messages get through, 0 while the broker is away, takes nothing, or has lost a queue.
        up: Gauge = "bus.up",
    }
}

/// Passes everything on to a bus and measures it.
pub(crate) struct Measured {
    bus: Arc<dyn Bus>,
    figures: Arc<BusFigures>,
}

impl Measured {
    /// Measures what goes through here to `bus`, which works at the moment.
    pub(crate) fn new(bus: Arc<dyn Bus>, figures: Arc<BusFigures>) -> Self {
        figures.up.set(1);
        Self { bus, figures }
    }
}

#[async_trait]
impl Bus for Measured {
    async fn publish(&self, messages: Vec<Outgoing>) -> Result<(), PublishError> {
        let (count, began) = (messages.len(), Instant::now());
        let published = self.bus.publish(messages).await;
        let refused = match &published {
            Ok(()) => 0,
            Err(PublishError::Refused(refused)) => refused.len(),
            Err(_) => {
                self.figures.unconfirmed.add(count);
                return published;
            }
        };
        self.figures.confirmed_after.record(began.elapsed());
        self.figures.published.add(count.saturating_sub(refused));
        self.figures.refused.add(refused);
        published
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Subscriber, BusError> {
        self.bus.subscribe(subscription).await
    }

    async fn declare(&self, topic: &Topic) -> Result<(), BusError> {
        self.bus.declare(topic).await
    }

    async fn check(&self) -> Result<(), BusError> {
        let checked = self.bus.check().await;
        self.figures.up.set(usize::from(checked.is_ok()));
        checked
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
    use attune_bus::{MemoryBus, Room};
    use uuid::Uuid;

    use super::*;

    #[tokio::test]
    async fn what_is_refused_or_unknown_does_not_count() {
        let room = Room {
            messages: 3,
            bytes: 1 << 20,
        };
        let figures = Arc::<BusFigures>::default();
        let memory = MemoryBus::with_bounds(room, 1 << 20);
        let bus = Measured::new(Arc::new(memory), Arc::clone(&figures));
        let messages = |count| {
            let message = || Outgoing::new(Topic::Completed, Uuid::now_v7(), "[]");
            std::iter::repeat_with(message).take(count).collect()
        };
        bus.declare(&Topic::Completed).await.unwrap();
        bus.publish(messages(2)).await.unwrap();
        assert_eq!(figures.published.get(), 2);
        let refused = bus.publish(messages(4)).await.unwrap_err();
        assert!(matches!(refused, PublishError::Refused(_)), "{refused}");
        assert_eq!((figures.published.get(), figures.refused.get()), (3, 3));
        bus.check().await.unwrap();
        assert_eq!(figures.up.get(), 1);
        bus.close().await;
        bus.publish(messages(1)).await.unwrap_err();
        assert_eq!((figures.published.get(), figures.unconfirmed.get()), (3, 1));
        bus.check().await.unwrap_err();
        assert_eq!(figures.up.get(), 0);
    }
}
