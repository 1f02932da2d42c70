//! The ports that mostly show: leases of partitions and workers, the audit log, and the probe.

use std::cmp::Reverse;
use std::time::Duration;

use async_trait::async_trait;
use attune_api::Probe;
use attune_core::{
    Action, ActionId, Attempt, Epoch, ExecutionId, OwnerId, PartOfOperation, PartitionId,
    QueueTotals, RequestGap, RequestId, WorkerId,
};
use attune_store::{
    ActivePage, ActivePlace, ActiveSlice, AuditEntry, AuditStore, Batch, ChainLink, CommitError,
    Committed, ExecutionLabels, ExecutionWords, ExecutorRow, GrantedBody, Lease, Lookup, MeterPage,
    MeterPlace, NewAudit, ObservedLease, PartitionStore, PauseSet, ProcessStart, SlotRow,
    StatsCursor, StatsPage, StatsRow, StatsStore, StoreError, StoredPolicies, StoredStats,
    TroubleNote, Violations, WorkerEnd, WorkerLease, WorkerRow, WorkerStore,
};
use chrono::{DateTime, Utc};

use crate::fakes::Fake;

#[async_trait]
impl AuditStore for Fake {
    async fn audit_log(
        &self,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, StoreError> {
        self.store(|state| {
            let older = state.audit.iter().rev();
            let older = older.filter(|it| before.is_none_or(|before| it.id < before));
            older.take(limit as usize).cloned().collect()
        })
    }

    async fn audit_chain(&self, after: i64, _limit: u32) -> Result<Vec<ChainLink>, StoreError> {
        self.store(|state| {
            let links = state.chain.iter().filter(|it| it.no > after);
            links.cloned().collect()
        })
    }

    async fn unchained_audit(&self) -> Result<u64, StoreError> {
        self.store(|_| 0)
    }

    async fn note_audit(&self, entry: &NewAudit) -> Result<(), StoreError> {
        self.store(|state| state.noted.push(entry.clone()))
    }

    async fn note_start(&self, start: &ProcessStart) -> Result<(), StoreError> {
        self.note_audit(&start.audit()).await
    }

    async fn violations(
        &self,
        _within: Duration,
        action_refs: &[String],
    ) -> Result<Vec<Violations>, StoreError> {
        self.store(|state| {
            let found = state.violations.iter();
            let found = found.filter(|it| action_refs.contains(&it.action_ref));
            found.cloned().collect()
        })
    }
}

const NOT_ASKED: &str = "the API only reads leases";

#[async_trait]
impl PartitionStore for Fake {
    async fn leases(&self) -> Result<Vec<Lease>, StoreError> {
        self.store(|state| state.partition_leases.clone())
    }

    async fn executors(&self) -> Result<Vec<ExecutorRow>, StoreError> {
        self.store(|state| state.executors.clone())
    }

    async fn renew_executor(
        &self,
        _executor: OwnerId,
        _name: &str,
        _ttl: Duration,
        _cut_off: bool,
    ) -> Result<Vec<ExecutorRow>, StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn retire_executor(&self, _executor: OwnerId) -> Result<(), StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn load_meters(
        &self,
        _partition: PartitionId,
        _after: Option<MeterPlace>,
        _limit: u32,
    ) -> Result<MeterPage, StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn ensure_partitions(&self, _count: u16) -> Result<(), StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn acquire(
        &self,
        _owner: OwnerId,
        _owner_name: &str,
        _partitions: &[PartitionId],
        _ttl: Duration,
    ) -> Result<Vec<(PartitionId, Epoch)>, StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn acquire_observed(
        &self,
        _owner: OwnerId,
        _owner_name: &str,
        _observed: &[ObservedLease],
        _ttl: Duration,
    ) -> Result<Vec<(PartitionId, Epoch)>, StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn note_takeover(
        &self,
        _owner: OwnerId,
        _owner_name: &str,
        _taken: &[(PartitionId, Epoch)],
    ) -> Result<(), StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn end_workers(
        &self,
        _observed: &[(WorkerId, i64)],
    ) -> Result<Vec<WorkerId>, StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn now(&self) -> Result<DateTime<Utc>, StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn renew(
        &self,
        _owner: OwnerId,
        _held: &[(PartitionId, Epoch)],
        _ttl: Duration,
    ) -> Result<Vec<PartitionId>, StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn give_up(
        &self,
        _owner: OwnerId,
        _held: &[(PartitionId, Epoch)],
        _to: Option<OwnerId>,
    ) -> Result<(), StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn note_trouble(
        &self,
        _owner: OwnerId,
        _notes: &[TroubleNote],
    ) -> Result<Vec<PartitionId>, StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn load_partition(
        &self,
        _partition: PartitionId,
        _after: Option<ActivePlace>,
        _limit: u32,
    ) -> Result<ActivePage, StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn scan_active(
        &self,
        _partitions: &[PartitionId],
        _after: Option<ExecutionId>,
        _limit: u32,
    ) -> Result<ActiveSlice, StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn pauses(&self, newer_than: Option<i64>) -> Result<Option<PauseSet>, StoreError> {
        self.store(|state| {
            let set = state.pauses.clone();
            newer_than
                .is_none_or(|known| set.version > known)
                .then_some(set)
        })
    }

