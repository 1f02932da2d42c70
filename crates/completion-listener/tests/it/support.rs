//! A bus that can fail, workers that report to it and owners that receive from it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use attune_bus::letters::{DEAD_LETTER_REASON, DEAD_LETTER_TOPIC};
use attune_bus::memory::MemoryBus;
use attune_bus::{
    Bus, BusError, Confirmation, DeliveryTag, Depth, Outgoing, PublishError, Refusal, Refused,
    Settle, Settler, Subscriber, Subscription, Topic,
};
use attune_completion_listener::{CompletionListener, ListenerHandle, ListenerOptions};
use attune_core::{ActionId, Attempt, Epoch, ExecutionId, PartitionId, Seq, Status, WorkerId};
use attune_messages::v1::{Completion, ExecutionCompleted, SlotRelease};
use attune_messages::{decode, encode};
use chrono::Utc;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

/// Long enough that only a fault reaches it.
const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) const MAX_BYTES: usize = 64 * 1024;

pub(crate) fn options() -> ListenerOptions {
    ListenerOptions {
        partitions: 16,
        prefetch: 100,
        max_batch: 50,
        max_message_bytes: MAX_BYTES,
        senders: attune_routing::Senders::default(),
        recorder: None,
    }
}

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(DEADLINE, future)
        .await
        .with_context(|| format!("not within {DEADLINE:?}: {what}"))
}

/// A completion of the `n`th execution of a partition.
pub(crate) fn completion(partition: u16, n: u32) -> Completion {
    Completion {
        execution_id: ExecutionId::new(PartitionId(partition), Seq::new(Epoch(1), n)),
        attempt: Attempt(1),
        action_id: ActionId(1),
        status: Status::Succeeded,
        result: None,
        error: None,
        code: None,
        exit_code: Some(0),
        stdout: None,
        stderr: None,
        partition: None,
        worker: Some(WorkerId(Uuid::nil())),
        broker_user: None,
        started_at: None,
        finished_at: None,
    }
}

/// What happens to a call of `publish`.
#[derive(Debug, Clone)]
pub(crate) enum Fate {
    /// What it should.
    Keep,
    /// The messages are lost, and the caller does not know.
    Lose,
    /// The messages are kept, and the caller does not know.
    KeepUnconfirmed,
    /// Those to one topic are refused, the others kept.
    Refuse(Topic),
}

/// What was seen on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// A call of `publish` that was confirmed as a whole, with its message ids.
    Confirmed(Vec<Uuid>),
    /// A call of `publish` that was not, with its message ids.
    Failed(Vec<Uuid>),
    /// So many deliveries were acknowledged.
    Acked(usize),
}

/// A [`MemoryBus`] between the listener and the test, which uses the inner bus itself.
pub(crate) struct FaultyBus {
    pub(crate) inner: MemoryBus,
    /// The fate of the listener's nth call of `publish`, counted from 0.
    fate: Box<dyn Fn(usize) -> Fate + Send + Sync>,
    seen: watch::Sender<Vec<Event>>,
}

impl FaultyBus {
    pub(crate) fn new(fate: impl Fn(usize) -> Fate + Send + Sync + 'static) -> Arc<Self> {
        let (seen, _) = watch::channel(Vec::new());
        Arc::new(Self {
            inner: MemoryBus::new(),
            fate: Box::new(fate),
            seen,
        })
    }

    /// What was seen, as soon as it fits.
    pub(crate) async fn seen(
        &self,
        what: &str,
        fits: impl FnMut(&Vec<Event>) -> bool,
    ) -> Result<Vec<Event>> {
        let mut seen = self.seen.subscribe();
        let seen = within(what, seen.wait_for(fits)).await?;
        Ok(seen?.clone())
    }

    /// What was seen, as soon as so many deliveries are acknowledged.
    pub(crate) async fn acked(&self, count: usize) -> Result<Vec<Event>> {
        let acked = |events: &Vec<Event>| {
            events
                .iter()
                .map(|event| match event {
                    Event::Acked(count) => *count,
                    _ => 0,
                })
                .sum::<usize>()
        };
        self.seen("acknowledgements", |events| acked(events) >= count)
            .await
    }

    pub(crate) fn see(&self, event: Event) {
        self.seen.send_modify(|events| events.push(event));
    }
}

