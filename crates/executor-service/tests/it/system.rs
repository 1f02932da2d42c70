//! What several executors share: a store, a bus, a worker that watches order and limits, and
//! clients.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use attune_bus::{Bus as _, Delivery, MemoryBus, Outgoing, Subscriber, Subscription, Topic};
use attune_core::{
    ActionSpec, Builtin, OnWorkerLost, OwnerId, PartitionId, RequestId, Run, Status, Submission,
    WorkerId,
};
use attune_executor::QueueConfig;
use attune_executor_service::ExecutorOptions;
use attune_messages::v1::{Completion, ExecutionRequested, OnReject, SlotRelease, Submit};
use attune_messages::{decode_batch, encode};
use attune_store::{ActionStore as _, PartitionStore as _, WorkerLease, WorkerStore as _};
use attune_store_sqlite::SqliteStore;
use chrono::Utc;
use serde_json::value::to_raw_value;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::member::Member;

/// How many partitions there are.
pub(crate) const PARTITIONS: u16 = 8;
/// How long leases last: short, and long enough for a machine that is busy with other things.
pub(crate) const TTL: Duration = Duration::from_millis(1500);
/// A pool that the system's worker does not serve.
const ELSEWHERE: &str = "elsewhere";
/// How long anything may take.
const DEADLINE: Duration = Duration::from_secs(40);

/// By action: the numbers of what was started and when, in that order.
type Started = Arc<Mutex<BTreeMap<String, Vec<(u64, Instant)>>>>;

/// A store, a bus and a worker.
pub(crate) struct System {
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) bus: MemoryBus,
    started: Started,
    _worker: AbortOnDropHandle<()>,
}

impl System {
    pub(crate) async fn new() -> Self {
        Self::on(MemoryBus::new()).await
    }

    /// On a bus of its own kind.
    pub(crate) async fn on(bus: MemoryBus) -> Self {
        let store = Arc::new(SqliteStore::temporary().await.unwrap());
        store.ensure_partitions(PARTITIONS).await.unwrap();
        let started = Started::default();
        let worker = Worker {
            store: Arc::clone(&store),
            bus: bus.clone(),
            started: Arc::clone(&started),
        };
        for partition in (0..PARTITIONS).map(PartitionId) {
            bus.declare(&Topic::Commands(partition)).await.unwrap();
            bus.declare(&Topic::Control(partition)).await.unwrap();
        }
        Self {
            store,
            bus,
            started,
            _worker: AbortOnDropHandle::new(tokio::spawn(worker.run())),
        }
    }

    /// Starts an executor.
    pub(crate) async fn member(&self, name: &str) -> Member {
        Member::start(self, Self::options(name)).await
    }

    /// How executors work here.
    pub(crate) fn options(name: &str) -> ExecutorOptions {
        ExecutorOptions {
            recorder: None,
            progress: Default::default(),
            name: name.to_owned(),
            partitions: PARTITIONS,
            lease_ttl: TTL,
            queue: QueueConfig {
                max_queue_length: 1_000_000,
                queue_timeout_seconds: 3600,
            },
            batch_max_items: 1000,
            dispatch_max_pack: 8,
            prefetch: 16,
            reconcile_interval: Duration::from_secs(1),
            republish_after: Duration::from_secs(2),
            worker_grace: Duration::from_secs(60),
            stats_interval: Duration::from_secs(1),
            max_message_bytes: 1 << 20,
        }
    }

    /// An action with limit 1 in every partition; their refs.
    pub(crate) async fn actions(&self) -> Vec<String> {
        let mut refs = Vec::new();
        for partition in (0..PARTITIONS).map(PartitionId) {
            let action_ref = (0..)
                .map(|number| format!("test.one-{number}"))
                .find(|text| PartitionId::of(text, PARTITIONS) == partition)
                .unwrap();
            let run = Run::Builtin(Builtin::Noop);
            let mut spec = ActionSpec::new(action_ref.parse().unwrap(), run);
            spec.policy.concurrency.limit = Some(1);
            self.store
                .apply_action(&spec, PARTITIONS, "test")
                .await
                .unwrap();
            refs.push(action_ref);
        }
        refs
    }

