//! What goes on being wrong for a while: reads that fail, pools that take no dispatches, what can
//! never be sent, a clock of the store that has stepped.

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{ExecutionId, OwnerId, PartitionId, Refusal};
use attune_dispatch::Section;
use attune_executor::owner::{Call, Dispatch};

use crate::bus::Party;
use crate::faults::HEARTBEATS;
use crate::plan::{Fault, Reads, Time};
use crate::world::{Ev, Word, World};

/// The longest pause after which an owner tries a pool again that took nothing.
const POOL_PATIENCE: Time = 10_500;

#[derive(Debug, Clone, Default)]
struct Pool {
    full_until: Time,
    dead_until: Time,
    lost_until: Time,
    /// Until then nobody need have noticed that a worker of it has room.
    excused_until: Time,
}

/// Whether a call writes the lease of a partition.
fn writes(call: &Call, partition: PartitionId) -> bool {
    match call {
        Call::Renew(held) | Call::GiveUp(held, _) => held.iter().any(|(it, _)| *it == partition),
        Call::Acquire(wanted) => wanted.contains(&partition),
        Call::TakeOver(seen) => seen.iter().any(|it| it.partition == partition),
        _ => false,
    }
}

/// A lease that cannot be written.
#[derive(Debug, Clone, Copy)]
struct Broken {
    until: Time,
    /// How long the store takes to say so.
    after: Time,
}

/// What lasts.
#[derive(Debug, Default)]
pub(crate) struct Lasting {
    reads: BTreeMap<Reads, Time>,
    /// Partitions whose submissions cannot be looked up, and until when.
    unread: BTreeMap<PartitionId, Time>,
    /// Partitions whose leases cannot be written, and until when.
    broken_leases: BTreeMap<PartitionId, Broken>,
    pools: Vec<Pool>,
    /// What becomes of the next executions that are dispatched for the first time.
    next: Vec<Refusal>,
    /// Executions that cannot be dispatched, ever.
    pub(crate) unsendable: BTreeMap<ExecutionId, Refusal>,
    sent: BTreeSet<ExecutionId>,
    /// By how much the store's clock is wrong, and until when.
    step: (Time, Time),
    /// Likewise the clock of the machine on which an owner runs.
    own_steps: BTreeMap<usize, (Time, Time)>,
    /// Owners without a way to the broker: since when, and until when.
    without_bus: BTreeMap<usize, (Time, Time)>,
    /// Owners without a way to the store, and until when.
    without_store: BTreeMap<usize, Time>,
    /// Owners that have seen the clocks, and whether these have always differed.
    in_doubt: BTreeMap<OwnerId, bool>,
}

impl Lasting {
    pub(crate) fn new(pools: usize) -> Self {
        Self {
            pools: vec![Pool::default(); pools],
            ..Self::default()
        }
    }

    /// Everything is well again.
    pub(crate) fn heal(&mut self) {
        self.reads.clear();
        self.unread.clear();
        self.broken_leases.clear();
        self.next.clear();
        self.step = (0, 0);
        self.own_steps.clear();
        self.without_bus.clear();
        self.without_store.clear();
        for pool in &mut self.pools {
            (pool.full_until, pool.dead_until, pool.lost_until) = (0, 0, 0);
        }
    }

    /// Whether any read fails.
    pub(crate) fn reads_fail(&self, now: Time) -> bool {
        self.reads.values().any(|until| now < *until)
    }

    /// Whether the store does not answer this call.
    pub(crate) fn fails(&self, call: &Call, now: Time) -> bool {
        let of: &[Reads] = match call {
            Call::LookUp { .. } => &[Reads::LookUps],
            Call::LoadQueues { .. } => &[Reads::Loads],
            Call::LoadRows { .. } | Call::LoadMeters { .. } => &[Reads::Loads],
            Call::ScanRows { .. }
            | Call::LoadSlots(_)
            | Call::LoadPauses { .. }
            | Call::LoadPolicies { .. }
            | Call::LoadOperations(_) => &[Reads::Sweeps],
            Call::LoadBodies(_) | Call::LoadWords(_) | Call::LoadOperationWords(_) => {
                &[Reads::Bodies]
            }
            Call::Look | Call::WorkerEnds => &[Reads::Looks],
            Call::Renew(_)
            | Call::Announce { .. }
            | Call::Acquire(_)
            | Call::TakeOver(_)
            | Call::EndWorkers(_)
            | Call::GiveUp(..)
            | Call::Retire
            | Call::Commit(_) => return false,
        };
        let fails = |reads: &Reads| self.reads.get(reads).is_some_and(|until| now < *until);
        of.iter().any(fails) || fails(&Reads::All)
    }

    /// Whether nothing can be looked up for submissions to this partition.
    pub(crate) fn is_unread(&self, partition: PartitionId, now: Time) -> bool {
        let until = self.unread.get(&partition);
        until.is_some_and(|until| now < *until)
    }

