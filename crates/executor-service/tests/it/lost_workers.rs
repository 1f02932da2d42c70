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
        worker_grace: GRACE,
        ..System::options("one")
    };
    let member = Member::start(&system, options).await;
    member.serves(usize::from(PARTITIONS)).await;
    system.elsewhere("test.dying", OnWorkerLost::Retry).await;
    system.submit("test.dying", 0).await;

    let mut life = system.life_elsewhere(1, LEASE).await;
    assert_eq!(life.next().await.attempt, Attempt(1));
    for attempt in 2..=3 {
        let died = Instant::now();
        life.renew().await;
        // It is heard of no more, and another one waits.
        life = system.life_elsewhere(1, LEASE).await;
        let again = tokio::time::timeout(LEASE + GRACE + SLACK, life.next()).await;
        let grant = again.expect("the slot is still held");
        assert_eq!(grant.attempt, Attempt(attempt));
        let took = died.elapsed();
        assert!(took >= LEASE + GRACE, "taken back too early: {took:?}");
    }
    member.stop().await;
}
