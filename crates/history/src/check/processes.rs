//! What is known of processes over time: who lived when, who owned which partition, and when
//! faults were under way.

use std::collections::{BTreeMap, HashMap, HashSet};

use attune_core::{Epoch, ExecutionId, PartitionId, WorkerId};

use super::facts::Key;
use attune_record::{FaultPhase, ProcessPhase, Record, TimeBounds};

/// What a process that is killed recorded this long before may be lost, in nanoseconds.
const LAST_MOMENTS: i64 = 1_000_000_000;

/// The times within which promises are to be kept, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limits {
    pub(super) partitions: u16,
    pub(super) lease_ttl: i64,
    pub(super) worker_ttl: i64,
    pub(super) worker_grace: i64,
}

/// A role of a process.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Life {
    pub(super) began: Option<i64>,
    pub(super) stopping: Option<i64>,
    pub(super) ended: Option<i64>,
}

/// A time of owning a partition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tenure {
    pub(super) epoch: Epoch,
    pub(super) began: i64,
    /// When the owner certainly was gone, if that is known.
    pub(super) over: Option<i64>,
    /// Until when it surely was the owner, and its records are there.
    pub(super) sure_until: i64,
}

/// An attempt that is with a worker: it was granted to it, or the worker has taken it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Charge {
    pub(super) key: Key,
    worker: WorkerId,
    is_taken: bool,
    t_ns: i64,
    pub(super) record: u32,
}

#[derive(Debug, Default)]
pub(super) struct Processes {
    pub(super) limits: Option<Limits>,
    /// By role and process.
    lives: BTreeMap<(String, u32), Vec<Life>>,
    exits: HashMap<u32, Vec<i64>>,
    acquired: BTreeMap<PartitionId, BTreeMap<Epoch, (i64, Option<u32>)>>,
    given_up: HashMap<(PartitionId, Epoch), i64>,
    /// When each epoch made rounds that decided something, in order.
    rounds: HashMap<(PartitionId, Epoch), Vec<i64>>,
    /// The last record of each epoch.
    last_seen: HashMap<(PartitionId, Epoch), i64>,
    /// The last epoch in which an attempt is known to have been given its slot, or to hold it.
    holding: HashMap<Key, Epoch>,
    charges: HashMap<Key, Charge>,
    /// The processes of workers, and when each of these is first seen to have taken anything.
    workers: HashMap<WorkerId, (u32, i64)>,
    lost: HashMap<WorkerId, i64>,
    faults: BTreeMap<(String, String), Vec<(i64, FaultPhase)>>,
}

impl Processes {
    /// Adds a record; those of other kinds change nothing.
    pub(super) fn add(&mut self, number: u32, record: &Record) {
        match record {
            Record::Process {
                role,
                pid,
                phase,
                t_ns,
            } => {
                let lives = self.lives.entry((role.clone(), *pid)).or_default();
                if *phase == ProcessPhase::Began || lives.is_empty() {
                    lives.push(Life::default());
                }
                if let Some(life) = lives.last_mut() {
                    match phase {
                        ProcessPhase::Began => life.began = Some(*t_ns),
                        ProcessPhase::Stopping => life.stopping = Some(*t_ns),
                        ProcessPhase::Ended => life.ended = Some(*t_ns),
                    }
                }
            }
            Record::ProcessExit { pid, t_ns, .. } => {
                self.exits.entry(*pid).or_default().push(*t_ns);
            }
            Record::Bounds(TimeBounds {
                partitions,
                lease_ttl_ms,
                worker_ttl_ms,
                worker_grace_ms,
                ..
            }) => {
                let nanos = |ms: u64| {
                    i64::try_from(ms).map_or(i64::MAX / 8, |ms| ms.saturating_mul(1_000_000))
                };
                let limits = self.limits.get_or_insert_default();
                limits.partitions = limits.partitions.max(*partitions);
                limits.lease_ttl = limits.lease_ttl.max(nanos(*lease_ttl_ms));
                limits.worker_ttl = limits.worker_ttl.max(nanos(*worker_ttl_ms));
                limits.worker_grace = limits.worker_grace.max(nanos(*worker_grace_ms));
            }
            Record::Taken {
                execution_id,
                attempt,
                worker,
                pid,
                t_ns,
            } => {
                self.charge(Charge {
                    key: (*execution_id, *attempt),
                    worker: *worker,
                    is_taken: true,
                    t_ns: *t_ns,
                    record: number,
                });
                if let Some(pid) = pid {
                    let (_, first) = self.workers.entry(*worker).or_insert((*pid, *t_ns));
                    *first = (*first).min(*t_ns);
                }
            }
            Record::WorkerLost { worker, t_ns } => {
                let first = self.lost.entry(*worker).or_insert(*t_ns);
                *first = (*first).min(*t_ns);
            }
            Record::Fault {
                name,
                target,
                phase,
                t_ns,
            } => {
                let fault = self.faults.entry((name.clone(), target.clone()));
                fault.or_default().push((*t_ns, *phase));
            }
            _ => self.add_of_owner(number, record),
        }
    }

