//! Calls end with the broker: whoever waits for an answer asks again.

use std::sync::Arc;
use std::time::Duration;

use attune_bus::{Bus, Topic};
use attune_commands::ClientError;
use attune_core::{PartitionId, Reject, Submission};
use tokio::time::Instant;

use crate::support::{
    Fate, GatedBus, LONG, Owner, accepted, client, id_of, memory_bus, rejected, submit,
};

/// After how long a call without an answer is repeated.
const SECOND: Duration = Duration::from_secs(1);

fn gated() -> (Arc<GatedBus>, Arc<dyn Bus>) {
    let (gated, _) = GatedBus::new(100);
    let bus: Arc<dyn Bus> = Arc::clone(&gated) as _;
    (gated, bus)
}

#[tokio::test(start_paused = true)]
async fn a_call_that_the_broker_has_lost_is_repeated_and_answered_once() {
    let (gated, bus) = gated();
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    gated.fates([Fate::ConfirmedAndLost, Fate::ConfirmedAndLost]);
    let began = Instant::now();
    let task = submit(&client, Submission::new("core.echo"), LONG);
    let pack = owner.next().await;
    assert_eq!(
        began.elapsed().as_secs(),
        3,
        "after one second and then two"
    );
    owner.answer(&pack, |_| accepted(5)).await;
    assert_eq!(id_of(task.await.unwrap()), 5);
    assert_eq!(client.stats().unmatched_answers, 0);
    assert_eq!(client.stats().in_flight, 0);
}

/// A broker that has restarted has neither the calls nor the answers that it had.
#[tokio::test(start_paused = true)]
async fn on_a_new_connection_a_call_is_repeated_at_once() {
    let (gated, bus) = gated();
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let began = Instant::now();
    let task = submit(&client, Submission::new("core.echo"), LONG);
    let first = owner.next().await;
    gated.renew();
    let again = owner.next().await;
    assert_eq!(first.request_ids, again.request_ids);
    assert_eq!(began.elapsed(), Duration::ZERO);
    owner.answer(&again, |_| accepted(5)).await;
    assert_eq!(id_of(task.await.unwrap()), 5);
    // What was renewed before a call is no reason to repeat it.
    let task = submit(&client, Submission::new("core.echo"), LONG);
    owner.next().await;
    let again = owner.next().await;
    assert_eq!(began.elapsed(), SECOND);
    owner.answer(&again, |_| accepted(6)).await;
    assert_eq!(id_of(task.await.unwrap()), 6);
}

/// A copy that is lost is decided by nobody: the refusal of one behind it is the last word, and where the
/// last one is lost the next says so.
#[tokio::test(start_paused = true)]
async fn a_copy_that_is_lost_keeps_no_refusal_back() {
    let refused = || Err(ClientError::Rejected(Reject::queue_full(100)));
    let (gated, mut arrivals) = GatedBus::new(100);
    let bus: Arc<dyn Bus> = Arc::clone(&gated) as _;
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    gated.fates([Fate::ConfirmedAndLost]);
    let task = submit(&client, Submission::new("core.echo"), LONG);
    let second = owner.next().await;
    owner.answer(&second, |_| rejected()).await;
    assert_eq!(task.await.unwrap(), refused());

    while arrivals.try_recv().is_ok() {}
    let task = submit(&client, Submission::new("core.echo"), LONG);
    let first = owner.next().await;
    gated.fates([Fate::ConfirmedAndLost]);
    for _ in 0..2 {
        arrivals.recv().await.unwrap();
    }
    owner.answer(&first, |_| rejected()).await;
    let third = owner.next().await;
    assert_ne!(first.message_id, third.message_id);
    assert!(
        !task.is_finished(),
        "the second may be accepted, as far as it knows"
    );
    owner.answer(&third, |_| rejected()).await;
    assert_eq!(task.await.unwrap(), refused());
}

/// A copy that waits to be sent is not sent twice.
#[tokio::test(start_paused = true)]
async fn nothing_is_repeated_while_it_waits_to_be_sent() {
    let (gated, mut arrivals) = GatedBus::new(0);
    let bus: Arc<dyn Bus> = Arc::clone(&gated) as _;
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let task = submit(&client, Submission::new("core.echo"), 10 * LONG);
    arrivals.recv().await.unwrap();
    tokio::time::advance(LONG).await;
    gated.renew();
    gated.open(1);
    let first = owner.next().await;
    assert!(arrivals.try_recv().is_err());
    // Then one copy waits, however often it is time for another.
    tokio::time::advance(3 * LONG).await;
    gated.open(1);
    let second = owner.next().await;
    assert_eq!(first.request_ids, second.request_ids);
    owner.answer(&second, |_| accepted(5)).await;
    assert_eq!(id_of(task.await.unwrap()), 5);
}

/// The queue of calls is with one broker of several, and gone with it.
#[tokio::test]
async fn where_nobody_keeps_calls_they_go_as_commands() {
    let bus = memory_bus();
    let mut owner = Owner::receiving(&bus, Topic::Commands(PartitionId(0))).await;
    let client = client(&bus).await;
    let task = submit(&client, Submission::new("core.echo"), LONG);
    let pack = owner.next().await;
    owner.answer(&pack, |_| rejected()).await;
    let refused = Err(ClientError::Rejected(Reject::queue_full(100)));
    assert_eq!(task.await.unwrap(), refused);
    let task = submit(&client, Submission::new("core.echo"), LONG);
    let pack = owner.next().await;
    owner.answer(&pack, |_| accepted(5)).await;
    assert_eq!(id_of(task.await.unwrap()), 5);
}