    /// Whether the lease of a partition cannot be written.
    pub(crate) fn is_broken_lease(&self, partition: PartitionId, now: Time) -> bool {
        let broken = self.broken_leases.get(&partition);
        broken.is_some_and(|broken| now < broken.until)
    }

    /// The leases that cannot be written and of which the store takes its time to say so.
    pub(crate) fn slow_leases(&self, now: Time) -> impl Iterator<Item = PartitionId> + '_ {
        let broken = self.broken_leases.iter();
        let slow = broken.filter(move |(_, broken)| now < broken.until && broken.after > 0);
        slow.map(|(partition, _)| *partition)
    }

    /// How long the store takes to refuse a call for a lease that cannot be written.
    pub(crate) fn holds_up(&self, call: &Call, now: Time) -> Time {
        let broken = self.broken_leases.iter();
        let named =
            broken.filter(|(partition, broken)| now < broken.until && writes(call, **partition));
        named.map(|(_, broken)| broken.after).max().unwrap_or(0)
    }

    /// Whether a call writes a lease that cannot be written.
    pub(crate) fn refuses_leases(&self, call: &Call, now: Time) -> bool {
        let mut broken = self.broken_leases.iter();
        broken.any(|(partition, broken)| now < broken.until && writes(call, *partition))
    }

    /// Since when an owner has had no way to the broker, and until when it will have none.
    pub(crate) fn without_bus(&self, owner: usize, now: Time) -> Option<(Time, Time)> {
        let lost = self.without_bus.get(&owner).copied();
        lost.filter(|(_, until)| now < *until)
    }

    /// Whether an owner has a way to the broker and one to the store.
    pub(crate) fn has_ways(&self, owner: usize, now: Time) -> bool {
        self.without_bus(owner, now).is_none() && !self.without_store(owner, now)
    }

    /// Whether an owner has no way to the store.
    pub(crate) fn without_store(&self, owner: usize, now: Time) -> bool {
        let until = self.without_store.get(&owner);
        until.is_some_and(|until| now < *until)
    }

    /// By how much the store's clock is wrong.
    pub(crate) fn clock_is_off(&self, now: Time) -> Time {
        let (by, until) = self.step;
        if now < until { by } else { 0 }
    }

    /// By how much the clock of an owner's machine is wrong.
    pub(crate) fn own_clock_is_off(&self, now: Time, owner: Option<usize>) -> Time {
        let step = owner.and_then(|owner| self.own_steps.get(&owner));
        step.map_or(0, |(by, until)| if now < *until { *by } else { 0 })
    }

    /// An owner has seen the clocks. Its question alone tells nothing: the answer may be lost. True
    /// when they agree and have differed before whenever it looked.
    pub(crate) fn looked_at_the_clocks(&mut self, owner: OwnerId, differ: bool) -> bool {
        let before = self.in_doubt.insert(owner, differ);
        if before == Some(false) {
            self.in_doubt.insert(owner, false);
        }
        before == Some(true) && !differ
    }

    /// Whether an owner cannot know the time: it has never seen the clocks agree.
    pub(crate) fn is_in_doubt(&self, owner: OwnerId) -> bool {
        self.in_doubt.get(&owner).copied().unwrap_or(true)
    }

    /// Whether a pool has had a worker with room for so long that its owners must have noticed.
    pub(crate) fn is_open(&self, pool: usize, now: Time) -> bool {
        self.pools[pool].excused_until <= now
    }

    /// When the workers of a pool may start.
    pub(crate) fn dead_until(&self, pool: usize) -> Time {
        self.pools[pool].dead_until
    }
}

impl World {
    /// Begins what lasts.
    pub(crate) fn begin_lasting(&mut self, fault: &Fault) {
        let now = self.now;
        let pools = self.plan.pools;
        match *fault {
            Fault::RefuseLong { refuse } => self.refuse_until = now + refuse,
            Fault::RefuseBeside { refuse } => self.beside.refused_until = now + refuse,
            Fault::FailReads { reads, fail } => {
                self.lasting.reads.insert(reads, now + fail);
            }
            Fault::FullPool { pool, full } => {
                self.lasting.pools[pool % pools].full_until = now + full;
            }
            Fault::LostRoute { pool, lost } => {
                self.lasting.pools[pool % pools].lost_until = now + lost;
            }
            Fault::DeadPool { pool, dead } => {
                let pool = pool % pools;
                self.lasting.pools[pool].dead_until = now + dead;
                for worker in 0..self.workers.len() {
                    if self.plan.pool_of(worker) == pool && self.workers[worker].is_alive() {
                        self.crash_worker(worker);
                        self.push(now + dead, Ev::Restart(Party::Worker(worker, 0)));
                    }
                }
            }
            Fault::TooLarge => self.lasting.next.push(Refusal::TooLarge {
                bytes: (1 << 20) + 1,
                max: 1 << 20,
            }),
            Fault::Invalid => {
                let words = "it holds what no message can hold".to_owned();
                self.lasting.next.push(Refusal::Invalid(words));
            }
            Fault::StepStoreClock { by, lasts } => self.lasting.step = (by, now + lasts),
            Fault::StepOwnerClock { owner, by, lasts } => {
                self.lasting.own_steps.insert(owner, (by, now + lasts));
            }
            Fault::WithoutBus { owner, lost } => self.lose_bus(owner, now + lost),
            Fault::WithoutStore { owner, lost } => {
                self.lasting.without_store.insert(owner, now + lost);
            }
            Fault::BrokenLease {
                action,
                lasts,
                after,
            } => {
                let partition = self.plan.partition_of(action);
                let until = now + lasts;
                let broken = Broken { until, after };
                self.lasting.broken_leases.insert(partition, broken);
            }
            Fault::Unreadable { action, lasts } => {
                let partition = self.plan.partition_of(action);
                self.lasting.unread.insert(partition, now + lasts);
            }
            _ => {}
        }
    }

