//! The listener as a service.

use std::sync::{Arc, Mutex, PoisonError};

use attune_bus::{Bus, BusError, Subscription, Topic};
use attune_core::PartitionId;
use attune_record::{Record, Recorder, now_ns};
use attune_routing::completions::{MIN_ITEM_BYTES, Outcome};
use attune_routing::{Bounds, Completions, Senders};
use attune_routing_service::{BusClosed, Driver, Observer};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::counters::ListenerCounters;
use crate::error::ListenerError;

/// Bytes of bodies that may be unacknowledged before nothing more is taken from a subscription.
const WINDOW_BYTES: usize = 8 << 20;
/// What envelopes take, and more.
const ENVELOPE_BYTES: usize = 512;
/// The smallest message bound: one completion without output and its envelope.
const MIN_MESSAGE_BYTES: usize = MIN_ITEM_BYTES + 2 * ENVELOPE_BYTES;

/// Settings of a [`CompletionListener`].
#[derive(Debug, Clone)]
pub struct ListenerOptions {
    /// How many partitions the cluster has, 1 to 256.
    pub partitions: u16,
    /// Messages received of each topic and not yet acknowledged, at most. With the size of a message
    /// it bounds the memory that a listener uses.
    pub prefetch: u16,
    /// Completions that are passed on in one message, at most; also how many are taken up
    /// before what came out of them is published.
    pub max_batch: usize,
    /// The largest message that is read or sent, in bytes; as large as the bus allows.
    pub max_message_bytes: usize,
    /// Who may report.
    pub senders: Senders,
    /// Where it records what it has handed over, if that is wanted.
    pub recorder: Option<Recorder>,
}

impl ListenerOptions {
    fn bounds(&self) -> Bounds {
        Bounds {
            max_items: self.max_batch,
            pack_bytes: self.max_message_bytes,
            max_message_bytes: self.max_message_bytes,
            window: usize::from(self.prefetch),
            window_bytes: WINDOW_BYTES.max(self.max_message_bytes),
        }
    }

    /// Words that say what is impossible, if anything is.
    fn problem(&self) -> Option<String> {
        if !(1..=PartitionId::MAX_COUNT).contains(&self.partitions) {
            return Some(format!(
                "a cluster cannot have {} partitions",
                self.partitions
            ));
        }
        if self.prefetch == 0 || self.max_batch == 0 {
            return Some("a completion listener that takes nothing is of no use".to_owned());
        }
        if self.max_message_bytes < MIN_MESSAGE_BYTES {
            return Some(format!(
                "messages must be allowed at least {MIN_MESSAGE_BYTES} bytes"
            ));
        }
        None
    }
}

/// Passes completions on to the owners of their partitions; see the [crate](crate).
#[derive(Debug, Clone, Copy)]
pub struct CompletionListener;

impl CompletionListener {
    /// Subscribes, and listens in a task of its own until `stop` is cancelled or the bus is
    /// closed. At the stop, what is being published is still confirmed and acknowledged; what
    /// is left comes again, to another listener or to this one's successor.
    ///
    /// # Errors
    /// When the options are impossible or the subscription cannot be made.
    pub async fn start(
        options: ListenerOptions,
        bus: Arc<dyn Bus>,
        stop: CancellationToken,
    ) -> Result<ListenerHandle, ListenerError> {
        if let Some(problem) = options.problem() {
            return Err(ListenerError::Options(problem));
        }
        let counters = Arc::<ListenerCounters>::default();
        let (trouble, troubles) = watch::channel(None);
        let trouble = Arc::new(Trouble {
            of: Mutex::default(),
            told: trouble,
        });
        let [kept, others] = [Source::Kept, Source::Others].map(|source| {
            let watcher = Watcher {
                counters: Arc::clone(&counters),
                recorder: options.recorder.clone(),
                trouble: Arc::clone(&trouble),
                source,
            };
            driver(&options, &bus, source, watcher)
        });
        let (kept, others) = (kept.await?, others.await?);
        let task = tokio::spawn(async move {
            let (kept, others) = tokio::join!(kept.run(stop.clone()), others.run(stop));
            let ended = kept.and(others);
            ended.map_err(|BusClosed| ListenerError::BusClosed)
        });
        Ok(ListenerHandle {
            counters,
            troubles,
            task,
        })
    }
}

