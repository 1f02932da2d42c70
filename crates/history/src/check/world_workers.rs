//! What workers do in the tiny queue.

use attune_core::{ExecutionId, Status, WorkerId};
use uuid::Uuid;

use super::world::{ACTION, World};
use attune_record::{ProcessPhase, Record};

impl World {
    /// The worker that lives now: what is granted is granted to it.
    pub(super) fn worker(&self) -> WorkerId {
        WorkerId(Uuid::from_u128(self.worker_pid().into()))
    }

    pub(super) fn take(&mut self, execution_id: ExecutionId) {
        let (attempt, pid) = (self.holders[&execution_id], self.worker_pid());
        let worker = self.worker();
        self.push(|t_ns| Record::Taken {
            execution_id,
            attempt,
            worker,
            pid: Some(pid),
            t_ns,
        });
    }

    /// A worker tells that a run is over, a listener hands that over.
    pub(super) fn report(&mut self, execution_id: ExecutionId, status: Status) {
        let attempt = self.holders[&execution_id];
        self.push(|t_ns| Record::End {
            execution_id,
            attempt,
            action_id: ACTION,
            status: Some(status),
            t_ns,
        });
        self.push(|t_ns| Record::Forwarded {
            execution_id,
            attempt,
            status,
            t_ns,
        });
    }

    /// The worker is killed, and its programs with it. So long after, another has come and their
    /// executions wait again at their places.
    pub(super) fn kill_worker(&mut self, after: i64) {
        self.kill_worker_under(&[after]);
    }

    /// The same, with another owner after each of these times but the last.
    pub(super) fn kill_worker_under(&mut self, times: &[i64]) {
        self.exit(self.worker_pid());
        self.lost_workers += 1;
        let ids: Vec<ExecutionId> = self.holders.keys().copied().collect();
        let exits: Vec<usize> = ids.iter().map(|id| self.exit(Self::pid(*id))).collect();
        for (number, time) in times.iter().enumerate() {
            if number > 0 {
                self.takeover();
            }
            self.wait(*time);
        }
        self.phase("worker", self.worker_pid(), ProcessPhase::Began);
        for id in &ids {
            self.revoke(*id);
        }
        self.serve(exits.last().copied());
    }

    /// A program is killed; the execution waits again at its place.
    pub(super) fn lose(&mut self, id: ExecutionId) {
        let exit = self.exit(Self::pid(id));
        self.revoke(id);
        self.serve(Some(exit));
    }

    fn revoke(&mut self, id: ExecutionId) {
        self.put_back(id, false);
    }

    /// The worker of an attempt gives it back before it began.
    pub(super) fn give_back(&mut self, id: ExecutionId) {
        self.put_back(id, true);
    }

    fn put_back(&mut self, id: ExecutionId, never_begun: bool) {
        let attempt = self.holders.remove(&id).unwrap();
        self.waiting.insert((self.accepted[&id].0, id));
        self.rows.get_mut(&id).unwrap().status = Status::Queued;
        self.round += 1;
        self.decide(|epoch| Record::Revoked {
            execution_id: id,
            action_id: ACTION,
            attempt,
            retried: None,
            never_begun,
            epoch,
            round: 0,
            t_ns: 0,
        });
    }
}
