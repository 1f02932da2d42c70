//! Keeps the leases of this executor: says that it is there, renews what it holds, takes its
//! share of what nobody owns, and hands over what belongs to others by now.
//!
//! It runs in a task of its own, so that a slow batch never costs a lease. The owner trusts
//! its leases for `ttl − margin` after the moment at which the last renewal was *sent*, by a
//! clock that only measures durations; beyond that it decides nothing until a renewal succeeds.
//! A mistake here costs time, never safety: every write checks the epoch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use attune_bus::{Bus, Delivery, Outgoing, Subscriber, Topic};
use attune_core::{Epoch, OwnerId, PartitionId};
use attune_messages::v1::HandedOver;
use attune_messages::{decode_batch, encode};
use attune_store::{PartitionStore, StoreError};
use chrono::Utc;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::shares::{Held, Standing, plan, shares};

/// How many partitions a stopping executor gives up at a time: each is loaded by somebody else.
const LEAVING_AT_ONCE: usize = 4;
/// How long a stopping executor goes on handing partitions over one after the other; what is
/// left then is given up when everything has stopped.
const LEAVING: Duration = Duration::from_secs(8);
/// How long after the end of somebody's lease it is looked for: database and process do not
/// measure alike, and not everybody should come at once.
const AFTER_EXPIRY_MILLIS: std::ops::Range<u64> = 20..120;

/// A change of what is owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LeaseEvent {
    /// These are owned from now on, in these epochs.
    Acquired(Vec<(PartitionId, Epoch)>),
    /// These are owned by nobody or somebody else.
    Lost(Vec<PartitionId>),
    /// Finish what was begun for this one, then let go of it: its lease is given up after that.
    HandOver(PartitionId),
}

/// Who keeps the leases, and how.
pub(crate) struct Ownership {
    pub(crate) store: Arc<dyn PartitionStore>,
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) owner: OwnerId,
    pub(crate) name: String,
    pub(crate) partitions: u16,
    pub(crate) ttl: Duration,
    pub(crate) max_message_bytes: usize,
    pub(crate) events: mpsc::Sender<LeaseEvent>,
    /// Until when the leases can be trusted.
    pub(crate) trusted: watch::Sender<Instant>,
    /// Partitions that the owner has let go: found lost, wanted in a new epoch, or handed over.
    pub(crate) dropped: mpsc::Receiver<(PartitionId, Epoch)>,
    /// Partitions that were handed over to somebody. Empty when the bus is closed.
    pub(crate) hints: Option<Subscriber>,
    /// What is held.
    pub(crate) held: BTreeMap<PartitionId, Held>,
}

