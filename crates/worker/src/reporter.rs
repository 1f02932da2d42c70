//! Sends completions until the bus has confirmed them.

use std::sync::Arc;

use attune_bus::{Bus, Outgoing, Patience, PublishError, Topic, publish_until_confirmed};
use attune_runtime::{Backoff, LogPace};
use chrono::Utc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::counters::WorkerCounters;
use crate::outbox::{Batch, MAX_ITEMS, Outbox};

/// Messages of one publish, at most.
const MAX_MESSAGES: usize = 8;

/// Sends what the outbox holds: one publish at a time, and whatever gathers meanwhile goes with
/// the next, so that packing never delays a completion.
pub(crate) struct Reporter {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) max_message_bytes: usize,
}

impl Reporter {
    /// Runs until the outbox is closed and empty, or the bus is closed.
    pub(crate) async fn run(self) {
        while let Some(batch) = self.outbox.next(MAX_MESSAGES * MAX_ITEMS).await {
            if !self.step(batch).await {
                tracing::error!(
                    unreported_count = self.outbox.unconfirmed(),
                    "the bus is closed; completions were not reported"
                );
                return;
            }
        }
    }

    /// Sends one batch and returns when all of it is confirmed; `false` when the bus is closed.
    async fn step(&self, mut batch: Batch) -> bool {
        let now = Utc::now();
        let packs = batch.packs(self.max_message_bytes);
        let messages = packs.into_iter().map(|pack| {
            let id = Uuid::now_v7();
            Outgoing::new(Topic::Completed, id, pack.encode(id, now))
        });
        if !self.publish(messages.collect()).await {
            return false;
        }
        self.counters.reported.add(batch.len());
        self.outbox.confirmed(batch);
        true
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
