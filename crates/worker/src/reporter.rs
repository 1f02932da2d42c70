//! Sends completions until the bus has confirmed them.

use std::sync::Arc;

use attune_bus::{Bus, Outgoing, PublishError, Topic};
use attune_messages::encode;
use attune_messages::v1::ExecutionCompleted;
use attune_runtime::{Backoff, LogPace};
use chrono::Utc;
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
                    unreported_count = self.outbox.held(),
                    "the bus is closed; completions were not reported"
                );
                return;
            }
        }
    }

    /// Sends one batch and returns when all of it is confirmed; `false` when the bus is closed.
    async fn step(&self, batch: Batch) -> bool {
        let (count, bytes) = (batch.items.len(), batch.bytes());
        let messages = batch
            .into_packs(self.max_message_bytes)
            .iter()
            .map(|pack| message(pack))
            .collect();
        if !self.publish(messages).await {
            return false;
        }
        self.counters.reported.add(count);
        self.outbox.confirmed(count, bytes);
        true
    }

    /// Publishes under the same ids until everything is confirmed: a message whose fate is
    /// unknown may arrive twice, which the receiver takes no notice of.
    async fn publish(&self, mut messages: Vec<Outgoing>) -> bool {
        let mut backoff = Backoff::default();
        let mut log = LogPace::default();
        loop {
            let error = match self.bus.publish(messages.clone()).await {
                Ok(()) => return true,
                Err(PublishError::Closed) => return false,
                Err(error) => error,
            };
            if matches!(error, PublishError::Refused(_)) {
                // No listener has ever been there, or the broker is full. Both can change.
                messages.retain(|message| error.refusal_of(message.message_id).is_some());
                if messages.is_empty() {
                    return true;
                }
            }
            if log.is_due() {
                let (waiting_count, tries) = (self.outbox.held(), log.tries());
                tracing::warn!(
                    %error,
                    waiting_count,
                    tries,
                    "completions were not confirmed; trying again"
                );
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }
}

fn message(pack: &[ExecutionCompleted]) -> Outgoing {
    let id = Uuid::now_v7();
    Outgoing::new(Topic::Completed, id, encode(id, Utc::now(), pack))
}