    /// Whoever took an attempt first has it, whatever the grant says.
    fn charge(&mut self, charge: Charge) {
        let known = self.charges.entry(charge.key).or_insert(charge);
        let place = |charge: &Charge| (!charge.is_taken, charge.t_ns);
        if place(&charge) < place(known) {
            *known = charge;
        }
    }

    fn add_of_owner(&mut self, number: u32, record: &Record) {
        if let Record::Granted {
            execution_id,
            attempt,
            worker: Some(worker),
            t_ns,
            ..
        } = record
        {
            self.charge(Charge {
                key: (*execution_id, *attempt),
                worker: *worker,
                is_taken: false,
                t_ns: *t_ns,
                record: number,
            });
        }
        match record {
            Record::Acquired {
                partition,
                epoch,
                pid,
                t_ns,
            } => {
                let epochs = self.acquired.entry(*partition).or_default();
                epochs.entry(*epoch).or_insert((*t_ns, *pid));
            }
            Record::Lost(one) => {
                self.given_up.insert((one.partition, one.epoch), one.t_ns);
            }
            Record::Held {
                execution_id,
                attempt,
                epoch,
                t_ns,
                ..
            }
            | Record::Granted {
                execution_id,
                attempt,
                epoch,
                t_ns,
                ..
            } => {
                let held = self.holding.entry((*execution_id, *attempt));
                let held = held.or_insert(*epoch);
                *held = (*held).max(*epoch);
                self.see(*execution_id, *epoch, *t_ns);
            }
            Record::Accepted {
                execution_id,
                epoch,
                t_ns,
                ..
            }
            | Record::Ended {
                execution_id,
                epoch,
                t_ns,
                ..
            }
            | Record::Revoked {
                execution_id,
                epoch,
                t_ns,
                ..
            } => self.see(*execution_id, *epoch, *t_ns),
            _ => {}
        }
    }

    fn see(&mut self, id: ExecutionId, epoch: Epoch, t_ns: i64) {
        let rounds = self.rounds.entry((id.partition(), epoch)).or_default();
        if rounds.last() != Some(&t_ns) {
            rounds.push(t_ns);
        }
        let last = self.last_seen.entry((id.partition(), epoch));
        let last = last.or_insert(t_ns);
        *last = (*last).max(t_ns);
    }

    /// When the owner of an epoch made rounds that decided something.
    pub(super) fn rounds(&self, partition: PartitionId, epoch: Epoch) -> &[i64] {
        let rounds = self.rounds.get(&(partition, epoch));
        rounds.map_or(&[], Vec::as_slice)
    }

    /// Whether the owner of an epoch recorded that it was over.
    pub(super) fn gave_up(&self, partition: PartitionId, epoch: Epoch) -> bool {
        self.given_up.contains_key(&(partition, epoch))
    }

