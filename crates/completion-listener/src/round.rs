//! A round: some deliveries, what came out of them, and its way until all of it is confirmed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use attune_bus::{Bus, Delivery, DeliveryTag, Outgoing, PublishError, Settler, Topic, letter};
use attune_messages::v1::{Completion, ExecutionCompleted, SlotRelease};
use attune_messages::{encode, encode_raw};
use attune_record::{Record, Recorder, now_ns};
use attune_runtime::Backoff;
use bytes::Bytes;
use chrono::Utc;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::counters::ListenerCounters;
use crate::decide::decide;
use crate::error::ListenerError;
use crate::mend::mend;
use crate::pack::{ENVELOPE_BYTES, Outcome, Pack, Packer};
use crate::read::{Item, read};
use crate::service::ListenerOptions;

/// The first and the longest wait before something is published again.
const RETRY_BASE: Duration = Duration::from_millis(50);
const RETRY_CAP: Duration = Duration::from_secs(5);
/// How often a dead letter may be refused before it is given up: nothing can be done with it,
/// and dead letters that are full must not keep completions from their owners.
const LETTER_TRIES: u32 = 3;
/// What is kept of a reason, in bytes; it may quote what was wrong, of any length.
const REASON_BYTES: usize = 400;

/// Takes deliveries apart until the round is large enough.
pub(crate) struct Gathering<'a> {
    options: &'a ListenerOptions,
    packer: Packer,
    letters: Vec<Part>,
    tags: Vec<DeliveryTag>,
    items: usize,
    mended: usize,
    bytes: usize,
}

/// Messages to be published, and the deliveries to be acknowledged after them.
#[derive(Debug)]
pub(crate) struct Round {
    parts: Vec<Part>,
    /// By the number of the delivery.
    tags: Vec<DeliveryTag>,
    /// How many parts of each delivery are not confirmed.
    open: Vec<usize>,
}

#[derive(Debug)]
struct Part {
    message: Outgoing,
    carries: Carries,
    /// Numbers of the deliveries it came from, each once.
    deliveries: Vec<usize>,
}

#[derive(Debug)]
enum Carries {
    Completions(Vec<Outcome>),
    /// What cannot be used, and why.
    Letter(String),
}

/// What every round needs on its way.
pub(crate) struct Courier {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) settler: Settler,
    pub(crate) counters: Arc<ListenerCounters>,
    pub(crate) recorder: Option<Recorder>,
    pub(crate) stop: CancellationToken,
}

impl<'a> Gathering<'a> {
    pub(crate) fn new(options: &'a ListenerOptions) -> Self {
        Self {
            options,
            packer: Packer::new(options.max_batch, options.max_message_bytes),
            letters: Vec::new(),
            tags: Vec::new(),
            items: 0,
            mended: 0,
            bytes: 0,
        }
    }

    /// Whether the round should begin before more is taken: what is published together is
    /// confirmed together, and a round of large messages would only be slower.
    pub(crate) fn is_full(&self) -> bool {
        self.items >= self.options.max_batch || self.bytes >= self.options.max_message_bytes
    }

    /// Takes a delivery apart, decides about each item, and keeps what is to be published.
    pub(crate) fn take(&mut self, delivery: &Delivery) {
        let number = self.tags.len();
        self.tags.push(delivery.tag);
        self.bytes += delivery.body.len();
        let items = match read(&delivery.body, self.options.max_message_bytes) {
            Ok(items) => items,
            Err(error) => {
                self.items += 1;
                self.bury(number, delivery, delivery.body.clone(), &error.to_string());
                return;
            }
        };
        self.items += items.len();
        let alone = items.len() == 1;
        for item in items {
            if let Err((body, reason)) = self.take_item(number, item) {
                let body = if alone { delivery.body.clone() } else { body };
                self.bury(number, delivery, body, &reason);
            }
        }
    }

    /// Packs an item, or gives it back as a message of its own with the reason.
    fn take_item(&mut self, number: usize, item: Item) -> Result<(), (Bytes, String)> {
        let completion = item.map_err(|bad| (alone_raw(&bad.item), bad.reason))?;
        let partition = decide(self.options.partitions, &completion)
            .map_err(|refusal| (alone(&completion), refusal.to_string()))?;
        let outcome = (
            completion.execution_id,
            completion.attempt,
            completion.status,
        );
        let mended = mend(
            completion,
            self.options.max_message_bytes - ENVELOPE_BYTES - 1,
        );
        self.mended += usize::from(mended.changed);
        self.packer.add(partition, (mended.item, outcome), number);
        Ok(())
    }

    fn bury(&mut self, number: usize, delivery: &Delivery, body: Bytes, reason: &str) {
        let reason = &reason[..reason.floor_char_boundary(REASON_BYTES)];
        tracing::warn!(
            message.id = delivery.message_id,
            reason,
            "a completion cannot be used; it goes to the dead letters"
        );
        let message = letter(&Topic::Completed, delivery, body, reason);
        self.letters.push(Part {
            message,
            carries: Carries::Letter(reason.to_owned()),
            deliveries: vec![number],
        });
    }

    /// The round of everything that was taken.
    pub(crate) fn finish(self, counters: &ListenerCounters) -> Round {
        counters.received.add(self.items);
        counters.mended.add(self.mended);
        let mut parts: Vec<Part> = self.packer.finish().into_iter().map(release).collect();
        parts.extend(self.letters);
        let mut open = vec![0; self.tags.len()];
        for &number in parts.iter().flat_map(|part| &part.deliveries) {
            open[number] += 1;
        }
        Round {
            parts,
            tags: self.tags,
            open,
        }
    }
}

