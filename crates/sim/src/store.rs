//! A plain model of the store, with the exact meaning that the conformance suite of the ports
//! gives to every call. One call is one step: nothing happens inside of it.

mod leases;
mod meters;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use attune_core::{
    Action, ActionId, Asker, Attempt, Demand, ExecutionId, Operation, OperationId,
    OperationProgress, Outcome, OwnerId, PartitionId, Pauses, PolicySet, Priority, QueueTotals,
    RequestGap, RequestId, Status, Submission, WorkerId,
};
use attune_executor::stored::{
    Batch, Body, KnownRequest, LoadedTo, MeterPlace, NewExecution, StoredExecution, StoredSlot,
    StoredWords,
};

use crate::plan::Time;
use workers::WorkerLease;

/// How many bodies one answer brings.
pub(crate) const MAX_BODIES: usize = 8;

/// What waits or holds a slot.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// Its action.
    pub(crate) action: ActionId,
    /// The request that led to it.
    pub(crate) request: RequestId,
    submission: Arc<Submission>,
    demand: Option<Demand>,
    asker: Option<Asker>,
    /// Who goes first.
    pub(crate) priority: Priority,
    /// `Queued`, `Requested` or `Running`.
    pub(crate) status: Status,
    /// Its attempt.
    pub(crate) attempt: Attempt,
    /// The number of its last grant.
    pub(crate) grant_no: Option<i64>,
    /// When it may start, by the wall clock.
    pub(crate) not_before: Option<Time>,
    /// How many of its grants never began.
    pub(crate) unbegun: u16,
    /// Whether a try of it has ended.
    retried: bool,
    /// Until when it keeps its slot without running.
    pub(crate) kept_until: Option<Time>,
    /// Whether it goes before all others of its action.
    pub(crate) front: bool,
    /// Whether it shall be ended.
    pub(crate) cancel_requested: bool,
    /// Whom it was granted to.
    pub(crate) worker: Option<WorkerId>,
    /// By the time of its owner.
    created: Time,
    /// Likewise.
    requested_at: Time,
    /// By the store's clock.
    started_at: Time,
}

/// How an execution has ended, as clients read it.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    /// Its action.
    pub(crate) action: ActionId,
    /// Its last status.
    pub(crate) status: Status,
    /// Its last attempt.
    pub(crate) attempt: Attempt,
    /// What its program returned.
    pub(crate) result: Option<String>,
    /// Why it did not succeed.
    pub(crate) error: Option<String>,
}

impl Ended {
    fn of(action: ActionId, attempt: Attempt, outcome: &Outcome) -> Self {
        Self {
            action,
            status: outcome.status,
            attempt,
            result: outcome.result.as_ref().map(|it| it.get().to_owned()),
            error: outcome.error.clone(),
        }
    }
}

/// The lease of a partition.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lease {
    pub(crate) owner: Option<OwnerId>,
    /// Rises with every change of hands.
    pub(crate) epoch: i64,
    /// Rises with every renewal and every change of hands.
    renewals: i64,
    /// When that last happened.
    moved_at: Time,
    ttl: Time,
    /// Who is to have it next.
    wanted: Option<OwnerId>,
}

impl Lease {
    /// Whether its owner has renewed it in time; nobody may judge by that but the simulator.
    pub(crate) fn is_live(&self, now: Time) -> bool {
        self.owner.is_some() && self.moved_at + self.ttl > now
    }
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
    /// What has ended.
    pub(crate) history: BTreeMap<ExecutionId, Ended>,
    /// What requests led to, and the digests of their bodies.
    pub(crate) requests: BTreeMap<RequestId, (ExecutionId, i64)>,
    /// What has gone through each queue.
    pub(crate) totals: BTreeMap<ActionId, QueueTotals>,
    /// What operators hold.
    pub(crate) pauses: Pauses,
    /// The policy documents in force.
    pub(crate) policies: PolicySet,
    /// By which version of them each partition says to decide.
    pub(crate) goes_by: BTreeMap<PartitionId, i64>,
    /// Bulk operations.
    pub(crate) operations: BTreeMap<OperationId, Operation>,
    /// How far they are.
    pub(crate) progress: BTreeMap<(PartitionId, OperationId), OperationProgress>,
    /// What was counted for limits, and when that was written.
    meters: BTreeMap<(PartitionId, MeterPlace), (Vec<u8>, Time)>,
    workers: BTreeMap<WorkerId, WorkerLease>,
    /// Which owners are there, how often they have said so, until when, and whether they were cut
    /// off then.
    executors: BTreeMap<OwnerId, (i64, Time, bool)>,
    /// Owners whose presence nobody sees, and until when: their partitions go to others.
    pub(crate) hidden: BTreeMap<OwnerId, Time>,
    /// Batches that were written: one that comes again was not answered the first time.
    written: BTreeSet<u64>,
    /// False when the missing fence is planted.
    pub(crate) fenced: bool,
}

