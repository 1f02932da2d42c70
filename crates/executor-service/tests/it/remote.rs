//! A store as an executor sees it that can be killed or stopped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use attune_core::{
    Action, ActionId, Epoch, ExecutionId, OwnerId, PartOfOperation, PartitionId, QueueTotals,
    RequestGap, RequestId, WorkerId,
};
use attune_store::{
    ActivePage, ActivePlace, ActiveSlice, Batch, CommitError, Committed, ExecutionLabels,
    ExecutionWords, ExecutorRow, GrantedBody, Lease, Lookup, MeterPage, MeterPlace, ObservedLease,
    PartitionStore, PauseSet, SlotRow, Store, StoreError, StoredPolicies, TroubleNote, WorkerEnd,
};
use chrono::{DateTime, Utc};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::system::until;

/// Runs every call on the runtime of the test, as on a server: whoever asked may be killed, the
/// call goes on. While the door is shut, what writes waits in front of it, and what looks at the
/// slots.
pub(crate) struct Remote {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) home: Handle,
    pub(crate) door: Arc<Door>,
}

/// Lets the calls of one executor through, or not.
pub(crate) struct Door {
    open: watch::Sender<bool>,
    /// How many commits wait in front of it.
    commits: watch::Sender<usize>,
    /// How many looks at the slots do.
    looks: watch::Sender<usize>,
    /// A commit that shall come late.
    late: Mutex<Option<Delay>>,
    /// How many commits were refused since they are; nothing while they are not.
    refused: Mutex<Option<usize>>,
    /// Whether the next commit brings its task down.
    panics: AtomicBool,
}

/// Lets a commit go on, and learns what became of it.
struct Delay {
    go_on: oneshot::Receiver<()>,
    outcome: oneshot::Sender<Result<Committed, CommitError>>,
}

/// A commit on its way to the store, which its sender has given up.
pub(crate) struct Late {
    go_on: oneshot::Sender<()>,
    outcome: oneshot::Receiver<Result<Committed, CommitError>>,
}

impl Late {
    /// Lets it arrive, and returns what the store says to it.
    pub(crate) async fn arrive(self) -> Result<Committed, CommitError> {
        self.go_on.send(()).expect("a commit was delayed");
        self.outcome.await.unwrap()
    }
}

impl Door {
    pub(crate) fn new() -> Self {
        Self {
            open: watch::Sender::new(true),
            commits: watch::Sender::new(0),
            looks: watch::Sender::new(0),
            late: Mutex::new(None),
            refused: Mutex::new(None),
            panics: AtomicBool::new(false),
        }
    }

    /// From now on every commit is refused, as by a store whose disk is full; everything else is
    /// let through.
    pub(crate) fn refuse_commits(&self) {
        *self.refused.lock().unwrap() = Some(0);
    }

    /// Commits are taken again. Tells how many were refused.
    pub(crate) fn take_commits(&self) -> usize {
        self.refused.lock().unwrap().take().unwrap()
    }

    fn refusal(&self) -> Result<(), StoreError> {
        let mut refused = self.refused.lock().unwrap();
        let Some(count) = &mut *refused else {
            return Ok(());
        };
        *count += 1;
        let words = "could not extend file: No space left on device";
        // Whatever the store takes it for: nothing was written.
        Err(match *count % 2 {
            0 => StoreError::Refused(words.into()),
            _ => StoreError::Statement(words.into()),
        })
    }

    /// The next commit panics after it was made.
    pub(crate) fn break_next_commit(&self) {
        self.panics.store(true, Ordering::Relaxed);
    }

    pub(crate) fn shut(&self) {
        self.open.send_replace(false);
    }

    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }

    /// Waits until a commit stands in front of it.
    pub(crate) async fn commit_waits(&self) {
        self.someone("a commit waits", &self.commits).await;
    }

    /// Waits until a look at the slots does.
    pub(crate) async fn look_waits(&self) {
        self.someone("a look at the slots waits", &self.looks).await;
    }

    async fn someone(&self, what: &str, waiting: &watch::Sender<usize>) {
        until(what, async || (*waiting.borrow() > 0).then_some(())).await;
    }

    /// To its sender the next commit fails; in truth it is only late.
    pub(crate) fn delay_next_commit(&self) -> Late {
        let ((go_on, gone), (told, outcome)) = (oneshot::channel(), oneshot::channel());
        let delay = Delay {
            go_on: gone,
            outcome: told,
        };
        *self.late.lock().unwrap() = Some(delay);
        Late { go_on, outcome }
    }

    async fn pass(&self) {
        self.open.subscribe().wait_for(|open| *open).await.unwrap();
    }
}