/// A running listener. Dropping the handle leaves it running.
#[derive(Debug)]
pub struct ListenerHandle {
    counters: Arc<ListenerCounters>,
    troubles: watch::Receiver<Option<String>>,
    task: JoinHandle<Result<(), ListenerError>>,
}

impl ListenerHandle {
    /// What it has counted.
    pub fn counters(&self) -> Arc<ListenerCounters> {
        Arc::clone(&self.counters)
    }

    /// What keeps completions from their owners at the moment, in words for an operator: `None`
    /// while all is well.
    pub fn troubles(&self) -> watch::Receiver<Option<String>> {
        self.troubles.clone()
    }

    /// Waits until it has stopped.
    ///
    /// # Errors
    /// [`ListenerError::BusClosed`] when that, and not the stop, is why.
    ///
    /// # Panics
    /// When a part of it panicked.
    pub async fn stopped(self) -> Result<(), ListenerError> {
        flatten(self.task.await)
    }
}

/// Who reports.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// Workers that keep what they report until it is settled.
    Kept,
    /// All others.
    Others,
}

/// A driver that passes on what comes from a source.
async fn driver(
    options: &ListenerOptions,
    bus: &Arc<dyn Bus>,
    source: Source,
    watcher: Watcher,
) -> Result<Driver<Completions, Watcher>, BusError> {
    // What its worker keeps need not outlive the broker on the rest of its way either.
    let (topic, to): (_, fn(PartitionId) -> Topic) = match source {
        Source::Kept => (Topic::CompletedKept, Topic::ControlKept),
        Source::Others => (Topic::Completed, Topic::Control),
    };
    let subscription = Subscription {
        topic: topic.clone(),
        prefetch: options.prefetch,
    };
    let subscriber = bus.subscribe(subscription).await?;
    let rules = Completions {
        partitions: options.partitions,
        senders: options.senders.clone(),
    };
    Ok(Driver::new(
        rules,
        options.bounds(),
        topic,
        to,
        Arc::clone(bus),
        subscriber,
        watcher,
    ))
}

/// What keeps completions of each source from their owners.
struct Trouble {
    of: Mutex<[Option<String>; 2]>,
    told: watch::Sender<Option<String>>,
}

impl Trouble {
    fn set(&self, source: Source, trouble: Option<String>) {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        of[source as usize] = trouble;
        self.told.send_replace(of.iter().flatten().next().cloned());
    }
}

/// Counts and records what is done with completions of one source.
struct Watcher {
    counters: Arc<ListenerCounters>,
    recorder: Option<Recorder>,
    trouble: Arc<Trouble>,
    source: Source,
}

impl Watcher {
    fn record(&self, records: impl IntoIterator<Item = Record>) {
        if let Some(recorder) = &self.recorder {
            recorder.record_all(records);
        }
    }
}

impl Observer<Outcome> for Watcher {
    fn taken(&mut self, received: usize, changed: usize) {
        self.counters.received.add(received);
        self.counters.mended.add(changed);
    }

    fn forwarded(&mut self, outcomes: Vec<Outcome>) {
        self.counters.forwarded.add(outcomes.len());
        self.record(outcomes.into_iter().map(forwarded));
    }

    fn buried(&mut self, reason: String) {
        self.counters.poisoned.add(1);
        let t_ns = now_ns();
        self.record([Record::DeadLettered { reason, t_ns }]);
    }

    fn trouble(&mut self, trouble: Option<String>) {
        self.trouble.set(self.source, trouble);
    }
}

fn forwarded((execution_id, attempt, status): Outcome) -> Record {
    Record::Forwarded {
        execution_id,
        attempt,
        status,
        t_ns: now_ns(),
    }
}

/// The outcome of a task; its panic goes on here.
fn flatten(ended: Result<Result<(), ListenerError>, JoinError>) -> Result<(), ListenerError> {
    match ended {
        Ok(outcome) => outcome,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is being shut down; nobody is left to be told.
            Err(_) => Ok(()),
        },
    }
}
