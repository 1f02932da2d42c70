//! A tiny queue that keeps every promise, and what everybody would record of it.

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{
    ActionId, Attempt, Epoch, ExecutionId, OrderRule, PartitionId, Priority, RequestId, Seq, Status,
};
use uuid::Uuid;

use super::{FinalLine, FinalRow};
use attune_record::{OfEpoch, ProcessPhase, Record, TimeBounds};

pub(super) const ACTION: ActionId = ActionId(7);
pub(super) const PARTITION: PartitionId = PartitionId(0);
/// A second, in nanoseconds.
pub(super) const SECOND: i64 = 1_000_000_000;
/// Roles that are there all the time, and their processes. The executor owns nothing.
const DAEMONS: [(&str, u32); 4] = [
    ("api", 1),
    ("completion-listener", 2),
    ("stats", 3),
    ("executor", 4),
];
pub(super) const ACTION_REF: &str = "core.test";

/// One queue, its clients, its workers.
pub(super) struct World {
    pub(super) records: Vec<Record>,
    pub(super) rows: BTreeMap<ExecutionId, FinalRow>,
    pub(super) limit: u32,
    pub(super) order: OrderRule,
    /// With which priority each was accepted, and when.
    pub(super) accepted: BTreeMap<ExecutionId, (Priority, i64)>,
    /// Whether no worker of its pool has a free slot.
    pub(super) pool_closed: bool,
    pub(super) waiting: BTreeSet<(Priority, ExecutionId)>,
    pub(super) holders: BTreeMap<ExecutionId, Attempt>,
    /// The end of one run and the start of another that waited for it, as places in `records`.
    pub(super) handoffs: Vec<(usize, usize)>,
    /// How many workers were killed.
    pub(super) lost_workers: u32,
    /// How many of those granted next are given back before they begin.
    pub(super) returning: u32,
    snapshots: u32,
    pub(super) epoch: i64,
    pub(super) next: u32,
    grants: i64,
    pub(super) round: u64,
    t: i64,
    pub(super) counts: [u64; 4],
}

pub(super) fn request(id: ExecutionId) -> RequestId {
    RequestId(Uuid::from_u128(id.0.unsigned_abs().into()))
}

impl World {
    pub(super) fn new(limit: u32) -> Self {
        let mut world = Self {
            records: Vec::new(),
            rows: BTreeMap::new(),
            limit,
            order: OrderRule::Priority,
            accepted: BTreeMap::new(),
            pool_closed: false,
            waiting: BTreeSet::new(),
            holders: BTreeMap::new(),
            handoffs: Vec::new(),
            lost_workers: 0,
            returning: 0,
            snapshots: 0,
            epoch: 0,
            next: 0,
            grants: 0,
            round: 0,
            t: 0,
            counts: [0; 4],
        };
        world.push(|t_ns| {
            Record::Bounds(TimeBounds {
                partitions: 1,
                lease_ttl_ms: 1000,
                worker_ttl_ms: 2000,
                worker_grace_ms: 1000,
                t_ns,
            })
        });
        for (role, pid) in DAEMONS {
            world.phase(role, pid, ProcessPhase::Began);
        }
        world.phase("worker", world.worker_pid(), ProcessPhase::Began);
        world.takeover();
        world
    }

    pub(super) fn phase(&mut self, role: &str, pid: u32, phase: ProcessPhase) {
        let role = role.to_owned();
        self.push(|t_ns| Record::Process {
            role,
            pid,
            phase,
            t_ns,
        });
    }

    pub(super) fn worker_pid(&self) -> u32 {
        1000 + self.lost_workers
    }

    fn owner_pid(&self) -> u32 {
        10_000 + u32::try_from(self.epoch).unwrap()
    }

    pub(super) fn exit(&mut self, pid: u32) -> usize {
        self.push(|t_ns| Record::ProcessExit {
            pid,
            executions: Vec::new(),
            t_ns,
        })
    }

    /// Nothing happens for so many nanoseconds.
    pub(super) fn wait(&mut self, nanos: i64) {
        self.t += nanos;
    }

    pub(super) fn now(&mut self) -> i64 {
        self.t += 10;
        self.t
    }

    pub(super) fn push(&mut self, record: impl FnOnce(i64) -> Record) -> usize {
        let t = self.now();
        self.records.push(record(t));
        self.records.len() - 1
    }

    pub(super) fn decide(&mut self, record: impl FnOnce(Epoch) -> Record) {
        let t = self.now();
        let record = record(Epoch(self.epoch)).committed(self.round, t);
        self.records.push(record);
    }

    /// The owner is killed; another takes over.
    pub(super) fn takeover(&mut self) {
        if self.epoch > 0 {
            self.exit_owner();
        }
        self.acquire();
    }

