//! A worker is seen before it hears, and does not wait for its next renewal.

use std::time::Duration;

use attune_core::{Attempt, OnWorkerLost};
use attune_executor::Counter;
use attune_store::WorkerStore as _;

use crate::lives::{Life, lease_of};
use crate::system::{ELSEWHERE, PARTITIONS, System, until};

/// So long that nobody renews it here.
const LEASE: Duration = Duration::from_secs(600);
/// What an executor takes to look, with much to spare on a machine that is busy.
const SOON: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_seen_before_it_hears_is_granted_something_as_soon_as_it_says_so() {
    let system = System::new().await;
    let member = system.member("one").await;
    member.serves(usize::from(PARTITIONS)).await;
    system.elsewhere("test.late", OnWorkerLost::Retry).await;
    system.submit("test.late", 0).await;

    let lease = lease_of(ELSEWHERE, 1, LEASE);
    system.store.renew_worker(&lease).await.unwrap();
    until("what it was granted has come back", async || {
        (member.counters.get(Counter::Bounced) > 0).then_some(())
    })
    .await;
    let mut life = Life::begin_late(lease, &system.store, &system.bus).await;
    let grant = tokio::time::timeout(SOON, life.next()).await;
    let grant = grant.expect("it waits for a renewal");
    assert_eq!(grant.attempt, Attempt(2));
    member.stop().await;
}
