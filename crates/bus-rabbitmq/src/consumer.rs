//! Subscriptions: one task and one channel each, rebuilt with every connection.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use attune_bus::{Confirmation, Delivery, DeliveryTag, Depth, Settle, Subscription, Topic};
use attune_runtime::{Backoff, LogPace};
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Consumer};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::cause::Cause;
use crate::ledger::Ledger;
use crate::link::{Life, Link};
use crate::look::{NOT_FOUND, code_of};
use crate::message::received;
use crate::topology::{Topology, short};

/// How long an acknowledgement waits for others. Nobody waits for one, but the broker writes each to
/// its log before it writes the messages that are published after it.
const ACK_DELAY: Duration = Duration::from_millis(20);
/// How long the broker may take to close a channel.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// What is to be acknowledged, and who wants to hear that it was.
#[derive(Default)]
struct Books {
    ledger: Ledger,
    /// Those who wait until the broker has taken what is noted.
    hearers: Vec<oneshot::Sender<()>>,
}

impl Books {
    fn must_tell(&self, window: usize) -> bool {
        self.ledger.must_tell(window) || !self.hearers.is_empty()
    }
}

/// Takes acknowledgements; a task of its own tells the broker, so that callers never wait for a
/// connection that is blocked or gone. What is noted here is bounded by the prefetch.
#[derive(Default)]
pub(crate) struct Acknowledger {
    books: Mutex<Books>,
    /// There is something to tell. Wakes the subscription's task.
    news: Notify,
}

