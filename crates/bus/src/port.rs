//! The port: topics, publishing with confirms, subscriptions with manual acknowledgement.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
pub use attune_core::Refusal;
use attune_core::policy::EventKind;
use attune_core::{OwnerId, PartitionId, WorkerId};
pub use attune_messages::reply::{MAX_NAME_BYTES, REPLY_PREFIX, reply_address};
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use uuid::Uuid;

/// Where a message goes. Each topic behaves in one of five ways.
///
/// - *ordered*: one subscriber at a time receives, in order; what it did not acknowledge comes
///   again, first, to the next ([`Enforcements`](Self::Enforcements),
///   [`Commands`](Self::Commands), [`Calls`](Self::Calls), [`Control`](Self::Control),
///   [`ControlKept`](Self::ControlKept)).
/// - *work*: subscribers share the messages ([`Completed`](Self::Completed),
///   [`CompletedKept`](Self::CompletedKept), [`QueueStats`](Self::QueueStats),
///   [`DeadLetters`](Self::DeadLetters)).
/// - *broadcast*: everyone who is subscribed at that moment receives a copy
///   ([`HandedOver`](Self::HandedOver), [`Hello`](Self::Hello), [`Event`](Self::Event)); nobody
///   being subscribed is fine.
/// - *answers*: the one subscriber with that address receives, while it lives
///   ([`Reply`](Self::Reply)); nobody being there is fine.
/// - *direct*: the one subscriber receives, in order, while it lives ([`Link`](Self::Link),
///   [`Reports`](Self::Reports)). Nothing is kept for a later one, not even what was delivered and
///   not settled. When nobody is there, the publisher is told: [`Refusal::Unroutable`].
///
/// *What [`Calls`](Self::Calls), [`ControlKept`](Self::ControlKept) and [`CompletedKept`](Self::CompletedKept)
/// do not promise.* What they keep ends with the broker, also what was confirmed, and is not written to its disk
/// for the sake of that: they are for whoever keeps what it sent until it is answered, and sends it again.
///
/// *What a direct topic does not promise.* A message that was confirmed can be lost with its
/// subscriber, or with the subscriber's connection, before it is received: whoever needs to know
/// numbers what it sends, and looks at [`Subscriber::renewals`]. There is meant to be one subscriber,
/// but a broker that has not noticed the end of an old connection keeps that one's queue beside the
/// new one's for a while. Either gets a copy; the old one's is read by nobody, and until it is gone a
/// message may be confirmed that reached only that.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Topic {
    /// `enforcement.created`: rule firings from clients.
    Enforcements,
    /// `partition.<NN>.commands`: commands for the owner of a partition.
    Commands(PartitionId),
    /// `partition.<NN>.calls`: likewise, from whoever waits for the answer and asks again without one.
    Calls(PartitionId),
    /// `partition.<NN>.control`: completions for the owner of a partition.
    Control(PartitionId),
    /// `partition.<NN>.control.kept`: likewise, of workers that keep them until they are settled.
    ControlKept(PartitionId),
    /// `execution.completed`: ends of runs.
    Completed,
    /// `execution.completed.kept`: ends of runs that their worker keeps until they are settled.
    CompletedKept,
    /// `partition.handed_over`: partitions that another executor may take now.
    HandedOver,
    /// `worker.hello`: that a worker is there, to every executor.
    Hello,
    /// `<pool>.<life of a worker>`: what owners of partitions tell one life of a worker. The pool stands in
    /// the key so that a broker can say which pools somebody may listen in.
    Link(Arc<str>, WorkerId),
    /// `<executor>`: what workers tell one executor.
    Reports(OwnerId),
    /// `event.<kind>`: what happens to actions that ask for it to be told.
    Event(EventKind),
    /// `event.*`: every [`Event`](Self::Event), to be received only.
    Events,
    /// `queue.stats`: snapshots of queues.
    QueueStats,
    /// Answers to one asker.
    Reply(String),
    /// What could not be used, with the reason.
    DeadLetters,
}

impl Topic {
    /// What owners tell a life of a worker that serves this pool.
    pub fn link(pool: impl Into<Arc<str>>, worker: WorkerId) -> Self {
        Self::Link(pool.into(), worker)
    }

