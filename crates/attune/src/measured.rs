//! A bus that is measured.

use std::sync::Arc;

use async_trait::async_trait;
use attune_bus::{
    Bus, BusError, Depth, Outgoing, PublishError, Refusal, Subscriber, Subscription, Topic,
};
use attune_runtime::Label;
use tokio::time::Instant;
use uuid::Uuid;

attune_runtime::counters! {
    /// What goes through a bus, as one process sees it.
    pub(crate) struct BusFigures {
        /// Messages that the bus has taken from this process; what was published again because nobody knew
        /// what had become of it counts once.
        published: Counter = "bus.published.total",
        /// Messages that the bus has refused: nobody receives them, their queue is full, or they are too large.
        refused: Counter = "bus.refused.total",
        /// Messages that the broker did not let this process publish, by where they were to go.
        forbidden: Family = "bus.forbidden.total",
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

/// Where a message goes, without what there may be many of.
fn kind(topic: &Topic) -> &'static str {
    match topic {
        Topic::Enforcements => "enforcement.created",
        Topic::Commands(_) => "partition.commands",
        Topic::Calls(_) => "partition.calls",
        Topic::Control(_) => "partition.control",
        Topic::ControlKept(_) => "partition.control.kept",
        Topic::Completed => "execution.completed",
        Topic::CompletedKept => "execution.completed.kept",
        Topic::HandedOver => "partition.handed_over",
        Topic::Hello => "worker.hello",
        Topic::Link(..) => "worker",
        Topic::Reports(_) => "executor",
        Topic::Event(_) | Topic::Events => "event",
        Topic::QueueStats => "queue.stats",
        Topic::Reply(_) => "reply",
        Topic::DeadLetters => "dead-letters",
    }
}

#[async_trait]
impl Bus for Measured {
    async fn publish(&self, messages: Vec<Outgoing>) -> Result<(), PublishError> {
        let (count, began) = (messages.len(), Instant::now());
        let topics: Vec<(Uuid, &'static str)> = messages
            .iter()
            .map(|message| (message.message_id, kind(&message.topic)))
            .collect();
        let published = self.bus.publish(messages).await;
        let refused = match &published {
            Ok(()) => 0,
            Err(PublishError::Refused(refused)) => {
                for one in refused {
                    let topic = topics.iter().find(|(id, _)| *id == one.message_id);
                    if let (Refusal::Forbidden(_), Some((_, topic))) = (&one.why, topic) {
                        let topic = Label::new("topic", *topic);
                        self.figures.forbidden.add(1, &[topic]);
                    }
                }
                refused.len()
            }
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

    async fn depth(&self, topic: &Topic) -> Result<Option<Depth>, BusError> {
        self.bus.depth(topic).await
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