impl Remote {
    async fn call<T, F>(&self, work: impl FnOnce(Arc<dyn Store>) -> F) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        self.home
            .spawn(work(Arc::clone(&self.store)))
            .await
            .unwrap()
    }
}

#[async_trait]
impl PartitionStore for Remote {
    async fn ensure_partitions(&self, count: u16) -> Result<(), StoreError> {
        self.call(async move |store: Arc<dyn Store>| store.ensure_partitions(count).await)
            .await
    }

    async fn leases(&self) -> Result<Vec<Lease>, StoreError> {
        self.call(async |store: Arc<dyn Store>| store.leases().await)
            .await
    }

    async fn acquire(
        &self,
        owner: OwnerId,
        name: &str,
        partitions: &[PartitionId],
        ttl: Duration,
    ) -> Result<Vec<(PartitionId, Epoch)>, StoreError> {
        self.door.pass().await;
        let (name, partitions) = (name.to_owned(), partitions.to_vec());
        self.call(async move |store: Arc<dyn Store>| {
            store.acquire(owner, &name, &partitions, ttl).await
        })
        .await
    }

    async fn acquire_observed(
        &self,
        owner: OwnerId,
        name: &str,
        observed: &[ObservedLease],
        ttl: Duration,
    ) -> Result<Vec<(PartitionId, Epoch)>, StoreError> {
        self.door.pass().await;
        let (name, observed) = (name.to_owned(), observed.to_vec());
        self.call(async move |store: Arc<dyn Store>| {
            store.acquire_observed(owner, &name, &observed, ttl).await
        })
        .await
    }

    async fn note_takeover(
        &self,
        owner: OwnerId,
        name: &str,
        taken: &[(PartitionId, Epoch)],
    ) -> Result<(), StoreError> {
        let (name, taken) = (name.to_owned(), taken.to_vec());
        self.call(async move |store: Arc<dyn Store>| {
            store.note_takeover(owner, &name, &taken).await
        })
        .await
    }

    async fn end_workers(&self, observed: &[(WorkerId, i64)]) -> Result<Vec<WorkerId>, StoreError> {
        self.door.pass().await;
        let observed = observed.to_vec();
        self.call(async move |store: Arc<dyn Store>| store.end_workers(&observed).await)
            .await
    }

    async fn now(&self) -> Result<DateTime<Utc>, StoreError> {
        self.call(async |store: Arc<dyn Store>| store.now().await)
            .await
    }

    async fn renew(
        &self,
        owner: OwnerId,
        held: &[(PartitionId, Epoch)],
        ttl: Duration,
    ) -> Result<Vec<PartitionId>, StoreError> {
        self.door.pass().await;
        let held = held.to_vec();
        self.call(async move |store: Arc<dyn Store>| store.renew(owner, &held, ttl).await)
            .await
    }

    async fn give_up(
        &self,
        owner: OwnerId,
        held: &[(PartitionId, Epoch)],
        to: Option<OwnerId>,
    ) -> Result<(), StoreError> {
        self.door.pass().await;
        let held = held.to_vec();
        self.call(async move |store: Arc<dyn Store>| store.give_up(owner, &held, to).await)
            .await
    }

    async fn note_trouble(
        &self,
        owner: OwnerId,
        notes: &[TroubleNote],
    ) -> Result<Vec<PartitionId>, StoreError> {
        let notes = notes.to_vec();
        self.call(async move |store: Arc<dyn Store>| store.note_trouble(owner, &notes).await)
            .await
    }

    async fn renew_executor(
        &self,
        executor: OwnerId,
        name: &str,
        ttl: Duration,
        cut_off: bool,
    ) -> Result<Vec<ExecutorRow>, StoreError> {
        self.door.pass().await;
        let name = name.to_owned();
        self.call(async move |store: Arc<dyn Store>| {
            store.renew_executor(executor, &name, ttl, cut_off).await
        })
        .await
    }

    async fn retire_executor(&self, executor: OwnerId) -> Result<(), StoreError> {
        self.door.pass().await;
        self.call(async move |store: Arc<dyn Store>| store.retire_executor(executor).await)
            .await
    }

    async fn executors(&self) -> Result<Vec<ExecutorRow>, StoreError> {
        self.call(async |store: Arc<dyn Store>| store.executors().await)
            .await
    }

    async fn load_partition(
        &self,
        partition: PartitionId,
        after: Option<ActivePlace>,
        limit: u32,
    ) -> Result<ActivePage, StoreError> {
        self.call(async move |store: Arc<dyn Store>| {
            store.load_partition(partition, after, limit).await
        })
        .await
    }

