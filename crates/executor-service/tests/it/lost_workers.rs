//! A worker dies, and its slot does not wait for the next pass of the reconciler.

use std::time::{Duration, Instant};

use attune_core::{Attempt, OnWorkerLost};
use attune_executor_service::ExecutorOptions;

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
    let mut dispatches = system.elsewhere("test.dying", OnWorkerLost::Retry).await;
    system.submit("test.dying", 0).await;

    let mut delivery = dispatches.next().await.unwrap();
    for attempt in 1..=2 {
        let died = Instant::now();
        let item = system.claim_and_die(&delivery, LEASE).await;
        assert_eq!(item.attempt, Attempt(attempt));
        dispatches.settler().ack(&[delivery.tag]).await;
        let again = tokio::time::timeout(LEASE + GRACE + SLACK, dispatches.next()).await;
        delivery = again.expect("the slot is still held").unwrap();
        let took = died.elapsed();
        assert!(took >= LEASE + GRACE, "taken back too early: {took:?}");
    }
    member.stop().await;
}