    /// Adds an action whose pool the system's worker does not serve, and receives what is
    /// dispatched to it.
    pub(crate) async fn elsewhere(&self, action_ref: &str, on_lost: OnWorkerLost) -> Subscriber {
        let mut spec = ActionSpec::new(action_ref.parse().unwrap(), Run::Builtin(Builtin::Noop));
        spec.policy.concurrency.limit = Some(1);
        spec.pool = ELSEWHERE.to_owned();
        spec.on_worker_lost = Some(on_lost);
        self.store
            .apply_action(&spec, PARTITIONS, "test")
            .await
            .unwrap();
        let subscription = Subscription {
            topic: Topic::Requested(ELSEWHERE.to_owned()),
            prefetch: 1,
        };
        self.bus.subscribe(subscription).await.unwrap()
    }

    /// A worker claims what was dispatched, and is heard of no more.
    pub(crate) async fn claim_and_die(
        &self,
        dispatch: &Delivery,
        lease: Duration,
    ) -> ExecutionRequested {
        let items: Vec<ExecutionRequested> = decode_batch(&dispatch.body, 1 << 20).unwrap();
        let item = items.into_iter().next().unwrap();
        let lease = WorkerLease {
            worker: WorkerId::fresh(),
            name: "dies".to_owned(),
            pool: ELSEWHERE.to_owned(),
            slots: 1,
            ttl: lease,
        };
        self.store.renew_worker(&lease).await.unwrap();
        let wanted = [(item.execution_id, item.attempt)];
        let claims = self.store.claim(lease.worker, &wanted).await.unwrap();
        assert_eq!(claims.len(), 1);
        item
    }

    /// Submits one execution, numbered by the client.
    pub(crate) async fn submit(&self, action_ref: &str, number: u64) {
        let mut submission = Submission::new(action_ref);
        submission.request_id = Some(RequestId::fresh());
        submission.parameters = to_raw_value(&serde_json::json!({"number": number})).unwrap();
        let item = Submit {
            submission,
            on_reject: OnReject::Record,
        };
        let partition = PartitionId::of(action_ref, PARTITIONS);
        self.publish(Topic::Commands(partition), &[item]).await;
    }

    async fn publish<M: attune_messages::Message>(&self, topic: Topic, items: &[M]) {
        publish(&self.bus, topic, items).await;
    }

    /// Waits until `count` executions of each action have been run to their end, and checks that
    /// each ran once and in the order in which they were submitted.
    pub(crate) async fn all_ran(&self, refs: &[String], count: u64) {
        let all: Vec<_> = (0..PARTITIONS).map(PartitionId).collect();
        until("all executions are completed", async || {
            (self.completed().await == count * refs.len() as u64).then_some(())
        })
        .await;
        self.ran_in_order(refs, count);
        let totals = self.store.load_totals(&all).await.unwrap();
        for (_, totals) in totals {
            assert_eq!((totals.enqueued, totals.completed), (count, count));
        }
    }

    /// Each of these ran once and in the order in which they were submitted.
    pub(crate) fn ran_in_order(&self, refs: &[String], count: u64) {
        let started = self.started.lock().unwrap().clone();
        for action_ref in refs {
            let numbers: Vec<u64> = started[action_ref]
                .iter()
                .map(|(number, _)| *number)
                .collect();
            assert_eq!(numbers, (0..count).collect::<Vec<_>>(), "{action_ref}");
        }
    }

    /// How many executions are recorded as completed.
    pub(crate) async fn completed(&self) -> u64 {
        let all: Vec<_> = (0..PARTITIONS).map(PartitionId).collect();
        let totals = self.store.load_totals(&all).await.unwrap();
        totals.iter().map(|(_, totals)| totals.completed).sum()
    }

