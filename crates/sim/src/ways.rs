//! Nobody sits on what others could serve: an owner that has lost its way to the broker or to the
//! store holds neither the leases nor the messages of a partition for long.

use std::collections::BTreeMap;

use attune_core::PartitionId;

use crate::bus::{Name, Party};
use crate::flow::BOUND;
use crate::oracle::{Rule, Violation};
use crate::plan::{OWNER_TTL, Time};
use crate::world::World;

/// How long an owner without a way to the broker may keep a partition: until it has noticed, a lease
/// in which everybody says whether they have a way, a lease for which a partition is kept at least, one
/// for which the other must have been seen with a way (it may have come just now, or its word was late),
/// and what handing over takes.
const MAKING_WAY: Time = 2_000 + 3 * OWNER_TTL + BOUND;

/// How long three answers of the store may be late: a look that is answered late shows nothing, and does
/// not count for whoever watches a lease. Who waits for an answer hands nothing over.
const LATE_LOOKS: Time = 3 * 5_000;

/// Since when somebody sits on the partitions, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    /// Messages are with somebody who does not own the partition.
    messages: BTreeMap<u16, Time>,
    /// The owner has no way to the broker, and somebody else has one.
    leases: BTreeMap<u16, Time>,
    /// Nobody has the lease, and these could take it, each in its life and since when: who has come just
    /// now has to watch the lease for a while. Whatever the others do, each of them has to take it in the
    /// end.
    free: BTreeMap<u16, BTreeMap<(usize, u32), Time>>,
}

impl Ways {
    /// For how long somebody has kept a partition from somebody with a way to the broker.
    fn is_kept_for(&self, partition: PartitionId, now: Time) -> Option<Time> {
        self.leases.get(&partition.0).map(|since| now - since)
    }
}

impl World {
    /// Whether a partition should have gone to somebody with a way to the broker by now.
    pub(crate) fn should_have_gone(&self, partition: PartitionId) -> bool {
        let kept = self.ways.is_kept_for(partition, self.now);
        kept.is_some_and(|kept| kept > self.making_way())
    }

    /// How long it may take until a partition is with somebody who can serve it.
    fn making_way(&self) -> Time {
        match self.noise.stalled {
            0 => MAKING_WAY,
            _ => MAKING_WAY + LATE_LOOKS,
        }
    }

    pub(crate) fn watch_ways(&mut self) {
        for partition in 0..self.plan.partitions {
            let messages = self.sits_on_messages(partition);
            let leases = self.sits_on_lease(partition);
            let (now, making_way) = (self.now, self.making_way());
            let mut said = Vec::new();
            if self.is_left_alone(partition) {
                let able = (0..self.owners.len()).filter(|it| self.could_serve(*it));
                let able: Vec<_> = able.map(|it| (it, self.owners[it].life())).collect();
                let free = self.ways.free.entry(partition).or_default();
                free.retain(|one, _| able.contains(one));
                for one in able {
                    free.entry(one).or_insert(now);
                }
                let since = free.values().copied().min().unwrap_or(now);
                if now - since > making_way {
                    said.push(format!(
                        "nobody takes partition {partition} since {since} ms"
                    ));
                }
            } else {
                self.ways.free.remove(&partition);
            }
            let ways = &mut self.ways;
            let kinds = [
                (&mut ways.messages, messages, BOUND, "the messages"),
                (&mut ways.leases, leases, making_way, "the lease"),
            ];
            for (since, sits, bound, what) in kinds {
                let Some(owner) = sits else {
                    since.remove(&partition);
                    continue;
                };
                let since = *since.entry(partition).or_insert(now);
                if now - since > bound {
                    said.push(format!(
                        "owner {owner} sits on {what} of partition {partition} since {since} ms"
                    ));
                }
            }
            for words in said {
                self.oracle.blame(now, Violation::of(Rule::Progress, words));
            }
        }
    }

    /// Who has messages of a partition, by a clock that goes, and does not own it while another one
    /// does.
    fn sits_on_messages(&self, partition: u16) -> Option<usize> {
        let lease = &self.store.leases[usize::from(partition)];
        lease.owner.filter(|_| lease.is_live(self.now))?;
        let names = [
            Name::Control(partition),
            Name::ControlKept(partition),
            Name::Commands(partition),
            Name::Calls(partition),
        ];
        let mut holders = names.into_iter().filter_map(|name| self.bus.holder(name));
        holders.find_map(|party| match party {
            Party::Owner(owner, life)
                if self.owners[owner].is_in(life)
                    && self.is_awake(owner)
                    && lease.owner != Some(self.owners[owner].id()) =>
            {
                Some(owner)
            }
            _ => None,
        })
    }

    /// Who owns a partition and has no way to the broker, while somebody else could serve it.
    fn sits_on_lease(&self, partition: u16) -> Option<usize> {
        let wrong = self.now < self.store_down_until || self.lasting.reads_fail(self.now);
        let lease = &self.store.leases[usize::from(partition)];
        let owner = lease.owner.filter(|_| !wrong && lease.is_live(self.now))?;
        let owner = self.owner_of(owner).filter(|it| self.is_awake(*it))?;
        self.lasting.without_bus(owner, self.now)?;
        if self.lasting.without_store(owner, self.now) {
            // It can hand nothing over.
            return None;
        }
        (0..self.owners.len())
            .any(|other| other != owner && self.could_serve(other))
            .then_some(owner)
    }

    /// Whether nobody has the lease of a partition, and somebody could take it.
    fn is_left_alone(&self, partition: u16) -> bool {
        let wrong = self.now < self.store_down_until || self.lasting.reads_fail(self.now);
        let lease = &self.store.leases[usize::from(partition)];
        let is_live = lease.owner.is_some() && lease.is_live(self.now);
        let is_broken = self
            .lasting
            .is_broken_lease(PartitionId(partition), self.now);
        !wrong && !is_live && !is_broken && (0..self.owners.len()).any(|it| self.could_serve(it))
    }

    /// Whether an owner is there and has its ways.
    pub(crate) fn could_serve(&self, o: usize) -> bool {
        let owner = &self.owners[o];
        let seen = self.store.hidden.get(&owner.id());
        self.is_awake(o)
            && !owner.leaves
            && self.lasting.has_ways(o, self.now)
            && seen.is_none_or(|until| *until <= self.store_now())
    }

    /// Whether an owner lives, and its clock goes.
    fn is_awake(&self, o: usize) -> bool {
        let owner = &self.owners[o];
        let is_blind = owner.blind.is_some_and(|(_, until)| self.now < until);
        owner.is_alive() && owner.paused_until <= self.now && !is_blind
    }
}
