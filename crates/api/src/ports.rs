//! What the server needs from the rest of the system.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use attune_bus::Bus;
use attune_commands::{ClientError, CommandClient};
use attune_core::{ActionId, ExecutionId, PartitionId, QueueStats, Submission, WaitBound};
use attune_messages::v1::{Accepted, ForceRelease};
use attune_record::Recorder;
use attune_runtime::{Health, Spans};
use attune_store::{
    ActionStore, AuditStore, DeadLetterStore, ExecutionStore, KeyStore, OperationStore,
    PartitionStore, PauseStore, PolicyStore, StatsStore, Store, WorkerStore,
};

use crate::figures::ApiFigures;
use crate::ready::{BusProbe, PartitionsProbe, Probe, StoreProbe};

/// Commands to the owners of partitions, each answered by its owner.
#[async_trait]
pub trait Commands: Send + Sync + 'static {
    /// Asks for executions; each submission has a request id. The answers come in the order of
    /// the submissions, one for each; each owner refuses more that wait than are allowed. Submissions of one action reach its owner in this order.
    async fn submit(
        &self,
        submissions: Vec<Submission>,
        wait_bound: Option<WaitBound>,
        deadline: Duration,
    ) -> Vec<Result<Accepted, ClientError>>;

    /// Ends an execution, waiting or running.
    ///
    /// # Errors
    /// See [`ClientError`].
    async fn cancel(
        &self,
        execution_id: ExecutionId,
        deadline: Duration,
    ) -> Result<Accepted, ClientError>;

    /// Asks why an execution does not run yet.
    ///
    /// # Errors
    /// See [`ClientError`].
    async fn explain(
        &self,
        execution_id: ExecutionId,
        deadline: Duration,
    ) -> Result<Accepted, ClientError>;

    /// Takes the slot from an attempt that will not give it back by itself.
    ///
    /// # Errors
    /// See [`ClientError`].
    async fn force_release(
        &self,
        command: ForceRelease,
        deadline: Duration,
    ) -> Result<Accepted, ClientError>;

    /// Makes the owner read an action again.
    ///
    /// # Errors
    /// See [`ClientError`].
    async fn action_changed(
        &self,
        action_ref: &str,
        deadline: Duration,
    ) -> Result<Accepted, ClientError>;

    /// Makes the owners of these partitions read again what operators hold. The outcomes come in
    /// the order of the partitions.
    async fn pauses_changed(
        &self,
        partitions: &[PartitionId],
        deadline: Duration,
    ) -> Vec<Result<Accepted, ClientError>>;

    /// Makes the owners of these partitions read the policy documents again, which have this version by
    /// now. The outcomes come in the order of the partitions.
    async fn policies_changed(
        &self,
        set_version: i64,
        partitions: &[PartitionId],
        deadline: Duration,
    ) -> Vec<Result<Accepted, ClientError>>;

    /// Makes the owners of these partitions read which operations are open. The outcomes come in the
    /// order of the partitions.
    async fn operations_changed(
        &self,
        partitions: &[PartitionId],
        deadline: Duration,
    ) -> Vec<Result<Accepted, ClientError>>;
}

#[async_trait]
impl Commands for CommandClient {
    async fn submit(
        &self,
        submissions: Vec<Submission>,
        wait_bound: Option<WaitBound>,
        deadline: Duration,
    ) -> Vec<Result<Accepted, ClientError>> {
        self.submit_bounded(submissions, wait_bound, deadline).await
    }

    async fn cancel(
        &self,
        execution_id: ExecutionId,
        deadline: Duration,
    ) -> Result<Accepted, ClientError> {
        Self::cancel(self, execution_id, deadline).await
    }

    async fn explain(
        &self,
        execution_id: ExecutionId,
        deadline: Duration,
    ) -> Result<Accepted, ClientError> {
        Self::explain(self, execution_id, deadline).await
    }

    async fn force_release(
        &self,
        command: ForceRelease,
        deadline: Duration,
    ) -> Result<Accepted, ClientError> {
        Self::force_release(self, command, deadline).await
    }

    async fn action_changed(
        &self,
        action_ref: &str,
        deadline: Duration,
    ) -> Result<Accepted, ClientError> {
        Self::action_changed(self, action_ref, deadline).await
    }

    async fn pauses_changed(
        &self,
        partitions: &[PartitionId],
        deadline: Duration,
    ) -> Vec<Result<Accepted, ClientError>> {
        Self::pauses_changed(self, partitions.iter().copied(), deadline).await
    }

