//! How long a takeover takes. Not a test of speed: run it on purpose with
//! `cargo nextest run -p attune-executor-service --release --run-ignored only takeover --no-capture`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use attune_bus::MemoryBus;
use attune_core::policy::{ActionPolicy, Fairness, OnRate, RateLimit, Retry};
use attune_core::{
    ActionSpec, Attempt, Builtin, DemandRule, ExecutionId, OwnerId, PartitionId, Priority,
    RequestId, Run, Seq, Status, Submission, WorkerId,
};
use attune_executor::QueueConfig;
use attune_executor_service::{ExecutorOptions, start};
use attune_store::{ActionStore as _, Batch, NewExecution, PartitionStore as _, Store as _};
use attune_store_postgres::{PostgresOptions, PostgresStore, TemporaryDatabase};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

const PARTITIONS: u16 = 16;
const WAITING: u32 = 1_000_000;
const ACTIONS: usize = 1_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, does not test"]
async fn takeover_of_a_million() {
    for policies in [false, true] {
        takeover(policies).await;
    }
}

async fn takeover(policies: bool) {
    println!("policies: {policies}");
    let server = std::env::var("ATTUNE_TEST_POSTGRES_URL").unwrap();
    let name = format!("attune_test_{}", Uuid::now_v7().simple());
    let database = TemporaryDatabase::create(&server, &name).await.unwrap();
    let store = PostgresStore::connect(PostgresOptions::new(database.url()))
        .await
        .unwrap();
    store.migrate().await.unwrap();
    fill(&store, policies).await;

    // Everything at once, then what one of three executors has.
    for (what, kept) in [("all 16 partitions", 0), ("5 of 16 partitions", 11)] {
        let other = OwnerId::fresh();
        let kept: Vec<_> = (0..kept).map(PartitionId).collect();
        let hour = Duration::from_secs(3600);
        let held = store.acquire(other, "other", &kept, hour).await.unwrap();
        let options = ExecutorOptions {
            secrets: Default::default(),
            recorder: None,
            progress: Default::default(),
            spans: Default::default(),
            name: "measured".to_owned(),
            partitions: PARTITIONS,
            lease_ttl: Duration::from_secs(15),
            queue: QueueConfig {
                max_queue_length: WAITING,
                queue_timeout_seconds: 86_400,
            },
            batch_max_items: 1000,
            lane_length: 256,
            prefetch: 100,
            reconcile_interval: Duration::from_secs(60),
            worker_grace: Duration::from_secs(60),
            stats_interval: Duration::from_secs(60),
            max_message_bytes: 1 << 20,
            senders: Default::default(),
        };
        let stop = CancellationToken::new();
        let started = Instant::now();
        let bus = Arc::new(MemoryBus::new());
        let handle = start(options, Arc::new(store.clone()), bus, stop.clone())
            .await
            .unwrap();
        let missing = usize::from(PARTITIONS) - kept.len();
        handle
            .owned()
            .wait_for(|owned| *owned == missing)
            .await
            .unwrap();
        let waiting: u64 = handle
            .queues()
            .get_all_queue_stats()
            .iter()
            .map(|stats| stats.queue_length)
            .sum();
        println!(
            "{what}: {waiting} waiting executions in {:?}",
            started.elapsed()
        );
        stop.cancel();
        handle.stopped().await;
        store.give_up(other, &held, None).await.unwrap();
    }
    store.close().await;
    database.remove().await.unwrap();
}

/// Every policy of an action, as the scenario `policies` of `attune bench` has them.
fn add_policies(policy: &mut ActionPolicy) {
    policy.concurrency.group_by = vec!["labels.key".parse().unwrap()];
    policy.concurrency.group_limit = Some(1);
    policy.priority.ageing_seconds = Some(300);
    policy.rate_limit = Some(RateLimit {
        max_executions: 1_000_000,
        window_seconds: 60,
        by: Vec::new(),
        on_limit: OnRate::Wait,
    });
    policy.retry = Some(Retry::default());
    policy.fairness = Some(Fairness {
        by: vec!["user".parse().unwrap()],
        weights: BTreeMap::new(),
        default_weight: None,
    });
}

async fn fill(store: &PostgresStore, policies: bool) {
    store.ensure_partitions(PARTITIONS).await.unwrap();
    let owner = OwnerId::fresh();
    let all: Vec<_> = (0..PARTITIONS).map(PartitionId).collect();
    let hour = Duration::from_secs(3600);
    let held = store.acquire(owner, "filler", &all, hour).await.unwrap();
    let mut actions = Vec::new();
    for number in 0..ACTIONS {
        let action_ref = format!("load.action-{number}").parse().unwrap();
        let mut spec = ActionSpec::new(action_ref, Run::Builtin(Builtin::Noop));
        spec.policy.concurrency.limit = Some(1);
        if policies {
            add_policies(&mut spec.policy);
        }
        actions.push(
            store
                .apply_action(&spec, PARTITIONS, "test")
                .await
                .unwrap()
                .action,
        );
    }
    let (worker, mut number) = (WorkerId::fresh(), 0);
    while number < WAITING {
        let inserts = (0..1000)
            .map(|_| {
                number += 1;
                let action = &actions[number as usize % ACTIONS];
                let (_, epoch) = held[usize::from(action.partition.0)];
                let first = (number as usize) <= ACTIONS;
                let mut submission = Submission::new(action.spec.action_ref.as_str());
                if policies {
                    let turn = number as usize / ACTIONS;
                    submission.requested_by = Some(format!("user-{:02}", turn / 2 % 100));
                    let key = format!("key-{:03}", turn % 1000);
                    submission.labels.insert("key".to_owned(), key);
                    submission.priority = Some(Priority::ALL[turn % Priority::ALL.len()]);
                }
                let rule = DemandRule::of(&action.spec);
                let demand = rule.map(|rule| rule.demand(&submission.words()).unwrap());
                NewExecution {
                    id: ExecutionId::new(action.partition, Seq::new(epoch, number)),
                    action_id: action.id,
                    request_id: RequestId::fresh(),
                    digest: 0,
                    submission: Arc::new(submission),
                    status: if first {
                        Status::Requested
                    } else {
                        Status::Queued
                    },
                    attempt: Attempt(i32::from(first)),
                    grant_no: first.then_some(1),
                    demand,
                    asker: None,
                    cancel_requested: false,
                    worker: first.then_some(worker),
                }
            })
            .collect();
        let batch = Batch {
            fences: held.clone(),
            inserts,
            ..Batch::new(owner)
        };
        store.commit(&batch).await.unwrap();
    }
    store.give_up(owner, &held, None).await.unwrap();
}