impl Acknowledger {
    fn with<T>(&self, act: impl FnOnce(&mut Books) -> T) -> T {
        act(&mut self.books.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Begins the next life of the tags: what was not told by now never is.
    fn begin(&self) {
        self.with(|books| {
            books.ledger.begin();
            books.hearers.clear();
        });
    }

    /// Whether the broker must be told now, of a window of so many.
    fn must_tell(&self, window: usize) -> bool {
        self.with(|books| books.must_tell(window))
    }

    /// Notes what the broker delivered; answers its tag, and whether the broker must be told now.
    fn delivered(&self, number: u64, window: usize) -> (DeliveryTag, bool) {
        self.with(|books| (books.ledger.delivered(number), books.must_tell(window)))
    }
}

#[async_trait]
impl Settle for Acknowledger {
    async fn ack(&self, tags: &[DeliveryTag]) {
        if self.with(|books| books.ledger.settle(tags)) {
            self.news.notify_one();
        }
    }

    async fn ack_confirmed(&self, tags: &[DeliveryTag]) -> Confirmation {
        let (taken, confirmation) = oneshot::channel();
        if tags.is_empty() {
            taken.send(()).ok();
            return confirmation;
        }
        self.with(|books| {
            books.ledger.settle(tags);
            if books.ledger.is_current(tags) {
                books.hearers.push(taken);
            }
        });
        self.news.notify_one();
        confirmation
    }
}

/// Tells whether a subscription is well, for `check`.
pub(crate) type Trouble = Arc<Mutex<Option<Cause>>>;

/// What is declared of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Declaration {
    /// Its exchange, its queue and its binding.
    Whole,
    /// The binding of a queue that exists.
    Binding,
    /// Nothing: whether messages may be sent that nobody keeps.
    Sending,
}

/// Declares what a topic needs, on a channel of its own: a refusal closes the channel it was
/// asked on.
pub(crate) async fn declare(
    life: &Life,
    topology: &Topology,
    topic: &Topic,
    how: Declaration,
    limit: Duration,
) -> Result<(), Cause> {
    loop {
        let channel = open_channel(life, limit).await?;
        let declaring = async {
            match how {
                Declaration::Whole => topology.declare(&channel, topic).await.map(drop),
                Declaration::Binding => topology.bind_existing(&channel, topic).await,
                Declaration::Sending => topology.may_send(&channel, topic).await,
            }
        };
        let declared = within(life, limit, declaring).await;
        abandon(&channel).await;
        match declared {
            Err(cause) if cause.wants_another_attempt() => {}
            declared => return declared,
        }
    }
}

/// What waits in a queue and who receives it, on a channel of its own; `None` where there is none of this name.
pub(crate) async fn depth(
    life: &Life,
    name: &str,
    limit: Duration,
) -> Result<Option<Depth>, Cause> {
    let channel = open_channel(life, limit).await?;
    let asking = async {
        let options = QueueDeclareOptions {
            passive: true,
            ..Default::default()
        };
        let seen = channel.queue_declare(short(name.to_owned())?, options, FieldTable::default());
        match seen.await {
            Ok(queue) => Ok(Some(Depth {
                messages: queue.message_count(),
                consumers: queue.consumer_count(),
            })),
            Err(error) if code_of(&error) == Some(NOT_FOUND) => Ok(None),
            Err(error) => Err(Cause::of(&error)),
        }
    };
    let depth = within(life, limit, asking).await;
    abandon(&channel).await;
    depth
}

async fn open_channel(life: &Life, limit: Duration) -> Result<Channel, Cause> {
    let opening = async {
        let opened = life.connection().create_channel().await;
        opened.map_err(|error| Cause::of(&error).during("opening a channel"))
    };
    within(life, limit, opening).await
}

/// Awaits an answer of the broker while the life lasts. That none comes does not condemn the
/// life: a quorum queue without a leader answers nobody, and the other subscriptions are well. If
/// the whole connection is dead its heartbeat tells.
async fn within<T>(
    life: &Life,
    limit: Duration,
    answer: impl Future<Output = Result<T, Cause>>,
) -> Result<T, Cause> {
    tokio::select! {
        cause = life.failed() => Err(Cause::unavailable(cause)),
        answer = timeout(limit, answer) => answer
            .unwrap_or_else(|_| Err(Cause::unavailable("the broker does not answer"))),
    }
}

/// Closes a channel, so that what it holds goes back to where it was.
///
/// It is never `basic.cancel`: with that the next consumer could read newer messages before the
/// unacknowledged ones come back. Nor `nack` with requeue, which puts them behind newer ones on
/// quorum queues without a delivery limit. And it comes before the consumer is dropped, since
/// lapin's drop sends that `basic.cancel`.
async fn close(channel: &Channel) -> Result<(), Cause> {
    if !channel.status().connected() {
        return Ok(());
    }
    channel
        .close(200, "done".into())
        .await
        .map_err(|error| Cause::of(&error))
}

/// Closes a channel on which nothing was delivered. Its last request may be unanswered, so the
/// answer to this one is not needed: the broker takes both in order, and a consumer that it makes
/// after all ends at once. lapin would not close by itself: it keeps the channel for the answer.
async fn abandon(channel: &Channel) {
    match timeout(CLOSE_TIMEOUT, close(channel)).await {
        Ok(Ok(())) => {}
        Ok(Err(cause)) => tracing::debug!(cause = %cause, "a channel had ended before"),
        Err(_) => tracing::debug!("a channel will be closed when the broker gets to it"),
    }
}

/// A subscription's task.
pub(crate) struct SubscriptionTask {
    pub(crate) subscription: Subscription,
    pub(crate) link: Link,
    pub(crate) topology: Arc<Topology>,
    /// Cancelled when the subscriber is dropped or the bus closes.
    pub(crate) stop: CancellationToken,
    pub(crate) deliveries: mpsc::Sender<Delivery>,
    pub(crate) acknowledger: Arc<Acknowledger>,
    /// How often it was made anew. Written here, heard by the subscriber's user.
    pub(crate) renewals: watch::Sender<u64>,
    pub(crate) trouble: Trouble,
    pub(crate) setup_timeout: Duration,
    pub(crate) rebind_interval: Duration,
}

/// Why forwarding ended.
enum End {
    Stopped,
    Lost(String),
}

impl SubscriptionTask {
    /// Subscribes, tells `ready`, and forwards until stopped.
    pub(crate) async fn run(self, ready: oneshot::Sender<Result<(), Cause>>) {
        let mut ready = Some(ready);
        let (mut backoff, mut log) = (Backoff::default(), LogPace::default());
        let mut seen = 0;
        loop {
            let life = tokio::select! {
                () = self.stop.cancelled() => break,
                life = self.link.life_after(seen) => life,
            };
            let Some(life) = life else { break };
            seen = life.generation;
            match self.open(&life).await {
                Ok((channel, queue, consumer)) => {
                    backoff.reset();
                    log.reset();
                    self.note(None);
                    match ready.take() {
                        Some(ready) => {
                            if ready.send(Ok(())).is_err() {
                                self.stop.cancel();
                            }
                        }
                        // Before anything of this life is handed on.
                        None => self.renewals.send_modify(|renewals| *renewals += 1),
                    }
                    self.work(&life, &channel, queue, consumer).await;
                }
                Err(cause) => {
                    if let Some(ready) = ready.take() {
                        ready.send(Err(cause)).ok();
                        break;
                    }
                    if life.is_broken() {
                        continue;
                    }
                    if log.is_due() {
                        tracing::error!(
                            bus.topic = %self.subscription.topic,
                            cause = %cause,
                            tries = log.tries(),
                            "a subscription cannot be renewed; trying again"
                        );
                    }
                    self.note(Some(cause));
                    // On the same connection: an exclusive queue of the one before, for example,
                    // may need a moment to go.
                    seen -= 1;
                    tokio::select! {
                        () = self.stop.cancelled() => break,
                        () = sleep(backoff.next_delay()) => {}
                    }
                }
            }
        }
        // From here on nothing that is acknowledged has an effect.
        self.acknowledger.begin();
        self.note(None);
    }

