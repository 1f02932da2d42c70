//! What several executors share: a store, a bus, a worker that watches order and limits, and
//! clients.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use attune_bus::{Bus as _, MemoryBus, Topic};
use attune_core::{
    ActionSpec, Builtin, OnWorkerLost, OwnerId, PartitionId, RequestId, Run, Submission,
};
use attune_executor::QueueConfig;
use attune_executor_service::ExecutorOptions;
use attune_messages::v1::{OnReject, Submit};
use attune_messages::v2::Grant;
use attune_store::{ActionStore as _, PartitionStore as _};
use attune_store_sqlite::SqliteStore;
use serde_json::value::to_raw_value;
use tokio_util::task::AbortOnDropHandle;

use crate::lives::{Life, publish};
use crate::member::Member;

/// How many partitions there are.
pub(crate) const PARTITIONS: u16 = 8;
/// How long leases last: short, and long enough for a machine that is busy with other things.
pub(crate) const TTL: Duration = Duration::from_millis(1500);
/// A pool that the system's worker does not serve.
pub(crate) const ELSEWHERE: &str = "elsewhere";
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
        let ever = Duration::from_secs(600);
        let worker = Worker {
            life: Life::begin(&store, &bus, "default", 100, ever).await,
            started: Arc::clone(&started),
        };
        for partition in (0..PARTITIONS).map(PartitionId) {
            bus.declare(&Topic::Commands(partition)).await.unwrap();
            bus.declare(&Topic::Calls(partition)).await.unwrap();
            bus.declare(&Topic::Control(partition)).await.unwrap();
            bus.declare(&Topic::ControlKept(partition)).await.unwrap();
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
            senders: Default::default(),
            secrets: Default::default(),
            recorder: None,
            progress: Default::default(),
            spans: Default::default(),
            name: name.to_owned(),
            partitions: PARTITIONS,
            lease_ttl: TTL,
            queue: QueueConfig {
                max_queue_length: 1_000_000,
                queue_timeout_seconds: 3600,
            },
            batch_max_items: 1000,
            lane_length: 256,
            prefetch: 16,
            reconcile_interval: Duration::from_secs(1),
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

    /// Adds an action whose pool the system's worker does not serve.
    pub(crate) async fn elsewhere(&self, action_ref: &str, on_lost: OnWorkerLost) {
        let mut spec = ActionSpec::new(action_ref.parse().unwrap(), Run::Builtin(Builtin::Noop));
        spec.policy.concurrency.limit = Some(1);
        spec.pool = ELSEWHERE.to_owned();
        spec.on_worker_lost = Some(on_lost);
        self.store
            .apply_action(&spec, PARTITIONS, "test")
            .await
            .unwrap();
    }

    /// A life of a worker of that pool, which is heard of no more once its lease is over.
    pub(crate) async fn life_elsewhere(&self, slots: u32, lease: Duration) -> Life {
        Life::begin(&self.store, &self.bus, ELSEWHERE, slots, lease).await
    }

    /// Submits one execution, numbered by the client.
    pub(crate) async fn submit(&self, action_ref: &str, number: u64) {
        let mut submission = Submission::new(action_ref);
        submission.request_id = Some(RequestId::fresh());
        submission.parameters = to_raw_value(&serde_json::json!({"number": number})).unwrap();
        let item = Submit {
            submission,
            on_reject: OnReject::Record,
            wait_bound: None,
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

/// Runs everything at once, and panics when something is granted to it twice.
struct Worker {
    life: Life,
    started: Started,
}

impl Worker {
    async fn run(mut self) {
        loop {
            let grant = self.life.next().await;
            self.starts(&grant);
            self.life.end(&grant).await;
        }
    }

    /// Writes a start down.
    fn starts(&self, grant: &Grant) {
        let parameters: serde_json::Value = serde_json::from_str(grant.parameters.get()).unwrap();
        let number = parameters["number"].as_u64().unwrap();
        let mut started = self.started.lock().unwrap();
        let runs = started.entry(grant.action_ref.clone()).or_default();
        runs.push((number, Instant::now()));
    }
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
