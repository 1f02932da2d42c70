//! What the cases share: an owner of every partition, and shorthands for what it writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use attune_core::{
    Action, ActionRef, ActionSpec, Attempt, Builtin, Epoch, ExecutionId, Outcome, OwnerId,
    PartitionId, RequestId, Run, Seq, Status, Submission, WorkerId,
};
use chrono::{DateTime, SubsecRound as _, Utc};
use serde_json::value::RawValue;

use attune_store::{
    Batch, CommitError, Committed, End, ExecutionRecord, NewExecution, PutBack, Store, Update,
    WorkerLease,
};

/// How many partitions the clusters of the suite have.
pub(super) const PARTITIONS: u16 = 4;

/// A lease that does not end during a case.
pub(super) const LONG: Duration = Duration::from_secs(120);

/// A lease that ends while a case waits for it.
pub(super) const SHORT: Duration = Duration::from_millis(60);

/// How long a case waits for something that must happen.
const DEADLINE: Duration = Duration::from_secs(15);

/// An owner that holds every partition of a fresh store.
pub(super) struct World {
    pub(super) store: Arc<dyn Store>,
    pub(super) owner: OwnerId,
    pub(super) held: Vec<(PartitionId, Epoch)>,
    next: AtomicU32,
}

impl World {
    pub(super) async fn new(store: Arc<dyn Store>) -> Self {
        Self::with_leases(store, LONG).await
    }

    /// As [`World::new`], with leases of `ttl`.
    pub(super) async fn with_leases(store: Arc<dyn Store>, ttl: Duration) -> Self {
        store.ensure_partitions(PARTITIONS).await.unwrap();
        let owner = OwnerId::fresh();
        let held = store
            .acquire(owner, "executor-1", &partitions(), ttl)
            .await
            .unwrap();
        assert_eq!(held.len(), usize::from(PARTITIONS));
        Self {
            store,
            owner,
            held,
            next: AtomicU32::new(0),
        }
    }

    /// An action of that partition, applied to the store. The same `name` gives the same action.
    pub(super) async fn action(&self, partition: u16, name: &str) -> Action {
        let spec = spec(&ref_in(partition, name));
        self.store
            .apply_action(&spec, PARTITIONS, "suite")
            .await
            .unwrap()
            .action
    }

    fn next_id(&self, partition: PartitionId) -> ExecutionId {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        let (_, epoch) = self
            .held
            .iter()
            .find(|(held, _)| *held == partition)
            .expect("the world holds every partition");
        ExecutionId::new(partition, Seq::new(*epoch, n))
    }

    /// A waiting execution of `action`, to be inserted.
    pub(super) fn queued(&self, action: &Action) -> NewExecution {
        self.queued_with(action, Submission::new(action.spec.action_ref.as_str()))
    }

    /// A waiting execution of `action` with that submission, to be inserted.
    pub(super) fn queued_with(&self, action: &Action, submission: Submission) -> NewExecution {
        NewExecution {
            id: self.next_id(action.partition),
            action_id: action.id,
            request_id: RequestId::fresh(),
            digest: submission.digest(),
            submission: Arc::new(submission),
            status: Status::Queued,
            attempt: Attempt(0),
            grant_no: None,
            worker: None,
            demand: None,
            asker: None,
            cancel_requested: false,
        }
    }

    /// An execution of `action` that is granted a slot as it is accepted.
    pub(super) fn requested(&self, action: &Action) -> NewExecution {
        NewExecution {
            status: Status::Requested,
            attempt: Attempt(1),
            grant_no: Some(1),
            ..self.queued(action)
        }
    }

    /// An execution of `action` that is granted to `worker` as it is accepted.
    pub(super) fn granted(&self, action: &Action, worker: WorkerId) -> NewExecution {
        NewExecution {
            worker: Some(worker),
            ..self.requested(action)
        }
    }

    /// A batch of this owner with a fence for every partition.
    pub(super) fn batch(&self) -> Batch {
        Batch {
            fences: self.held.clone(),
            ..Batch::new(self.owner)
        }
    }

    /// Commits `batch`, which must succeed.
    pub(super) async fn commit(&self, batch: &Batch) -> Committed {
        self.store.commit(batch).await.unwrap()
    }

    /// Inserts executions, which must succeed.
    pub(super) async fn insert(&self, inserts: Vec<NewExecution>) -> Vec<ExecutionId> {
        let ids = inserts.iter().map(|new| new.id).collect();
        self.commit(&Batch {
            inserts,
            ..self.batch()
        })
        .await;
        ids
    }

    /// Inserts one execution that waits.
    pub(super) async fn insert_queued(&self, action: &Action) -> ExecutionId {
        self.insert(vec![self.queued(action)]).await[0]
    }

    /// Inserts one execution that holds a slot.
    pub(super) async fn insert_requested(&self, action: &Action) -> ExecutionId {
        self.insert(vec![self.requested(action)]).await[0]
    }

    /// Inserts one execution that is granted to `worker`.
    pub(super) async fn insert_granted(&self, action: &Action, worker: WorkerId) -> ExecutionId {
        self.insert(vec![self.granted(action, worker)]).await[0]
    }

    /// Inserts one execution that `worker` runs.
    pub(super) async fn insert_running(&self, action: &Action, worker: WorkerId) -> ExecutionId {
        let id = self.insert_granted(action, worker).await;
        self.update(vec![start(id, 1, now())]).await;
        assert_eq!(self.record(id).await.status, Status::Running);
        id
    }

