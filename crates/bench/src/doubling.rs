//! A bus on which some completions are sent twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use attune_bus::{Bus, BusError, Depth, Outgoing, PublishError, Subscriber, Subscription, Topic};
use attune_core::{Attempt, ExecutionId};
use attune_messages::v1::ExecutionCompleted;
use attune_messages::{decode, encode};
use chrono::Utc;
use uuid::Uuid;

/// What a worker is given in the place of its bus: of so many completions one is sent again, as a
/// message of its own, when the bus has confirmed it. A worker that was not told of a confirm
/// does the same.
pub struct Doubling {
    bus: Arc<dyn Bus>,
    /// Of so many completions one is sent again.
    every: u64,
    /// The largest message that is read.
    max_message_bytes: usize,
    /// Completions that went through.
    seen: AtomicU64,
    again: Arc<AtomicU64>,
}

impl Doubling {
    /// Sends one of `every` completions (at least 1) that go through here to `bus` again.
    pub fn new(bus: Arc<dyn Bus>, every: u64, max_message_bytes: usize) -> Self {
        Self {
            bus,
            every: every.max(1),
            max_message_bytes,
            seen: AtomicU64::new(0),
            again: Arc::default(),
        }
    }

    /// How many completions were sent again.
    pub fn again(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.again)
    }

    /// Those completions of a message that are to be sent again.
    fn chosen(&self, message: &Outgoing) -> Vec<ExecutionCompleted> {
        if !matches!(message.topic, Topic::Completed | Topic::CompletedKept) {
            return Vec::new();
        }
        // What cannot be read is none of ours to judge; it went out as it is.
        let Ok((_, mut items)) =
            decode::<ExecutionCompleted>(&message.body, self.max_message_bytes)
        else {
            return Vec::new();
        };
        items.retain(|_| self.seen.fetch_add(1, Ordering::Relaxed) % self.every == self.every - 1);
        items
    }
}

#[async_trait]
impl Bus for Doubling {
    async fn publish(&self, messages: Vec<Outgoing>) -> Result<(), PublishError> {
        let chosen: Vec<_> = messages.iter().flat_map(|it| self.chosen(it)).collect();
        // A worker sends completions one way at a time.
        let topic = messages.first().map(|message| message.topic.clone());
        self.bus.publish(messages).await?;
        if let Some(topic) = topic.filter(|_| !chosen.is_empty()) {
            let id = Uuid::now_v7();
            let message = Outgoing::new(topic, id, encode(id, Utc::now(), &chosen));
            // The worker has what it wanted; a copy that is not confirmed is not counted.
            if self.bus.publish(vec![message]).await.is_ok() {
                self.again.fetch_add(chosen.len() as u64, Ordering::Relaxed);
            }
        }
        Ok(())
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

    async fn depth(&self, topic: &Topic) -> Result<Option<Depth>, BusError> {
        self.bus.depth(topic).await
    }

    async fn close(&self) {
        self.bus.close().await;
    }
}

/// How many of these completions, which somebody has passed on, came after an equal one.
pub fn repeated(passed_on: impl IntoIterator<Item = (ExecutionId, Attempt)>) -> u64 {
    let mut known = std::collections::HashSet::new();
    let again = passed_on.into_iter().filter(|one| !known.insert(*one));
    again.count() as u64
}
