//! RabbitMQ adapter of Attune's message ports.
//!
//! [`RabbitBus`] keeps two connections: one publishes, the other consumes and acknowledges. A
//! broker that is low on memory or disk stops reading from connections that publish, and with
//! one connection for both no acknowledgement would get through either. Each subscription has a
//! channel of its own. Whatever breaks is rebuilt from scratch; lapin's recovery is not used.
//!
//! What holds:
//! - `publish` returns `Ok` when the broker has taken responsibility for every message. What it
//!   sends back is named as unroutable, what it does not confirm (`basic.nack`) as full, and what
//!   cannot be sent at all as too large or invalid ([`PublishError::Refused`]). What the user of the URL
//!   may not publish is named as forbidden; it costs the others one channel, and no connection
//!   (`barred.rs`).
//! - Messages of one publisher on one topic are delivered in order. After a lost connection some
//!   come again: the order holds for the first time that each is seen.
//! - What was not acknowledged comes again, before anything newer, to the next subscriber.
//! - A subscriber never notices a reconnection, except by redeliveries, and by
//!   [`Subscriber::renewals`].
//! - The subscriber of a direct topic has a queue of its own with each connection, which ends with
//!   that. What comes while it has none is sent back as unroutable.
//! - Exchanges, queues and bindings that somebody deletes are declared again.
//!
//! An acknowledgement is not confirmed by anybody. What was acknowledged shortly before a channel
//! ends may come again: a connection can break with the frame on its way, and a quorum queue
//! takes 32 acknowledgements at a time and forgets those that wait when the channel closes.
//!
//! Each call of `publish` is answered by itself. A queue that answers nobody (a quorum queue without
//! a leader) gets few messages and then no more; what is published elsewhere goes on. When it falls
//! silent with many messages in flight, the broker may stop reading for all: then the timeout
//! makes what is in flight unknown, once, and a new connection is made.
//!
//! lapin logs returned messages with their content (`lapin::returned_messages`) and every lost
//! connection as an error; this crate logs what is of interest itself, without content. Filters
//! of logs should turn `lapin` off.