    /// Every topic that keeps messages, in a system of so many partitions.
    pub fn all_kept(partitions: u16) -> Vec<Self> {
        let of_partition = |id| {
            [
                Self::Commands,
                Self::Calls,
                Self::Control,
                Self::ControlKept,
            ]
            .map(|topic| topic(id))
        };
        let of_all = [
            Self::Enforcements,
            Self::Completed,
            Self::CompletedKept,
            Self::QueueStats,
            Self::DeadLetters,
        ];
        let partitions = (0..partitions).map(PartitionId);
        of_all
            .into_iter()
            .chain(partitions.flat_map(of_partition))
            .collect()
    }

    /// Its routing key.
    pub fn routing_key(&self) -> String {
        match self {
            Self::Enforcements => "enforcement.created".to_owned(),
            Self::Commands(partition) => format!("partition.{:02}.commands", partition.0),
            Self::Calls(partition) => format!("partition.{:02}.calls", partition.0),
            Self::Control(partition) => format!("partition.{:02}.control", partition.0),
            Self::ControlKept(partition) => format!("partition.{:02}.control.kept", partition.0),
            Self::Completed => "execution.completed".to_owned(),
            Self::CompletedKept => "execution.completed.kept".to_owned(),
            Self::HandedOver => "partition.handed_over".to_owned(),
            Self::Hello => "worker.hello".to_owned(),
            Self::Link(pool, worker) => format!("{pool}.{worker}"),
            Self::Reports(owner) => owner.to_string(),
            Self::Event(kind) => format!("event.{kind}"),
            Self::Events => "event.*".to_owned(),
            Self::QueueStats => "queue.stats".to_owned(),
            Self::Reply(address) => address.clone(),
            Self::DeadLetters => "dead-letters".to_owned(),
        }
    }

    /// Whether a message that nobody is there to receive is an error. Answers and broadcasts
    /// may go nowhere; everything else must be kept for a later subscriber, or be received by the
    /// one that there is.
    pub fn must_route(&self) -> bool {
        !self.is_broadcast() && !matches!(self, Self::Reply(_))
    }

    /// Whether messages are kept for a later subscriber: once it is declared, the topic stays.
    pub fn is_kept(&self) -> bool {
        self.must_route() && !self.is_direct()
    }

    /// Whether what it keeps outlives the broker's process.
    pub fn is_lasting(&self) -> bool {
        let ends_with_the_broker = matches!(
            self,
            Self::Calls(_) | Self::ControlKept(_) | Self::CompletedKept
        );
        self.is_kept() && !ends_with_the_broker
    }

    /// Whether one subscriber at a time receives what is kept.
    pub fn is_ordered(&self) -> bool {
        matches!(
            self,
            Self::Enforcements
                | Self::Commands(_)
                | Self::Calls(_)
                | Self::Control(_)
                | Self::ControlKept(_)
        )
    }

    /// Whether its one subscriber receives while it lives, and the publisher is told when there is
    /// none.
    pub fn is_direct(&self) -> bool {
        matches!(self, Self::Link(..) | Self::Reports(_))
    }

    /// Whether everyone who is subscribed receives a copy.
    pub fn is_broadcast(&self) -> bool {
        matches!(
            self,
            Self::HandedOver | Self::Hello | Self::Event(_) | Self::Events
        )
    }

    /// Whether a subscriber of this topic receives what is published to `other`.
    pub fn receives(&self, other: &Self) -> bool {
        self == other || (*self == Self::Events && matches!(other, Self::Event(_)))
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Their keys are bare ids.
            Self::Link(_, worker) => write!(f, "worker {worker}"),
            Self::Reports(owner) => write!(f, "executor {owner}"),
            _ => f.write_str(&self.routing_key()),
        }
    }
}

/// A message to be published.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Where it goes.
    pub topic: Topic,
    /// The same again when it is published again.
    pub message_id: Uuid,
    /// An encoded envelope.
    pub body: Bytes,
    /// The address of a [`Topic::Reply`] for answers.
    pub reply_to: Option<String>,
    /// Further headers, as text.
    pub headers: Vec<(String, String)>,
}

/// What the headers of a message may take together, in bytes. They travel in one frame (128 KiB
/// by default), and a broker closes the connection of whoever sends a larger one.
pub const MAX_HEADERS_BYTES: usize = 64 << 10;

