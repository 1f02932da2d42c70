//! Sees to it that the slots of a lost worker do not wait for the next pass of the reconciler.
//!
//! It looks when a lease may have been over for the grace time, beside the owner's loop, and asks
//! for a pass only when a partition of this executor really has a slot to take back: a pass stops
//! the loop for as long as the store takes to read the holders.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use attune_core::{OwnerId, PartitionId, WorkerId};
use attune_store::{PartitionStore, StoreError};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::ownership::chain;

/// How long it waits at most: a worker may have come meanwhile whose lease ends before any other.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long after the end of the grace time it looks; a lease that is renewed at the last moment
/// is looked at once more instead of all the time.
const AFTER_GRACE: Duration = Duration::from_millis(20);

/// Looks for slots of lost workers.
pub(crate) struct LostWorkers {
    pub(crate) store: Arc<dyn PartitionStore>,
    pub(crate) owner: OwnerId,
    /// How long after its lease a worker counts as dead.
    pub(crate) grace: Duration,
    /// How many partitions are served; with every change lost workers are looked at once more.
    pub(crate) served: watch::Receiver<usize>,
    /// Asks for a pass of the reconciler.
    pub(crate) sweep: Arc<Notify>,
}

impl LostWorkers {
    /// Looks until `stop`.
    pub(crate) async fn watch(mut self, stop: CancellationToken) {
        let mut seen = BTreeSet::new();
        loop {
            let wait = self.look(&mut seen).await.unwrap_or_else(|error| {
                tracing::warn!(error = %chain(&error), "lost workers could not be looked for");
                PATIENCE
            });
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                changed = self.served.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    seen.clear();
                }
            }
        }
    }

    /// One look; returns when the next is due. `seen` are lost workers that had nothing left, or
    /// whose slots a pass was asked for.
    async fn look(&self, seen: &mut BTreeSet<WorkerId>) -> Result<Duration, StoreError> {
        let ends = self.store.worker_ends().await?;
        let lost: BTreeSet<WorkerId> = ends
            .iter()
            .filter(|end| end.lost_for > self.grace)
            .map(|end| end.worker)
            .collect();
        if !lost.is_subset(seen) && self.holds_a_slot(&lost).await? {
            self.sweep.notify_one();
        }
        *seen = lost;
        let next = ends
            .iter()
            .filter(|end| !seen.contains(&end.worker))
            .map(|end| (end.remaining + self.grace).saturating_sub(end.lost_for))
            .min();
        Ok(next.map_or(PATIENCE, |next| PATIENCE.min(next + AFTER_GRACE)))
    }

    /// Whether one of these workers has claimed something in a partition of this executor.
    async fn holds_a_slot(&self, lost: &BTreeSet<WorkerId>) -> Result<bool, StoreError> {
        let leases = self.store.leases().await?;
        let mine: Vec<PartitionId> = leases
            .iter()
            .filter(|lease| lease.owner == Some(self.owner))
            .map(|lease| lease.partition)
            .collect();
        if mine.is_empty() {
            return Ok(false);
        }
        let slots = self.store.load_slots(&mine).await?;
        let mut workers = slots.iter().filter_map(|slot| slot.worker);
        Ok(workers.any(|worker| lost.contains(&worker)))
    }
}