    fn note(&self, cause: Option<Cause>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = cause;
    }

    async fn open(&self, life: &Life) -> Result<(Channel, ShortString, Consumer), Cause> {
        // One channel for each subscription: whatever makes the broker close a channel (an
        // unknown tag, an acknowledgement that comes after its `consumer_timeout` of half an
        // hour) takes every consumer on it along.
        loop {
            let channel = open_channel(life, self.setup_timeout).await?;
            match within(life, self.setup_timeout, self.consume(&channel)).await {
                Ok((queue, consumer)) => {
                    // Numbers start again on a new channel: a new life for the tags.
                    self.acknowledger.begin();
                    return Ok((channel, queue, consumer));
                }
                Err(cause) => {
                    abandon(&channel).await;
                    if !cause.wants_another_attempt() {
                        return Err(cause);
                    }
                }
            }
        }
    }

    async fn consume(&self, channel: &Channel) -> Result<(ShortString, Consumer), Cause> {
        let topic = &self.subscription.topic;
        let failed = |error| Cause::of(&error).during(&format!("subscribing to {topic}"));
        let queue = self.topology.declare(channel, topic).await?;
        self.bound(channel).await.map_err(failed)?;
        // With acknowledgements (never `no_ack`), and not `exclusive`: quorum queues ignore that
        // flag.
        let (tag, options) = ("".into(), BasicConsumeOptions::default());
        let consumer = channel
            .basic_consume(queue.clone(), tag, options, FieldTable::default())
            .await
            .map_err(failed)?;
        self.topology.bind_own(channel, &queue, topic).await?;
        Ok((queue, consumer))
    }

    /// Works on one channel until it ends, one way or the other.
    async fn work(
        &self,
        life: &Life,
        channel: &Channel,
        queue: ShortString,
        mut consumer: Consumer,
    ) {
        let end = tokio::select! {
            end = self.forward(life, channel, &mut consumer) => end,
            end = self.keep_bound(channel, queue) => end,
        };
        let end = match end {
            End::Lost(cause) => Some(cause),
            End::Stopped => {
                let closing = async {
                    self.tell(life, channel).await?;
                    close(channel).await.map_err(|cause| cause.to_string())
                };
                match timeout(CLOSE_TIMEOUT, closing).await {
                    Ok(Ok(())) => None,
                    Ok(Err(cause)) => Some(cause),
                    Err(_) => Some("a channel was not closed in time".to_owned()),
                }
            }
        };
        if let Some(cause) = end {
            life.fail(cause);
        }
    }

    /// Makes the binding again from time to time, in case that somebody has deleted it, and sees
    /// whether the broker still knows of a consumer: nobody else learns that nothing arrives. Ends
    /// only when that cannot be mended.
    async fn keep_bound(&self, channel: &Channel, queue: ShortString) -> End {
        let topic = &self.subscription.topic;
        let mut missing = 0;
        // The subscriptions of a daemon begin together. Each looks at a moment of its own: a broker that is asked
        // about all of them at once holds up what it delivers meanwhile.
        let mut wait = self.rebind_interval.mul_f64(rand::random());
        loop {
            sleep(wait).await;
            wait = self.rebind_interval;
            match self.topology.look_after(channel, &queue, topic).await {
                Ok(0) if missing > 0 => {
                    return End::Lost(format!(
                        "the broker knows no subscription to {topic} any more"
                    ));
                }
                // A queue without a leader says so as well.
                Ok(0) => missing += 1,
                Ok(_) => missing = 0,
                Err(cause) => return End::Lost(cause.to_string()),
            }
        }
    }