    /// Commits updates, which must succeed.
    pub(super) async fn update(&self, updates: Vec<Update>) -> Committed {
        self.commit(&Batch {
            updates,
            ..self.batch()
        })
        .await
    }

    /// Ends executions, which must succeed.
    pub(super) async fn end(&self, ids: &[ExecutionId], status: Status) -> Committed {
        let ends = ids.iter().map(|id| end(*id, status)).collect();
        self.commit(&Batch {
            ends,
            ..self.batch()
        })
        .await
    }

    /// The execution as it is stored.
    pub(super) async fn record(&self, id: ExecutionId) -> ExecutionRecord {
        self.store
            .find_execution(id)
            .await
            .unwrap()
            .unwrap_or_else(|| panic!("execution {id} is not stored"))
    }

    /// The ids of everything that waits or holds a slot.
    pub(super) async fn active_ids(&self) -> Vec<ExecutionId> {
        let slice = self.store.scan_active(&partitions(), None, 10_000).await;
        slice.unwrap().rows.iter().map(|row| row.id).collect()
    }

    /// A worker whose lease does not end during the case.
    pub(super) async fn worker(&self, name: &str) -> WorkerId {
        let lease = worker_lease(name, LONG);
        self.store.renew_worker(&lease).await.unwrap();
        lease.worker
    }

    /// Lets another owner take `partition`, as after a missed renewal; gives its epoch.
    pub(super) async fn lose(&self, partition: u16) -> (OwnerId, Epoch) {
        let place = PartitionId(partition);
        let held = self.held.iter().find(|(id, _)| *id == place).unwrap();
        self.store
            .give_up(self.owner, &[*held], None)
            .await
            .unwrap();
        let other = OwnerId::fresh();
        let taken = self
            .store
            .acquire(other, "executor-2", &[place], LONG)
            .await
            .unwrap();
        (other, taken[0].1)
    }
}

/// All partitions of the suite's clusters.
pub(super) fn partitions() -> Vec<PartitionId> {
    (0..PARTITIONS).map(PartitionId).collect()
}

/// A ref that belongs to `partition` and starts with `name`.
pub(super) fn ref_in(partition: u16, name: &str) -> ActionRef {
    (0..)
        .map(|n| format!("suite.{name}-{n}"))
        .find(|text| PartitionId::of(text, PARTITIONS) == PartitionId(partition))
        .expect("CRC-32 reaches every partition")
        .parse()
        .unwrap()
}

/// A small action.
pub(super) fn spec(action_ref: &ActionRef) -> ActionSpec {
    ActionSpec::new(action_ref.clone(), Run::Builtin(Builtin::Noop))
}

/// The grant of `attempt`.
pub(super) fn grant(id: ExecutionId, attempt: i32) -> Update {
    Update {
        id,
        status: Some(Status::Requested),
        attempt: Attempt(attempt),
        grant_no: Some(i64::from(attempt) * 100),
        worker: None,
        started: None,
        cancel_requested: false,
        put_back: None,
    }
}

/// The grant of `attempt` to `worker`.
pub(super) fn grant_to(id: ExecutionId, attempt: i32, worker: WorkerId) -> Update {
    Update {
        worker: Some(worker),
        ..grant(id, attempt)
    }
}

/// What a worker says of `attempt`: it runs since `at`.
pub(super) fn start(id: ExecutionId, attempt: i32, at: DateTime<Utc>) -> Update {
    Update {
        started: Some(at),
        cancel_requested: false,
        ..cancel(id, attempt)
    }
}

/// Now, as precisely as every store keeps it.
pub(super) fn now() -> DateTime<Utc> {
    Utc::now().trunc_subsecs(6)
}

/// A slot taken back.
pub(super) fn revoke(id: ExecutionId, attempt: i32) -> Update {
    Update {
        status: Some(Status::Queued),
        grant_no: None,
        ..grant(id, attempt)
    }
}

/// A slot taken back after a try, or before it began.
pub(super) fn put_back(id: ExecutionId, attempt: i32, put_back: PutBack) -> Update {
    Update {
        put_back: Some(put_back),
        ..revoke(id, attempt)
    }
}

/// The mark that an execution shall be ended.
pub(super) fn cancel(id: ExecutionId, attempt: i32) -> Update {
    Update {
        status: None,
        grant_no: None,
        cancel_requested: true,
        ..grant(id, attempt)
    }
}

/// An end without output.
pub(super) fn end(id: ExecutionId, status: Status) -> End {
    End {
        id,
        outcome: Arc::new(Outcome::of(status, None)),
        ran: None,
    }
}

/// The lease of a fresh worker.
pub(super) fn worker_lease(name: &str, ttl: Duration) -> WorkerLease {
    WorkerLease {
        worker: WorkerId::fresh(),
        name: name.to_owned(),
        pool: "default".to_owned(),
        slots: 4,
        draining: false,
        ttl,
        broker_user: None,
        principal: None,
    }
}

/// JSON as a client wrote it.
pub(super) fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

/// The partitions that `result` names as fenced off.
pub(super) fn fenced(result: Result<Committed, CommitError>) -> Vec<u16> {
    match result {
        Err(CommitError::Fenced(partitions)) => {
            let mut missing: Vec<u16> = partitions.iter().map(|partition| partition.0).collect();
            missing.sort_unstable();
            missing
        }
        other => panic!("expected a fence to hold the batch back, got {other:?}"),
    }
}

/// Asks again and again until `probe` gives something.
pub(super) async fn eventually<T, F>(what: &str, mut probe: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let start = Instant::now();
    loop {
        if let Some(value) = probe().await {
            return value;
        }
        assert!(start.elapsed() < DEADLINE, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
