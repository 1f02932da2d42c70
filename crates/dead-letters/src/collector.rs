//! The loop that moves letters from the bus into the store.

use std::sync::Arc;

use attune_bus::{Bus, BusError, Delivery, DeliveryTag, Settler, Subscriber, Subscription, Topic};
use attune_runtime::{Backoff, LogPace, Meter, error_chain, in_task};
use attune_secrets::Keyring;
use attune_store::{DeadLetterStore, NewDeadLetter, StoreError};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::counters::CollectorCounters;
use crate::row::row;

/// Letters received and not acknowledged, at most; with the size of a message it bounds what a
/// collector holds.
const PREFETCH: u16 = 32;
/// Bytes of bodies written together, at most, unless one alone has more.
const BATCH_BYTES: usize = 4 << 20;

/// Settings of a [`Collector`].
#[derive(Debug, Clone)]
pub struct CollectorOptions {
    /// The largest message that anybody reads, in bytes.
    pub max_message_bytes: usize,
    /// Bodies are sealed with these.
    pub secrets: Keyring,
}

/// A collector could not start, or had to stop without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    /// The subscription could not be made; with [`BusError::Unavailable`], trying again is right.
    #[error("the collector cannot subscribe to the dead letters")]
    Subscribe(#[from] BusError),
    /// The bus was closed below it.
    #[error("the bus was closed while the dead letters were being collected")]
    BusClosed,
}

/// Moves dead letters into the store; see the [crate](crate).
#[derive(Debug, Clone, Copy)]
pub struct Collector;

impl Collector {
    /// Subscribes, and works in a task of its own until `stop` is cancelled or the bus is closed.
    /// What is not in the store then stays on the bus.
    ///
    /// # Errors
    /// When the subscription cannot be made.
    pub async fn start<S>(
        options: CollectorOptions,
        bus: Arc<dyn Bus>,
        store: Arc<S>,
        stop: CancellationToken,
    ) -> Result<CollectorHandle, CollectorError>
    where
        S: DeadLetterStore + ?Sized + 'static,
    {
        let subscription = Subscription {
            topic: Topic::DeadLetters,
            prefetch: PREFETCH,
        };
        let subscriber = bus.subscribe(subscription).await?;
        let counters = Arc::<CollectorCounters>::default();
        let (trouble, troubles) = watch::channel(None);
        let collecting = Collecting {
            settler: subscriber.settler(),
            options,
            store,
            counters: Arc::clone(&counters),
            trouble,
            stop,
        };
        let task = tokio::spawn(collecting.run(subscriber));
        Ok(CollectorHandle {
            counters,
            troubles,
            task,
        })
    }
}

/// A running collector. Dropping the handle leaves it running.
#[derive(Debug)]
pub struct CollectorHandle {
    counters: Arc<CollectorCounters>,
    troubles: watch::Receiver<Option<String>>,
    task: JoinHandle<Result<(), CollectorError>>,
}

impl CollectorHandle {
    /// What it has counted.
    pub fn counters(&self) -> Arc<CollectorCounters> {
        Arc::clone(&self.counters)
    }

    /// Shows what it counts among the metrics.
    pub fn export(&self, meter: &Meter) {
        self.counters.export(meter);
        self.counters.begin();
    }

    /// Why letters cannot be kept at the moment, in words for an operator; `None` while all is
    /// well.
    pub fn troubles(&self) -> watch::Receiver<Option<String>> {
        self.troubles.clone()
    }

    /// Waits until it has stopped.
    ///
    /// # Errors
    /// [`CollectorError::BusClosed`] when that, and not the stop, is why.
    ///
    /// # Panics
    /// When a part of it panicked.
    pub async fn stopped(self) -> Result<(), CollectorError> {
        match self.task.await {
            Ok(outcome) => outcome,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is being shut down; nobody is left to be told.
                Err(_) => Ok(()),
            },
        }
    }
}

struct Collecting<S: ?Sized> {
    options: CollectorOptions,
    settler: Settler,
    store: Arc<S>,
    counters: Arc<CollectorCounters>,
    trouble: watch::Sender<Option<String>>,
    stop: CancellationToken,
}

/// What was said of letters that are kept.
#[derive(Default)]
struct Told {
    pace: LogPace,
    /// How many letters were kept since.
    untold: usize,
}

impl<S: DeadLetterStore + ?Sized + 'static> Collecting<S> {
    async fn run(self, mut subscriber: Subscriber) -> Result<(), CollectorError> {
        let mut told = Told::default();
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(()),
                delivery = subscriber.next() => {
                    let Some(first) = delivery else { return Err(CollectorError::BusClosed) };
                    let (letters, tags) = self.gather(first, &mut subscriber);
                    self.keep(letters, tags, &mut told).await;
                }
            }
        }
    }

    /// What has arrived, as far as it is written together.
    fn gather(
        &self,
        first: Delivery,
        subscriber: &mut Subscriber,
    ) -> (Vec<NewDeadLetter>, Vec<DeliveryTag>) {
        let (mut letters, mut tags) = (Vec::new(), Vec::new());
        let (mut next, mut bytes) = (Some(first), 0);
        while let Some(delivery) = next {
            bytes += delivery.body.len();
            tags.push(delivery.tag);
            let mut letter = row(&delivery, self.options.max_message_bytes);
            letter.body = self.options.secrets.seal_message(letter.body);
            // One statement takes a message once; the last reason counts, as if they had come
            // one after the other.
            letters.retain(|other: &NewDeadLetter| other.message_id != letter.message_id);
            letters.push(letter);
            next = match bytes < BATCH_BYTES {
                true => subscriber.try_next(),
                false => None,
            };
        }
        self.counters.received.add(tags.len());
        (letters, tags)
    }

    /// Writes letters until the store has them or the stop is ordered, and acknowledges them.
    /// Whatever the store says against it, they are not dropped: they are somebody's work.
    async fn keep(&self, letters: Vec<NewDeadLetter>, tags: Vec<DeliveryTag>, told: &mut Told) {
        let letters = Arc::new(letters);
        let mut backoff = Backoff::default();
        let mut log = LogPace::default();
        loop {
            let (store, batch) = (Arc::clone(&self.store), Arc::clone(&letters));
            let written = in_task(async move { store.add_dead_letters(&batch).await }).await;
            let error = match written {
                Ok(()) => break,
                Err(error) => error,
            };
            self.say(Some(&error));
            if log.is_due() {
                let (error, tries) = (error_chain(&error), log.tries());
                tracing::warn!(error, tries, "dead letters cannot be kept; trying again");
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(backoff.next_delay()) => {}
            }
        }
        self.say(None);
        // All of them are in the table; there may be thousands, and as many batches.
        told.untold += letters.len();
        if let Some(letter) = letters.last().filter(|_| told.pace.is_due()) {
            tracing::warn!(
                message.id = %letter.message_id,
                bus.topic = letter.source,
                reason = letter.reason,
                letters = told.untold,
                "messages that nobody can use are kept as dead letters; this is the last of them"
            );
            told.untold = 0;
        }
        self.counters.kept.add(tags.len());
        for letter in letters.iter() {
            self.counters.count(&letter.source);
        }
        self.settler.ack(&tags).await;
    }

    fn say(&self, error: Option<&StoreError>) {
        let words =
            error.map(|error| format!("dead letters cannot be kept: {}", error_chain(error)));
        self.trouble.send_if_modified(|last| {
            let changed = *last != words;
            *last = words;
            changed
        });
    }
}
