//! Taking partitions over and letting them go.
//!
//! A new owner rebuilds the queues from the store before it decides anything: nothing is granted
//! before the holders are known. Its lease was committed first, so no older owner can still
//! write; what was dispatched and not claimed is dispatched again, in the same attempt.
//!
//! Rebuilding runs beside the owner's loop, which serves its other partitions meanwhile. It
//! fills queues of its own: the loop adopts them when they are whole, or drops them when the
//! partition is lost by then.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use attune_bus::{Bus, Subscriber, Subscription, Topic};
use attune_core::{Epoch, PartitionId};
use attune_runtime::Backoff;
use attune_store::{ActiveRow, PartitionStore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::dispatcher::Told;
use crate::draft::Draft;
use crate::event::{Dispatch, Event};
use crate::journal::{Journal, Owned, persist, unix_millis};
use crate::partition_core::PartitionCore;
use crate::queue_manager::{ExecutionQueueManager, QueueConfig};

/// How many executions one page of a take-over loads.
const LOAD_PAGE: u32 = 20_000;
/// How long a partition that is handed over waits for its last messages to be confirmed. What is
/// not confirmed by then is told again by the next owner.
const TELLING: Duration = Duration::from_secs(2);
/// How many executions are dispatched once more at a time, and how often: a taken over partition
/// must not flood the broker with what mostly waits at the workers already.
const AGAIN_AT_ONCE: usize = 500;
const AGAIN_INTERVAL: Duration = Duration::from_millis(50);

/// What feeds a partition's messages to its owner.
pub(crate) struct Feeds {
    /// No more is passed on from here; what was passed on can still be acknowledged.
    quiet: CancellationToken,
    /// The subscriptions end.
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Feeds {
    /// Ends the subscriptions: what is not acknowledged goes back to the broker.
    pub(crate) async fn end(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Partitions whose queues are rebuilt, ready to be served.
pub(crate) struct Loaded {
    started: Instant,
    partitions: Vec<(PartitionCore, Vec<(Topic, Subscriber)>)>,
    /// What must be dispatched again.
    draft: Draft,
}

/// Rebuilds the queues of partitions from the store, and subscribes to their topics.
struct Takeover {
    store: Arc<dyn PartitionStore>,
    bus: Arc<dyn Bus>,
    acquired: Vec<(PartitionId, Epoch)>,
    partition_count: u16,
    config: QueueConfig,
    prefetch: u16,
    /// Whether what is decided is recorded.
    recording: bool,
    stop: CancellationToken,
}

impl Takeover {
    /// `None` when told to stop.
    async fn run(self) -> Option<Loaded> {
        let started = Instant::now();
        let mut draft = Draft::default();
        let (cores, subscribers) = tokio::join!(self.load(&mut draft), self.subscribe());
        let (mut cores, mut subscribers) = (cores?, subscribers?);
        let partitions = self.acquired.iter().filter_map(|(partition, _)| {
            Some((cores.remove(partition)?, subscribers.remove(partition)?))
        });
        Some(Loaded {
            started,
            partitions: partitions.collect(),
            draft,
        })
    }

    async fn load(&self, draft: &mut Draft) -> Option<BTreeMap<PartitionId, PartitionCore>> {
        let (store, stop) = (&self.store, &self.stop);
        let ids: Vec<PartitionId> = self.acquired.iter().map(|(id, _)| *id).collect();
        let (actions, totals, first) = tokio::join!(
            persist(stop, || store.load_actions(&ids)),
            persist(stop, || store.load_totals(&ids)),
            persist(stop, || store.load_active(&ids, None, LOAD_PAGE)),
        );
        let (actions, totals, mut rows) = (actions?, totals?, first?);
        let queues = ExecutionQueueManager::new(self.config);
        let mut cores = BTreeMap::new();
        for (partition, epoch) in &self.acquired {
            let mut core =
                PartitionCore::new(*partition, self.partition_count, *epoch, queues.clone());
            if self.recording {
                core.keep_log();
            }
            let actions = actions
                .iter()
                .filter(|action| action.partition == *partition)
                .cloned()
                .collect();
            let totals = totals.clone();
            core.step(unix_millis(), Event::Recover { actions, totals });
            cores.insert(*partition, core);
        }
        // While one page is put into the queues, the next one is read.
        while let Some(last) = rows.last() {
            let (after, count) = (Some(last.id), rows.len());
            let next = async {
                if count < LOAD_PAGE as usize {
                    return Some(Vec::new());
                }
                persist(stop, || store.load_active(&ids, after, LOAD_PAGE)).await
            };
            let page = std::mem::take(&mut rows);
            let (next, ()) = tokio::join!(next, async { restore(&mut cores, page, draft) });
            rows = next?;
        }
        Some(cores)
    }

    async fn subscribe(&self) -> Option<BTreeMap<PartitionId, Vec<(Topic, Subscriber)>>> {
        let subscribing = self.acquired.iter().map(|(partition, _)| async {
            let control = self.receive(Topic::Control(*partition));
            let commands = self.receive(Topic::Commands(*partition));
            let (control, commands) = tokio::join!(control, commands);
            Some((*partition, vec![control?, commands?]))
        });
        futures_util::future::join_all(subscribing)
            .await
            .into_iter()
            .collect()
    }

    /// Subscribes to a topic, however long it takes; `None` when told to stop.
    async fn receive(&self, topic: Topic) -> Option<(Topic, Subscriber)> {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        loop {
            let subscription = Subscription {
                topic: topic.clone(),
                prefetch: self.prefetch,
            };
            match self.bus.subscribe(subscription).await {
                Ok(subscriber) => return Some((topic, subscriber)),
                Err(error) => {
                    tracing::warn!(bus.topic = %topic, %error, "a partition's topic cannot be received yet");
                }
            }
            tokio::select! {
                () = self.stop.cancelled() => return None,
                () = tokio::time::sleep(backoff.next_delay()) => {}
            }
        }
    }
}

/// Puts a page of executions into the queues of their partitions.
fn restore(
    cores: &mut BTreeMap<PartitionId, PartitionCore>,
    rows: Vec<ActiveRow>,
    draft: &mut Draft,
) {
    let mut by_partition: BTreeMap<PartitionId, Vec<_>> = BTreeMap::new();
    for row in rows {
        by_partition
            .entry(row.id.partition())
            .or_default()
            .push(row);
    }
    for (partition, rows) in by_partition {
        if let Some(core) = cores.get_mut(&partition) {
            draft.add(
                partition,
                core.step(unix_millis(), Event::RecoverRows(rows)),
            );
        }
    }
}

impl Journal {
    /// Begins to take partitions over, beside everything else.
    pub(crate) fn take_over(
        &mut self,
        acquired: Vec<(PartitionId, Epoch)>,
        stop: &CancellationToken,
    ) {
        self.state.loading.extend(acquired.iter().copied());
        let takeover = Takeover {
            store: Arc::clone(&self.store),
            bus: Arc::clone(&self.bus),
            acquired,
            partition_count: self.options.partitions,
            config: self.queues.config(),
            prefetch: self.options.prefetch,
            recording: self.recorder.is_some(),
            stop: stop.clone(),
        };
        let (loaded, stop) = (self.loaded.0.clone(), stop.clone());
        self.state.tasks.spawn(async move {
            let Some(ready) = takeover.run().await else {
                return;
            };
            tokio::select! {
                () = stop.cancelled() => {}
                sent = loaded.send(ready) => if sent.is_err() {
                    tracing::debug!("the owner has stopped");
                },
            }
        });
    }

    /// Serves partitions from now on, those of them that were not lost meanwhile.
    pub(crate) async fn adopt(&mut self, loaded: Loaded) {
        let Loaded {
            started,
            partitions,
            mut draft,
        } = loaded;
        let mut adopted = Vec::new();
        for (mut core, subscribers) in partitions {
            let (partition, epoch) = (core.partition(), core.epoch());
            if self.state.loading.get(&partition) != Some(&epoch) {
                continue;
            }
            self.state.loading.remove(&partition);
            core.move_to(&self.queues);
            draft.add(partition, core.step(unix_millis(), Event::Tick));
            let owned = Owned {
                core,
                feeds: self.feed((partition, epoch), subscribers),
                telling: TaskTracker::new(),
            };
            self.state.owned.insert(partition, owned);
            adopted.push((partition, epoch));
        }
        self.owned_count.send_replace(self.state.owned.len());
        tracing::info!(
            partitions = ?adopted,
            elapsed_ms = started.elapsed().as_millis(),
            "partitions taken over"
        );
        self.write(draft).await;
    }

    fn feed(&self, place: (PartitionId, Epoch), subscribers: Vec<(Topic, Subscriber)>) -> Feeds {
        let feeds = Feeds {
            quiet: CancellationToken::new(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        for (topic, subscriber) in subscribers {
            let feed = match topic {
                Topic::Control(_) => self.control_feed.clone(),
                _ => self.command_feed.clone(),
            };
            let (quiet, stop) = (feeds.quiet.clone(), feeds.stop.clone());
            feeds
                .tasks
                .spawn(feed.run(place, topic, subscriber, quiet, stop));
        }
        feeds
    }

    /// Forgets a partition; its unacknowledged messages go to whoever owns it.
    pub(crate) fn step_down(&mut self, partition: PartitionId) {
        if let Some((epoch, owned)) = self.forget(partition) {
            if let Some((feeds, _)) = owned {
                feeds.stop.cancel();
            }
            if self.dropped.try_send((partition, epoch)).is_err() {
                tracing::debug!(partition.id = %partition, "the lease keeper is busy or gone");
            }
        }
    }

    /// Forgets a partition between two rounds, and lets its lease go when everything that was
    /// decided about it has been told: the next owner need not tell it again.
    pub(crate) fn hand_over(&mut self, partition: PartitionId) {
        let Some((epoch, owned)) = self.forget(partition) else {
            // It was lost, which whoever keeps the leases knows or is about to be told.
            return;
        };
        let dropped = self.dropped.clone();
        self.state.tasks.spawn(async move {
            if let Some((feeds, telling)) = owned {
                feeds.quiet.cancel();
                telling.close();
                if tokio::time::timeout(TELLING, telling.wait()).await.is_err() {
                    tracing::warn!(partition.id = %partition, "a partition is handed over before everything is confirmed");
                }
                feeds.end().await;
            }
            if dropped.send((partition, epoch)).await.is_err() {
                tracing::debug!(partition.id = %partition, "nobody keeps the leases any more");
            }
        });
    }

    /// Takes a partition out of what is served or loaded.
    fn forget(&mut self, partition: PartitionId) -> Option<(Epoch, Option<(Feeds, TaskTracker)>)> {
        if let Some(epoch) = self.state.loading.remove(&partition) {
            return Some((epoch, None));
        }
        let Owned {
            core,
            feeds,
            telling,
        } = self.state.owned.remove(&partition)?;
        let epoch = core.epoch();
        self.record_lost(partition, epoch);
        core.step_down();
        self.owned_count.send_replace(self.state.owned.len());
        Some((epoch, Some((feeds, telling))))
    }

    /// A partition whose epoch has no places left is given up, to be taken again in the next.
    pub(crate) fn renew_exhausted(&mut self) {
        let exhausted: Vec<PartitionId> = self
            .state
            .owned
            .iter()
            .filter(|(_, owned)| owned.core.is_exhausted())
            .map(|(partition, _)| *partition)
            .collect();
        for partition in exhausted {
            tracing::info!(partition.id = %partition, "the epoch of a partition is used up");
            self.step_down(partition);
        }
    }

    /// Dispatches once more what may have been lost, a few at a time, and only what still holds
    /// its slot.
    pub(crate) async fn dispatch_again(&mut self, stop: &CancellationToken) {
        if self.state.again.is_empty() {
            return;
        }
        self.state.again_at = Instant::now() + AGAIN_INTERVAL;
        let many = self.state.again.len().min(AGAIN_AT_ONCE);
        let holds = |dispatch: &Dispatch| {
            let holder = self.queues.with_existing(dispatch.action.id, |queue| {
                queue.holder(dispatch.execution_id)
            });
            holder.flatten().map(|holder| holder.attempt) == Some(dispatch.attempt)
        };
        let again: Vec<Dispatch> = self.state.again.drain(..many).filter(holds).collect();
        let ids: Vec<_> = again.iter().map(|dispatch| dispatch.execution_id).collect();
        let Some(bodies) = persist(stop, || self.store.load_bodies(&ids)).await else {
            return;
        };
        let mut bodies: HashMap<_, _> = bodies.into_iter().map(|body| (body.id, body)).collect();
        let mut told = Told::default();
        for dispatch in again {
            if let Some(body) = bodies.remove(&dispatch.execution_id) {
                told.request(dispatch, body.parameters, body.timeout_seconds);
            }
        }
        if self.told.send(told).await.is_err() {
            tracing::error!("the dispatcher has stopped");
        }
    }
}