    /// How many executions of an action have been started.
    pub(crate) fn started(&self, action_ref: &str) -> usize {
        self.started
            .lock()
            .unwrap()
            .get(action_ref)
            .map_or(0, Vec::len)
    }

    /// The longest times between two starts of an action since `since`, the longest first.
    pub(crate) fn pauses(&self, since: Instant) -> Vec<Duration> {
        let started = self.started.lock().unwrap();
        let mut pauses: Vec<Duration> = started
            .values()
            .flat_map(|runs| runs.windows(2))
            .filter(|pair| pair[1].1 >= since)
            .map(|pair| pair[1].1 - pair[0].1)
            .collect();
        pauses.sort_unstable_by(|a, b| b.cmp(a));
        pauses
    }

    /// Who owns how many partitions.
    pub(crate) async fn owners(&self) -> BTreeMap<OwnerId, usize> {
        let mut owners = BTreeMap::new();
        for lease in self.store.leases().await.unwrap() {
            if let Some(owner) = lease.owner {
                *owners.entry(owner).or_default() += 1;
            }
        }
        owners
    }
}

async fn publish<M: attune_messages::Message>(bus: &MemoryBus, topic: Topic, items: &[M]) {
    let id = Uuid::now_v7();
    let message = Outgoing::new(topic, id, encode(id, Utc::now(), items));
    bus.publish(vec![message]).await.unwrap();
}

/// Runs everything at once, and panics when a limit is exceeded.
struct Worker {
    store: Arc<SqliteStore>,
    bus: MemoryBus,
    started: Started,
}

impl Worker {
    async fn run(self) {
        let lease = WorkerLease {
            worker: WorkerId::fresh(),
            name: "worker".to_owned(),
            pool: "default".to_owned(),
            slots: 100,
            ttl: Duration::from_secs(600),
        };
        self.store.renew_worker(&lease).await.unwrap();
        let subscription = Subscription {
            topic: Topic::Requested("default".to_owned()),
            prefetch: 100,
        };
        let mut subscriber = self.bus.subscribe(subscription).await.unwrap();
        while let Some(delivery) = subscriber.next().await {
            let items: Vec<ExecutionRequested> = decode_batch(&delivery.body, 1 << 20).unwrap();
            for item in items {
                let wanted = [(item.execution_id, item.attempt)];
                let claims = self.store.claim(lease.worker, &wanted).await.unwrap();
                // Claimed before: it was dispatched twice.
                if !claims.is_empty() && self.starts(&item) {
                    end(&self.bus, &item).await;
                }
            }
            subscriber.settler().ack(&[delivery.tag]).await;
        }
    }

    /// Writes a start down; false when it was written before.
    fn starts(&self, item: &ExecutionRequested) -> bool {
        let parameters: serde_json::Value = serde_json::from_str(item.parameters.get()).unwrap();
        let number = parameters["number"].as_u64().unwrap();
        let mut started = self.started.lock().unwrap();
        let runs = started.entry(item.action_ref.clone()).or_default();
        let fresh = runs.iter().all(|(other, _)| *other != number);
        if fresh {
            runs.push((number, Instant::now()));
        }
        fresh
    }
}

/// Says that a run has ended well.
pub(crate) async fn end(bus: &MemoryBus, item: &ExecutionRequested) {
    let completion = Completion {
        execution_id: item.execution_id,
        attempt: item.attempt,
        action_id: item.action_id,
        status: Status::Succeeded,
        result: None,
        error: None,
        exit_code: None,
        stdout: None,
        stderr: None,
        partition: None,
        worker: None,
        started_at: None,
        finished_at: None,
    };
    let topic = Topic::Control(item.execution_id.partition());
    publish(bus, topic, &[SlotRelease(completion)]).await;
}

/// Asks again and again until there is something.
pub(crate) async fn until<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await; // poll
    }
}
