//! A tiny queue that keeps every promise, and what everybody would record of it.

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{
    ActionId, Attempt, Epoch, ExecutionId, PartitionId, Priority, RequestId, Seq, Status,
};
use uuid::Uuid;

use super::{FinalLine, FinalRow};
use crate::record::Record;

pub(super) const ACTION: ActionId = ActionId(7);
pub(super) const PARTITION: PartitionId = PartitionId(3);
const ACTION_REF: &str = "core.test";

/// One queue, its clients, its workers.
pub(super) struct World {
    pub(super) records: Vec<Record>,
    pub(super) rows: BTreeMap<ExecutionId, FinalRow>,
    pub(super) limit: u32,
    pub(super) waiting: BTreeSet<(Priority, ExecutionId)>,
    pub(super) holders: BTreeMap<ExecutionId, Attempt>,
    /// The end of one run and the start of another that waited for it, as places in `records`.
    pub(super) handoffs: Vec<(usize, usize)>,
    epoch: i64,
    next: u32,
    grants: i64,
    round: u64,
    t: i64,
    counts: [u64; 4],
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
            waiting: BTreeSet::new(),
            holders: BTreeMap::new(),
            handoffs: Vec::new(),
            epoch: 0,
            next: 0,
            grants: 0,
            round: 0,
            t: 0,
            counts: [0; 4],
        };
        world.takeover();
        world
    }

    pub(super) fn now(&mut self) -> i64 {
        self.t += 10;
        self.t
    }

    fn push(&mut self, record: impl FnOnce(i64) -> Record) -> usize {
        let t = self.now();
        self.records.push(record(t));
        self.records.len() - 1
    }

    fn decide(&mut self, record: impl FnOnce(Epoch) -> Record) {
        let t = self.now();
        let record = record(Epoch(self.epoch)).committed(self.round, t);
        self.records.push(record);
    }

    /// Another owner, which finds what is stored.
    pub(super) fn takeover(&mut self) {
        self.epoch += 1;
        self.next = 0;
        self.round += 1;
        self.decide(|epoch| Record::Acquired {
            partition: PARTITION,
            epoch,
            t_ns: 0,
        });
        for (execution_id, attempt) in self.holders.clone() {
            self.decide(|epoch| Record::Held {
                execution_id,
                action_id: ACTION,
                attempt,
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
        self.decide(|epoch| Record::Totals {
            action_id: ACTION,
            enqueued,
            completed,
            cancelled,
            expired,
            waiting,
            active,
            epoch,
            round: 0,
            t_ns: 0,
        });
    }

    pub(super) fn invoke(&mut self, request_id: RequestId, priority: Priority) {
        self.push(|t_ns| Record::SubmitInvoke {
            request_id,
            action_ref: ACTION_REF.to_owned(),
            priority,
            t_ns,
        });
    }

    pub(super) fn submit(&mut self, priority: Priority) -> ExecutionId {
        let id = ExecutionId::new(PARTITION, Seq::new(Epoch(self.epoch), self.next));
        self.next += 1;
        let request_id = request(id);
        self.invoke(request_id, priority);
        self.round += 1;
        let status = Status::Queued;
        self.decide(|epoch| Record::Accepted {
            execution_id: id,
            action_id: ACTION,
            priority,
            request_id,
            status,
            delayed: false,
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
        self.push(|t_ns| Record::SubmitOk {
            request_id,
            execution_id: id,
            t_ns,
        });
        id
    }

    fn priority(&self, id: ExecutionId) -> Priority {
        let accepted = self.records.iter().find_map(|record| match record {
            Record::Accepted {
                execution_id,
                priority,
                ..
            } if *execution_id == id => Some(*priority),
            _ => None,
        });
        accepted.unwrap()
    }

    /// Grants what is free, ends the round, and lets the runs begin.
    fn serve(&mut self, freed: Option<usize>) {
        let mut granted = Vec::new();
        let was_full = self.holders.len() + 1 >= self.limit as usize;
        while self.holders.len() < self.limit as usize
            && let Some((_, id)) = self.waiting.pop_first()
        {
            let row = self.rows.get_mut(&id).unwrap();
            row.attempt = row.attempt.next();
            row.status = Status::Running;
            let attempt = row.attempt;
            self.holders.insert(id, attempt);
            self.grants += 1;
            let (limit, grant_no) = (Some(self.limit), self.grants);
            self.decide(|epoch| Record::Granted {
                execution_id: id,
                action_id: ACTION,
                attempt,
                grant_no,
                limit,
                epoch,
                round: 0,
                t_ns: 0,
            });
            granted.push(id);
        }
        self.totals();
        for id in granted {
            let start = self.program(id, false);
            if let Some(end) = freed.filter(|_| was_full) {
                self.handoffs.push((end, start));
            }
        }
    }

    fn pid(id: ExecutionId) -> u32 {
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
            epoch,
            round: 0,
            t_ns: 0,
        });
    }

    /// A run ends well.
    pub(super) fn finish(&mut self, id: ExecutionId) {
        let end = self.program(id, true);
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

    /// A worker is killed, and its program with it; the execution waits again at its place.
    pub(super) fn lose(&mut self, id: ExecutionId) {
        let exit = self.push(|t_ns| Record::ProcessExit {
            pid: Self::pid(id),
            executions: Vec::new(),
            t_ns,
        });
        let attempt = self.holders.remove(&id).unwrap();
        self.waiting.insert((self.priority(id), id));
        self.rows.get_mut(&id).unwrap().status = Status::Queued;
        self.round += 1;
        self.decide(|epoch| Record::Revoked {
            execution_id: id,
            action_id: ACTION,
            attempt,
            epoch,
            round: 0,
            t_ns: 0,
        });
        self.serve(Some(exit));
    }

    pub(super) fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
        self.round += 1;
        self.decide(|epoch| Record::Limit {
            action_id: ACTION,
            limit: Some(limit),
            epoch,
            round: 0,
            t_ns: 0,
        });
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

    pub(super) fn lines(&self) -> Vec<FinalLine> {
        self.rows.values().cloned().map(FinalLine::Row).collect()
    }
}
