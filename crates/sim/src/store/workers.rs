//! The leases of workers.

use std::collections::BTreeSet;
use std::sync::Arc;

use attune_core::WorkerId;
use attune_dispatch::Key;
use attune_executor::stored::WorkerEnd;

use super::Store;
use crate::former::Former;
use crate::plan::Time;

/// The lease of a worker: only somebody's decision ends it.
#[derive(Debug, Clone)]
pub(super) struct WorkerLease {
    pub(super) pool: String,
    pub(super) user: Option<String>,
    pub(super) slots: u32,
    pub(super) draining: bool,
    pub(super) renewals: i64,
    pub(super) ttl: Time,
    pub(super) ended: bool,
    /// Its process is gone.
    pub(super) gone: bool,
    pub(super) begun: Option<Arc<BTreeSet<Key>>>,
}

impl Store {
    /// How the leases of the workers stand.
    pub(crate) fn worker_ends(&self) -> Vec<WorkerEnd> {
        let ends = self.workers.iter();
        ends.map(|(worker, lease)| WorkerEnd {
            worker: *worker,
            pool: lease.pool.clone(),
            user: lease.user.clone(),
            slots: lease.slots,
            draining: lease.draining,
            renewals: lease.renewals,
            ttl: lease.ttl,
            ended: lease.ended,
            gone: lease.gone,
            begun: lease.begun.clone(),
        })
        .collect()
    }

    /// Ends the leases that still stand as they were observed; gives those that are over.
    pub(crate) fn end_workers(&mut self, observed: &[(WorkerId, i64)]) -> Vec<WorkerId> {
        let mut over = Vec::new();
        for (worker, renewals) in observed {
            let is_over = self.workers.get_mut(worker).is_none_or(|lease| {
                lease.ended |= lease.renewals == *renewals;
                lease.ended
            });
            over.extend(is_over.then_some(*worker));
        }
        over
    }

    /// The process of a worker is gone.
    pub(crate) fn worker_over(&mut self, former: Former) {
        if let Some(lease) = self.workers.get_mut(&former.worker) {
            // What was said first stands.
            if !lease.gone && lease.begun.is_none() {
                lease.begun = Some(Arc::new(former.begun));
            }
            (lease.ended, lease.gone) = (true, true);
        }
    }

    /// A worker ends its lease, unless somebody has ended it.
    pub(crate) fn retire_worker(&mut self, worker: WorkerId, begun: BTreeSet<Key>) {
        if let Some(lease) = self.workers.get_mut(&worker).filter(|lease| !lease.ended) {
            (lease.ended, lease.ttl) = (true, 0);
            lease.begun = Some(Arc::new(begun));
        }
    }

    /// Starts or renews the lease of a worker; false when it was ended.
    pub(crate) fn renew_worker(
        &mut self,
        worker: WorkerId,
        ttl: Time,
        (pool, user, slots, draining): (String, Option<String>, u32, bool),
    ) -> bool {
        let lease = self.workers.entry(worker).or_insert(WorkerLease {
            pool,
            user,
            slots,
            draining,
            renewals: 0,
            ttl,
            ended: false,
            gone: false,
            begun: None,
        });
        if !lease.ended {
            lease.renewals += 1;
            lease.draining = draining;
        }
        !lease.ended
    }
}