mod barred;
mod cause;
mod consumer;
mod dial;
mod ledger;
mod legible;
mod link;
mod look;
mod mark;
mod message;
mod options;
mod pace;
mod publisher;
mod rebinding;
mod removal;
mod replies;
mod rights;
mod session;
mod stream;
mod tls;
mod topology;
mod trial;
mod window;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use attune_bus::{
    Bus, BusError, Depth, Outgoing, PublishError, Refusal, Refused, Subscriber, Subscription, Topic,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::cause::Cause;
use crate::consumer::{Acknowledger, Declaration, SubscriptionTask, Trouble};
use crate::dial::{Dialed, Dialer};
use crate::link::Link;
use crate::options::Endpoint;
use crate::publisher::Publisher;
use crate::rebinding::{Rebinding, RebindingTask};
use crate::replies::Replies;
use crate::topology::Topology;

pub use crate::look::{Arguments, BrokerLook, Found, Greeting};
pub use crate::options::{BrokerUrl, Declaring, QueueType, RabbitOptions};
pub use crate::rights::{Account, KeyPermission, Permission};
pub use crate::tls::TlsFiles;

/// A bus on RabbitMQ 3.10 or newer. Dropping it closes it without waiting.
pub struct RabbitBus {
    publisher: Publisher,
    publishing: Link,
    consuming: Link,
    topology: Arc<Topology>,
    rebinding: Arc<Rebinding>,
    connect_timeout: Duration,
    rebind_interval: Duration,
    /// Those that live, and those that end at the moment. Touched by `subscribe` and `check`.
    subscriptions: Mutex<Vec<Entry>>,
    replies: Arc<Replies>,
    phases: Phases,
    _end: DropGuard,
}

/// A subscription, as the bus sees it.
struct Entry {
    topic: Topic,
    stop: CancellationToken,
    /// Cancelled when its channel is closed.
    ended: CancellationToken,
    trouble: Trouble,
}

/// Closing goes from the outside in: subscriptions, the publisher, connections.
#[derive(Default)]
struct Phases {
    subscriptions: Phase,
    publisher: Phase,
    links: Phase,
}

/// Tasks that end when their token is cancelled.
#[derive(Clone, Default)]
struct Phase {
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Phase {
    /// Supervises a connection that exists.
    fn link(&self, dialer: Dialer, first: Dialed) -> Link {
        Link::start(dialer, first, self.stop.clone(), &self.tasks)
    }

    /// Publishes on a connection.
    fn publisher(
        &self,
        link: Link,
        topology: &Arc<Topology>,
        options: &RabbitOptions,
    ) -> Publisher {
        let topology = Arc::clone(topology);
        let (publisher, task) = Publisher::new(link, topology, options, self.stop.clone());
        self.tasks.spawn(task.run());
        publisher
    }

    async fn end(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl RabbitBus {
    /// Connects both ways and declares the exchanges.
    ///
    /// # Errors
    /// [`BusError::Unavailable`] when the broker cannot be reached: trying again is right.
    /// [`BusError::Refused`] when the options are unsafe (`guest`, or a password in the clear, to
    /// another machine), the broker does not accept user, password or virtual host, or something
    /// exists with other arguments.
    pub async fn connect(options: RabbitOptions) -> Result<Self, BusError> {
        let endpoint = Endpoint::of(&options)?;
        let tls = Arc::new(options.tls.read()?);
        let dialer = |direction: &str| Dialer {
            endpoint: endpoint.clone(),
            name: format!("{} {direction}", options.connection_name),
            timeout: options.connect_timeout,
            reconnects: options.reconnects.clone(),
            tls: Arc::clone(&tls),
        };
        let (publish, consume) = (dialer("publish"), dialer("consume"));
        let (for_publishing, for_consuming) = tokio::try_join!(publish.dial(), consume.dial())?;

        let topology = Arc::new(Topology::of(&options));
        let end = CancellationToken::new();
        let phase = || Phase {
            stop: end.child_token(),
            tasks: TaskTracker::new(),
        };
        let phases = Phases {
            subscriptions: phase(),
            publisher: phase(),
            links: phase(),
        };
        let publishing = phases.links.link(publish, for_publishing);
        let consuming = phases.links.link(consume, for_consuming);
        let publisher = phases
            .publisher
            .publisher(publishing.clone(), &topology, &options);
        let rebinding = Arc::new(Rebinding::default());
        let rebinder = RebindingTask {
            rebinding: Arc::clone(&rebinding),
            link: consuming.clone(),
            topology: Arc::clone(&topology),
            closing: phases.subscriptions.stop.clone(),
            setup_timeout: options.connect_timeout,
        };
        phases.subscriptions.tasks.spawn(rebinder.run());
        let replies = Replies::new(
            dialer("reply"),
            Arc::clone(&topology),
            options.clone(),
            phases.links.clone(),
            phases.publisher.clone(),
        );
        let bus = Self {
            publisher,
            publishing,
            consuming,
            topology,
            rebinding,
            connect_timeout: options.connect_timeout,
            rebind_interval: options.rebind_interval,
            subscriptions: Mutex::default(),
            replies: Arc::new(replies),
            phases,
            _end: end.drop_guard(),
        };
        // Now, and not with the first use: what is wrong with them is wrong for good.
        bus.declare(&Topic::DeadLetters).await?;
        Ok(bus)
    }

    /// Leaves the mark of the system whose messages these are, now and with every connection from now on:
    /// no other system works where it is.
    ///
    /// # Errors
    /// [`BusError::Refused`] when another system has left its own, which is named with the way out;
    /// [`BusError::Unavailable`] when the broker cannot be reached.
    pub async fn leave_mark(&self, system: Uuid) -> Result<(), BusError> {
        self.topology.belongs_to(system);
        self.declare(&Topic::DeadLetters).await
    }

    fn closed(&self) -> bool {
        self.phases.subscriptions.stop.is_cancelled()
    }

    fn entries<T>(&self, act: impl FnOnce(&mut Vec<Entry>) -> T) -> T {
        act(&mut self
            .subscriptions
            .lock()
            .unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for subscriptions of a topic that were dropped here and are still closing: what they
    /// held has gone back then, and the next one begins with it.
    async fn wait_for_dropped(&self, topic: &Topic) {
        let dropped: Vec<_> = self.entries(|entries| {
            entries.retain(|entry| !entry.ended.is_cancelled());
            let ending = |entry: &&Entry| entry.topic == *topic && entry.stop.is_cancelled();
            entries
                .iter()
                .filter(ending)
                .map(|entry| entry.ended.clone())
                .collect()
        });
        for ended in dropped {
            // Bounded: closing a channel has a deadline, after which its connection is dropped.
            ended.cancelled().await;
        }
    }

    /// Starts the task of a subscription.
    fn spawn(
        &self,
        subscription: Subscription,
        ready: oneshot::Sender<Result<(), Cause>>,
    ) -> Subscriber {
        let (sender, deliveries) = mpsc::channel(usize::from(subscription.prefetch.max(1)));
        let stop = self.phases.subscriptions.stop.child_token();
        let ended = CancellationToken::new();
        let acknowledger = Arc::new(Acknowledger::default());
        let (trouble, renewals) = (Trouble::default(), watch::Sender::default());
        self.entries(|entries| {
            entries.push(Entry {
                topic: subscription.topic.clone(),
                stop: stop.clone(),
                ended: ended.clone(),
                trouble: Arc::clone(&trouble),
            });
        });
        let task = SubscriptionTask {
            subscription,
            link: self.consuming.clone(),
            topology: Arc::clone(&self.topology),
            stop: stop.clone(),
            deliveries: sender,
            acknowledger: Arc::clone(&acknowledger) as _,
            renewals: renewals.clone(),
            trouble,
            setup_timeout: self.connect_timeout,
            rebind_interval: self.rebind_interval,
        };
        let ended = ended.drop_guard();
        self.phases.subscriptions.tasks.spawn(async move {
            task.run(ready).await;
            drop(ended);
        });
        let guard = Box::new(stop.drop_guard());
        Subscriber::new(deliveries, acknowledger, guard).renewed_by(renewals)
    }
}

#[async_trait]
impl Bus for RabbitBus {
    async fn publish(&self, messages: Vec<Outgoing>) -> Result<(), PublishError> {
        if self.closed() {
            return Err(PublishError::Closed);
        }
        let topics: HashMap<_, _> = messages
            .iter()
            .map(|message| (message.message_id, message.topic.clone()))
            .collect();
        let (direct, messages): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(replies::is_direct);
        if !direct.is_empty() {
            self.replies.send(direct);
        }
        match self.publisher.publish(messages).await {
            Err(PublishError::Refused(refused)) => self.judge(refused, &topics),
            Ok(()) => {
                if topics.values().any(Topic::is_kept) {
                    self.rebinding.note_routed();
                }
                Ok(())
            }
            published => published,
        }
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Subscriber, BusError> {
        if self.closed() {
            return Err(BusError::Closed);
        }
        self.wait_for_dropped(&subscription.topic).await;
        if subscription.topic.is_kept() {
            self.rebinding.note_subscribed(&subscription.topic);
        }
        let (ready, subscribed) = oneshot::channel();
        // Dropped on every way out but the last, which ends the task.
        let subscriber = self.spawn(subscription, ready);
        match timeout(self.connect_timeout, subscribed).await {
            Ok(Ok(Ok(()))) => Ok(subscriber),
            Ok(Ok(Err(cause))) => Err(cause.into()),
            Ok(Err(_)) => Err(BusError::Closed),
            Err(_) => Err(self.unavailable()),
        }
    }

    async fn declare(&self, topic: &Topic) -> Result<(), BusError> {
        if self.closed() {
            return Err(BusError::Closed);
        }
        let how = match topic {
            Topic::Reply(_) | Topic::Link(..) | Topic::Reports(_) => Declaration::Sending,
            // Nothing can be kept before somebody is there.
            _ if !topic.is_kept() => return Ok(()),
            _ => Declaration::Whole,
        };
        match timeout(self.connect_timeout, self.consuming.life_after(0)).await {
            Ok(Some(life)) => {
                let limit = self.connect_timeout;
                consumer::declare(&life, &self.topology, topic, how, limit).await?;
                if topic.is_kept() {
                    self.rebinding.note_declared(topic);
                }
                Ok(())
            }
            Ok(None) => Err(BusError::Closed),
            Err(_) => Err(self.unavailable()),
        }
    }

    fn reach(&self) -> Result<(), BusError> {
        if self.closed() {
            return Err(BusError::Closed);
        }
        self.publishing.reach()?;
        self.consuming.reach()
    }

    async fn check(&self) -> Result<(), BusError> {
        if self.closed() {
            return Err(BusError::Closed);
        }
        self.publishing.check()?;
        self.consuming.check()?;
        let trouble = self.entries(|entries| {
            entries.iter().find_map(|entry| {
                entry
                    .trouble
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone()
            })
        });
        if let Some(cause) = trouble {
            return Err(cause.into());
        }
        if let Some(forbidden) = self.publisher.problem() {
            return Err(BusError::Refused(forbidden));
        }
        match self.rebinding.problem(Instant::now()) {
            Some(problem) => Err(BusError::Unavailable(problem)),
            None => Ok(()),
        }
    }

    async fn depth(&self, topic: &Topic) -> Result<Option<Depth>, BusError> {
        if self.closed() {
            return Err(BusError::Closed);
        }
        match timeout(self.connect_timeout, self.consuming.life_after(0)).await {
            Ok(Some(life)) => {
                let name = self.topology.queue_name(topic);
                Ok(consumer::depth(&life, &name, self.connect_timeout).await?)
            }
            Ok(None) => Err(BusError::Closed),
            Err(_) => Err(self.unavailable()),
        }
    }

    async fn close(&self) {
        self.phases.subscriptions.end().await;
        self.phases.publisher.end().await;
        self.phases.links.end().await;
    }
}

impl RabbitBus {
    /// Has topics mended that sent messages back, and overlooks what is not worth a refusal.
    fn judge(
        &self,
        mut refused: Vec<Refused>,
        topics: &HashMap<Uuid, Topic>,
    ) -> Result<(), PublishError> {
        let now = Instant::now();
        refused.retain(|refused| {
            let Some(topic) = topics.get(&refused.message_id) else {
                return true;
            };
            match refused.why {
                Refusal::Unroutable => {
                    // That nobody is there is for the publisher to know, and nothing to mend.
                    if topic.is_kept() {
                        self.rebinding.note_unroutable(topic, now);
                    }
                    true
                }
                // Queues of broadcasts and answers drop their oldest message when they are full; a
                // `basic.nack` says that the queue was on its way out, and nobody there is fine.
                Refusal::Full => topic.must_route(),
                Refusal::TooLarge { .. } | Refusal::Invalid(_) | Refusal::Forbidden(_) => true,
            }
        });
        match refused.is_empty() {
            true => Ok(()),
            false => Err(PublishError::Refused(refused)),
        }
    }

    /// The link for consuming did not come up in time; why.
    fn unavailable(&self) -> BusError {
        match self.consuming.check() {
            Ok(()) => BusError::Unavailable("the broker does not answer".to_owned()),
            Err(error) => error,
        }
    }
}
