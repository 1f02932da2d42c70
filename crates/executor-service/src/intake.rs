//! Routes rule firings (`enforcement.created`) to the partitions of their actions, in the order
//! in which the broker delivered them.
//!
//! It decides nothing about queues: it checks the form, computes the partition, passes on with a
//! confirm and acknowledges last. A message that is routed twice is accepted once, by its id.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use attune_bus::{Bus, Delivery, Outgoing, Settler, Subscriber, Topic, dead_letter};
use attune_core::{PartitionId, RequestId};
use attune_messages::v1::{EnforcementCreated, OnReject, Submit};
use attune_messages::{DecodeError, decode, encode};
use attune_runtime::Backoff;
use chrono::Utc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// How many messages are routed together.
const MAX_DELIVERIES: usize = 256;
/// How many submissions go into one message.
const MAX_PACK: usize = 64;
/// How many bytes of parameters go into one message.
const MAX_PACK_BYTES: usize = 256 * 1024;

/// The router of one executor; the broker gives the messages to one router at a time.
pub(crate) struct Intake {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) partitions: u16,
    pub(crate) max_message_bytes: usize,
    pub(crate) poisoned: Arc<AtomicU64>,
}

/// Submissions on their way to one partition for one asker.
struct Pack {
    partition: PartitionId,
    reply_to: Option<String>,
    items: Vec<Submit>,
    bytes: usize,
}

impl Intake {
    /// Routes until told to stop.
    pub(crate) async fn run(self, mut subscriber: Subscriber, stop: CancellationToken) {
        loop {
            let first = tokio::select! {
                () = stop.cancelled() => return,
                delivery = subscriber.next() => delivery,
            };
            let Some(first) = first else { return };
            let mut deliveries = vec![first];
            while deliveries.len() < MAX_DELIVERIES
                && let Some(more) = subscriber.try_next()
            {
                deliveries.push(more);
            }
            self.step(&subscriber.settler(), deliveries, &stop).await;
        }
    }

    /// Routes what was delivered and acknowledges it.
    async fn step(&self, settler: &Settler, deliveries: Vec<Delivery>, stop: &CancellationToken) {
        let mut packs: Vec<Pack> = Vec::new();
        let mut letters = Vec::new();
        let mut done = Vec::new();
        for delivery in deliveries {
            match decode::<EnforcementCreated>(&delivery.body, self.max_message_bytes) {
                Ok((message_id, items)) => {
                    let message_id = RequestId(message_id);
                    for (index, EnforcementCreated(mut submission)) in items.into_iter().enumerate()
                    {
                        submission
                            .request_id
                            .get_or_insert(message_id.of_item(index));
                        match submission.check() {
                            Ok(()) => add(&mut packs, self.partitions, &delivery, submission),
                            Err(reject) => {
                                self.poisoned.fetch_add(1, Ordering::Relaxed);
                                letters.push(letter(submission, &reject.to_string()));
                            }
                        }
                    }
                    done.push(delivery.tag);
                }
                Err(error) => self.bury(settler, &delivery, &error).await,
            }
        }
        let messages = packs.into_iter().map(message).chain(letters).collect();
        if self.publish(messages, stop).await {
            settler.ack(&done).await;
        }
    }

    /// Publishes until confirmed; false when told to stop before that.
    async fn publish(&self, messages: Vec<Outgoing>, stop: &CancellationToken) -> bool {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        while !messages.is_empty() {
            match self.bus.publish(messages.clone()).await {
                Ok(()) => break,
                // Repeating all of it keeps the order; what arrived already is known by its id.
                Err(error) => tracing::warn!(%error, "rule firings could not be routed yet"),
            }
            tokio::select! {
                () = stop.cancelled() => return false,
                () = tokio::time::sleep(backoff.next_delay()) => {}
            }
        }
        true
    }

    async fn bury(&self, settler: &Settler, delivery: &Delivery, error: &DecodeError) {
        self.poisoned.fetch_add(1, Ordering::Relaxed);
        let (topic, reason) = (Topic::Enforcements, error.to_string());
        tracing::warn!(bus.topic = %topic, reason, "a message cannot be used; it goes to the dead letters");
        if let Err(error) = dead_letter(self.bus.as_ref(), settler, &topic, delivery, &reason).await
        {
            tracing::warn!(%error, "the dead letters cannot be reached");
        }
    }
}

fn add(
    packs: &mut Vec<Pack>,
    partitions: u16,
    delivery: &Delivery,
    submission: attune_core::Submission,
) {
    let partition = PartitionId::of(&submission.action_ref, partitions);
    let bytes = submission.parameters.get().len();
    let item = Submit {
        submission,
        on_reject: OnReject::Record,
    };
    // Only the latest pack of a partition may grow, or order would be lost.
    let last = packs
        .iter_mut()
        .rev()
        .find(|pack| pack.partition == partition);
    match last {
        Some(pack)
            if pack.reply_to == delivery.reply_to
                && pack.items.len() < MAX_PACK
                && pack.bytes + bytes < MAX_PACK_BYTES =>
        {
            pack.bytes += bytes;
            pack.items.push(item);
        }
        _ => packs.push(Pack {
            partition,
            reply_to: delivery.reply_to.clone(),
            items: vec![item],
            bytes,
        }),
    }
}

fn message(pack: Pack) -> Outgoing {
    let id = Uuid::now_v7();
    let mut message = Outgoing::new(
        Topic::Commands(pack.partition),
        id,
        encode(id, Utc::now(), &pack.items),
    );
    message.reply_to = pack.reply_to;
    message
}

fn letter(submission: attune_core::Submission, reason: &str) -> Outgoing {
    crate::publisher::letter(&submission, &Topic::Enforcements, reason)
}