    /// The owner is killed.
    pub(super) fn exit_owner(&mut self) {
        self.exit(self.owner_pid());
    }

    /// Another owner, which finds what is stored.
    pub(super) fn acquire(&mut self) {
        self.epoch += 1;
        let pid = self.owner_pid();
        self.phase("executor", pid, ProcessPhase::Began);
        self.next = 0;
        self.round += 1;
        let epoch = Epoch(self.epoch);
        self.push(|t_ns| Record::Acquired {
            partition: PARTITION,
            epoch,
            pid: Some(pid),
            t_ns,
        });
        for (execution_id, attempt) in self.holders.clone() {
            self.decide(|epoch| Record::Held {
                ahead: false,
                execution_id,
                action_id: ACTION,
                attempt,
                kept_until: None,
                epoch,
                round: 0,
                t_ns: 0,
            });
        }
        self.totals();
    }

    fn totals(&mut self) {
        let [enqueued, completed, cancelled, expired] = self.counts;
        let (waiting, active) = (self.waiting.len() as u64, self.holders.len() as u64);
        let pool_closed = self.pool_closed;
        self.decide(|epoch| Record::Totals {
            action_id: ACTION,
            enqueued,
            completed,
            cancelled,
            expired,
            waiting,
            active,
            pool_closed,
            paused: false,
            regrouping: false,
            goes_on: false,
            rate_until: None,
            epoch,
            round: 0,
            t_ns: 0,
        });
    }

    /// The stats persister writes the counts as they are.
    pub(super) fn write_stats(&mut self) {
        let [enqueued, completed, cancelled, expired] = self.counts;
        let (waiting, active) = (self.waiting.len() as u64, self.holders.len() as u64);
        self.snapshots += 1;
        let version = Seq::new(Epoch(self.epoch), self.snapshots).0;
        self.push(|t_ns| Record::StatsWritten {
            action_id: ACTION,
            version,
            enqueued,
            completed,
            cancelled,
            expired,
            waiting,
            active,
            t_ns,
        });
    }

    pub(super) fn answer(
        &mut self,
        request_id: RequestId,
        http_status: u16,
        execution_id: Option<ExecutionId>,
    ) {
        self.push(|t_ns| Record::Answered {
            request_id,
            http_status,
            execution_id,
            code: (http_status >= 400).then(|| "SOME_REASON".to_owned()),
            t_ns,
        });
    }

    /// Somebody asks in vain, and hangs up before it is told so.
    pub(super) fn refuse(&mut self, request_id: RequestId) {
        self.invoke(request_id, Priority::Normal);
        self.push(|t_ns| Record::SubmitInfo { request_id, t_ns });
        self.answer(request_id, 429, None);
    }

    pub(super) fn invoke(&mut self, request_id: RequestId, priority: Priority) {
        self.push(|t_ns| Record::SubmitInvoke {
            request_id,
            action_ref: ACTION_REF.to_owned(),
            priority,
            delayed: false,
            requested_by: None,
            t_ns,
        });
    }

    pub(super) fn submit(&mut self, priority: Priority) -> ExecutionId {
        let id = ExecutionId::new(PARTITION, Seq::new(Epoch(self.epoch), self.next));
        self.next += 1;
        let request_id = request(id);
        self.invoke(request_id, priority);
        self.push(|t_ns| Record::Confirmed { request_id, t_ns });
        self.round += 1;
        let status = Status::Queued;
        let at = self.t;
        self.accepted.insert(id, (priority, at));
        self.decide(|epoch| Record::Accepted {
            execution_id: id,
            action_id: ACTION,
            priority,
            request_id,
            status,
            delayed: false,
            at: Some(at),
            demand: None,
            quotas: Vec::new(),
            epoch,
            round: 0,
            t_ns: 0,
        });
        self.counts[0] += 1;
        self.waiting.insert((priority, id));
        let row = FinalRow {
            id,
            action_id: ACTION,
            status,
            attempt: Attempt(0),
            request_id: Some(request_id),
        };
        self.rows.insert(id, row);
        self.serve(None);
        self.answer(request_id, 201, Some(id));
        self.push(|t_ns| Record::SubmitOk {
            request_id,
            execution_id: id,
            t_ns,
        });
        id
    }

    /// Grants what is free, ends the round, and lets the runs begin.
    pub(super) fn serve(&mut self, freed: Option<usize>) {
        let mut granted = Vec::new();
        let was_full = self.holders.len() + 1 >= self.limit as usize;
        while self.holders.len() < self.limit as usize
            && let Some(first) = self.first()
        {
            self.waiting.remove(&first);
            let (_, id) = first;
            let attempt = self.grant(id, false);
            self.rows.get_mut(&id).unwrap().status = Status::Running;
            self.holders.insert(id, attempt);
            granted.push(id);
        }
        self.totals();
        for id in granted {
            if self.returning > 0 {
                self.returning -= 1;
                self.give_back(id);
                self.serve(None);
                continue;
            }
            self.take(id);
            let start = self.program(id, false);
            if let Some(end) = freed.filter(|_| was_full) {
                self.handoffs.push((end, start));
            }
        }
    }