    fn lives_of(&self, role: &str) -> impl Iterator<Item = (u32, &Life)> {
        let of_role = self.lives.iter().filter(move |((of, _), _)| of == role);
        of_role.flat_map(|((_, pid), lives)| lives.iter().map(|life| (*pid, life)))
    }

    /// Whether processes of a role recorded, and each of them has ended well.
    pub(super) fn all_ended_well(&self, role: &str) -> bool {
        self.lives_of(role).next().is_some()
            && self.lives_of(role).all(|(_, life)| life.ended.is_some())
    }

    /// Whether the worker that an attempt is with has ended well.
    pub(super) fn worker_ended_well(&self, key: Key) -> bool {
        let Some(charge) = self.charges.get(&key) else {
            return false;
        };
        let Some((pid, _)) = self.workers.get(&charge.worker) else {
            return false;
        };
        let mut lives = self.lives_of("worker").filter(|(of, _)| of == pid);
        lives.any(|(_, life)| {
            life.began.is_some_and(|began| began <= charge.t_ns)
                && life.ended.is_some_and(|ended| ended >= charge.t_ns)
        })
    }

    /// Whether a number has been that of a process that records.
    pub(super) fn is_known(&self, pid: u32) -> bool {
        let mut known = self.lives.keys();
        known.any(|(_, of)| *of == pid)
    }

    /// The first end of a process that somebody saw, from a time on.
    pub(super) fn exit(&self, pid: u32, from: i64) -> Option<i64> {
        let times = self.exits.get(&pid)?.iter().copied();
        times.filter(|t| *t >= from).min()
    }

    /// Attempts whose worker died, and when, or when they came to it where that was later; by attempt.
    pub(super) fn orphans(&self) -> Vec<(Charge, i64)> {
        let mut orphans: Vec<(Charge, i64)> = self
            .charges
            .values()
            .filter_map(|charge| {
                let exit = self.exit_of(charge);
                let lost = self.lost.get(&charge.worker).copied();
                let death = [exit, lost].into_iter().flatten().min()?;
                Some((*charge, death.max(charge.t_ns)))
            })
            .collect();
        orphans.sort_unstable_by_key(|(charge, _)| charge.key);
        orphans
    }

    /// The end of the process of the worker that an attempt is with. What it has taken is with it before that;
    /// what was granted to it may have been so afterwards.
    fn exit_of(&self, charge: &Charge) -> Option<i64> {
        let (pid, first) = *self.workers.get(&charge.worker)?;
        let from = if charge.is_taken { charge.t_ns } else { first };
        self.exit(pid, from)
    }

    /// The time of owning in which an attempt was last known to hold its slot.
    pub(super) fn tenure_of(&self, key: Key) -> Option<Tenure> {
        self.tenure(key.0.partition(), *self.holding.get(&key)?)
    }

    fn tenure(&self, partition: PartitionId, epoch: Epoch) -> Option<Tenure> {
        let epochs = self.acquired.get(&partition)?;
        let (began, pid) = *epochs.get(&epoch)?;
        let next = epochs.range(Epoch(epoch.0 + 1)..).next();
        let next = next.map(|(_, (t, _))| *t);
        let given_up = self.given_up.get(&(partition, epoch)).copied();
        let exit = pid.and_then(|pid| self.exit(pid, began));
        let seen = self.last_seen.get(&(partition, epoch)).copied();
        let seen = seen.unwrap_or(began).max(began);
        // An owner that another has replaced may have been one for the last time that it
        // recorded something as one, or gave it up before.
        let sure = match (given_up, next) {
            (Some(t), next) if next.is_none_or(|next| t <= next) => t,
            (_, Some(next)) => seen.min(next),
            _ => {
                let told = pid.and_then(|pid| self.told_to_stop(pid, began));
                let known = [told, exit].into_iter().flatten().min();
                known.map_or(seen, |end| seen.max(end - LAST_MOMENTS).min(end))
            }
        };
        Some(Tenure {
            epoch,
            began,
            over: [given_up, exit, next].into_iter().flatten().min(),
            sure_until: sure,
        })
    }