impl Ownership {
    /// Keeps the leases until `stop`.
    pub(crate) async fn keep(&mut self, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            let wait = match self.step().await {
                Ok(wait) => wait,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "the leases could not be kept");
                    self.ttl / 10
                }
            };
            self.wait(wait, stop).await;
        }
    }

    /// One look at who is there and who owns what; returns when the next is due.
    async fn step(&mut self) -> Result<Duration, StoreError> {
        self.renew().await?;
        // It ends a little before the leases, so that whoever looks when these have ended no
        // longer counts on a dead executor.
        let presence = self.ttl - self.ttl / 15;
        let live = self
            .store
            .renew_executor(self.owner, &self.name, presence)
            .await?;
        let leases = self.store.leases().await?;
        let live: Vec<OwnerId> = live.into_iter().map(|row| row.executor).collect();
        let now = Instant::now();
        let plan = plan(self.owner, &live, &leases, &self.held, now, self.ttl);
        self.acquire(&plan.acquire).await?;
        for (partition, to) in plan.hand_over {
            tracing::info!(partition.id = %partition, executor.id = %to, "a partition is handed over");
            self.let_go(partition, Some(to)).await;
        }
        let mut wait = if plan.unfinished {
            self.ttl / 15
        } else {
            self.ttl / 3
        };
        // Who has not renewed for long is probably dead: be there when its lease ends.
        let others = leases
            .iter()
            .filter(|lease| lease.owner.is_some_and(|owner| owner != self.owner));
        if let Some(remaining) = others.map(|lease| lease.remaining).min() {
            let jitter = Duration::from_millis(rand::random_range(AFTER_EXPIRY_MILLIS));
            wait = wait.min(remaining + jitter);
        }
        Ok(wait.mul_f64(rand::random_range(0.8..=1.0)))
    }

    /// Waits for the time of the next step, and follows what comes meanwhile.
    async fn wait(&mut self, time: Duration, stop: &CancellationToken) {
        let until = tokio::time::Instant::now() + time;
        loop {
            let hint = async {
                match &mut self.hints {
                    Some(hints) => hints.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep_until(until) => return,
                Some((partition, epoch)) = self.dropped.recv() => {
                    if self.release(partition, epoch).await == Some(Standing::Kept) {
                        // It was dropped to be taken again.
                        return;
                    }
                }
                hint = hint => match hint {
                    Some(delivery) => self.follow(delivery).await,
                    None => self.hints = None,
                },
            }
        }
    }

    /// Extends what is held; what cannot be extended is lost.
    async fn renew(&mut self) -> Result<(), StoreError> {
        if self.held.is_empty() {
            return Ok(());
        }
        let sent = Instant::now();
        let asked = self.epochs();
        let renewed = self.store.renew(self.owner, &asked, self.ttl).await?;
        let lost: Vec<PartitionId> = self
            .held
            .keys()
            .filter(|partition| !renewed.contains(partition))
            .copied()
            .collect();
        if !lost.is_empty() {
            tracing::warn!(partitions = lost.len(), "partitions have another owner");
            self.held.retain(|partition, _| renewed.contains(partition));
            self.tell(LeaseEvent::Lost(lost)).await;
        }
        // After it was told what is lost, so that who trusts a renewal can know what it left out.
        self.trust(sent);
        Ok(())
    }

    async fn acquire(&mut self, partitions: &[PartitionId]) -> Result<(), StoreError> {
        if partitions.is_empty() {
            return Ok(());
        }
        let sent = Instant::now();
        let acquired = self
            .store
            .acquire(self.owner, &self.name, partitions, self.ttl)
            .await?;
        if acquired.is_empty() {
            return Ok(());
        }
        tracing::info!(partitions = acquired.len(), "partitions acquired");
        if self.held.is_empty() {
            self.trust(sent);
        }
        for (partition, epoch) in &acquired {
            let held = Held {
                epoch: *epoch,
                since: sent,
                standing: Standing::Kept,
            };
            self.held.insert(*partition, held);
        }
        self.tell(LeaseEvent::Acquired(acquired)).await;
        Ok(())
    }

    fn trust(&self, sent: Instant) {
        let margin = (self.ttl / 6).min(Duration::from_secs(2));
        self.trusted.send_replace(sent + self.ttl - margin);
    }

    /// Asks the owner to let go of a partition in favour of `to`.
    async fn let_go(&mut self, partition: PartitionId, to: Option<OwnerId>) {
        if let Some(held) = self.held.get_mut(&partition) {
            held.standing = Standing::Leaving { to };
            self.tell(LeaseEvent::HandOver(partition)).await;
        }
    }

    /// Gives up what the owner has let go, and says so to the one that is to have it. Returns
    /// what had been meant to become of it, if it was held.
    async fn release(&mut self, partition: PartitionId, epoch: Epoch) -> Option<Standing> {
        let held = *self.held.get(&partition)?;
        if held.epoch != epoch {
            return None;
        }
        self.held.remove(&partition);
        let to = match held.standing {
            Standing::Kept => None,
            Standing::Leaving { to } => to,
        };
        self.give_up(&[(partition, epoch)], to).await;
        Some(held.standing)
    }

    async fn give_up(&self, held: &[(PartitionId, Epoch)], to: Option<OwnerId>) {
        if let Err(error) = self.store.give_up(self.owner, held, to).await {
            tracing::warn!(error = %chain(&error), "leases were not given up; they expire by themselves");
            return;
        }
        let Some(to) = to else { return };
        let hints: Vec<HandedOver> = held
            .iter()
            .map(|(partition, epoch)| HandedOver {
                partition: *partition,
                epoch: *epoch,
                to,
            })
            .collect();
        let id = Uuid::now_v7();
        let message = Outgoing::new(Topic::HandedOver, id, encode(id, Utc::now(), &hints));
        // Nobody waits for the confirm of a hint: its loss costs the new owner one look.
        let bus = Arc::clone(&self.bus);
        tokio::spawn(async move {
            if let Err(error) = bus.publish(vec![message]).await {
                tracing::debug!(%error, "a hint may be lost");
            }
        });
    }

    /// Takes at once what was handed over to this executor.
    async fn follow(&mut self, delivery: Delivery) {
        if let Some(hints) = &self.hints {
            hints.settler().ack(&[delivery.tag]).await;
        }
        let mine: Vec<PartitionId> =
            match decode_batch::<HandedOver>(&delivery.body, self.max_message_bytes) {
                Ok(hints) => hints
                    .iter()
                    .filter(|hint| hint.to == self.owner && hint.partition.0 < self.partitions)
                    .filter(|hint| !self.held.contains_key(&hint.partition))
                    .map(|hint| hint.partition)
                    .collect(),
                Err(error) => {
                    tracing::debug!(%error, "a hint cannot be read");
                    return;
                }
            };
        if let Err(error) = self.acquire(&mine).await {
            tracing::warn!(error = %chain(&error), "partitions could not be acquired");
        }
    }

    /// Hands everything over to those who stay, a few partitions at a time.
    pub(crate) async fn leave(&mut self) {
        let until = tokio::time::Instant::now() + LEAVING;
        // From now on nobody counts on this executor, or hands anything over to it.
        let live = match self.retire().await {
            Ok(live) => live,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "nobody is known to take the partitions");
                return;
            }
        };
        let shares = shares(&live, self.partitions);
        let mut renew_at = tokio::time::Instant::now() + self.ttl / 3;
        while !self.held.is_empty() && !self.events.is_closed() {
            let leaving = self
                .held
                .values()
                .filter(|lease| lease.standing != Standing::Kept)
                .count();
            // Alone, there is nobody whom many at once could be too much for.
            let room = if live.is_empty() {
                usize::MAX
            } else {
                LEAVING_AT_ONCE.saturating_sub(leaving)
            };
            let next: Vec<PartitionId> = self
                .held
                .iter()
                .filter(|(_, lease)| lease.standing == Standing::Kept)
                .map(|(partition, _)| *partition)
                .take(room)
                .collect();
            for partition in next {
                self.let_go(partition, shares.get(&partition).copied())
                    .await;
            }
            tokio::select! {
                () = tokio::time::sleep_until(until) => return,
                () = tokio::time::sleep_until(renew_at) => {
                    renew_at += self.ttl / 3;
                    if let Err(error) = self.renew().await {
                        tracing::warn!(error = %chain(&error), "leases could not be renewed");
                    }
                }
                dropped = self.dropped.recv() => match dropped {
                    Some((partition, epoch)) => {
                        self.release(partition, epoch).await;
                    }
                    None => return,
                },
            }
        }
    }

    /// Goes from the list of those who are there; returns who stays on it.
    async fn retire(&self) -> Result<Vec<OwnerId>, StoreError> {
        self.store.retire_executor(self.owner).await?;
        let rows = self.store.executors().await?;
        let live = rows.into_iter().filter(|row| !row.remaining.is_zero());
        Ok(live.map(|row| row.executor).collect())
    }

    /// Gives up what is left when everything else has stopped.
    pub(crate) async fn finish(self) {
        if !self.held.is_empty() {
            self.give_up(&self.epochs(), None).await;
        }
    }

    fn epochs(&self) -> Vec<(PartitionId, Epoch)> {
        self.held
            .iter()
            .map(|(partition, held)| (*partition, held.epoch))
            .collect()
    }

    async fn tell(&self, event: LeaseEvent) {
        if self.events.send(event).await.is_err() {
            tracing::debug!("the owner has stopped");
        }
    }
}

/// An error with everything below it, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(below) = source {
        text.push_str(": ");
        text.push_str(&below.to_string());
        source = below.source();
    }
    text
}
