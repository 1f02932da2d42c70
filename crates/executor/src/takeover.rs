//! Taking partitions over and letting them go.
//!
//! A new owner rebuilds the queues from the store before it receives anything: nothing is granted
//! before the holders are known. Its lease was committed first, so no older owner can still
//! write; what was dispatched and not claimed is dispatched again, in the same attempt.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use attune_bus::{Subscription, Topic};
use attune_core::{Epoch, PartitionId};
use attune_runtime::Backoff;
use tokio_util::sync::CancellationToken;

use crate::draft::Draft;
use crate::event::Event;
use crate::journal::{Journal, Owned, unix_millis};
use crate::partition_core::PartitionCore;

/// How many executions one page of a take-over loads.
const LOAD_PAGE: u32 = 20_000;

impl Journal {
    /// Rebuilds the queues of partitions from the store, then receives for them. Nothing is
    /// granted before the holders are rebuilt.
    pub(crate) async fn take_over(
        &mut self,
        acquired: Vec<(PartitionId, Epoch)>,
        stop: &CancellationToken,
    ) {
        let started = Instant::now();
        let ids: Vec<PartitionId> = acquired.iter().map(|(partition, _)| *partition).collect();
        let mut draft = Draft::default();
        let Some(mut cores) = self.load(&acquired, &mut draft, stop).await else {
            return;
        };
        for (partition, _) in &acquired {
            let Some(core) = cores.remove(partition) else {
                continue;
            };
            let token = CancellationToken::new();
            self.state.owned.insert(
                *partition,
                Owned {
                    core,
                    stop: token.clone(),
                },
            );
            if !self.receive(*partition, &token, stop).await {
                return;
            }
        }
        tracing::info!(
            partitions = ids.len(),
            elapsed_ms = started.elapsed().as_millis(),
            "partitions taken over"
        );
        self.owned_count.send_replace(self.state.owned.len());
        let now = unix_millis();
        for partition in ids {
            if let Some(owned) = self.state.owned.get_mut(&partition) {
                draft.add(partition, owned.core.step(now, Event::Tick));
            }
        }
        self.write(draft, stop).await;
    }

    async fn load(
        &self,
        acquired: &[(PartitionId, Epoch)],
        draft: &mut Draft,
        stop: &CancellationToken,
    ) -> Option<BTreeMap<PartitionId, PartitionCore>> {
        let ids: Vec<PartitionId> = acquired.iter().map(|(partition, _)| *partition).collect();
        let actions = self.persist(stop, || self.store.load_actions(&ids)).await?;
        let totals = self.persist(stop, || self.store.load_totals(&ids)).await?;
        let now = unix_millis();
        let mut cores = BTreeMap::new();
        for (partition, epoch) in acquired {
            let mut core = PartitionCore::new(
                *partition,
                self.options.partitions,
                *epoch,
                self.queues.clone(),
            );
            if self.recorder.is_some() {
                core.keep_log();
            }
            let actions: Vec<_> = actions
                .iter()
                .filter(|action| action.partition == *partition)
                .cloned()
                .collect();
            core.step(
                now,
                Event::Recover {
                    actions,
                    totals: totals.clone(),
                },
            );
            cores.insert(*partition, core);
        }
        let mut after = None;
        loop {
            let load = || self.store.load_active(&ids, after, LOAD_PAGE);
            let rows = self.persist(stop, load).await?;
            let Some(last) = rows.last() else {
                return Some(cores);
            };
            after = Some(last.id);
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
    }

    /// Subscribes to the topics of a partition; false when told to stop.
    async fn receive(
        &self,
        partition: PartitionId,
        token: &CancellationToken,
        stop: &CancellationToken,
    ) -> bool {
        let topics = [
            (Topic::Control(partition), &self.control_feed),
            (Topic::Commands(partition), &self.command_feed),
        ];
        for (topic, feed) in topics {
            let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
            let prefetch = self.options.prefetch;
            let subscriber = loop {
                let subscription = Subscription {
                    topic: topic.clone(),
                    prefetch,
                };
                match self.bus.subscribe(subscription).await {
                    Ok(subscriber) => break subscriber,
                    Err(error) => {
                        tracing::warn!(bus.topic = %topic, %error, "a partition's topic cannot be received yet");
                    }
                }
                tokio::select! {
                    () = stop.cancelled() => return false,
                    () = tokio::time::sleep(backoff.next_delay()) => {}
                }
            };
            let feed = feed
                .clone()
                .run(partition, topic, subscriber, token.clone());
            self.state.feeds.spawn(feed);
        }
        true
    }

    /// Forgets a partition; its unacknowledged messages go to whoever owns it.
    pub(crate) fn step_down(&mut self, partition: PartitionId) {
        if let Some(owned) = self.state.owned.remove(&partition) {
            let epoch = owned.core.epoch();
            self.record_lost(partition, epoch);
            owned.stop.cancel();
            owned.core.step_down();
            self.owned_count.send_replace(self.state.owned.len());
            if self.dropped.try_send((partition, epoch)).is_err() {
                tracing::debug!(partition.id = %partition, "the lease keeper is busy or gone");
            }
        }
    }

    /// A partition whose epoch has no places left is given up, to be taken again in the next.
    pub(crate) async fn renew_exhausted(&mut self) {
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
}