impl Store {
    /// What waits or holds a slot in a partition, action by action.
    pub(crate) fn load_rows(
        &self,
        partition: PartitionId,
        after: Option<LoadedTo>,
        limit: usize,
    ) -> (Vec<StoredExecution>, Option<LoadedTo>) {
        let mut mine: Vec<_> = self
            .active
            .iter()
            .filter(|(id, _)| id.partition() == partition)
            .map(|(id, row)| (row.action, row.created, *id))
            .filter(|place| after.is_none_or(|to| *place > (to.action_id, to.created, to.id)))
            .collect();
        mine.sort_unstable();
        mine.truncate(limit);
        let last = mine.last().filter(|_| mine.len() == limit);
        let next = last.map(|(action_id, created, id)| LoadedTo {
            action_id: *action_id,
            created: *created,
            id: *id,
        });
        let rows = mine.iter().map(|(_, _, id)| self.stored(*id));
        (rows.collect(), next)
    }

    /// What waits or holds a slot in these partitions, among the next `limit` by rising id.
    pub(crate) fn scan_rows(
        &self,
        partitions: &[PartitionId],
        after: Option<ExecutionId>,
        limit: usize,
    ) -> (Vec<StoredExecution>, Option<ExecutionId>) {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = self.active.range((from, Bound::Unbounded)).take(limit);
        let ids: Vec<ExecutionId> = range.map(|(id, _)| *id).collect();
        let mine = ids.iter().filter(|id| partitions.contains(&id.partition()));
        (
            mine.map(|id| self.stored(*id)).collect(),
            ids.last().copied(),
        )
    }

    fn stored(&self, id: ExecutionId) -> StoredExecution {
        let row = &self.active[&id];
        StoredExecution {
            front: row.front,
            id,
            action_id: row.action,
            priority: row.priority,
            status: row.status,
            attempt: row.attempt,
            grant_no: row.grant_no,
            unbegun: row.unbegun,
            retried: row.retried,
            created: row.created,
            not_before: row.not_before,
            cancel_requested: row.cancel_requested,
            demand: row.demand,
            asker: row.asker,
            kept_until: row.kept_until,
            worker: row.worker,
        }
    }

    /// Which of these are granted to a worker, and whether the leases of their workers are over.
    pub(crate) fn load_slots(&self, now: Time, ids: &[ExecutionId]) -> Vec<StoredSlot> {
        let there = ids.iter().filter_map(|id| self.active.get_key_value(id));
        let held = there.filter(|(_, row)| row.status.holds_slot() || row.worker.is_some());
        held.map(|(id, row)| {
            let is_over = |worker| self.workers.get(&worker).is_none_or(|lease| lease.ended);
            StoredSlot {
                front: row.front,
                asker: row.asker,
                id: *id,
                action_id: row.action,
                priority: row.priority,
                attempt: row.attempt,
                grant_no: row.grant_no,
                unbegun: row.unbegun,
                status: row.status,
                worker: row.worker,
                worker_over: row.worker.is_some_and(is_over),
                never_begun: false,
                created: row.created,
                requested_at: row.requested_at,
                running_for: (row.status == Status::Running).then(|| now - row.started_at),
                cancel_requested: row.cancel_requested,
                demand: row.demand,
                kept_until: row.kept_until,
            }
        })
        .collect()
    }

    /// The bodies of these executions, as far as they hold a slot or wait; a few in one answer.
    pub(crate) fn load_bodies(&self, ids: &[ExecutionId]) -> Vec<Body> {
        let there = ids.iter().filter(|id| self.active.contains_key(id));
        there.take(MAX_BODIES).map(|id| body_of(*id)).collect()
    }

    /// What these executions say, as far as they hold a slot or wait; a few in one answer.
    pub(crate) fn load_words(&self, ids: &[ExecutionId]) -> Vec<StoredWords> {
        let there = ids.iter().filter_map(|id| self.active.get_key_value(id));
        let there = there.take(MAX_BODIES);
        there
            .map(|(id, row)| StoredWords {
                id: *id,
                requested_by: row.submission.requested_by.clone(),
                group: row.submission.group.clone(),
                labels: row.submission.labels.clone(),
                parameters: row.submission.parameters.clone(),
            })
            .collect()
    }

    /// Where the execution of a request stands.
    fn status(&self, id: ExecutionId) -> Option<Status> {
        let active = self.active.get(&id).map(|row| row.status);
        active.or_else(|| self.history.get(&id).map(|ended| ended.status))
    }

    /// Whether a request has led to an execution that was accepted.
    pub(crate) fn is_execution(&self, request: RequestId) -> bool {
        let id = self.requests.get(&request).map(|(id, _)| *id);
        id.is_some_and(|id| !self.is_rejected(id))
    }