impl Outgoing {
    /// A message without reply address and headers.
    pub fn new(topic: Topic, message_id: Uuid, body: impl Into<Bytes>) -> Self {
        Self {
            topic,
            message_id,
            body: body.into(),
            reply_to: None,
            headers: Vec::new(),
        }
    }

    /// For adapters: whether every bus can carry it; what they cannot carry, all refuse alike.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for a reply address or the name of a header above
    /// [`MAX_NAME_BYTES`], or headers above [`MAX_HEADERS_BYTES`].
    pub fn check_names(&self) -> Result<(), Refusal> {
        let too_long = |what: &str, bytes: usize, max: usize| {
            Err(Refusal::Invalid(format!(
                "{what} has {bytes} bytes; at most {max} can be carried"
            )))
        };
        if let Some(address) = &self.reply_to
            && address.len() > MAX_NAME_BYTES
        {
            return too_long("`reply_to`", address.len(), MAX_NAME_BYTES);
        }
        let mut total = 0;
        for (name, value) in &self.headers {
            if name.len() > MAX_NAME_BYTES {
                return too_long("the name of a header", name.len(), MAX_NAME_BYTES);
            }
            total += name.len() + value.len();
        }
        if total > MAX_HEADERS_BYTES {
            return too_long("the headers together", total, MAX_HEADERS_BYTES);
        }
        Ok(())
    }
}

/// A message that the bus does not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// By which its publisher knows it.
    pub message_id: Uuid,
    /// Why it was refused.
    pub why: Refusal,
}

/// A message was not confirmed.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The bus refused these, never an empty list; the others of the call were confirmed.
    #[error("{} message(s) refused; of the first: {}", .0.len(), first(.0))]
    Refused(Vec<Refused>),
    /// The bus cannot be reached or did not confirm in time. Whether the messages were kept is
    /// *unknown*: publish them again under the same ids.
    #[error("the bus did not confirm: {0}")]
    Unconfirmed(String),
    /// The bus is closed.
    #[error("the bus is closed")]
    Closed,
}

impl PublishError {
    /// Why the bus does not take a message of the call, if that is so.
    pub fn refusal_of(&self, message_id: Uuid) -> Option<&Refusal> {
        let Self::Refused(refused) = self else {
            return None;
        };
        let refused = refused.iter().find(|one| one.message_id == message_id)?;
        Some(&refused.why)
    }
}

/// The first reason in words.
fn first(refused: &[Refused]) -> String {
    refused
        .first()
        .map_or_else(String::new, |refused| refused.why.to_string())
}

/// A subscription could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The bus cannot be reached; trying again is right.
    #[error("the bus cannot be reached: {0}")]
    Unavailable(String),
    /// The bus refuses for good: a wrong password, a queue declared with other arguments.
    #[error("the bus refuses: {0}")]
    Refused(String),
    /// The bus is closed.
    #[error("the bus is closed")]
    Closed,
}

/// What to receive.
#[derive(Debug, Clone)]
pub struct Subscription {
    /// From where.
    pub topic: Topic,
    /// How many messages may be delivered and not yet settled; at least 1.
    pub prefetch: u16,
}

/// Names a delivery to its subscription: an older generation's tags mean nothing any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryTag {
    /// Which life of the subscription delivered it; rises with every reconnection.
    pub generation: u64,
    /// Its number in that life.
    pub number: u64,
}

/// A message that was received and waits to be settled.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// By which it is settled.
    pub tag: DeliveryTag,
    /// The encoded envelope, as it came.
    pub body: Bytes,
    /// The message id among the properties, if the sender set one.
    pub message_id: Option<String>,
    /// Where answers go.
    pub reply_to: Option<String>,
    /// Whether it may have been delivered before.
    pub redelivered: bool,
    /// The user that the broker vouches for, if the sender set one.
    pub user_id: Option<String>,
    /// Text headers.
    pub headers: Vec<(String, String)>,
}

/// Settles deliveries of one subscription. A tag of an older generation is ignored: its message
/// comes again.
#[async_trait]
pub trait Settle: Send + Sync {
    /// The messages are done with; in any order, each once.
    async fn ack(&self, tags: &[DeliveryTag]);

