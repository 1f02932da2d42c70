//! The loop around a relay.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use attune_bus::{
    Bus, Delivery, DeliveryTag, PublishError, Settler, Subscriber, Topic, reply_address,
};
use attune_core::PartitionId;
use attune_routing::{Bounds, CallId, DeliveryId, Input, Now, Output, Relay, Rules, Target};
use attune_runtime::LogPace;
use chrono::Utc;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::convert::{Topics, answer, arrived};

/// How many messages are read together: what is published together is confirmed together.
const MAX_READ: usize = 256;
/// How long a relay sleeps that waits for nothing.
const LONG: Duration = Duration::from_secs(3600);

/// Counts and records what a relay does.
pub trait Observer<N>: Send {
    /// So many items arrived; so many of them were changed so that they can be stored.
    fn taken(&mut self, received: usize, changed: usize);
    /// The bus has taken these items for their owners.
    fn forwarded(&mut self, notes: Vec<N>);
    /// A dead letter is kept.
    fn buried(&mut self, reason: String);
    /// Nobody is answered who asks for answers where none may go.
    fn not_answered(&mut self) {}
    /// What keeps items from their owners, as it changes.
    fn trouble(&mut self, trouble: Option<String>);
}

/// The bus was closed while a relay was running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusClosed;

/// Drives a relay.
pub struct Driver<R: Rules, O> {
    relay: Relay<R>,
    topics: Topics,
    bus: Arc<dyn Bus>,
    subscriber: Subscriber,
    settler: Settler,
    observer: O,
    /// What settles each message that is not acknowledged.
    tags: HashMap<DeliveryId, DeliveryTag>,
    deliveries: u64,
    max_read_bytes: usize,
    /// Publishes under way. They are polled by this driver: most are answered at once where the bus is
    /// in this process, and a task for each would only wake a thread.
    calls: FuturesUnordered<BoxFuture<'static, (CallId, Result<(), PublishError>)>>,
    started: Instant,
    trouble: Option<String>,
    log: LogPace,
    /// Of what people must know while it lasts.
    trouble_log: LogPace,
    buried_log: LogPace,
}

impl<R: Rules, O: Observer<R::Note>> Driver<R, O> {
    /// Relays what comes from `source` to the topics of the partitions.
    pub fn new(
        rules: R,
        bounds: Bounds,
        source: Topic,
        partition: fn(PartitionId) -> Topic,
        bus: Arc<dyn Bus>,
        subscriber: Subscriber,
        observer: O,
    ) -> Self {
        Self {
            relay: Relay::new(rules, bounds, Uuid::now_v7),
            topics: Topics { source, partition },
            bus,
            settler: subscriber.settler(),
            subscriber,
            observer,
            tags: HashMap::new(),
            deliveries: 0,
            max_read_bytes: bounds.max_message_bytes,
            calls: FuturesUnordered::new(),
            started: Instant::now(),
            trouble: None,
            log: LogPace::default(),
            trouble_log: LogPace::default(),
            buried_log: LogPace::default(),
        }
    }

