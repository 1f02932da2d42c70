//! Sends completions, each way by itself.

use std::sync::Arc;

use attune_bus::{Bus, Outgoing, Patience, PublishError, Topic, publish_until_confirmed};
use attune_runtime::{Backoff, LogPace};
use chrono::Utc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::counters::WorkerCounters;
use crate::outbox::{Batch, MAX_ITEMS, Outbox, Way};

/// Messages of one publish, at most.
const MAX_MESSAGES: usize = 8;

/// Sends what the outbox holds: one publish at a time each way, and whatever gathers meanwhile goes
/// with the next, so that packing never delays a completion. A lasting queue that takes nothing holds
/// up none of those that go the quick way.
pub(crate) struct Reporter {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) max_message_bytes: usize,
}

impl Reporter {
    /// Runs until the outbox is closed and empty, or the bus is closed.
    pub(crate) async fn run(self) {
        tokio::join!(self.tell(), self.entrust());
    }

    /// Sends what goes the quick way.
    async fn tell(&self) {
        while let Some(mut batch) = self.next(Way::Quick).await {
            let messages = self.messages(&Topic::CompletedKept, &mut batch);
            match self.bus.publish(messages).await {
                Ok(()) => self.confirmed(batch),
                Err(PublishError::Unconfirmed(_)) => self.outbox.confirmed(batch),
                // No listener has ever been there, or it is behind.
                Err(PublishError::Refused(_) | PublishError::Closed) => self.outbox.refused(batch),
            }
        }
    }

    /// Sends what goes the lasting way.
    async fn entrust(&self) {
        while let Some(mut batch) = self.next(Way::Lasting).await {
            let messages = self.messages(&Topic::Completed, &mut batch);
            if !self.publish(messages).await {
                tracing::error!(
                    unreported_count = self.outbox.unconfirmed(),
                    "the bus is closed; completions were not reported"
                );
                return;
            }
            self.confirmed(batch);
        }
    }

    fn confirmed(&self, batch: Batch) {
        let count = batch.len();
        self.outbox.confirmed(batch);
        self.counters.reported.add(count);
    }

    async fn next(&self, way: Way) -> Option<Batch> {
        self.outbox.next(way, MAX_MESSAGES * MAX_ITEMS).await
    }

    fn messages(&self, topic: &Topic, batch: &mut Batch) -> Vec<Outgoing> {
        let now = Utc::now();
        let packs = batch.packs(self.max_message_bytes).into_iter();
        let messages = packs.map(|pack| {
            let id = Uuid::now_v7();
            Outgoing::new(topic.clone(), id, pack.encode(id, now))
        });
        messages.collect()
    }

    /// Publishes until everything is confirmed; a message whose fate is unknown may arrive twice,
    /// which the receiver takes no notice of. That no listener has ever been there, or that the
    /// broker is full, can change.
    async fn publish(&self, messages: Vec<Outgoing>) -> bool {
        let mut backoff = Backoff::default();
        let mut log = LogPace::default();
        // What has ended must be told, also while the worker stops.
        let never = CancellationToken::new();
        let patience = Patience::UntilStopped;
        let pause = |error: &PublishError, _: &[Outgoing]| {
            if log.is_due() {
                let (waiting_count, tries) = (self.outbox.unconfirmed(), log.tries());
                tracing::warn!(
                    %error,
                    waiting_count,
                    tries,
                    "completions were not confirmed; trying again"
                );
            }
            Some(backoff.next_delay())
        };
        let published =
            publish_until_confirmed(&*self.bus, messages, patience, &never, pause).await;
        for gone in &published.refused {
            tracing::error!(
                message.id = %gone.message.message_id,
                reason = %gone.why,
                "completions are refused for good; their slots stay taken until they are released \
                 by force"
            );
        }
        !published.closed
    }
}