    fn told_to_stop(&self, pid: u32, from: i64) -> Option<i64> {
        let lives = self.lives_of("executor").filter(|(of, _)| *of == pid);
        lives
            .filter_map(|(_, life)| life.stopping)
            .filter(|t| *t >= from)
            .min()
    }

    /// Every time of owning each partition, in order.
    pub(super) fn tenures(&self) -> BTreeMap<PartitionId, Vec<Tenure>> {
        let of = |(partition, epochs): (&PartitionId, &BTreeMap<Epoch, _>)| {
            let tenures = epochs.keys();
            let tenures = tenures.filter_map(|epoch| self.tenure(*partition, *epoch));
            (*partition, tenures.collect())
        };
        self.acquired.iter().map(of).collect()
    }

    /// Whether an executor lives all the time between two moments, and after the second.
    pub(super) fn has_executor(&self, from: i64, to: i64) -> bool {
        self.lives_of("executor").any(|(pid, life)| {
            let Some(began) = life.began.filter(|began| *began <= from) else {
                return false;
            };
            let ends = [life.stopping, life.ended, self.exit(pid, began)];
            // Without any of these it may have been killed, and nobody saw it.
            ends.into_iter().flatten().min().is_some_and(|end| end > to)
        })
    }

    /// Whether no executor that was there before `to` may have been killed in this time.
    pub(super) fn loses_no_executor(&self, from: i64, to: i64) -> bool {
        let mut there = self.lives_of("executor").filter(|(_, life)| {
            let began = life.began.or(life.stopping).or(life.ended);
            began.is_some_and(|began| began <= to)
        });
        there.all(|(pid, life)| {
            let exit = life.began.and_then(|began| self.exit(pid, began));
            match exit {
                Some(exit) => exit < from || exit > to,
                None => life.stopping.is_some() || life.ended.is_some(),
            }
        })
    }

    /// When faults were under way: apart from each other, in order.
    pub(super) fn disturbances(&self) -> Vec<(i64, i64)> {
        merged(self.faults_under_way())
    }

    /// The same, and every moment at which a daemon began, was told to stop, ended or died, or a
    /// worker lost its lease: what passes through it is late for a reason.
    pub(super) fn troubles(&self) -> Vec<(i64, i64)> {
        let known: HashSet<u32> = self.lives.keys().map(|(_, pid)| *pid).collect();
        let exits = self.exits.iter().filter(|(pid, _)| known.contains(pid));
        let exits = exits.flat_map(|(_, times)| times.iter().copied());
        let phases = self.lives.values().flatten();
        let phases = phases.flat_map(|life| [life.began, life.stopping, life.ended]);
        let moments = exits.chain(phases.flatten());
        let moments = moments.chain(self.lost.values().copied());
        let mut all = self.faults_under_way();
        all.extend(moments.map(|t| (t, t)));
        merged(all)
    }

    fn faults_under_way(&self) -> Vec<(i64, i64)> {
        let mut all = Vec::new();
        for phases in self.faults.values() {
            let mut phases = phases.clone();
            phases.sort_unstable_by_key(|(t, phase)| (*t, *phase == FaultPhase::End));
            let mut open: Option<i64> = None;
            for (t, phase) in phases {
                match (phase, open) {
                    (FaultPhase::Begin, before) => {
                        // What has no end was over at once.
                        all.extend(before.map(|begin| (begin, begin)));
                        open = Some(t);
                    }
                    (FaultPhase::End, begin) => {
                        all.push((begin.unwrap_or(t), t));
                        open = None;
                    }
                }
            }
            all.extend(open.map(|begin| (begin, begin)));
        }
        all
    }
}

/// Puts together what overlaps.
fn merged(mut all: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    all.sort_unstable();
    let mut merged: Vec<(i64, i64)> = Vec::new();
    for (begin, end) in all {
        match merged.last_mut() {
            Some(last) if begin <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((begin, end)),
        }
    }
    merged
}
