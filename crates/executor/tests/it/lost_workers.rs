//! A worker dies, and its slot does not wait for the next pass of the reconciler.

use std::time::{Duration, Instant};

use attune_bus::{Bus as _, Subscription, Topic};
use attune_core::{ActionSpec, Attempt, Builtin, Run, WorkerId};
use attune_executor::ExecutorOptions;
use attune_messages::decode_batch;
use attune_messages::v1::ExecutionRequested;
use attune_store::{ActionStore as _, WorkerLease, WorkerStore as _};

use crate::member::Member;
use crate::system::{PARTITIONS, System};

const LEASE: Duration = Duration::from_millis(800);
const GRACE: Duration = Duration::from_millis(300);
/// What may be added to lease and grace.
const SLACK: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slot_of_a_dead_worker_is_used_again_within_lease_and_grace_and_a_second() {
    let system = System::new().await;
    let options = ExecutorOptions {
        // Only a look at the lease itself can be in time.
        reconcile_interval: Duration::from_secs(600),
        republish_after: Duration::from_secs(600),
        worker_grace: GRACE,
        ..System::options("one")
    };
    let member = Member::start(&system, options).await;
    member.serves(usize::from(PARTITIONS)).await;
    let pool = "dying";
    let mut spec = ActionSpec::new("test.dying".parse().unwrap(), Run::Builtin(Builtin::Noop));
    spec.policy.concurrency.limit = Some(1);
    spec.pool = pool.to_owned();
    system
        .store
        .apply_action(&spec, PARTITIONS, "test")
        .await
        .unwrap();
    let subscription = Subscription {
        topic: Topic::Requested(pool.to_owned()),
        prefetch: 1,
    };
    let mut dispatches = system.bus.subscribe(subscription).await.unwrap();
    system.submit("test.dying", 0).await;

    let mut delivery = dispatches.next().await.unwrap();
    for attempt in 1..=2 {
        let items: Vec<ExecutionRequested> = decode_batch(&delivery.body, 1 << 20).unwrap();
        assert_eq!(items[0].attempt, Attempt(attempt));
        let lease = WorkerLease {
            worker: WorkerId::fresh(),
            name: format!("dies-{attempt}"),
            pool: pool.to_owned(),
            slots: 1,
            ttl: LEASE,
        };
        let died = Instant::now();
        system.store.renew_worker(&lease).await.unwrap();
        let wanted = [(items[0].execution_id, items[0].attempt)];
        let claims = system.store.claim(lease.worker, &wanted).await.unwrap();
        assert_eq!(claims.len(), 1);
        dispatches.settler().ack(&[delivery.tag]).await;
        let again = tokio::time::timeout(LEASE + GRACE + SLACK, dispatches.next()).await;
        delivery = again.expect("the slot is still held").unwrap();
        let took = died.elapsed();
        assert!(took >= LEASE + GRACE, "taken back too early: {took:?}");
    }
    member.stop().await;
}