/// A pack as a message to its owner.
fn release(pack: Pack) -> Part {
    let items: Vec<&RawValue> = pack.items.iter().map(Box::as_ref).collect();
    let id = Uuid::now_v7();
    let body = encode_raw::<SlotRelease>(id, Utc::now(), &items);
    Part {
        message: Outgoing::new(Topic::Control(pack.partition), id, body),
        carries: Carries::Completions(pack.outcomes),
        deliveries: pack.deliveries,
    }
}

/// What is recorded of a part that is confirmed.
fn records(part: &Part) -> Vec<Record> {
    let t_ns = now_ns();
    match &part.carries {
        Carries::Completions(outcomes) => {
            let forwarded = |(execution_id, attempt, status): &Outcome| Record::Forwarded {
                execution_id: *execution_id,
                attempt: *attempt,
                status: *status,
                t_ns,
            };
            outcomes.iter().map(forwarded).collect()
        }
        Carries::Letter(reason) => vec![Record::DeadLettered {
            reason: reason.clone(),
            t_ns,
        }],
    }
}

/// A completion in a message of its own, as its worker could have sent it.
fn alone(completion: &Completion) -> Bytes {
    let items = [ExecutionCompleted(completion.clone())];
    encode(Uuid::now_v7(), Utc::now(), &items).into()
}

fn alone_raw(item: &RawValue) -> Bytes {
    encode_raw::<ExecutionCompleted>(Uuid::now_v7(), Utc::now(), &[item]).into()
}

impl Round {
    /// Publishes until all is confirmed or the stop is ordered, and acknowledges each delivery
    /// when everything that came out of it is confirmed. What is left at the stop comes again,
    /// to whoever listens then.
    ///
    /// # Errors
    /// When the bus is closed.
    pub(crate) async fn deliver(mut self, courier: &Courier) -> Result<(), ListenerError> {
        let mut backoff = Backoff::new(RETRY_BASE, RETRY_CAP);
        let mut tries = 0_u32;
        loop {
            let messages = self.parts.iter().map(|part| part.message.clone()).collect();
            let outcome = courier.bus.publish(messages).await;
            tries += 1;
            let error = match outcome {
                Ok(()) => {
                    self.confirm(courier, |_| true).await;
                    return Ok(());
                }
                Err(PublishError::Closed) => return Err(ListenerError::BusClosed),
                Err(error) => error,
            };
            if matches!(error, PublishError::Refused(_)) {
                self.confirm(courier, |part| {
                    error.refusal_of(part.message.message_id).is_none()
                })
                .await;
                if tries >= LETTER_TRIES {
                    self.give_up_letters(courier, &error).await;
                }
                self.declare_targets(courier).await;
            }
            if self.parts.is_empty() {
                return Ok(());
            }
            // Ever more rarely: one round may wait for hours.
            if tries.is_power_of_two() {
                let (messages, deliveries) = (self.parts.len(), self.waiting_deliveries());
                tracing::warn!(
                    tries, messages, deliveries, %error,
                    "completions cannot be passed on; trying again"
                );
            }
            tokio::select! {
                biased;
                () = courier.stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(backoff.next_delay()) => {}
            }
        }
    }

    fn waiting_deliveries(&self) -> usize {
        self.open.iter().filter(|parts| **parts > 0).count()
    }

    /// Some parts are confirmed: counts and records them, and acknowledges the deliveries that
    /// are done.
    async fn confirm(&mut self, courier: &Courier, is_confirmed: impl Fn(&Part) -> bool) {
        if let Some(recorder) = &courier.recorder {
            let confirmed = self.parts.iter().filter(|part| is_confirmed(part));
            recorder.record_all(confirmed.flat_map(records));
        }
        self.finish(courier, is_confirmed).await;
    }

    /// Lets go of some parts, and acknowledges the deliveries that are done.
    async fn finish(&mut self, courier: &Courier, is_finished: impl Fn(&Part) -> bool) {
        let mut done = Vec::new();
        let (tags, open) = (&self.tags, &mut self.open);
        self.parts.retain(|part| {
            if !is_finished(part) {
                return true;
            }
            match &part.carries {
                Carries::Completions(outcomes) => courier.counters.forwarded.add(outcomes.len()),
                Carries::Letter(_) => courier.counters.poisoned.add(1),
            }
            for &number in &part.deliveries {
                open[number] -= 1;
                if open[number] == 0 {
                    done.push(tags[number]);
                }
            }
            false
        });
        if !done.is_empty() {
            courier.settler.ack(&done).await;
        }
    }

    /// Lets go of dead letters that nobody keeps.
    async fn give_up_letters(&mut self, courier: &Courier, error: &PublishError) {
        let is_letter = |part: &Part| matches!(part.carries, Carries::Letter(_));
        let count = self.parts.iter().filter(|part| is_letter(part)).count();
        if count > 0 {
            tracing::error!(count, %error, "dead letters are refused; they are given up");
            self.finish(courier, is_letter).await;
        }
    }

    /// Whoever consumes a topic declares it. Something can be refused although its owner did,
    /// when a partition has had no owner yet; declared here, it is kept for the first one.
    async fn declare_targets(&self, courier: &Courier) {
        let topics: HashSet<&Topic> = self.parts.iter().map(|part| &part.message.topic).collect();
        for topic in topics {
            if let Err(error) = courier.bus.declare(topic).await {
                tracing::warn!(bus.topic = %topic, %error, "a topic cannot be declared");
            }
        }
    }
}