    /// Whether it only records a refusal.
    pub(crate) fn is_rejected(&self, id: ExecutionId) -> bool {
        self.status(id) == Some(Status::Rejected)
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

    /// The requests next to this one, on both sides.
    pub(crate) fn request_gap(&self, around: RequestId) -> RequestGap {
        let (mut above, mut below) = (None, None);
        for id in self.requests.keys().copied() {
            if id < around {
                above = above.max(Some(id));
            } else {
                below = below.map_or(Some(id), |least: RequestId| Some(least.min(id)));
            }
        }
        RequestGap { above, below }
    }

    /// Those of these actions that exist.
    pub(crate) fn find_actions(&self, refs: &[String]) -> Vec<Action> {
        let found = self.actions.iter().filter(|action| {
            refs.iter()
                .any(|name| name == action.spec.action_ref.as_str())
        });
        found.cloned().collect()
    }

    /// Whether a batch of this number was written before.
    pub(crate) fn has_written(&self, number: u64) -> bool {
        self.written.contains(&number)
    }

    /// Whether the fences of a batch hold.
    pub(crate) fn would_take(&self, batch: &Batch) -> bool {
        let mut fences = batch.fences.iter();
        !self.fenced || fences.all(|(of, epoch)| self.holds(batch.owner, *of, *epoch))
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
        for (partition, version) in &batch.policies {
            let written = self.goes_by.entry(*partition).or_default();
            *written = version.max(written).to_owned();
        }
        for new in &batch.inserts {
            if self.remember(new, &mut odd) {
                self.active
                    .entry(new.id)
                    .or_insert_with(|| row_of(batch.at, new));
            }
        }
        for (new, outcome) in &batch.instant {
            if self.remember(new, &mut odd) {
                self.history
                    .insert(new.id, Ended::of(new.action_id, new.attempt, outcome));
            }
        }
        for update in &batch.changes {
            let Some(row) = self.active.get_mut(&update.id) else {
                continue;
            };
            let status = update.transition.map(|transition| transition.to());
            let applies = match status {
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
            if let Some(status) = status {
                (row.status, row.attempt, row.worker) = (status, update.attempt, update.worker);
                row.grant_no = update.grant_no.or(row.grant_no);
                if status == Status::Requested {
                    row.requested_at = batch.at;
                }
            }
            if status.is_none() && update.grants_ahead() {
                (row.attempt, row.worker) = (update.attempt, update.worker);
                row.grant_no = update.grant_no;
                row.requested_at = batch.at;
            }
            if let Some(since) = update.started.filter(|_| status.is_none())
                && row.status == Status::Requested
                && row.attempt == update.attempt
            {
                (row.status, row.started_at) = (Status::Running, since);
            }
            if let Some(put_back) = &update.put_back {
                row.not_before = put_back.not_before;
                row.unbegun = put_back.unbegun;
                row.retried |= put_back.last_error.is_some();
                row.kept_until = put_back.not_before.filter(|_| put_back.keeps_slot);
                if put_back.keeps_slot {
                    (row.status, row.worker) = (Status::Requested, None);
                }
            }
        }
        for end in &batch.ends {
            match self.active.remove(&end.id) {
                Some(row) => {
                    self.history
                        .insert(end.id, Ended::of(row.action, row.attempt, &end.outcome));
                }
                None if first => odd.ended_twice.push(end.id),
                None => {}
            }
        }
        for moved in &batch.moves {
            if let Some(row) = self.active.get_mut(&moved.id) {
                (row.priority, row.front) = (moved.priority, moved.front);
            }
        }
        for (partition, operation, progress) in &batch.progress {
            self.progress.insert((*partition, *operation), *progress);
        }
        for meter in &batch.meters {
            let place = (meter.partition, meter.place.clone());
            self.meters.insert(place, (meter.state.clone(), now));
        }
        let totals = batch.totals.iter();
        self.totals
            .extend(totals.map(|(_, id, totals)| (*id, *totals)));
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

/// `at` is the time of the owner that accepts it.
fn row_of(at: Time, new: &NewExecution) -> Row {
    Row {
        action: new.action_id,
        request: new.request_id,
        submission: Arc::clone(&new.submission),
        demand: new.demand.as_deref().copied(),
        asker: new.asker,
        priority: new.submission.priority.unwrap_or_default(),
        status: new.status,
        attempt: new.attempt,
        grant_no: new.grant_no,
        not_before: new
            .submission
            .not_before
            .map(|time| time.timestamp_millis()),
        unbegun: 0,
        retried: false,
        kept_until: None,
        front: false,
        cancel_requested: new.cancel_requested,
        worker: new.worker,
        created: at,
        requested_at: at,
        started_at: at,
    }
}

/// Every execution of a run is given nothing.
pub(crate) fn body_of(id: ExecutionId) -> Body {
    let nothing = attune_core::RawValue::from_string("null".to_owned());
    Body {
        id,
        parameters: nothing.expect("null is JSON"),
        timeout_seconds: None,
        trace: None,
    }
}