    async fn policies_changed(
        &self,
        set_version: i64,
        partitions: &[PartitionId],
        deadline: Duration,
    ) -> Vec<Result<Accepted, ClientError>> {
        let partitions = partitions.iter().copied();
        Self::policies_changed(self, set_version, partitions, deadline).await
    }

    async fn operations_changed(
        &self,
        partitions: &[PartitionId],
        deadline: Duration,
    ) -> Vec<Result<Accepted, ClientError>> {
        Self::operations_changed(self, partitions.iter().copied(), deadline).await
    }
}

/// The queues of an executor in this process, as they are in its memory. Only to be looked at.
pub trait LiveQueues: Send + Sync + 'static {
    /// The queue of an action; `None` when this executor does not own it.
    fn get_queue_stats(&self, action: ActionId) -> Option<QueueStats>;

    /// Every queue that it owns.
    fn get_all_queue_stats(&self) -> Vec<QueueStats>;
}

/// Everything the server talks to.
#[derive(Clone)]
pub struct Ports {
    /// Keys of clients.
    pub keys: Arc<dyn KeyStore>,
    /// Actions and their policies.
    pub actions: Arc<dyn ActionStore>,
    /// Executions, to be read.
    pub executions: Arc<dyn ExecutionStore>,
    /// Worker leases.
    pub workers: Arc<dyn WorkerStore>,
    /// Snapshots of queues.
    pub stats: Arc<dyn StatsStore>,
    /// What was done by hand, and violations.
    pub audit: Arc<dyn AuditStore>,
    /// Who owns which partition.
    pub partitions: Arc<dyn PartitionStore>,
    /// Where operators hold queues.
    pub pauses: Arc<dyn PauseStore>,
    /// Policy documents.
    pub policies: Arc<dyn PolicyStore>,
    /// Bulk operations.
    pub operations: Arc<dyn OperationStore>,
    /// Messages that nobody could use.
    pub letters: Arc<dyn DeadLetterStore>,
    /// Where they are put back.
    pub bus: Arc<dyn Bus>,
    /// The way to the owners.
    pub commands: Arc<dyn Commands>,
    /// What `/readyz` asks, each time.
    pub probes: Vec<Arc<dyn Probe>>,
    /// What the daemon around the server says of itself; `/readyz` shows it as well.
    pub health: Option<Health>,
    /// The queues of this process's executor, if it has one; the snapshots of the store take
    /// their place otherwise.
    pub live: Option<Arc<dyn LiveQueues>>,
    /// Where the answers to submissions are recorded, if that is wanted.
    pub recorder: Option<Recorder>,
    /// Where requests are counted.
    pub figures: Arc<ApiFigures>,
    /// Where the spans of requests for executions go.
    pub spans: Spans,
}

impl Ports {
    /// All ports of one store and one bus; `/readyz` asks both, and whether each of `partitions`
    /// partitions has an owner.
    pub fn new(
        store: Arc<dyn Store>,
        bus: Arc<dyn Bus>,
        commands: Arc<dyn Commands>,
        partitions: u16,
    ) -> Self {
        Self {
            actions: store.clone(),
            executions: store.clone(),
            workers: store.clone(),
            stats: store.clone(),
            audit: store.clone(),
            partitions: store.clone(),
            pauses: store.clone(),
            policies: store.clone(),
            operations: store.clone(),
            letters: store.clone(),
            keys: store.clone(),
            bus: bus.clone(),
            commands,
            probes: vec![
                Arc::new(StoreProbe::new(store.clone())),
                Arc::new(PartitionsProbe::new(store, partitions)),
                Arc::new(BusProbe::new(bus)),
            ],
            health: None,
            live: None,
            recorder: None,
            figures: Arc::default(),
            spans: Spans::default(),
        }
    }

    /// Lets `/readyz` show how the daemon around the server is.
    #[must_use]
    pub fn with_health(mut self, health: Health) -> Self {
        self.health = Some(health);
        self
    }

    /// Shows queues as they are in the memory of this process, where they are.
    #[must_use]
    pub fn with_live_queues(mut self, live: Option<Arc<dyn LiveQueues>>) -> Self {
        self.live = live;
        self
    }

    /// Records the answers to submissions, if that is wanted.
    #[must_use]
    pub fn with_recorder(mut self, recorder: Option<Recorder>) -> Self {
        self.recorder = recorder;
        self
    }

    /// Sends the spans of requests for executions there.
    #[must_use]
    pub fn with_spans(self, spans: Spans) -> Self {
        Self { spans, ..self }
    }

    /// Adds something that `/readyz` asks.
    #[must_use]
    pub fn with_probe(mut self, probe: Arc<dyn Probe>) -> Self {
        self.probes.push(probe);
        self
    }
}