#[async_trait]
impl Bus for FaultyBus {
    async fn publish(&self, messages: Vec<Outgoing>) -> Result<(), PublishError> {
        let ids: Vec<Uuid> = messages.iter().map(|message| message.message_id).collect();
        let calls = |events: &Vec<Event>| {
            let calls = events
                .iter()
                .filter(|event| !matches!(event, Event::Acked(_)));
            calls.count()
        };
        let number = calls(&self.seen.borrow());
        let unconfirmed = || PublishError::Unconfirmed("no confirm in time".to_owned());
        let outcome = match (self.fate)(number) {
            Fate::Keep => self.inner.publish(messages).await,
            Fate::Lose => Err(unconfirmed()),
            Fate::KeepUnconfirmed => self
                .inner
                .publish(messages)
                .await
                .and_then(|()| Err(unconfirmed())),
            Fate::Refuse(topic) => {
                let (bad, good): (Vec<_>, Vec<_>) = messages
                    .into_iter()
                    .partition(|message| message.topic == topic);
                let refused: Vec<_> = bad
                    .iter()
                    .map(|message| Refused {
                        message_id: message.message_id,
                        why: Refusal::Full,
                    })
                    .collect();
                let kept = self.inner.publish(good).await;
                if refused.is_empty() {
                    kept
                } else {
                    kept.and(Err(PublishError::Refused(refused)))
                }
            }
        };
        self.see(if outcome.is_ok() {
            Event::Confirmed(ids)
        } else {
            Event::Failed(ids)
        });
        outcome
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Subscriber, BusError> {
        let mut inner = self.inner.subscribe(subscription).await?;
        let settler = Arc::new(SeenSettler {
            inner: inner.settler(),
            seen: self.seen.clone(),
        });
        let (sender, deliveries) = mpsc::channel(1000);
        // What waits already is there at once, as from the bus itself.
        while let Some(delivery) = inner.try_next() {
            sender
                .try_send(delivery)
                .map_err(|error| BusError::Refused(error.to_string()))?;
        }
        let pump = tokio::spawn(async move {
            while let Some(delivery) = inner.next().await {
                if sender.send(delivery).await.is_err() {
                    return;
                }
            }
        });
        let guard = Box::new(AbortOnDropHandle::new(pump));
        Ok(Subscriber::new(deliveries, settler, guard))
    }

    async fn declare(&self, topic: &Topic) -> Result<(), BusError> {
        self.inner.declare(topic).await
    }

    async fn check(&self) -> Result<(), BusError> {
        self.inner.check().await
    }

    fn reach(&self) -> Result<(), BusError> {
        self.inner.reach()
    }

    async fn depth(&self, topic: &Topic) -> Result<Option<Depth>, BusError> {
        self.inner.depth(topic).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

struct SeenSettler {
    inner: Settler,
    seen: watch::Sender<Vec<Event>>,
}

#[async_trait]
impl Settle for SeenSettler {
    async fn ack(&self, tags: &[DeliveryTag]) {
        self.inner.ack(tags).await;
        self.seen
            .send_modify(|events| events.push(Event::Acked(tags.len())));
    }

    async fn ack_confirmed(&self, tags: &[DeliveryTag]) -> Confirmation {
        self.inner.ack_confirmed(tags).await
    }
}

/// A running listener and the order to stop.
pub(crate) struct Listening {
    pub(crate) handle: ListenerHandle,
    pub(crate) stop: CancellationToken,
}

impl Listening {
    pub(crate) async fn start(options: ListenerOptions, bus: Arc<dyn Bus>) -> Result<Self> {
        let stop = CancellationToken::new();
        let handle = CompletionListener::start(options, bus, stop.clone()).await?;
        Ok(Self { handle, stop })
    }

    pub(crate) async fn stop(self) -> Result<()> {
        self.stop.cancel();
        within("the listener stops", self.handle.stopped()).await??;
        Ok(())
    }
}

/// Publishes a message of completions, as a worker does.
pub(crate) async fn report(bus: &dyn Bus, completions: Vec<Completion>) -> Result<()> {
    let items: Vec<_> = completions.into_iter().map(ExecutionCompleted).collect();
    report_raw(bus, encode(Uuid::now_v7(), Utc::now(), &items)).await
}

/// Likewise, as a worker does that keeps them until they are settled.
pub(crate) async fn report_kept(bus: &dyn Bus, completions: Vec<Completion>) -> Result<()> {
    let items: Vec<_> = completions.into_iter().map(ExecutionCompleted).collect();
    let (id, topic) = (Uuid::now_v7(), Topic::CompletedKept);
    let message = Outgoing::new(topic, id, encode(id, Utc::now(), &items));
    Ok(bus.publish(vec![message]).await?)
}

/// Publishes any bytes where completions belong.
pub(crate) async fn report_raw(bus: &dyn Bus, body: Vec<u8>) -> Result<()> {
    let message = Outgoing::new(Topic::Completed, Uuid::now_v7(), body);
    Ok(bus.publish(vec![message]).await?)
}

pub(crate) async fn subscribe(bus: &dyn Bus, topic: Topic) -> Result<Subscriber> {
    let prefetch = 5000;
    Ok(bus.subscribe(Subscription { topic, prefetch }).await?)
}

/// The next message of a partition's control topic: its id and its completions. It must have
/// the size that messages may have.
pub(crate) async fn next_release(control: &mut Subscriber) -> Result<(Uuid, Vec<Completion>)> {
    let delivery = within("a release", control.next())
        .await?
        .context("the bus is open")?;
    let (id, items) = decode::<SlotRelease>(&delivery.body, MAX_BYTES)?;
    assert_eq!(delivery.message_id, Some(id.to_string()));
    Ok((
        id,
        items.into_iter().map(|SlotRelease(item)| item).collect(),
    ))
}

/// The numbers of the executions in their partition's order.
pub(crate) fn numbers(completions: &[Completion]) -> Vec<u32> {
    completions
        .iter()
        .map(|completion| (completion.execution_id.seq().0 & 0xffff_ffff) as u32)
        .collect()
}

/// A dead letter: its body, and the reason among its headers.
pub(crate) async fn next_letter(letters: &mut Subscriber) -> Result<(Vec<u8>, String)> {
    let delivery = within("a dead letter", letters.next())
        .await?
        .context("the bus is open")?;
    let header = |name: &str| {
        let mut headers = delivery.headers.iter();
        headers
            .find_map(|(key, value)| (key == name).then(|| value.clone()))
            .with_context(|| format!("no header {name}"))
    };
    assert_eq!(header(DEAD_LETTER_TOPIC)?, "execution.completed");
    Ok((delivery.body.to_vec(), header(DEAD_LETTER_REASON)?))
}