    /// Relays until told to stop, then waits for the publishes under way. The subscriber lives
    /// until what they confirm is acknowledged; what is left comes again, to somebody else.
    ///
    /// # Errors
    /// [`BusClosed`] when that, and not the stop, is why it ended.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), BusClosed> {
        let outcome = loop {
            let wake = self.relay.wake_at().map(|at| self.started + at);
            let wake = wake.unwrap_or_else(|| Instant::now() + LONG);
            let input = tokio::select! {
                biased;
                () = stop.cancelled() => break Ok(()),
                Some((call, published)) = self.calls.next() => self.answered(call, published),
                () = sleep_until(wake) => Input::Timer,
                delivery = self.subscriber.next(), if self.relay.wants_more() => {
                    let Some(first) = delivery else { break Err(BusClosed) };
                    self.gather(first)
                }
            };
            self.step(input).await;
            if self.relay.is_closed() {
                break Err(BusClosed);
            }
        };
        self.step(Input::Stop).await;
        while let Some((call, published)) = self.calls.next().await {
            let input = self.answered(call, published);
            self.step(input).await;
        }
        outcome
    }

    /// What has arrived, as far as it should be looked at together.
    fn gather(&mut self, first: Delivery) -> Input {
        let mut bytes = first.body.len();
        let mut all = vec![self.number(first)];
        while all.len() < MAX_READ
            && bytes < self.max_read_bytes
            && let Some(delivery) = self.subscriber.try_next()
        {
            bytes += delivery.body.len();
            all.push(self.number(delivery));
        }
        Input::Delivered(all)
    }

    fn number(&mut self, mut delivery: Delivery) -> attune_routing::Arrived {
        self.deliveries += 1;
        let id = DeliveryId(self.deliveries);
        self.tags.insert(id, delivery.tag);
        if let Some(address) = &delivery.reply_to
            && reply_address(address).is_err()
        {
            delivery.reply_to = None;
            self.observer.not_answered();
        }
        let own = self.relay.rules().senders().own.as_deref();
        arrived(id, delivery, own)
    }

    fn answered(&mut self, call: CallId, published: Result<(), PublishError>) -> Input {
        match &published {
            Ok(()) => self.log = LogPace::default(),
            Err(error) if self.log.is_due() => {
                let (topic, tries) = (&self.topics.source, self.log.tries());
                tracing::warn!(bus.topic = %topic, %error, tries, "messages cannot be passed on; trying again");
            }
            Err(_) => {}
        }
        Input::Answered(call, answer(published))
    }

    async fn step(&mut self, input: Input) {
        let now = Now {
            elapsed: self.started.elapsed(),
            wall: Utc::now(),
        };
        for output in self.relay.step(now, input) {
            self.perform(output).await;
        }
        let trouble = self.relay.trouble();
        if trouble != self.trouble {
            // Most of them count something, and change with every message.
            if let Some(trouble) = &trouble
                && (self.trouble.is_none() || self.trouble_log.is_due())
            {
                tracing::warn!(bus.topic = %self.topics.source, %trouble, "messages wait");
            }
            self.trouble.clone_from(&trouble);
            self.observer.trouble(trouble);
        }
    }

    async fn perform(&mut self, output: Output<R::Note>) {
        match output {
            Output::Taken { received, changed } => self.observer.taken(received, changed),
            Output::Forwarded(notes) => self.observer.forwarded(notes),
            Output::Buried { reason } => {
                let topic = &self.topics.source;
                // One message may hold thousands of items that nobody can use.
                if self.buried_log.is_due() {
                    let times = self.buried_log.tries();
                    tracing::warn!(bus.topic = %topic, reason, times, "a message cannot be used; it is among the dead letters");
                }
                self.observer.buried(reason);
            }
            Output::Ack(deliveries) => {
                let tags = deliveries.iter().filter_map(|id| self.tags.remove(id));
                let tags: Vec<DeliveryTag> = tags.collect();
                self.settler.ack(&tags).await;
            }
            Output::Publish {
                call,
                to,
                declare,
                messages,
            } => {
                let messages = messages.into_iter();
                let messages = messages.map(|message| self.topics.outgoing(to, message));
                self.publish(call, to, declare, messages.collect());
            }
        }
    }

    fn publish(
        &mut self,
        call: CallId,
        to: Target,
        declare: bool,
        messages: Vec<attune_bus::Outgoing>,
    ) {
        let (bus, topic) = (Arc::clone(&self.bus), self.topics.of(to));
        self.calls.push(Box::pin(async move {
            // Whoever consumes a topic declares it. A partition that has had no owner yet is
            // declared here, so that what comes is kept for the first one.
            if declare && let Err(error) = bus.declare(&topic).await {
                tracing::warn!(bus.topic = %topic, %error, "a topic cannot be declared");
            }
            (call, bus.publish(messages).await)
        }));
    }
}
