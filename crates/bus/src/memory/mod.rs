//! The bus inside one process, for the embedded mode and for tests.
//!
//! It keeps what the port promises, with one difference that lies in its nature: what it holds
//! ends with the process. Whoever tells a client that something is safe must therefore have it
//! from the store, never from a confirm of this bus.
//!
//! *Bounds.* A topic keeps at most what its [`Room`] allows, waiting or unsettled; what comes
//! above that is refused as [`Refusal::Full`]. Broadcasts and answers may go nowhere, so there the
//! oldest waiting messages make room instead: a receiver that has stopped reading never becomes
//! an error of the sender.
//!
//! *Direct topics* exist while their subscriber does: before and after, what is published to them is
//! refused as [`Refusal::Unroutable`], and what was not settled ends with the subscriber. A second
//! subscriber is refused.
//!
//! *Cost.* Publishing locks the topic once for each run of messages to it and hands them to the
//! subscribers' channels on the spot; there is no task between sender and receiver. No lock is
//! held over an await point.

mod mailbox;

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Arc, PoisonError, RwLock};
use std::collections::HashMap;

use async_trait::async_trait;
use tokio::sync::oneshot;

use crate::Depth;
use crate::port::{
    Bus, BusError, Confirmation, DeliveryTag, Outgoing, PublishError, Refusal, Refused, Settle,
    Subscriber, Subscription, Topic,
};
use mailbox::{Mailbox, Overflow, Sharing};

/// A [`Bus`] inside one process. A clone is the same bus.
#[derive(Clone)]
pub struct MemoryBus {
    shared: Arc<Shared>,
}

struct Shared {
    /// Mailboxes by topic; those of broadcasts stand apart. Written when a topic is declared and
    /// when an asker, or the subscriber of a direct topic, comes or goes; read by every publish.
    mailboxes: RwLock<HashMap<Topic, Arc<Mailbox>>>,
    /// One mailbox for each subscriber of broadcasts, with what it listens to.
    broadcast: RwLock<Vec<(Topic, Arc<Mailbox>)>>,
    /// The next generation: each subscription is one life.
    generation: AtomicU64,
    closed: AtomicBool,
    room: Room,
    max_message_bytes: usize,
}

/// What one topic may keep, waiting or unsettled. What comes above is refused as
/// [`Refusal::Full`], or makes the oldest go where messages may go nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// How many messages.
    pub messages: usize,
    /// How many bytes of bodies; one message alone may be larger.
    pub bytes: usize,
}

impl Default for Room {
    /// A million messages and 1 GiB: the executor's own bounds are reached long before.
    fn default() -> Self {
        Self {
            messages: 1_000_000,
            bytes: 1 << 30,
        }
    }
}

impl Default for MemoryBus {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryBus {
    /// An empty bus with the default [`Room`] per topic, for messages of any size.
    pub fn new() -> Self {
        Self::with_bounds(Room::default(), usize::MAX)
    }

    /// An empty bus with this room per topic, for bodies of at most `max_message_bytes`; dead
    /// letters may be larger, as what they are about has come through.
    pub fn with_bounds(room: Room, max_message_bytes: usize) -> Self {
        let shared = Shared {
            mailboxes: RwLock::default(),
            broadcast: RwLock::default(),
            generation: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            room,
            max_message_bytes,
        };
        let bus = Self {
            shared: Arc::new(shared),
        };
        // There is always somewhere to put what cannot be used, as on a broker whose
        // dead-letter queue is declared together with the first topic.
        bus.shared.kept(&Topic::DeadLetters);
        bus
    }

    /// Bounds one ordered or work topic anew, declaring it if need be, as an operator's policy on
    /// a broker would: what is kept already stays. One that has a single subscriber is bounded while
    /// that is there.
    pub fn set_room(&self, topic: &Topic, room: Room) {
        if topic.is_kept() {
            self.shared.kept(topic).set_room(room);
        } else if let Some(mailbox) = self.shared.find(topic) {
            mailbox.set_room(room);
        }
    }

    /// How many messages of a topic are not settled yet, delivered or not. A process that stops
    /// looks at it: unlike a broker's, these messages end with the process.
    pub fn unsettled(&self, topic: &Topic) -> usize {
        self.shared.find(topic).map_or(0, |mailbox| mailbox.kept())
    }
}

impl Shared {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether a message may be carried at all.
    fn admit(&self, message: &Outgoing) -> Result<(), Refusal> {
        let (bytes, max) = (message.body.len(), self.max_message_bytes);
        if bytes > max && message.topic != Topic::DeadLetters {
            return Err(Refusal::TooLarge { bytes, max });
        }
        message.check_names()
    }