    /// Its next attempt is granted: a slot, or a place ahead of one.
    pub(super) fn grant(&mut self, id: ExecutionId, ahead: bool) -> Attempt {
        let row = self.rows.get_mut(&id).unwrap();
        row.attempt = row.attempt.next();
        let attempt = row.attempt;
        self.grants += 1;
        let (limit, order, grant_no) = (Some(self.limit), self.order, self.grants);
        let worker = Some(self.worker());
        self.decide(|epoch| Record::Granted {
            ahead,
            execution_id: id,
            action_id: ACTION,
            attempt,
            grant_no,
            limit,
            order,
            group_limit: None,
            demands: None,
            rate: None,
            interval_ms: None,
            weights: None,
            at: None,
            worker,
            epoch,
            round: 0,
            t_ns: 0,
        });
        attempt
    }

    fn first(&self) -> Option<(Priority, ExecutionId)> {
        let key = |(priority, id): &(Priority, ExecutionId)| {
            (self.order.key(*priority, self.accepted[id].1), *id)
        };
        self.waiting.iter().min_by_key(|place| key(place)).copied()
    }

    pub(super) fn pid(id: ExecutionId) -> u32 {
        let n = (id.0 >> 8 & 0xffff) + id.seq().epoch().0 * 0x1_0000;
        u32::try_from(n).unwrap()
    }

    pub(super) fn program(&mut self, execution_id: ExecutionId, is_end: bool) -> usize {
        let attempt = self.holders[&execution_id];
        let (action_ref, pid) = (ACTION_REF.to_owned(), Self::pid(execution_id));
        self.push(|t_ns| {
            if is_end {
                Record::ProgramEnd {
                    execution_id,
                    attempt,
                    action_ref,
                    pid,
                    t_ns,
                }
            } else {
                Record::ProgramStart {
                    execution_id,
                    attempt,
                    action_ref,
                    pid,
                    t_ns,
                }
            }
        })
    }

    fn end(&mut self, id: ExecutionId, status: Status) {
        let row = self.rows.get_mut(&id).unwrap();
        row.status = status;
        let attempt = row.attempt;
        let count = match status {
            Status::Cancelled => 2,
            Status::Expired => 3,
            _ => 1,
        };
        self.counts[count] += 1;
        self.round += 1;
        self.decide(|epoch| Record::Ended {
            execution_id: id,
            action_id: ACTION,
            attempt,
            status,
            gone: None,
            epoch,
            round: 0,
            t_ns: 0,
        });
    }

    /// A run ends well.
    pub(super) fn finish(&mut self, id: ExecutionId) {
        let end = self.program(id, true);
        self.report(id, Status::Succeeded);
        self.holders.remove(&id);
        self.end(id, Status::Succeeded);
        self.serve(Some(end));
    }

    /// Somebody takes one that waits out.
    pub(super) fn cancel(&mut self, id: ExecutionId) {
        self.waiting.retain(|(_, waiting)| *waiting != id);
        self.end(id, Status::Cancelled);
        self.serve(None);
    }

    /// A completion comes a second time.
    pub(super) fn repeat_completion(&mut self, execution_id: ExecutionId) {
        self.decide(|_| Record::StaleCompletion {
            execution_id,
            attempt: Attempt(1),
            t_ns: 0,
        });
    }

    /// Everything runs to its end.
    pub(super) fn drain(&mut self) {
        self.set_limit(self.limit.max(1));
        while let Some((id, _)) = self.holders.first_key_value() {
            self.finish(*id);
        }
        assert!(self.waiting.is_empty());
    }

    /// Everybody is told to stop, and does.
    pub(super) fn stop(&mut self) {
        self.write_stats();
        let owner = ("executor", self.owner_pid());
        let worker = ("worker", self.worker_pid());
        let all: Vec<_> = DAEMONS.into_iter().chain([owner, worker]).collect();
        for (role, pid) in &all {
            self.phase(role, *pid, ProcessPhase::Stopping);
        }
        let epoch = Epoch(self.epoch);
        self.push(|t_ns| {
            Record::Lost(OfEpoch {
                partition: PARTITION,
                epoch,
                t_ns,
            })
        });
        for (role, pid) in &all {
            self.phase(role, *pid, ProcessPhase::Ended);
        }
    }

    pub(super) fn lines(&self) -> Vec<FinalLine> {
        let rows = self.rows.values().cloned();
        rows.map(FinalLine::Row).collect()
    }
}
