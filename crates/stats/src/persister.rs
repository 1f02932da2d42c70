//! The loop that takes snapshots in and writes them out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use attune_bus::letters::{DEAD_LETTER_REASON, DEAD_LETTER_TOPIC};
use attune_bus::{
    Bus, Delivery, DeliveryTag, Outgoing, PublishError, Settler, Subscriber, Topic, letter,
};
use attune_messages::v1::QueueSnapshot;
use attune_messages::{decode_batch, encode};
use attune_record::{Record, Recorder, now_ns};
use attune_runtime::{Backoff, Failing, LogPace, Progress, error_chain, in_task};
use attune_store::{StatsRow, StatsStore, StoreError};
use bytes::Bytes;
use chrono::Utc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::counters::StatsCounters;
use crate::error::StatsError;
use crate::merge::{Newest, Pace, check};
use crate::service::StatsOptions;

/// Messages received and not acknowledged. Owners publish four times a second; this is enough
/// for sixty of them, and for catching up at a thousand messages a second after an outage.
pub(crate) const PREFETCH: u16 = 256;
/// So many rows refused one by one, and none taken: the store is to blame, and trying the others
/// one by one as well would only load it.
const MAX_REFUSED: usize = 8;
/// What is kept of a reason, in bytes; it may quote what was wrong, of any length.
const REASON_BYTES: usize = 400;

/// Takes snapshots in and writes the newest of each action out.
pub(crate) struct Persister<S: ?Sized> {
    bus: Arc<dyn Bus>,
    store: Arc<S>,
    settler: Settler,
    counters: Arc<StatsCounters>,
    /// Why nothing can be written, for people.
    trouble: watch::Sender<Option<String>>,
    recorder: Option<Recorder>,
    max_message_bytes: usize,
    newest: Newest,
    /// What cannot be used, on its way to the dead letters.
    letters: Vec<Outgoing>,
    /// Deliveries to be acknowledged once everything above is done with; at most [`PREFETCH`].
    tags: Vec<DeliveryTag>,
    pace: Pace,
    backoff: Backoff,
    log: LogPace,
    /// Of snapshots that cannot be used.
    poison_log: LogPace,
    /// Whether any write succeeds.
    writing: Failing,
    write_patience: Duration,
    progress: Progress,
}

