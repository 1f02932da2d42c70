//! Keeps the leases of this executor: renews what it holds, takes what nobody owns.
//!
//! Renewal runs in a task of its own, so that a slow batch never costs a lease. The owner trusts
//! its leases for `ttl − margin` after the moment at which the last renewal was *sent*, by a
//! clock that only measures durations; beyond that it decides nothing until a renewal succeeds.
//! A mistake here costs time, never safety: every write checks the epoch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use attune_core::{Epoch, OwnerId, PartitionId};
use attune_store::PartitionStore;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// A change of what is owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LeaseEvent {
    /// These are owned from now on, in these epochs.
    Acquired(Vec<(PartitionId, Epoch)>),
    /// These are owned by nobody or somebody else.
    Lost(Vec<PartitionId>),
}

/// Who keeps the leases, and how.
pub(crate) struct Ownership {
    pub(crate) store: Arc<dyn PartitionStore>,
    pub(crate) owner: OwnerId,
    pub(crate) name: String,
    pub(crate) partitions: u16,
    pub(crate) ttl: Duration,
    pub(crate) events: mpsc::Sender<LeaseEvent>,
    /// Until when the leases can be trusted.
    pub(crate) trusted: watch::Sender<Instant>,
    /// Partitions that the owner found lost, or wants in a new epoch.
    pub(crate) dropped: mpsc::Receiver<(PartitionId, Epoch)>,
}

impl Ownership {
    /// Keeps the leases until `stop`, then gives them up.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut held = BTreeMap::new();
        loop {
            self.round(&mut held).await;
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(self.ttl / 3) => {}
                Some((partition, epoch)) = self.dropped.recv() => {
                    if held.get(&partition) == Some(&epoch) {
                        held.remove(&partition);
                        self.give_up(&[(partition, epoch)]).await;
                    }
                }
            }
        }
        let held: Vec<_> = held.into_iter().collect();
        self.give_up(&held).await;
    }

    async fn give_up(&self, held: &[(PartitionId, Epoch)]) {
        if let Err(error) = self.store.give_up(self.owner, held, None).await {
            tracing::warn!(error = %chain(&error), "leases were not given up; they expire by themselves");
        }
    }

    async fn round(&self, held: &mut BTreeMap<PartitionId, Epoch>) {
        let margin = (self.ttl / 6).min(Duration::from_secs(2));
        let sent = Instant::now();
        if !held.is_empty() {
            let asked: Vec<_> = held
                .iter()
                .map(|(partition, epoch)| (*partition, *epoch))
                .collect();
            match self.store.renew(self.owner, &asked, self.ttl).await {
                Ok(renewed) => {
                    let lost: Vec<PartitionId> = held
                        .keys()
                        .filter(|partition| !renewed.contains(partition))
                        .copied()
                        .collect();
                    held.retain(|partition, _| renewed.contains(partition));
                    self.trusted.send_replace(sent + self.ttl - margin);
                    if !lost.is_empty() {
                        self.tell(LeaseEvent::Lost(lost)).await;
                    }
                }
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "leases could not be renewed");
                    return;
                }
            }
        }
        let missing: Vec<PartitionId> = (0..self.partitions)
            .map(PartitionId)
            .filter(|id| !held.contains_key(id))
            .collect();
        if missing.is_empty() {
            return;
        }
        match self
            .store
            .acquire(self.owner, &self.name, &missing, self.ttl)
            .await
        {
            Ok(acquired) if !acquired.is_empty() => {
                tracing::info!(partitions = acquired.len(), "partitions acquired");
                if held.is_empty() {
                    self.trusted.send_replace(sent + self.ttl - margin);
                }
                held.extend(acquired.iter().copied());
                self.tell(LeaseEvent::Acquired(acquired)).await;
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(error = %chain(&error), "partitions could not be acquired");
            }
        }
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