    /// Whether the store is asked for something that it cannot read.
    pub(crate) fn cannot_read(&self, call: &Call) -> bool {
        let is_unread = |partition| self.lasting.is_unread(partition, self.now);
        let (requests, actions) = match call {
            Call::LookUp { requests, actions } => (requests, actions),
            // One of them is enough.
            Call::LoadBodies(ids) | Call::LoadWords(ids) | Call::LoadOperationWords(ids) => {
                return ids.iter().any(|id| is_unread(id.partition()));
            }
            _ => return false,
        };
        let submitted = requests
            .iter()
            .filter_map(|id| self.oracle.said.action_of(*id));
        let mut asked = submitted.chain(actions.iter().map(String::as_str));
        asked.any(|action_ref| is_unread(PartitionId::of(action_ref, self.plan.partitions)))
    }

    /// An owner's way to the broker leads nowhere until then. It notices sooner than the broker.
    fn lose_bus(&mut self, owner: usize, until: Time) {
        let now = self.now;
        if self.lasting.without_bus(owner, now).is_some() {
            return;
        }
        self.lasting.without_bus.insert(owner, (now, until));
        let party = self.owner_party(owner);
        let noticed = now + self.rng.between(0, HEARTBEATS);
        self.push(noticed, Ev::To(party, Word::Bus));
        self.push(now + HEARTBEATS, Ev::Silent(party));
        self.push(until, Ev::BusIsBack(owner));
    }

    /// An owner's way to the broker is open again: everything is built anew.
    pub(crate) fn find_bus(&mut self, owner: usize) {
        let party = self.owner_party(owner);
        self.close_all(party);
        self.flow.excuse(self.now);
        self.push(self.now, Ev::To(party, Word::Cut));
        self.push(self.now, Ev::To(party, Word::Bus));
    }

    /// What the store takes for now.
    pub(crate) fn store_now(&self) -> Time {
        self.now + self.lasting.clock_is_off(self.now)
    }

    /// What the broker says to a section, if it does not take it.
    pub(crate) fn refusal(&mut self, pool: usize, section: &Section<Dispatch>) -> Option<Refusal> {
        let (now, state) = (self.now, &mut self.lasting.pools[pool]);
        let refusal = if now < state.lost_until {
            Some(Refusal::Unroutable)
        } else if now < state.full_until {
            Some(Refusal::Full)
        } else {
            None
        };
        if refusal.is_some() {
            state.excused_until = now + POOL_PATIENCE;
            return refusal;
        }
        let ids = section
            .grants
            .iter()
            .map(|grant| grant.grantee.execution_id);
        ids.filter_map(|id| self.never_sent(id)).last()
    }

    /// Why an execution can never be sent to anybody.
    fn never_sent(&mut self, id: ExecutionId) -> Option<Refusal> {
        if let Some(refusal) = self.lasting.unsendable.get(&id) {
            return Some(refusal.clone());
        }
        // Whatever was sent once can be sent: a size does not change.
        if self.lasting.sent.insert(id)
            && let Some(refusal) = self.lasting.next.pop()
        {
            self.lasting.unsendable.insert(id, refusal.clone());
            return Some(refusal);
        }
        None
    }

    /// Notes which pools have no worker with room at the moment: nobody can be granted anything there.
    pub(crate) fn note_room(&mut self) {
        for pool in 0..self.plan.pools {
            if !self.has_room(pool) {
                self.lasting.pools[pool].excused_until = self.now + POOL_PATIENCE;
            }
        }
    }

    fn has_room(&self, pool: usize) -> bool {
        let workers = self.workers.iter().enumerate();
        let mut workers = workers.filter(|(w, _)| self.plan.pool_of(*w) == pool);
        workers.any(|(w, worker)| {
            let Some(life) = worker.living(self.now) else {
                return false;
            };
            let rows = self.store.active.values();
            let held = rows.filter(|row| row.status.holds_slot() && row.worker == Some(life));
            worker.paused_until <= self.now && held.count() < self.plan.worker_slots[w]
        })
    }
}