impl<S: StatsStore + ?Sized + 'static> Persister<S> {
    pub(crate) fn new(
        options: &StatsOptions,
        bus: Arc<dyn Bus>,
        store: Arc<S>,
        (counters, trouble): (Arc<StatsCounters>, watch::Sender<Option<String>>),
        subscriber: &Subscriber,
    ) -> Self {
        Self {
            bus,
            store,
            settler: subscriber.settler(),
            counters,
            trouble,
            recorder: options.recorder.clone(),
            max_message_bytes: options.max_message_bytes,
            newest: Newest::default(),
            letters: Vec::new(),
            tags: Vec::new(),
            pace: Pace::new(options.min_interval),
            backoff: Backoff::default(),
            log: LogPace::default(),
            poison_log: LogPace::default(),
            writing: Failing::default(),
            write_patience: options.write_patience,
            progress: options.progress.clone(),
        }
    }

    /// Works until told to stop or the bus is closed.
    pub(crate) async fn run(
        mut self,
        mut subscriber: Subscriber,
        stop: CancellationToken,
    ) -> Result<(), StatsError> {
        loop {
            self.progress.stamp();
            let full = self.tags.len() >= usize::from(PREFETCH);
            let wait = self.pace.wait(Instant::now(), full);
            if !self.tags.is_empty() && wait.is_zero() && !stop.is_cancelled() {
                self.settle().await;
                continue;
            }
            self.progress.rest();
            tokio::select! {
                biased;
                () = stop.cancelled() => {
                    self.progress.stamp();
                    self.take_ready(&mut subscriber);
                    self.settle().await;
                    return Ok(());
                }
                () = tokio::time::sleep(wait), if !self.tags.is_empty() => {}
                delivery = subscriber.next() => {
                    let Some(delivery) = delivery else { return Err(StatsError::BusClosed) };
                    self.take(&delivery);
                    self.take_ready(&mut subscriber);
                }
            }
        }
    }

    fn take_ready(&mut self, subscriber: &mut Subscriber) {
        while self.tags.len() < usize::from(PREFETCH)
            && let Some(delivery) = subscriber.try_next()
        {
            self.take(&delivery);
        }
    }

    /// Takes a message in.
    fn take(&mut self, delivery: &Delivery) {
        // After a reconnection everything unacknowledged comes again, and old tags mean nothing.
        self.tags
            .retain(|tag| tag.generation >= delivery.tag.generation);
        self.tags.push(delivery.tag);
        match decode_batch::<QueueSnapshot>(&delivery.body, self.max_message_bytes) {
            Err(error) => {
                self.counters.received.add(1);
                self.bury(delivery, delivery.body.clone(), &error.to_string());
            }
            Ok(snapshots) => {
                self.counters.received.add(snapshots.len());
                for snapshot in snapshots {
                    match check(&snapshot) {
                        Ok(()) => self.newest.merge(snapshot),
                        Err(reason) => self.bury(delivery, alone(snapshot), &reason),
                    }
                }
            }
        }
    }

    fn bury(&mut self, delivery: &Delivery, body: Bytes, reason: &str) {
        let reason = &reason[..reason.floor_char_boundary(REASON_BYTES)];
        let id = delivery.message_id.as_deref();
        if self.poison_log.is_due() {
            tracing::warn!(
                message.id = id,
                reason,
                so_far = self.poison_log.tries(),
                "snapshots cannot be used and go to the dead letters; this is the last of them"
            );
        }
        self.counters.poisoned.add(1);
        self.letters
            .push(letter(&Topic::QueueStats, delivery, body, reason));
    }

    /// Writes, passes on what cannot be used, and acknowledges if both went well.
    async fn settle(&mut self) {
        let started = Instant::now();
        let outcome = match self.write().await {
            Ok(()) => self.publish_letters().await,
            Err(error) => {
                let reason = error_chain(&error);
                self.writing.failed(reason.clone());
                Err(reason)
            }
        };
        self.tell_trouble();
        match outcome {
            Ok(()) => {
                let tags = std::mem::take(&mut self.tags);
                if !tags.is_empty() {
                    self.settler.ack(&tags).await;
                }
                self.pace.succeeded(started);
                self.backoff.reset();
                self.log.reset();
            }
            Err(reason) => {
                if self.log.is_due() {
                    let tries = self.log.tries();
                    tracing::warn!(tries, reason, "snapshots cannot be written; trying again");
                }
                self.pace.failed(Instant::now(), self.backoff.next_delay());
            }
        }
    }

    /// Says why nothing can be written for a while, or that something can. What could not be
    /// written is tried again until it can, so that this is never the last word.
    fn tell_trouble(&self) {
        let why = self.writing.lasting(self.write_patience);
        let words = why.map(|why| format!("the figures of queues cannot be written: {why}"));
        self.trouble.send_if_modified(|told| {
            let changed = *told != words;
            *told = words;
            changed
        });
    }

    /// Writes what is kept. When the store refuses the write, finds the rows that it refuses:
    /// if others passed before, these are to blame, and go to the dead letters; if none passes, the
    /// store is, and all are kept.
    async fn write(&mut self) -> Result<(), StoreError> {
        let mut parts = vec![self.newest.rows()];
        let mut refused: Vec<(StatsRow, StoreError)> = Vec::new();
        let mut any_passed = false;
        while (any_passed || refused.len() < MAX_REFUSED)
            && let Some(rows) = parts.pop().filter(|rows| !rows.is_empty())
        {
            let (store, sent) = (Arc::clone(&self.store), rows.clone());
            match in_task(async move { store.upsert_queue_stats(&sent).await }).await {
                Ok(()) => {
                    // What was refused before may have been refused for a reason that is over.
                    if !std::mem::replace(&mut any_passed, true) {
                        parts.extend(refused.drain(..).map(|(row, _)| vec![row]));
                    }
                    self.writing.succeeded();
                    self.counters.writes.add(1);
                    self.counters.written.add(rows.len());
                    self.record(&rows);
                    self.newest.forget(&rows);
                }
                Err(error) if error.is_transient() || matches!(error, StoreError::Schema(_)) => {
                    return Err(error);
                }
                Err(error) => match &rows[..] {
                    [row] => refused.push((row.clone(), error)),
                    _ => {
                        let (first, second) = rows.split_at(rows.len() / 2);
                        parts.extend([second.to_vec(), first.to_vec()]);
                    }
                },
            }
        }
        if !any_passed && let Some((_, error)) = refused.pop() {
            return Err(error);
        }
        for (row, error) in refused {
            self.refuse(row, &error_chain(&error));
        }
        Ok(())
    }

    /// Records rows that were written.
    fn record(&self, rows: &[StatsRow]) {
        let Some(recorder) = &self.recorder else {
            return;
        };
        let t_ns = now_ns();
        recorder.record_all(
            rows.iter()
                .map(|StatsRow { version, stats }| Record::StatsWritten {
                    action_id: stats.action_id,
                    version: *version,
                    enqueued: stats.total_enqueued,
                    completed: stats.total_completed,
                    cancelled: stats.total_cancelled,
                    expired: stats.total_expired,
                    waiting: stats.queue_length,
                    active: stats.active_count,
                    t_ns,
                }),
        );
    }

    /// Gives up a row that the store refuses although it takes others.
    fn refuse(&mut self, row: StatsRow, reason: &str) {
        let reason = &reason[..reason.floor_char_boundary(REASON_BYTES)];
        let action_id = row.stats.action_id.0;
        tracing::error!(
            action.id = action_id,
            reason,
            "the store refuses a snapshot"
        );
        self.counters.poisoned.add(1);
        self.newest.forget(std::slice::from_ref(&row));
        let id = Uuid::now_v7();
        let snapshot = QueueSnapshot {
            version: row.version,
            stats: row.stats,
        };
        let body = encode(id, Utc::now(), &[snapshot]);
        let mut message = Outgoing::new(Topic::DeadLetters, id, body);
        message.headers = vec![
            (DEAD_LETTER_REASON.to_owned(), reason.to_owned()),
            (
                DEAD_LETTER_TOPIC.to_owned(),
                Topic::QueueStats.routing_key(),
            ),
        ];
        self.letters.push(message);
    }

    /// Nothing comes after these, so that dead letters which are refused are given up: a
    /// snapshot is replaced by the next, and must not keep others from being written.
    async fn publish_letters(&mut self) -> Result<(), String> {
        if self.letters.is_empty() {
            return Ok(());
        }
        match self.bus.publish(self.letters.clone()).await {
            Ok(()) => {}
            Err(PublishError::Refused(refused)) => {
                tracing::error!(
                    count = refused.len(),
                    "dead letters are refused; they are given up"
                );
            }
            Err(error) => return Err(error.to_string()),
        }
        self.letters.clear();
        Ok(())
    }
}

/// A snapshot in a message of its own, as its owner could have sent it.
fn alone(snapshot: QueueSnapshot) -> Bytes {
    encode(Uuid::now_v7(), Utc::now(), &[snapshot]).into()
}