    async fn scan_active(
        &self,
        partitions: &[PartitionId],
        after: Option<ExecutionId>,
        limit: u32,
    ) -> Result<ActiveSlice, StoreError> {
        let partitions = partitions.to_vec();
        self.call(async move |store: Arc<dyn Store>| {
            store.scan_active(&partitions, after, limit).await
        })
        .await
    }

    async fn pauses(&self, newer_than: Option<i64>) -> Result<Option<PauseSet>, StoreError> {
        self.call(async move |store: Arc<dyn Store>| store.pauses(newer_than).await)
            .await
    }

    async fn policies(
        &self,
        newer_than: Option<i64>,
    ) -> Result<Option<StoredPolicies>, StoreError> {
        self.call(async move |store: Arc<dyn Store>| store.policies(newer_than).await)
            .await
    }

    async fn open_operations(
        &self,
        partitions: &[PartitionId],
    ) -> Result<Vec<PartOfOperation>, StoreError> {
        let partitions = partitions.to_vec();
        self.call(async move |store: Arc<dyn Store>| store.open_operations(&partitions).await)
            .await
    }

    async fn request_gap(&self, around: RequestId) -> Result<RequestGap, StoreError> {
        self.call(async move |store: Arc<dyn Store>| store.request_gap(around).await)
            .await
    }

    async fn load_totals(
        &self,
        partitions: &[PartitionId],
    ) -> Result<Vec<(ActionId, QueueTotals)>, StoreError> {
        let partitions = partitions.to_vec();
        self.call(async move |store: Arc<dyn Store>| store.load_totals(&partitions).await)
            .await
    }

    async fn load_meters(
        &self,
        partition: PartitionId,
        after: Option<MeterPlace>,
        limit: u32,
    ) -> Result<MeterPage, StoreError> {
        self.call(async move |store: Arc<dyn Store>| {
            store.load_meters(partition, after, limit).await
        })
        .await
    }

    async fn load_actions(&self, partitions: &[PartitionId]) -> Result<Vec<Action>, StoreError> {
        let partitions = partitions.to_vec();
        self.call(async move |store: Arc<dyn Store>| store.load_actions(&partitions).await)
            .await
    }

    async fn worker_ends(&self) -> Result<Vec<WorkerEnd>, StoreError> {
        self.call(async |store: Arc<dyn Store>| store.worker_ends().await)
            .await
    }

    async fn load_slots(&self, ids: &[ExecutionId]) -> Result<Vec<SlotRow>, StoreError> {
        let ids = ids.to_vec();
        self.door.looks.send_modify(|waiting| *waiting += 1);
        self.door.pass().await;
        self.door.looks.send_modify(|waiting| *waiting -= 1);
        self.call(async move |store: Arc<dyn Store>| store.load_slots(&ids).await)
            .await
    }

    async fn load_bodies(&self, ids: &[ExecutionId]) -> Result<Vec<GrantedBody>, StoreError> {
        let ids = ids.to_vec();
        self.call(async move |store: Arc<dyn Store>| store.load_bodies(&ids).await)
            .await
    }

    async fn load_words(&self, ids: &[ExecutionId]) -> Result<Vec<ExecutionWords>, StoreError> {
        let ids = ids.to_vec();
        self.call(async move |store: Arc<dyn Store>| store.load_words(&ids).await)
            .await
    }

    async fn load_labels(&self, ids: &[ExecutionId]) -> Result<Vec<ExecutionLabels>, StoreError> {
        let ids = ids.to_vec();
        self.call(async move |store: Arc<dyn Store>| store.load_labels(&ids).await)
            .await
    }

    async fn look_up(
        &self,
        requests: &[RequestId],
        action_refs: &[String],
    ) -> Result<Lookup, StoreError> {
        let (requests, refs) = (requests.to_vec(), action_refs.to_vec());
        self.call(async move |store: Arc<dyn Store>| store.look_up(&requests, &refs).await)
            .await
    }

    async fn commit(&self, batch: &Batch) -> Result<Committed, CommitError> {
        self.door.refusal()?;
        let batch = batch.clone();
        let late = self.door.late.lock().unwrap().take();
        if let Some(Delay { go_on, outcome }) = late {
            let store = Arc::clone(&self.store);
            self.home.spawn(async move {
                if go_on.await.is_ok() {
                    outcome.send(store.commit(&batch).await).ok();
                }
            });
            return Err(StoreError::Unavailable("the answer did not come".into()).into());
        }
        self.door.commits.send_modify(|waiting| *waiting += 1);
        self.door.pass().await;
        self.door.commits.send_modify(|waiting| *waiting -= 1);
        let made = self
            .call(async move |store: Arc<dyn Store>| store.commit(&batch).await)
            .await;
        assert!(
            !self.door.panics.swap(false, Ordering::Relaxed),
            "it panics as it was told to"
        );
        made
    }
}
