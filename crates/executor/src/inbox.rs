//! Turns deliveries of a partition's topics into work for its owner. What cannot be used goes
//! to the dead letters here, before it costs the owner anything.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use attune_bus::{Bus, Delivery, DeliveryTag, Settler, Subscriber, Topic, dead_letter};
use attune_core::{Epoch, PartitionId, RequestId};
use attune_messages::v1::{ActionChanged, Cancel, Completion, ForceRelease, SlotRelease, Submit};
use attune_messages::{DecodeError, Envelope, Message};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// A message that was understood.
pub(crate) struct Inbound {
    pub(crate) partition: PartitionId,
    /// The epoch in which it was received.
    pub(crate) epoch: Epoch,
    pub(crate) settler: Settler,
    pub(crate) tag: DeliveryTag,
    pub(crate) reply_to: Option<Arc<str>>,
    pub(crate) work: Work,
}

/// The items of a message.
pub(crate) enum Work {
    Completions(Vec<Completion>),
    Submits(Vec<(RequestId, Submit)>),
    Cancels(Vec<Cancel>),
    Releases(Vec<ForceRelease>),
    Changes(Vec<ActionChanged>),
}

impl Work {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Completions(items) => items.len(),
            Self::Submits(items) => items.len(),
            Self::Cancels(items) => items.len(),
            Self::Releases(items) => items.len(),
            Self::Changes(items) => items.len(),
        }
    }
}

/// Where the work of all partitions comes together.
#[derive(Clone)]
pub(crate) struct Feed {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) inbox: mpsc::Sender<Inbound>,
    pub(crate) max_message_bytes: usize,
    pub(crate) poisoned: Arc<AtomicU64>,
}

impl Feed {
    /// Feeds the inbox from one subscription until it shall be quiet; what it has not passed on
    /// by then goes back to the broker with the subscription, which it keeps until `stop`: what
    /// was passed on can be acknowledged in between.
    pub(crate) async fn run(
        self,
        place: (PartitionId, Epoch),
        topic: Topic,
        mut subscriber: Subscriber,
        quiet: CancellationToken,
        stop: CancellationToken,
    ) {
        self.feed(place, &topic, &mut subscriber, &quiet, &stop)
            .await;
        if quiet.is_cancelled() {
            stop.cancelled().await;
        }
    }

    async fn feed(
        &self,
        (partition, epoch): (PartitionId, Epoch),
        topic: &Topic,
        subscriber: &mut Subscriber,
        quiet: &CancellationToken,
        stop: &CancellationToken,
    ) {
        let settler = subscriber.settler();
        loop {
            let delivery = tokio::select! {
                () = stop.cancelled() => return,
                () = quiet.cancelled() => return,
                delivery = subscriber.next() => delivery,
            };
            let Some(delivery) = delivery else { return };
            // Before anything of it is stored.
            #[cfg(attune_plant = "ack-first")]
            settler.ack(&[delivery.tag]).await;
            let inbound = match decode(topic, &delivery, self.max_message_bytes) {
                Ok(work) => Inbound {
                    partition,
                    epoch,
                    settler: Arc::clone(&settler),
                    tag: delivery.tag,
                    reply_to: delivery.reply_to.as_deref().map(Arc::from),
                    work,
                },
                Err(error) => {
                    self.bury(topic, &settler, &delivery, &error.to_string())
                        .await;
                    continue;
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = quiet.cancelled() => return,
                sent = self.inbox.send(inbound) => if sent.is_err() { return },
            }
        }
    }

    async fn bury(&self, topic: &Topic, settler: &Settler, delivery: &Delivery, reason: &str) {
        self.poisoned.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(bus.topic = %topic, reason, "a message cannot be used; it goes to the dead letters");
        if let Err(error) = dead_letter(self.bus.as_ref(), settler, topic, delivery, reason).await {
            // It stays unacknowledged and comes again when the bus is back.
            tracing::warn!(bus.topic = %topic, %error, "the dead letters cannot be reached");
        }
    }
}

fn decode(topic: &Topic, delivery: &Delivery, max_bytes: usize) -> Result<Work, DecodeError> {
    let envelope = Envelope::parse(&delivery.body, max_bytes)?;
    match topic {
        Topic::Control(_) => Ok(Work::Completions(
            envelope
                .items::<SlotRelease>()?
                .into_iter()
                .map(|SlotRelease(item)| item)
                .collect(),
        )),
        _ if envelope.is::<Submit>() => {
            let message_id = RequestId(envelope.message_id);
            let items = envelope.items::<Submit>()?;
            let named = |(index, mut item): (usize, Submit)| {
                let request_id = item
                    .submission
                    .request_id
                    .take()
                    .unwrap_or_else(|| message_id.of_item(index));
                (request_id, item)
            };
            Ok(Work::Submits(
                items.into_iter().enumerate().map(named).collect(),
            ))
        }
        _ if envelope.is::<Cancel>() => Ok(Work::Cancels(envelope.items()?)),
        _ if envelope.is::<ForceRelease>() => Ok(Work::Releases(envelope.items()?)),
        _ if envelope.is::<ActionChanged>() => Ok(Work::Changes(envelope.items()?)),
        _ => {
            let types = [
                Submit::TYPE,
                Cancel::TYPE,
                ForceRelease::TYPE,
                ActionChanged::TYPE,
            ];
            let expected = types.join(", ");
            Err(envelope.unexpected(&expected))
        }
    }
}
