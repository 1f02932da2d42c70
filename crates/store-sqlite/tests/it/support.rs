//! An owner of every partition, and shorthands for what it writes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use attune_core::{
    Action, ActionSpec, Attempt, Epoch, ExecutionId, Outcome, OwnerId, PartitionId, QueueTotals,
    RequestId, Seq, Status, Submission,
};
use attune_store::{ActionStore as _, Batch, End, NewExecution, PartitionStore as _, Update};
use attune_store_sqlite::SqliteStore;
use serde_json::value::RawValue;

pub(crate) const PARTITIONS: u16 = 16;

/// A lease that does not end during a test.
pub(crate) const LONG: Duration = Duration::from_secs(600);

const DEADLINE: Duration = Duration::from_secs(15);

/// An owner that holds every partition of a store.
pub(crate) struct Owner {
    pub(crate) store: SqliteStore,
    pub(crate) id: OwnerId,
    pub(crate) held: Vec<(PartitionId, Epoch)>,
    pub(crate) actions: Vec<Action>,
    next: u32,
}

impl Owner {
    /// Takes every partition of a migrated store that has none yet, and applies the core pack.
    pub(crate) async fn of(store: &SqliteStore) -> Self {
        store.ensure_partitions(PARTITIONS).await.unwrap();
        let id = OwnerId::fresh();
        let all: Vec<_> = (0..PARTITIONS).map(PartitionId).collect();
        let held = store.acquire(id, "owner", &all, LONG).await.unwrap();
        let mut actions = Vec::new();
        for spec in ActionSpec::core_pack() {
            let applied = store.apply_action(&spec, PARTITIONS, "test").await.unwrap();
            actions.push(applied.action);
        }
        Self {
            store: store.clone(),
            id,
            held,
            actions,
            next: 0,
        }
    }

    /// `count` executions, to be inserted; the actions take turns.
    pub(crate) fn queued(&mut self, count: u32) -> Vec<NewExecution> {
        let epoch = self.held[0].1;
        let first = self.next;
        self.next += count;
        (first..self.next)
            .map(|n| {
                let action = &self.actions[n as usize % self.actions.len()];
                let mut submission = Submission::new(action.spec.action_ref.as_str());
                submission.requested_by = Some("ada".to_owned());
                submission.parameters = raw(&format!(r#"{{"message": "hello", "n": {n}}}"#));
                NewExecution {
                    id: ExecutionId::new(action.partition, Seq::new(epoch, n)),
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
            })
            .collect()
    }

    /// A batch with every fence that writes nothing yet.
    pub(crate) fn batch(&self) -> Batch {
        Batch {
            fences: self.held.clone(),
            ..Batch::new(self.id)
        }
    }

    /// The totals of every action, as a batch writes them.
    pub(crate) fn totals(&self, enqueued: u64) -> Vec<(attune_core::ActionId, QueueTotals)> {
        let totals = QueueTotals {
            enqueued,
            ..QueueTotals::default()
        };
        let actions = self.actions.iter();
        actions.map(|action| (action.id, totals)).collect()
    }

    pub(crate) async fn active(&self) -> usize {
        active(&self.store).await
    }
}

/// How many executions wait or hold a slot.
pub(crate) async fn active(store: &SqliteStore) -> usize {
    let all: Vec<_> = (0..PARTITIONS).map(PartitionId).collect();
    let slice = store.scan_active(&all, None, 1_000_000).await.unwrap();
    slice.rows.len()
}

pub(crate) fn grant(id: ExecutionId) -> Update {
    Update {
        id,
        status: Some(Status::Requested),
        attempt: Attempt(1),
        grant_no: Some(1),
        worker: None,
        started: None,
        cancel_requested: false,
        put_back: None,
    }
}

pub(crate) fn end(id: ExecutionId) -> End {
    End {
        id,
        outcome: Arc::new(Outcome {
            result: Some(raw(r#"{"answer": 42}"#)),
            exit_code: Some(0),
            stdout: Some("hello\n".to_owned()),
            ..Outcome::succeeded(None)
        }),
        ran: Some(Duration::from_millis(20)),
    }
}

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

/// Asks again and again until `probe` says yes.
pub(crate) async fn eventually<F>(what: &str, mut probe: impl FnMut() -> F)
where
    F: Future<Output = bool>,
{
    let start = Instant::now();
    while !probe().await {
        assert!(start.elapsed() < DEADLINE, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await; // poll
    }
}