    async fn policies(
        &self,
        newer_than: Option<i64>,
    ) -> Result<Option<StoredPolicies>, StoreError> {
        self.store(|state| state.policies.newer(newer_than))
    }

    async fn open_operations(
        &self,
        _partitions: &[PartitionId],
    ) -> Result<Vec<PartOfOperation>, StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn request_gap(&self, _around: RequestId) -> Result<RequestGap, StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn load_totals(
        &self,
        _partitions: &[PartitionId],
    ) -> Result<Vec<(ActionId, QueueTotals)>, StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn load_actions(&self, _partitions: &[PartitionId]) -> Result<Vec<Action>, StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn worker_ends(&self) -> Result<Vec<WorkerEnd>, StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn load_slots(&self, _ids: &[ExecutionId]) -> Result<Vec<SlotRow>, StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn load_bodies(&self, _ids: &[ExecutionId]) -> Result<Vec<GrantedBody>, StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn load_words(&self, _ids: &[ExecutionId]) -> Result<Vec<ExecutionWords>, StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn load_labels(&self, _ids: &[ExecutionId]) -> Result<Vec<ExecutionLabels>, StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn look_up(
        &self,
        _requests: &[RequestId],
        _action_refs: &[String],
    ) -> Result<Lookup, StoreError> {
        panic!("{NOT_ASKED}")
    }

    async fn commit(&self, _batch: &Batch) -> Result<Committed, CommitError> {
        panic!("{NOT_ASKED}")
    }
}

#[async_trait]
impl Probe for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    async fn probe(&self) -> Result<(), String> {
        self.with(|state| state.probe.clone().map_or(Ok(()), Err))
    }
}

#[async_trait]
impl StatsStore for Fake {
    async fn upsert_queue_stats(&self, _rows: &[StatsRow]) -> Result<(), StoreError> {
        self.store(|_| ())
    }

    async fn find_by_action(&self, action: ActionId) -> Result<Option<StoredStats>, StoreError> {
        self.store(|state| {
            state
                .stats
                .iter()
                .find(|it| it.stats.action_id == action)
                .cloned()
        })
    }

    async fn list_queue_stats(
        &self,
        after: Option<StatsCursor>,
        limit: u32,
    ) -> Result<StatsPage, StoreError> {
        self.store(|state| {
            let key = |it: &StoredStats| (Reverse(it.stats.queue_length), it.stats.action_id);
            let mut rows = state.stats.clone();
            rows.sort_by_key(key);
            let total = rows.len() as u64;
            let after = after.map(|after| (Reverse(after.queue_length), after.action_id));
            rows.retain(|row| after.is_none_or(|after| key(row) > after));
            rows.truncate(limit as usize);
            StatsPage { rows, total }
        })
    }
}

#[async_trait]
impl WorkerStore for Fake {
    async fn renew_worker(&self, lease: &WorkerLease) -> Result<(), StoreError> {
        self.store(|state| {
            if state.leases_expired {
                return Err(StoreError::Conflict("expired".to_owned()));
            }
            state.leases.push(lease.clone());
            Ok(())
        })?
    }

    async fn worker_over(
        &self,
        _: WorkerId,
        _: Option<&[(ExecutionId, Attempt)]>,
    ) -> Result<bool, StoreError> {
        unreachable!("the API does not end workers")
    }

    async fn retire_worker(
        &self,
        worker: WorkerId,
        begun: Option<&[(ExecutionId, Attempt)]>,
    ) -> Result<(), StoreError> {
        let begun = begun.map(<[_]>::to_vec);
        self.store(|state| state.retired.push((worker, begun)))
    }

    async fn principal_of(&self, worker: WorkerId) -> Result<Option<Option<String>>, StoreError> {
        self.store(|state| {
            let lease = state.leases.iter().find(|it| it.worker == worker);
            lease.map(|it| it.principal.clone())
        })
    }

    async fn workers(&self) -> Result<Vec<WorkerRow>, StoreError> {
        self.store(|state| state.workers.clone())
    }
}
