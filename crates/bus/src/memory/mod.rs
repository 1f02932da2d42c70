//! The bus inside one process, for the embedded mode and for tests.
//!
//! It keeps what the port promises, with one difference that lies in its nature: what it holds
//! ends with the process. Whoever tells a client that something is safe must therefore have it
//! from the store, never from a confirm of this bus.
//!
//! *Bounds.* A topic keeps at most [`MemoryBus::DEFAULT_MAX_KEPT`] messages, waiting or
//! unsettled; what comes above that is answered with [`PublishError::Refused`]. Broadcasts and
//! answers may go nowhere, so there the oldest waiting message makes room instead: a receiver
//! that has stopped reading never becomes an error of the sender.
//!
//! *Cost.* Publishing locks the topic once for each run of messages to it and hands them to the
//! subscribers' channels on the spot; there is no task between sender and receiver. No lock is
//! held over an await point.

mod mailbox;

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Arc, PoisonError, RwLock};
use std::collections::HashMap;

use async_trait::async_trait;

use crate::port::{
    Bus, BusError, DeliveryTag, Outgoing, PublishError, Settle, Subscriber, Subscription, Topic,
};
use mailbox::{Mailbox, Overflow, Sharing};

/// A [`Bus`] inside one process. A clone is the same bus.
#[derive(Clone)]
pub struct MemoryBus {
    shared: Arc<Shared>,
}

struct Shared {
    /// Mailboxes by topic; those of broadcasts stand apart. Written when a topic is
    /// declared and when an asker comes or goes, read by every publish.
    mailboxes: RwLock<HashMap<Topic, Arc<Mailbox>>>,
    /// One mailbox for each subscriber of broadcasts, with what it listens to.
    broadcast: RwLock<Vec<(Topic, Arc<Mailbox>)>>,
    /// The next generation: each subscription is one life.
    generation: AtomicU64,
    closed: AtomicBool,
    max_kept: usize,
}

impl Default for MemoryBus {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryBus {
    /// How many messages a topic keeps unless said otherwise. With a few hundred bytes each
    /// this is a few hundred megabytes: the executor's own bounds are reached long before.
    pub const DEFAULT_MAX_KEPT: usize = 1_000_000;

    /// An empty bus that keeps [`Self::DEFAULT_MAX_KEPT`] messages per topic.
    pub fn new() -> Self {
        Self::with_max_kept(Self::DEFAULT_MAX_KEPT)
    }

    /// An empty bus that keeps at most `max_kept` messages per topic, at least one.
    pub fn with_max_kept(max_kept: usize) -> Self {
        let max_kept = max_kept.max(1);
        let shared = Shared {
            mailboxes: RwLock::default(),
            broadcast: RwLock::default(),
            generation: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            max_kept,
        };
        let bus = Self {
            shared: Arc::new(shared),
        };
        // There is always somewhere to put what cannot be used, as on a broker whose
        // dead-letter queue is declared together with the first topic.
        bus.shared.kept(&Topic::DeadLetters);
        bus
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
        let sharing = match topic {
            Topic::Enforcements | Topic::Commands(_) | Topic::Control(_) => Sharing::InTurn,
            _ => Sharing::Together,
        };
        let mut mailboxes = self
            .mailboxes
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let mailbox = mailboxes
            .entry(topic.clone())
            .or_insert_with(|| Arc::new(Mailbox::new(sharing, Overflow::Refuse, self.max_kept)));
        Arc::clone(mailbox)
    }

    /// A mailbox that lives as long as its one subscriber.
    fn private(&self) -> Arc<Mailbox> {
        Arc::new(Mailbox::new(
            Sharing::InTurn,
            Overflow::DropOldest,
            self.max_kept,
        ))
    }

    /// Everyone who listens to broadcasts now, or to this one.
    fn listeners(&self, topic: Option<&Topic>) -> Vec<Arc<Mailbox>> {
        self.broadcast
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .filter(|(listens_to, _)| topic.is_none_or(|topic| topic == listens_to))
            .map(|(_, mailbox)| Arc::clone(mailbox))
            .collect()
    }

    /// The mailbox a new subscriber of `topic` receives from.
    fn mailbox_for_subscriber(&self, topic: &Topic) -> Result<Arc<Mailbox>, BusError> {
        match topic {
            _ if topic.is_broadcast() => {
                let mailbox = self.private();
                let mut listeners = self
                    .broadcast
                    .write()
                    .unwrap_or_else(PoisonError::into_inner);
                listeners.push((topic.clone(), Arc::clone(&mailbox)));
                Ok(mailbox)
            }
            Topic::Reply(address) => {
                let mailbox = self.private();
                let mut mailboxes = self
                    .mailboxes
                    .write()
                    .unwrap_or_else(PoisonError::into_inner);
                if mailboxes.contains_key(topic) {
                    return Err(BusError::Refused(format!("the address {address} is taken")));
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
            Topic::Reply(_) => {
                self.mailboxes
                    .write()
                    .unwrap_or_else(PoisonError::into_inner)
                    .remove(topic);
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
        refused: &mut Vec<uuid::Uuid>,
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
                let ids = run.map(|message| message.message_id);
                if topic.must_route() {
                    refused.extend(ids)
                } else {
                    ids.for_each(drop)
                }
                Ok(())
            }
        }
    }
}

#[async_trait]
impl Bus for MemoryBus {
    async fn publish(&self, messages: Vec<Outgoing>) -> Result<(), PublishError> {
        if self.shared.is_closed() {
            return Err(PublishError::Closed);
        }
        let mut refused = Vec::new();
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
        if topic.must_route() {
            self.shared.kept(topic);
        }
        Ok(())
    }

    async fn check(&self) -> Result<(), BusError> {
        if self.shared.is_closed() {
            Err(BusError::Closed)
        } else {
            Ok(())
        }
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

/// A subscriber's hold on its mailbox; letting go gives back what is unsettled.
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
}
