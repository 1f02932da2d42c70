//! The leases of partitions and the presence of owners.

use attune_core::{Epoch, OwnerId, PartitionId};
use attune_executor::stored::{ObservedLease, StoredExecutor, StoredLease};

use super::{Lease, Store};
use crate::plan::Time;

impl Store {
    /// Takes those partitions that nobody owns, or the asker itself.
    pub(crate) fn acquire(
        &mut self,
        now: Time,
        owner: OwnerId,
        wanted: &[PartitionId],
        ttl: Time,
    ) -> Vec<(PartitionId, Epoch)> {
        let free = |lease: &Lease| {
            // The asker's own is what it let go while the store did not answer.
            lease.owner.is_none_or(|it| it == owner) && lease.wanted.is_none_or(|it| it == owner)
        };
        let wanted = wanted.iter().copied();
        let wanted = wanted.filter(|it| free(&self.leases[usize::from(it.0)]));
        let wanted: Vec<PartitionId> = wanted.collect();
        self.take(now, owner, wanted, ttl)
    }

    /// Takes those that still stand as they were observed.
    pub(crate) fn take_over(
        &mut self,
        now: Time,
        owner: OwnerId,
        observed: &[ObservedLease],
        ttl: Time,
    ) -> Vec<(PartitionId, Epoch)> {
        let unmoved = observed.iter().filter(|seen| {
            let lease = &self.leases[usize::from(seen.partition.0)];
            (lease.epoch, lease.renewals) == (seen.epoch.0, seen.renewals)
        });
        let unmoved = unmoved.map(|seen| seen.partition).collect();
        self.take(now, owner, unmoved, ttl)
    }

    fn take(
        &mut self,
        now: Time,
        owner: OwnerId,
        partitions: Vec<PartitionId>,
        ttl: Time,
    ) -> Vec<(PartitionId, Epoch)> {
        let taken = partitions.into_iter().map(|partition| {
            let lease = &mut self.leases[usize::from(partition.0)];
            *lease = Lease {
                owner: Some(owner),
                epoch: lease.epoch + 1,
                renewals: lease.renewals + 1,
                moved_at: now,
                ttl,
                wanted: None,
            };
            (partition, Epoch(lease.epoch))
        });
        taken.collect()
    }

    pub(super) fn holds(&self, owner: OwnerId, partition: PartitionId, epoch: Epoch) -> bool {
        let lease = &self.leases[usize::from(partition.0)];
        lease.owner == Some(owner) && lease.epoch == epoch.0
    }

    /// Extends what is still held.
    pub(crate) fn renew(
        &mut self,
        now: Time,
        owner: OwnerId,
        held: &[(PartitionId, Epoch)],
        ttl: Time,
    ) -> Vec<PartitionId> {
        let mut renewed = Vec::new();
        for (partition, epoch) in held {
            if self.holds(owner, *partition, *epoch) {
                let lease = &mut self.leases[usize::from(partition.0)];
                lease.renewals += 1;
                lease.moved_at = now;
                lease.ttl = ttl;
                renewed.push(*partition);
            }
        }
        renewed
    }

    /// Frees what is still held.
    pub(crate) fn give_up(
        &mut self,
        owner: OwnerId,
        held: &[(PartitionId, Epoch)],
        to: Option<OwnerId>,
    ) {
        for (partition, epoch) in held {
            if self.holds(owner, *partition, *epoch) {
                let lease = &mut self.leases[usize::from(partition.0)];
                (lease.owner, lease.wanted) = (None, to);
                lease.renewals += 1;
                lease.ttl = 0;
            }
        }
    }

    /// Notes that an owner is there.
    pub(crate) fn announce(&mut self, now: Time, owner: OwnerId, ttl: Time, cut_off: bool) {
        let row = self.executors.entry(owner).or_default();
        *row = (row.0 + 1, now + ttl, cut_off);
    }

    /// Who is there.
    pub(crate) fn stored_executors(&self, now: Time) -> Vec<StoredExecutor> {
        let seen = |id: &OwnerId| self.hidden.get(id).is_none_or(|until| *until <= now);
        let rows = self.executors.iter().filter(|(id, _)| seen(id));
        rows.map(|(executor, (renewals, until, cut_off))| StoredExecutor {
            executor: *executor,
            renewals: *renewals,
            live: *until > now,
            cut_off: *cut_off,
        })
        .collect()
    }

    /// An owner leaves.
    pub(crate) fn retire(&mut self, owner: OwnerId) {
        self.executors.remove(&owner);
    }

    /// Who owns what.
    pub(crate) fn stored_leases(&self) -> Vec<StoredLease> {
        let leases = self.leases.iter().zip(0_u16..);
        leases
            .map(|(lease, partition)| StoredLease {
                partition: PartitionId(partition),
                holder: lease.owner,
                epoch: Epoch(lease.epoch),
                renewals: lease.renewals,
                ttl: lease.ttl,
                wanted_owner: lease.wanted,
            })
            .collect()
    }
}