    /// The mailbox of a topic, if there is one.
    fn find(&self, topic: &Topic) -> Option<Arc<Mailbox>> {
        self.mailboxes
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(topic)
            .map(Arc::clone)
    }

    /// The mailbox of an ordered or work topic, made when it is missing.
    fn kept(&self, topic: &Topic) -> Arc<Mailbox> {
        if let Some(mailbox) = self.find(topic) {
            return mailbox;
        }
        let sharing = match topic.is_ordered() {
            true => Sharing::InTurn,
            false => Sharing::Together,
        };
        let mut mailboxes = self
            .mailboxes
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let mailbox = mailboxes
            .entry(topic.clone())
            .or_insert_with(|| Arc::new(Mailbox::new(sharing, Overflow::Refuse, self.room)));
        Arc::clone(mailbox)
    }

    /// A mailbox that lives as long as its one subscriber.
    fn private(&self, topic: &Topic) -> Arc<Mailbox> {
        let overflow = match topic.is_direct() {
            true => Overflow::Refuse,
            false => Overflow::DropOldest,
        };
        Arc::new(Mailbox::new(Sharing::InTurn, overflow, self.room))
    }

    /// Everyone who listens to broadcasts now, or to this one.
    fn listeners(&self, topic: Option<&Topic>) -> Vec<Arc<Mailbox>> {
        self.broadcast
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .filter(|(listens_to, _)| topic.is_none_or(|topic| listens_to.receives(topic)))
            .map(|(_, mailbox)| Arc::clone(mailbox))
            .collect()
    }

    /// The mailbox a new subscriber of `topic` receives from.
    fn mailbox_for_subscriber(&self, topic: &Topic) -> Result<Arc<Mailbox>, BusError> {
        match topic {
            _ if topic.is_broadcast() => {
                let mailbox = self.private(topic);
                let mut listeners = self
                    .broadcast
                    .write()
                    .unwrap_or_else(PoisonError::into_inner);
                listeners.push((topic.clone(), Arc::clone(&mailbox)));
                Ok(mailbox)
            }
            Topic::Reply(_) | Topic::Link(..) | Topic::Reports(_) => {
                let mailbox = self.private(topic);
                let mut mailboxes = self
                    .mailboxes
                    .write()
                    .unwrap_or_else(PoisonError::into_inner);
                if mailboxes.contains_key(topic) {
                    return Err(BusError::Refused(format!("the address {topic} is taken")));
                }
                mailboxes.insert(topic.clone(), Arc::clone(&mailbox));
                Ok(mailbox)
            }
            _ => Ok(self.kept(topic)),
        }
    }

    /// Forgets a mailbox that ends with its subscriber.
    fn forget(&self, topic: &Topic, mailbox: &Arc<Mailbox>) {
        match topic {
            _ if topic.is_broadcast() => self
                .broadcast
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .retain(|(_, listener)| !Arc::ptr_eq(listener, mailbox)),
            Topic::Reply(_) | Topic::Link(..) | Topic::Reports(_) => {
                self.mailboxes
                    .write()
                    .unwrap_or_else(PoisonError::into_inner)
                    .remove(topic);
                // Who has found it before that is told too.
                mailbox.abandon();
            }
            _ => {}
        }
    }

