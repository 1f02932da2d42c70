//! Who is to own which partition: decided by every executor for itself, from the same list of
//! who is alive, so that nobody has to coordinate. Pure.
//!
//! Rendezvous hashing with even shares: every pair of an executor and a partition has a score,
//! and the pairs are taken from the highest down wherever the partition is still free and the
//! share of the executor not full. When an executor comes or goes, nearly only its own share
//! moves; a few partitions move besides, because the other shares change their size.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use attune_core::{Epoch, OwnerId, PartitionId};

use crate::queue::Millis;
use crate::stored::StoredLease;

/// How many partitions an executor hands over at a time.
const HAND_OVERS_AT_ONCE: usize = 2;

/// Gives each of `partitions` one of the live executors; the shares differ by one at most.
pub fn shares(live: &[OwnerId], partitions: u16) -> BTreeMap<PartitionId, OwnerId> {
    let live: BTreeSet<OwnerId> = live.iter().copied().collect();
    let Some(base) = usize::from(partitions).checked_div(live.len()) else {
        return BTreeMap::new();
    };
    // So many shares have one more than the others.
    let mut larger = usize::from(partitions) % live.len();
    let mut pairs: Vec<_> = (0..partitions)
        .flat_map(|partition| {
            live.iter()
                .map(move |owner| (score(*owner, partition), partition, *owner))
        })
        .collect();
    pairs.sort_unstable_by_key(|pair| Reverse(*pair));
    let mut shares = BTreeMap::new();
    let mut sizes: BTreeMap<OwnerId, usize> = BTreeMap::new();
    for (_, partition, owner) in pairs {
        let size = sizes.entry(owner).or_default();
        let room = *size < base || (*size == base && larger > 0);
        if room && !shares.contains_key(&PartitionId(partition)) {
            if *size == base {
                larger -= 1;
            }
            *size += 1;
            shares.insert(PartitionId(partition), owner);
        }
    }
    shares
}

/// Equal in every process. A version that scores differently is harmless: until all executors
/// run it, partitions move more than they must.
fn score(owner: OwnerId, partition: u16) -> u64 {
    let (high, low) = owner.0.as_u64_pair();
    mix(high ^ mix(low ^ mix(u64::from(partition).wrapping_add(0x9e37_79b9_7f4a_7c15))))
}

/// The finaliser of SplitMix64: every bit of the result depends on every bit of the argument.
pub(crate) fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A lease that this executor holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) epoch: Epoch,
    /// Since when.
    pub(crate) since: Millis,
    pub(crate) standing: Standing,
}

/// What is to become of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is kept.
    Kept,
    /// It is given up as soon as what was decided has been told, in favour of somebody.
    Leaving { to: Option<OwnerId> },
}

/// A lease, and for how long its watcher has not seen it move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SeenLease {
    pub(crate) lease: StoredLease,
    pub(crate) still_for: Millis,
}

/// For how long a lease must not move to be over: its time, and a grace in which a late renewal
/// keeps the partition where it is. It is for the sake of peace: every write checks the epoch.
pub(crate) fn is_over_after(ttl: Millis) -> Millis {
    ttl + ttl / 15
}

impl SeenLease {
    /// Whether its holder has missed its renewals.
    pub(crate) fn is_over(&self) -> bool {
        self.still_for >= is_over_after(self.lease.ttl)
    }

    /// For how long nobody has owned it, as far as was seen; `None` while somebody does.
    fn free_for(&self) -> Option<Millis> {
        match self.lease.holder {
            None => Some(self.still_for),
            Some(_) if self.is_over() => Some(self.still_for - self.lease.ttl),
            Some(_) => None,
        }
    }
}

/// What one look at the leases leads to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Worth trying to take, as it was seen.
    pub(crate) acquire: Vec<StoredLease>,
    /// To be handed over now.
    pub(crate) hand_over: Vec<(PartitionId, OwnerId)>,
}

/// Decides what to take and what to hand over.
///
/// What the shares give to another executor is taken all the same when nobody has owned it for
/// `patience`: better owned by the wrong one than by nobody. What was handed over to another one is
/// left to it for a third of that. A lease is kept for `patience` at
/// least, so that executors that come and go do not make partitions wander.
pub(crate) fn plan(
    me: OwnerId,
    live: &[OwnerId],
    leases: &[SeenLease],
    held: &BTreeMap<PartitionId, Held>,
    now: Millis,
    patience: Millis,
) -> Plan {
    let count = u16::try_from(leases.len()).unwrap_or(PartitionId::MAX_COUNT);
    let shares = shares(live, count);
    let mut plan = Plan::default();
    let missing = leases
        .iter()
        .filter(|seen| !held.contains_key(&seen.lease.partition));
    for seen in missing {
        let lease = &seen.lease;
        // What this executor owns without holding it was let go while the store did not answer.
        let own = (lease.holder == Some(me)).then_some(0);
        let Some(free_for) = own.or(seen.free_for()) else {
            continue;
        };
        let promised = lease.wanted_owner.is_some_and(|wanted| wanted != me);
        let mine = shares.get(&lease.partition) == Some(&me) || lease.wanted_owner == Some(me);
        let mine = mine && (!promised || free_for > patience / 3);
        if mine || free_for > patience {
            plan.acquire.push(lease.clone());
        }
    }
    let leaving = held
        .values()
        .filter(|lease| lease.standing != Standing::Kept)
        .count();
    let room = HAND_OVERS_AT_ONCE.saturating_sub(leaving);
    let foreign = held.iter().filter_map(|(partition, lease)| {
        let to = *shares.get(partition)?;
        (lease.standing == Standing::Kept && to != me).then_some((*partition, to, lease.since))
    });
    for (partition, to, since) in foreign {
        if plan.hand_over.len() < room && now - since >= patience {
            plan.hand_over.push((partition, to));
        }
    }
    plan
}

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;
