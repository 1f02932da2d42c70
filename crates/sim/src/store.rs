//! A plain model of the store, with the exact meaning that the conformance suite of the ports
//! gives to every call. One call is one step: nothing happens inside of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use attune_core::{
    Action, ActionId, Attempt, Epoch, ExecutionId, OwnerId, PartitionId, Priority, QueueTotals,
    RequestId, Status, WorkerId,
};
use attune_store::{ActiveRow, Batch, Claim, KnownRequest, NewExecution, SlotRow};
use chrono::{DateTime, Utc};

use crate::plan::Time;

/// What waits or holds a slot.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// Its action.
    pub(crate) action: ActionId,
    /// Who goes first.
    pub(crate) priority: Priority,
    /// `Queued`, `Requested` or `Running`.
    pub(crate) status: Status,
    /// Its attempt.
    pub(crate) attempt: Attempt,
    /// When it may start, by the wall clock.
    pub(crate) not_before: Option<DateTime<Utc>>,
    /// Whether it shall be ended.
    pub(crate) cancel_requested: bool,
    /// Who claimed it.
    pub(crate) worker: Option<WorkerId>,
    created: Time,
    requested_at: Time,
    started_at: Time,
}

/// The lease of a partition.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lease {
    owner: Option<OwnerId>,
    /// Rises with every change of hands.
    pub(crate) epoch: i64,
    expires: Time,
}

/// What a commit met that no commit may meet.
#[derive(Debug, Default)]
pub(crate) struct Odd {
    /// Executions that had ended, or never were, when a batch ended or stored them.
    pub(crate) ended_twice: Vec<ExecutionId>,
    /// Requests that had led to another execution.
    pub(crate) accepted_twice: Vec<RequestId>,
}

/// Everything that is stored.
#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    /// By partition.
    pub(crate) leases: Vec<Lease>,
    /// By number.
    pub(crate) actions: Vec<Action>,
    /// What waits or holds a slot.
    pub(crate) active: BTreeMap<ExecutionId, Row>,
    /// What has ended, how, and in which attempt.
    pub(crate) history: BTreeMap<ExecutionId, (Status, Attempt)>,
    /// What requests led to, and the digests of their bodies.
    pub(crate) requests: BTreeMap<RequestId, (ExecutionId, i64)>,
    /// What has gone through each queue.
    pub(crate) totals: BTreeMap<ActionId, QueueTotals>,
    workers: BTreeMap<WorkerId, Time>,
    /// Batches that were written: one that comes again was not answered the first time.
    written: BTreeSet<u64>,
    /// False when the missing fence is planted.
    pub(crate) fenced: bool,
}

fn age(now: Time, then: Time) -> Duration {
    Duration::from_millis(u64::try_from(now - then).unwrap_or(0))
}

impl Store {
    /// Takes those partitions that nobody owns.
    pub(crate) fn acquire(
        &mut self,
        now: Time,
        owner: OwnerId,
        wanted: &[PartitionId],
        ttl: Time,
    ) -> Vec<(PartitionId, Epoch)> {
        let mut taken = Vec::new();
        for partition in wanted {
            let lease = &mut self.leases[usize::from(partition.0)];
            // The asker's own is what it let go while the store did not answer.
            if lease.owner.is_none_or(|it| it == owner) || lease.expires <= now {
                *lease = Lease {
                    owner: Some(owner),
                    epoch: lease.epoch + 1,
                    expires: now + ttl,
                };
                taken.push((*partition, Epoch(lease.epoch)));
            }
        }
        taken
    }