    /// Likewise, at once, and says when the broker has taken it: the messages come no more then,
    /// although this process may end. An error means that nobody knows: some may come again.
    ///
    /// A broker that loses its queue's leader, or ends, before it has written that down may have
    /// forgotten it all the same.
    async fn ack_confirmed(&self, tags: &[DeliveryTag]) -> Confirmation;
}

/// What [`Settle::ack_confirmed`] promises.
pub type Confirmation = oneshot::Receiver<()>;

/// A shared [`Settle`].
pub type Settler = Arc<dyn Settle>;

/// Receives the deliveries of a subscription. The adapter rebuilds whatever breaks below it;
/// what was not settled comes again. Dropping it gives unsettled messages back, in order. Of a
/// topic that keeps nothing, unsettled messages end with what breaks, and with the subscriber.
pub struct Subscriber {
    deliveries: mpsc::Receiver<Delivery>,
    settler: Settler,
    /// Kept here too, so that who listens hears nothing, and no end, while nothing is made anew.
    renewals: watch::Sender<u64>,
    /// Ends the adapter's work when the subscriber is dropped.
    _guard: Box<dyn Send + Sync>,
}

impl Subscriber {
    /// For adapters: `guard` is dropped with the subscriber.
    pub fn new(
        deliveries: mpsc::Receiver<Delivery>,
        settler: Settler,
        guard: Box<dyn Send + Sync>,
    ) -> Self {
        Self {
            deliveries,
            settler,
            renewals: watch::Sender::default(),
            _guard: guard,
        }
    }

    /// For adapters that make subscriptions anew: what counts how often, beginning with 0.
    #[must_use]
    pub fn renewed_by(self, renewals: watch::Sender<u64>) -> Self {
        Self { renewals, ..self }
    }

    /// The next delivery; `None` only when the bus was closed. Cancel safe.
    pub async fn next(&mut self) -> Option<Delivery> {
        self.deliveries.recv().await
    }

    /// A delivery that is there already.
    pub fn try_next(&mut self) -> Option<Delivery> {
        self.deliveries.try_recv().ok()
    }

    /// How often the subscription was made anew below, on a new connection: 0 at first, and always
    /// on the in-process bus. It rises before anything of the new life is delivered, and when the new
    /// subscription stands: of a direct topic, what was published before that may be lost, and what
    /// is published from then on comes. The receiver ends after the subscriber.
    pub fn renewals(&self) -> watch::Receiver<u64> {
        self.renewals.subscribe()
    }

    /// What settles its deliveries; it outlives the subscriber, without effect.
    pub fn settler(&self) -> Settler {
        Arc::clone(&self.settler)
    }
}

/// What the services ask of a bus.
#[async_trait]
pub trait Bus: Send + Sync + 'static {
    /// Publishes in the given order and returns when all are confirmed. Messages of one call
    /// stay together; calls that overlap may be told apart by nothing.
    ///
    /// # Errors
    /// See [`PublishError`]. Dropping the future does not unsend anything.
    async fn publish(&self, messages: Vec<Outgoing>) -> Result<(), PublishError>;

    /// Declares what the topic needs and receives from it.
    ///
    /// # Errors
    /// See [`BusError`]. Once it has succeeded, the adapter reconnects by itself.
    async fn subscribe(&self, subscription: Subscription) -> Result<Subscriber, BusError>;

    /// Declares what the topic needs without receiving, so that messages are kept from now on. Of
    /// answers and on direct topics none are kept; that they may be sent is made sure of.
    ///
    /// # Errors
    /// See [`BusError`].
    async fn declare(&self, topic: &Topic) -> Result<(), BusError>;

    /// Whether the bus can be used right now, and if not, why.
    ///
    /// # Errors
    /// See [`BusError`].
    async fn check(&self) -> Result<(), BusError>;

    /// Whether this process can reach the bus right now, and if not, why. Trouble with a topic, which
    /// [`Bus::check`] finds too, is everybody's and does not count.
    ///
    /// # Errors
    /// See [`BusError`].
    fn reach(&self) -> Result<(), BusError>;

    /// How much of a topic waits and how many receive it, where the adapter can tell and its queue is there.
    ///
    /// # Errors
    /// See [`BusError`].
    async fn depth(&self, topic: &Topic) -> Result<Option<crate::Depth>, BusError>;

    /// Gives back what is unsettled and closes.
    async fn close(&self);
}

#[cfg(test)]
#[path = "port_tests.rs"]
mod tests;