    async fn forward(&self, life: &Life, channel: &Channel, consumer: &mut Consumer) -> End {
        // Received, and the subscriber has no room; never more than one.
        let mut held = None;
        let window = usize::from(self.subscription.prefetch.max(1));
        let mut is_waiting = false;
        let ack_at = sleep(ACK_DELAY);
        tokio::pin!(ack_at);
        loop {
            let mut is_due = false;
            tokio::select! {
                () = self.stop.cancelled() => return End::Stopped,
                cause = life.failed() => return End::Lost(cause),
                () = self.acknowledger.news.notified() => {
                    is_due = self.acknowledger.must_tell(window);
                    if !is_due && !is_waiting {
                        ack_at.as_mut().reset(Instant::now() + ACK_DELAY);
                        is_waiting = true;
                    }
                }
                () = &mut ack_at, if is_waiting => is_due = true,
                permit = self.deliveries.reserve(), if held.is_some() => match permit {
                    Ok(permit) => {
                        if let Some(delivery) = held.take() {
                            permit.send(delivery);
                        }
                    }
                    Err(_) => return End::Stopped,
                },
                item = consumer.next(), if held.is_none() => match item {
                    Some(Ok(delivery)) => {
                        let (tag, must_tell) =
                            self.acknowledger.delivered(delivery.delivery_tag, window);
                        is_due = must_tell;
                        match self.deliveries.try_send(received(delivery, tag)) {
                            Ok(()) => {}
                            Err(TrySendError::Full(delivery)) => held = Some(delivery),
                            Err(TrySendError::Closed(_)) => return End::Stopped,
                        }
                    }
                    Some(Err(error)) => return End::Lost(error.to_string()),
                    // The broker has cancelled the consumer: its queue was deleted or has lost
                    // its leader. The channel stays open and would be silent for ever.
                    None => return End::Lost(format!(
                        "the broker ended the subscription to {}",
                        self.subscription.topic
                    )),
                },
            }
            if is_due {
                is_waiting = false;
                tokio::select! {
                    cause = life.failed() => return End::Lost(cause),
                    told = self.tell(life, channel) => if let Err(cause) = told {
                        return End::Lost(cause);
                    },
                }
            }
        }
    }

    /// Acknowledges what is noted. On the channel itself and not by lapin's `Acker`, which
    /// answers a successful `false` when it has not acknowledged, and sends in no certain order.
    async fn tell(&self, life: &Life, channel: &Channel) -> Result<(), String> {
        let (acks, hearers) = self
            .acknowledger
            .with(|books| (books.ledger.take(), std::mem::take(&mut books.hearers)));
        let first = acks.up_to.map(|number| (number, true));
        let rest = acks.single.into_iter().map(|number| (number, false));
        let writes = first
            .into_iter()
            .chain(rest)
            .map(|(number, multiple)| channel.basic_ack(number, BasicAckOptions { multiple }));
        try_join_all(writes)
            .await
            .map_err(|error| error.to_string())?;
        if !hearers.is_empty() {
            // Acknowledgements have no answer. This has one, says what holds anyway, and a channel
            // does one thing after the other.
            let asking = async { self.bound(channel).await.map_err(|error| Cause::of(&error)) };
            within(life, self.setup_timeout, asking)
                .await
                .map_err(|cause| cause.to_string())?;
        }
        for hearer in hearers {
            hearer.send(()).ok();
        }
        Ok(())
    }

    /// Bounds how many messages the broker sends before they are acknowledged. Never 0, which
    /// means no bound: lapin buffers deliveries without one.
    async fn bound(&self, channel: &Channel) -> lapin::Result<()> {
        let prefetch = self.subscription.prefetch.max(1);
        channel
            .basic_qos(prefetch, BasicQosOptions::default())
            .await
    }
}
