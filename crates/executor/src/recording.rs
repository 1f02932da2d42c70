//! What an owner records of its decisions, for the checker of the promises.
//!
//! The core keeps a log of what it decided while somebody wants one; the loop takes it with each
//! round and records it after the commit. What is never committed is never recorded.

use std::collections::BTreeMap;

use attune_core::{ActionId, Attempt, Epoch, ExecutionId, PartitionId, Status};
use attune_record::{Record, now_ns};
use attune_store::NewExecution;

use crate::draft::Round;
use crate::event::Dispatch;
use crate::journal::Journal;
use crate::partition_core::PartitionCore;

impl PartitionCore {
    /// Keeps a log of decisions from now on; whoever wants it must [take](Self::take_log) it
    /// with every round.
    pub fn keep_log(&mut self) {
        self.log = Some(Vec::new());
    }

    /// What was decided since it was last taken, in order. Rounds and times are 0: they are
    /// those of the commit (see [`Record::committed`]).
    pub fn take_log(&mut self) -> Vec<Record> {
        self.log.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn log(&mut self, record: impl FnOnce(Epoch) -> Record) {
        if let Some(log) = &mut self.log {
            log.push(record(self.epoch));
        }
    }

    pub(crate) fn log_acquired(&mut self) {
        let partition = self.partition;
        self.log(|epoch| Record::Acquired {
            partition,
            epoch,
            pid: None,
            t_ns: 0,
        });
    }

    pub(crate) fn log_held(&mut self, action_id: ActionId, id: ExecutionId, attempt: Attempt) {
        self.log(|epoch| Record::Held {
            execution_id: id,
            action_id,
            attempt,
            epoch,
            round: 0,
            t_ns: 0,
        });
    }

    pub(crate) fn log_accepted(&mut self, new: &NewExecution, delayed: bool) {
        self.log(|epoch| Record::Accepted {
            execution_id: new.id,
            action_id: new.action_id,
            priority: new.submission.priority,
            request_id: new.request_id,
            status: new.status,
            delayed,
            epoch,
            round: 0,
            t_ns: 0,
        });
    }

    pub(crate) fn log_granted(&mut self, granted: &Dispatch, grant_no: i64) {
        self.log(|epoch| Record::Granted {
            execution_id: granted.execution_id,
            action_id: granted.action.id,
            attempt: granted.attempt,
            grant_no,
            limit: granted.action.spec.policy.concurrency.limit,
            epoch,
            round: 0,
            t_ns: 0,
        });
    }

    pub(crate) fn log_ended(
        &mut self,
        action_id: ActionId,
        id: ExecutionId,
        attempt: Attempt,
        status: Status,
    ) {
        self.log(|epoch| Record::Ended {
            execution_id: id,
            action_id,
            attempt,
            status,
            epoch,
            round: 0,
            t_ns: 0,
        });
    }

    pub(crate) fn log_revoked(&mut self, action_id: ActionId, id: ExecutionId, attempt: Attempt) {
        self.log(|epoch| Record::Revoked {
            execution_id: id,
            action_id,
            attempt,
            epoch,
            round: 0,
            t_ns: 0,
        });
    }

    /// Logs the limit of an action unless it is the one that is known.
    pub(crate) fn log_limit(&mut self, action_id: ActionId, limit: Option<u32>) {
        let known = self.actions.get(&action_id);
        if known.is_none_or(|action| action.spec.policy.concurrency.limit != limit) {
            self.log(|epoch| Record::Limit {
                action_id,
                limit,
                epoch,
                round: 0,
                t_ns: 0,
            });
        }
    }

    pub(crate) fn log_stale(&mut self, execution_id: ExecutionId, attempt: Attempt) {
        self.log(|_| Record::StaleCompletion {
            execution_id,
            attempt,
            t_ns: 0,
        });
    }

    pub(crate) fn log_totals(&mut self, action_id: ActionId) {
        let Some(stats) = self.stats(action_id) else {
            return;
        };
        self.log(|epoch| Record::Totals {
            action_id,
            enqueued: stats.total_enqueued,
            completed: stats.total_completed,
            cancelled: stats.total_cancelled,
            expired: stats.total_expired,
            waiting: stats.queue_length,
            active: stats.active_count,
            epoch,
            round: 0,
            t_ns: 0,
        });
    }
}

impl Journal {
    /// What the round decided, to be recorded when it is committed.
    pub(crate) fn take_log(&mut self, round: &Round) -> BTreeMap<PartitionId, Vec<Record>> {
        if self.recorder.is_none() {
            return BTreeMap::new();
        }
        for (partition, touched) in round.touched() {
            if let Some(owned) = self.state.owned.get_mut(&partition) {
                touched.iter().for_each(|id| owned.core.log_totals(*id));
            }
        }
        let owned = self.state.owned.iter_mut();
        owned
            .map(|(partition, owned)| (*partition, owned.core.take_log()))
            .collect()
    }

    /// Records what was committed; what was decided about partitions that turned out to be lost
    /// was not.
    pub(crate) fn record_committed(&mut self, log: BTreeMap<PartitionId, Vec<Record>>) {
        let Some(recorder) = &self.recorder else {
            return;
        };
        self.state.rounds += 1;
        let (round, now) = (self.state.rounds, now_ns());
        let committed = log
            .into_iter()
            .filter(|(partition, _)| self.state.owned.contains_key(partition))
            .flat_map(|(_, records)| records);
        recorder.record_all(committed.map(|record| record.committed(round, now)));
    }

    /// Records that a commit was refused.
    pub(crate) fn record_fenced(&self, partition: PartitionId) {
        if let (Some(recorder), Some(owned)) = (&self.recorder, self.state.owned.get(&partition)) {
            recorder.record(Record::Fenced {
                partition,
                epoch: owned.core.epoch(),
                t_ns: now_ns(),
            });
        }
    }

    /// Records that a partition is given up.
    pub(crate) fn record_lost(&self, partition: PartitionId, epoch: Epoch) {
        if let Some(recorder) = &self.recorder {
            recorder.record(Record::Lost {
                partition,
                epoch,
                t_ns: now_ns(),
            });
        }
    }
}
