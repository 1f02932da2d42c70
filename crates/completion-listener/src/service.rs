//! The listener as a service: drives the forwarder.

use std::sync::Arc;
use std::time::Duration;

use attune_bus::{Bus, Delivery, PublishError, Settler, Subscriber, Subscription, Topic};
use attune_core::PartitionId;
use attune_record::{Record, Recorder, now_ns};
use attune_runtime::LogPace;
use chrono::Utc;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::counters::ListenerCounters;
use crate::error::ListenerError;
use crate::forward::{Forwarder, ForwarderOptions, Input, Now, Outcome, Output};
use crate::mend::MIN_ITEM_BYTES;

/// Bytes of bodies that may be unacknowledged before nothing more is taken from the subscription;
/// what the subscription itself holds is bounded by its prefetch.
const WINDOW_BYTES: usize = 64 << 20;
/// What envelopes take, and more.
const ENVELOPE_BYTES: usize = 512;
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
    fn forwarder(&self) -> ForwarderOptions {
        ForwarderOptions {
            partitions: self.partitions,
            max_batch: self.max_batch,
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
        let subscription = Subscription {
            topic: Topic::Completed,
            prefetch: options.prefetch,
        };
        let subscriber = bus.subscribe(subscription).await?;
        let counters = Arc::<ListenerCounters>::default();
        let (trouble, troubles) = watch::channel(None);
        let forwarder = Forwarder::new(options.forwarder(), Uuid::now_v7);
        let listening = Listening {
            settler: subscriber.settler(),
            subscriber,
            forwarder,
            bus,
            counters: Arc::clone(&counters),
            recorder: options.recorder.clone(),
            trouble,
            calls: JoinSet::new(),
            started: Instant::now(),
            log: LogPace::default(),
            options,
        };
        let task = tokio::spawn(listening.run(stop));
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

/// Drives a [`Forwarder`]: gives it what arrives and does what it says.
struct Listening {
    options: ListenerOptions,
    forwarder: Forwarder,
    subscriber: Subscriber,
    settler: Settler,
    bus: Arc<dyn Bus>,
    counters: Arc<ListenerCounters>,
    recorder: Option<Recorder>,
    trouble: watch::Sender<Option<String>>,
    /// Publishes under way.
    calls: JoinSet<(u64, Result<(), PublishError>)>,
    started: Instant,
    log: LogPace,
}

impl Listening {
    /// Listens until told to stop, then waits for the publishes under way. The subscriber lives
    /// until what they confirm is acknowledged.
    async fn run(mut self, stop: CancellationToken) -> Result<(), ListenerError> {
        let outcome = loop {
            let far = Duration::from_secs(3600);
            let wake = self.started + self.forwarder.wake().unwrap_or(self.elapsed() + far);
            let inputs = tokio::select! {
                biased;
                () = stop.cancelled() => break Ok(()),
                Some(answered) = self.calls.join_next() => vec![answer(answered)],
                delivery = self.subscriber.next(), if self.forwarder.wants_more() => {
                    let Some(first) = delivery else { break Err(ListenerError::BusClosed) };
                    self.gather(first)
                }
                () = sleep_until(wake) => Vec::new(),
            };
            self.step(inputs).await;
            if self.forwarder.is_closed() {
                break Err(ListenerError::BusClosed);
            }
        };
        self.forwarder.stop();
        while let Some(answered) = self.calls.join_next().await {
            self.step(vec![answer(answered)]).await;
        }
        outcome
    }

    /// What has arrived, as far as it should be published together: what is published together
    /// is confirmed together.
    fn gather(&mut self, first: Delivery) -> Vec<Input> {
        let mut bytes = first.body.len();
        let mut inputs = vec![Input::Delivered(first)];
        while inputs.len() < self.options.max_batch
            && bytes < self.options.max_message_bytes
            && let Some(delivery) = self.subscriber.try_next()
        {
            bytes += delivery.body.len();
            inputs.push(Input::Delivered(delivery));
        }
        inputs
    }

    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    async fn step(&mut self, inputs: Vec<Input>) {
        for input in &inputs {
            if let Input::Answered(_, Err(error)) = input
                && self.log.is_due()
            {
                let tries = self.log.tries();
                tracing::warn!(%error, tries, "completions cannot be passed on; trying again");
            }
        }
        let now = Now {
            elapsed: self.elapsed(),
            wall: Utc::now(),
        };
        let outputs = self.forwarder.step(now, inputs);
        let taken = self.forwarder.take_counts();
        self.counters.received.add(taken.received);
        self.counters.mended.add(taken.mended);
        for output in outputs {
            self.perform(output).await;
        }
        let trouble = self.forwarder.trouble();
        self.trouble.send_if_modified(|last| {
            let changed = *last != trouble;
            if changed && let Some(trouble) = &trouble {
                tracing::warn!(%trouble, "completions wait");
            }
            *last = trouble;
            changed
        });
    }

    async fn perform(&mut self, output: Output) {
        match output {
            Output::Forwarded(outcomes) => {
                self.counters.forwarded.add(outcomes.len());
                self.log = LogPace::default();
                self.record(outcomes.into_iter().map(forwarded));
            }
            Output::Buried { reason, given_up } => {
                self.counters.poisoned.add(1);
                match given_up {
                    None => tracing::warn!(
                        reason,
                        "a completion cannot be used; it is among the dead letters"
                    ),
                    Some(refusal) => tracing::error!(
                        reason,
                        %refusal,
                        "a completion cannot be used, and the dead letters refuse it; it is given up"
                    ),
                }
                let t_ns = now_ns();
                self.record([Record::DeadLettered { reason, t_ns }]);
            }
            Output::Ack(tags) => self.settler.ack(&tags).await,
            Output::Publish {
                call,
                declare,
                messages,
            } => {
                let bus = Arc::clone(&self.bus);
                self.calls.spawn(async move {
                    // Whoever consumes a topic declares it. A partition that has had no owner
                    // yet is declared here, so that its completions are kept for the first one.
                    for topic in declare {
                        if let Err(error) = bus.declare(&topic).await {
                            tracing::warn!(bus.topic = %topic, %error, "a topic cannot be declared");
                        }
                    }
                    (call, bus.publish(messages).await)
                });
            }
        }
    }

    fn record(&self, records: impl IntoIterator<Item = Record>) {
        if let Some(recorder) = &self.recorder {
            recorder.record_all(records);
        }
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

/// The answer to a publish; its panic goes on here.
fn answer(ended: Result<(u64, Result<(), PublishError>), JoinError>) -> Input {
    match ended {
        Ok((call, answer)) => Input::Answered(call, answer),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is being shut down; no number is u64::MAX.
            Err(_) => Input::Answered(u64::MAX, Err(PublishError::Closed)),
        },
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