    fn holds(&self, owner: OwnerId, partition: PartitionId, epoch: Epoch) -> bool {
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
                self.leases[usize::from(partition.0)].expires = now + ttl;
                renewed.push(*partition);
            }
        }
        renewed
    }

    /// Frees what is still held.
    pub(crate) fn give_up(&mut self, owner: OwnerId, held: &[(PartitionId, Epoch)]) {
        for (partition, epoch) in held {
            if self.holds(owner, *partition, *epoch) {
                self.leases[usize::from(partition.0)].owner = None;
            }
        }
    }

    /// What a new owner loads, by rising id.
    pub(crate) fn load_active(&self, now: Time, partition: PartitionId) -> Vec<ActiveRow> {
        let mine = self
            .active
            .iter()
            .filter(|(id, _)| id.partition() == partition);
        mine.map(|(id, row)| ActiveRow {
            id: *id,
            action_id: row.action,
            priority: row.priority,
            status: row.status,
            attempt: row.attempt,
            age: age(now, row.created),
            not_before: row.not_before,
            cancel_requested: row.cancel_requested,
        })
        .collect()
    }

    /// What holds a slot, and since when its worker is lost.
    pub(crate) fn load_slots(&self, now: Time, partitions: &[PartitionId]) -> Vec<SlotRow> {
        let held = self
            .active
            .iter()
            .filter(|(id, row)| row.status.holds_slot() && partitions.contains(&id.partition()));
        held.map(|(id, row)| {
            let lost_since = row
                .worker
                .map(|worker| self.workers.get(&worker).copied().unwrap_or(row.started_at));
            SlotRow {
                id: *id,
                action_id: row.action,
                priority: row.priority,
                attempt: row.attempt,
                status: row.status,
                worker: row.worker,
                worker_lost_for: lost_since.map_or(Duration::ZERO, |since| age(now, since)),
                age: age(now, row.created),
                held_for: age(now, row.requested_at),
                running_for: row.worker.map(|_| age(now, row.started_at)),
                cancel_requested: row.cancel_requested,
            }
        })
        .collect()
    }

    /// Where the execution of a request stands.
    fn status(&self, id: ExecutionId) -> Option<Status> {
        let active = self.active.get(&id).map(|row| row.status);
        active.or_else(|| self.history.get(&id).map(|(status, _)| *status))
    }

    /// What is known of these requests.
    pub(crate) fn look_up(&self, requests: &[RequestId]) -> Vec<KnownRequest> {
        let known = requests.iter().filter_map(|request_id| {
            let (execution_id, digest) = *self.requests.get(request_id)?;
            Some(KnownRequest {
                request_id: *request_id,
                execution_id,
                digest,
                status: self.status(execution_id)?,
            })
        });
        known.collect()
    }

    /// Those of these actions that exist.
    pub(crate) fn find_actions(&self, refs: &[String]) -> Vec<Action> {
        let found = self.actions.iter().filter(|action| {
            refs.iter()
                .any(|name| name == action.spec.action_ref.as_str())
        });
        found.cloned().collect()
    }

    /// Starts or renews the lease of a worker; false when it had expired.
    pub(crate) fn renew_worker(&mut self, now: Time, worker: WorkerId, ttl: Time) -> bool {
        match self.workers.get(&worker) {
            Some(expires) if *expires <= now => false,
            _ => {
                self.workers.insert(worker, now + ttl);
                true
            }
        }
    }

    /// Claims for a worker with a live lease.
    pub(crate) fn claim(
        &mut self,
        now: Time,
        worker: WorkerId,
        wanted: &[(ExecutionId, Attempt)],
    ) -> Vec<Claim> {
        if self
            .workers
            .get(&worker)
            .is_none_or(|expires| *expires <= now)
        {
            return Vec::new();
        }
        let mut won = Vec::new();
        for (id, attempt) in wanted {
            let Some(row) = self.active.get_mut(id) else {
                continue;
            };
            let free = row.status == Status::Requested;
            let mine = row.status == Status::Running && row.worker == Some(worker);
            if row.attempt == *attempt && (free || mine) {
                if free {
                    row.started_at = now;
                }
                row.status = Status::Running;
                row.worker = Some(worker);
                won.push(Claim {
                    execution_id: *id,
                    attempt: *attempt,
                    cancel_requested: row.cancel_requested,
                });
            }
        }
        won
    }

    /// Whether a batch of this number was written before.
    pub(crate) fn has_written(&self, number: u64) -> bool {
        self.written.contains(&number)
    }

    /// Writes a batch whole, or not at all when a fence does not hold.
    ///
    /// # Errors
    /// The partitions that the writer does not own.
    pub(crate) fn commit(
        &mut self,
        now: Time,
        number: u64,
        batch: &Batch,
    ) -> Result<Odd, Vec<PartitionId>> {
        let fences = batch.fences.iter();
        let lost: Vec<PartitionId> = fences
            .filter(|(partition, epoch)| !self.holds(batch.owner, *partition, *epoch))
            .map(|(partition, _)| *partition)
            .collect();
        if self.fenced && !lost.is_empty() {
            return Err(lost);
        }
        let first = self.written.insert(number);
        let mut odd = Odd::default();
        for new in &batch.inserts {
            if self.remember(new, &mut odd) {
                self.active
                    .entry(new.id)
                    .or_insert_with(|| row_of(now, new));
            }
        }
        for (new, outcome) in &batch.instant {
            if self.remember(new, &mut odd) {
                self.history.insert(new.id, (outcome.status, new.attempt));
            }
        }
        for update in &batch.updates {
            let Some(row) = self.active.get_mut(&update.id) else {
                continue;
            };
            let applies = match update.status {
                Some(Status::Requested) => {
                    row.attempt < update.attempt
                        || (row.attempt == update.attempt && row.status == Status::Queued)
                }
                _ => row.attempt <= update.attempt,
            };
            if !applies {
                continue;
            }
            row.cancel_requested = update.cancel_requested;
            if let Some(status) = update.status {
                (row.status, row.attempt, row.worker) = (status, update.attempt, None);
                if status == Status::Requested {
                    row.requested_at = now;
                }
            }
        }
        for end in &batch.ends {
            match self.active.remove(&end.id) {
                Some(row) => {
                    self.history
                        .insert(end.id, (end.outcome.status, row.attempt));
                }
                None if first => odd.ended_twice.push(end.id),
                None => {}
            }
        }
        self.totals.extend(batch.totals.iter().copied());
        if !first {
            odd = Odd::default();
        }
        Ok(odd)
    }

    /// Keeps the request of a new execution; false when the execution was stored before.
    fn remember(&mut self, new: &NewExecution, odd: &mut Odd) -> bool {
        if self.active.contains_key(&new.id) || self.history.contains_key(&new.id) {
            odd.ended_twice.push(new.id);
            return false;
        }
        let known = self
            .requests
            .entry(new.request_id)
            .or_insert((new.id, new.digest));
        if known.0 != new.id {
            odd.accepted_twice.push(new.request_id);
        }
        true
    }
}

fn row_of(now: Time, new: &NewExecution) -> Row {
    Row {
        action: new.action_id,
        priority: new.submission.priority,
        status: new.status,
        attempt: new.attempt,
        not_before: new.submission.not_before,
        cancel_requested: false,
        worker: None,
        created: now,
        requested_at: now,
        started_at: now,
    }
}
