//! The listener as a service: one loop that begins rounds.

use std::sync::Arc;

use attune_bus::{Bus, Delivery, Subscriber, Subscription, Topic};
use attune_core::PartitionId;
use attune_record::Recorder;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::counters::ListenerCounters;
use crate::error::ListenerError;
use crate::mend::MIN_ITEM_BYTES;
use crate::pack::ENVELOPE_BYTES;
use crate::round::{Courier, Gathering};

/// Rounds that are published and not confirmed, at most. While they are under way the next
/// deliveries gather, so that a slow broker gets larger messages and not more of them.
const MAX_ROUNDS: usize = 4;
/// The smallest message bound: one completion without output and its envelope.
const MIN_MESSAGE_BYTES: usize = MIN_ITEM_BYTES + 2 * ENVELOPE_BYTES;

/// Settings of a [`CompletionListener`].
#[derive(Debug, Clone)]
pub struct ListenerOptions {
    /// How many partitions the cluster has, 1 to 256.
    pub partitions: u16,
    /// Messages received and not yet acknowledged, at most. With the size of a message it
    /// bounds the memory that a listener uses.
    pub prefetch: u16,
    /// Completions that are passed on in one message, at most; also how many are taken up
    /// before what came out of them is published.
    pub max_batch: usize,
    /// The largest message that is read or sent, in bytes; as large as the bus allows.
    pub max_message_bytes: usize,
    /// Where it records what it has handed over, if that is wanted.
    pub recorder: Option<Recorder>,
}

impl ListenerOptions {
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
        let subscription = Subscription {
            topic: Topic::Completed,
            prefetch: options.prefetch,
        };
        let subscriber = bus.subscribe(subscription).await?;
        let counters = Arc::<ListenerCounters>::default();
        let courier = Courier {
            bus,
            settler: subscriber.settler(),
            counters: Arc::clone(&counters),
            recorder: options.recorder.clone(),
            stop,
        };
        let task = tokio::spawn(listen(options, subscriber, Arc::new(courier)));
        Ok(ListenerHandle { counters, task })
    }
}

/// A running listener. Dropping the handle leaves it running.
#[derive(Debug)]
pub struct ListenerHandle {
    counters: Arc<ListenerCounters>,
    task: JoinHandle<Result<(), ListenerError>>,
}

impl ListenerHandle {
    /// What it has counted.
    pub fn counters(&self) -> Arc<ListenerCounters> {
        Arc::clone(&self.counters)
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

/// Begins rounds until told to stop, then waits for those under way. The subscriber lives until
/// they have acknowledged what they could.
async fn listen(
    options: ListenerOptions,
    mut subscriber: Subscriber,
    courier: Arc<Courier>,
) -> Result<(), ListenerError> {
    let mut rounds = JoinSet::new();
    let outcome = loop {
        tokio::select! {
            biased;
            () = courier.stop.cancelled() => break Ok(()),
            Some(ended) = rounds.join_next() => {
                if let Err(error) = flatten(ended) {
                    break Err(error);
                }
            }
            delivery = subscriber.next(), if rounds.len() < MAX_ROUNDS => {
                let Some(first) = delivery else { break Err(ListenerError::BusClosed) };
                let round = gather(&options, first, &mut subscriber).finish(&courier.counters);
                let courier = Arc::clone(&courier);
                rounds.spawn(async move { round.deliver(&courier).await });
            }
        }
    };
    // Nothing can be confirmed by a closed bus, and rounds that wait to try again would find out
    // much later.
    if outcome.is_err() {
        rounds.abort_all();
    }
    while let Some(ended) = rounds.join_next().await {
        // Only a panic matters now; that the bus is closed as well changes nothing.
        flatten(ended).ok();
    }
    outcome
}

/// Takes what has arrived, as far as it fits into a round.
fn gather<'a>(
    options: &'a ListenerOptions,
    first: Delivery,
    subscriber: &mut Subscriber,
) -> Gathering<'a> {
    let mut gathering = Gathering::new(options);
    let mut next = Some(first);
    while let Some(delivery) = next {
        gathering.take(&delivery);
        next = if gathering.is_full() {
            None
        } else {
            subscriber.try_next()
        };
    }
    gathering
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