    /// Puts a run of messages to one topic where they belong; what finds no place is added to
    /// `refused`.
    fn post(
        &self,
        run: &mut dyn Iterator<Item = Outgoing>,
        topic: &Topic,
        refused: &mut Vec<Refused>,
    ) -> Result<(), PublishError> {
        if topic.is_broadcast() {
            let run: Vec<_> = run.collect();
            for listener in self.listeners(Some(topic)) {
                listener.post(&mut run.iter().cloned(), refused)?;
            }
            return Ok(());
        }
        match self.find(topic) {
            Some(mailbox) => mailbox.post(run, refused),
            None => {
                // An iterator that is only peeked into must be run dry in either case.
                let unroutable = run.map(unroutable);
                if topic.must_route() {
                    refused.extend(unroutable)
                } else {
                    unroutable.for_each(drop)
                }
                Ok(())
            }
        }
    }
}

/// Nobody is there to receive it.
fn unroutable(message: Outgoing) -> Refused {
    Refused {
        message_id: message.message_id,
        why: Refusal::Unroutable,
    }
}

#[async_trait]
impl Bus for MemoryBus {
    async fn publish(&self, messages: Vec<Outgoing>) -> Result<(), PublishError> {
        if self.shared.is_closed() {
            return Err(PublishError::Closed);
        }
        let mut refused = Vec::new();
        let mut messages = messages;
        messages.retain(|message| match self.shared.admit(message) {
            Ok(()) => true,
            Err(why) => {
                let message_id = message.message_id;
                refused.push(Refused { message_id, why });
                false
            }
        });
        let mut messages = messages.into_iter().peekable();
        while let Some(topic) = messages.peek().map(|message| message.topic.clone()) {
            let mut run = std::iter::from_fn(|| messages.next_if(|next| next.topic == topic));
            self.shared.post(&mut run, &topic, &mut refused)?;
        }
        // Nothing above ever waits. Without this, a publisher in a loop would keep the
        // receivers of a single-threaded runtime from running until the topic is full.
        tokio::task::coop::consume_budget().await;
        if refused.is_empty() {
            Ok(())
        } else {
            Err(PublishError::Refused(refused))
        }
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Subscriber, BusError> {
        if self.shared.is_closed() {
            return Err(BusError::Closed);
        }
        let Subscription { topic, prefetch } = subscription;
        let generation = self.shared.generation.fetch_add(1, Ordering::Relaxed);
        let mailbox = self.shared.mailbox_for_subscriber(&topic)?;
        let lease = Lease {
            shared: Arc::clone(&self.shared),
            topic,
            mailbox: Arc::clone(&mailbox),
            generation,
        };
        // A bus that closes right now is seen here: `close` visits every mailbox after it has
        // raised its flag, and a mailbox that was made later is never given a subscriber.
        if self.shared.is_closed() {
            return Err(BusError::Closed);
        }
        let Some(deliveries) = mailbox.attach(generation, prefetch.max(1)) else {
            return Err(BusError::Closed);
        };
        let settler = Arc::new(MemorySettler {
            mailbox,
            generation,
        });
        Ok(Subscriber::new(deliveries, settler, Box::new(lease)))
    }

    async fn declare(&self, topic: &Topic) -> Result<(), BusError> {
        if self.shared.is_closed() {
            return Err(BusError::Closed);
        }
        if topic.is_kept() {
            self.shared.kept(topic);
        }
        Ok(())
    }

    async fn check(&self) -> Result<(), BusError> {
        self.reach()
    }

    fn reach(&self) -> Result<(), BusError> {
        if self.shared.is_closed() {
            Err(BusError::Closed)
        } else {
            Ok(())
        }
    }

    async fn depth(&self, _topic: &Topic) -> Result<Option<Depth>, BusError> {
        // Who receives is in this process as well.
        Ok(None)
    }

    async fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        let mailboxes: Vec<_> = self
            .shared
            .mailboxes
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .map(Arc::clone)
            .collect();
        for mailbox in mailboxes.into_iter().chain(self.shared.listeners(None)) {
            mailbox.close();
        }
    }
}

/// A subscriber's hold on its mailbox; letting go gives back what is unsettled, where it is kept.
struct Lease {
    shared: Arc<Shared>,
    topic: Topic,
    mailbox: Arc<Mailbox>,
    generation: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared.forget(&self.topic, &self.mailbox);
        self.mailbox.detach(self.generation);
    }
}

struct MemorySettler {
    mailbox: Arc<Mailbox>,
    generation: u64,
}

#[async_trait]
impl Settle for MemorySettler {
    async fn ack(&self, tags: &[DeliveryTag]) {
        let numbers = tags
            .iter()
            .filter(|tag| tag.generation == self.generation)
            .map(|tag| tag.number);
        self.mailbox.settle(self.generation, numbers);
    }

    async fn ack_confirmed(&self, tags: &[DeliveryTag]) -> Confirmation {
        let (taken, confirmation) = oneshot::channel();
        let is_current = |tag: &DeliveryTag| tag.generation == self.generation;
        let numbers = tags.iter().filter(|tag| is_current(tag));
        let is_taken = self
            .mailbox
            .settle(self.generation, numbers.map(|tag| tag.number));
        if is_taken && tags.iter().all(is_current) {
            taken.send(()).ok();
        }
        confirmation
    }
}
