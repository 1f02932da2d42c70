//! The suite that every adapter passes.
//!
//! An adapter's tests say once how a fresh bus is made and get one test per case:
//!
//! ```
//! use std::sync::Arc;
//! use attune_bus_conformance::{MAX_MESSAGE_BYTES, ROOM_BYTES};
//! use attune_bus::{Bus, MemoryBus, Room};
//!
//! async fn make_bus() -> (Arc<dyn Bus>, ()) {
//!     (Arc::new(MemoryBus::new()), ())
//! }
//!
//! async fn make_bounded() -> (Arc<dyn Bus>, ()) {
//!     let room = Room { messages: 1_000, bytes: ROOM_BYTES };
//!     (Arc::new(MemoryBus::with_bounds(room, MAX_MESSAGE_BYTES)), ())
//! }
//!
//! attune_bus_conformance::conformance_tests!(make_bus, make_bounded);
//! ```
//!
//! Cases observe, they never sleep: every wait has a deadline, and "receives nothing" is judged
//! after markers, published later, have arrived elsewhere on the same bus.

pub mod direct;
pub mod order;
pub mod refusals;
pub mod routing;
pub mod settling;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

// Public for what `conformance_tests!` expands to.
pub use attune_bus::Bus;
use attune_bus::{Delivery, Outgoing, PublishError, Subscriber, Subscription, Topic};

/// How long a case waits for one thing to happen.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// What a topic of a bounded bus may keep, in bytes of bodies.
pub const ROOM_BYTES: usize = 10_000;
/// The largest body that a bounded bus carries, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 2_000;

/// Expands to one `#[tokio::test]` per case of the suite.
///
/// The first argument is the path of an `async fn() -> (Arc<dyn Bus>, G)` that makes a bus which
/// shares nothing with any other (its own virtual host or prefix); the guard `G` is dropped
/// when the case is over and the bus has been closed. The second makes one with [`ROOM_BYTES`]
/// and [`MAX_MESSAGE_BYTES`].
#[macro_export]
macro_rules! conformance_tests {
    ($make_bus:path, $make_bounded:path) => {
        $crate::conformance_tests! { @each $make_bounded;
            direct: a_direct_topic_that_is_not_read_is_full,
            refusals: what_finds_no_room_is_refused_as_full,
            refusals: what_is_too_large_is_named_with_the_bound,
        }
        $crate::conformance_tests! { @each $make_bus;
            direct: a_direct_topic_delivers_in_order,
            direct: a_direct_topic_without_subscriber_is_unroutable,
            direct: direct_topics_do_not_mix,
            direct: what_a_direct_topic_held_ends_with_its_subscriber,
            order: one_publisher_keeps_its_order,
            order: unsettled_messages_come_again_first_and_in_order,
            order: a_second_subscriber_of_an_ordered_topic_waits_its_turn,
            order: subscribers_come_and_go_and_nothing_is_lost,
            order: concurrent_publishers_lose_nothing,
            refusals: what_cannot_be_carried_is_invalid,
            routing: what_nobody_declared_is_refused,
            routing: only_the_unroutable_part_of_a_call_is_refused,
            routing: what_was_declared_is_kept,
            routing: nothing_to_publish_is_confirmed,
            routing: topics_do_not_mix,
            routing: a_broadcast_reaches_everyone_who_is_there,
            routing: events_reach_who_listens_to_their_kind_or_to_all,
            routing: an_answer_reaches_its_address_only,
            routing: an_answer_to_nobody_is_fine,
            routing: properties_and_large_binary_bodies_survive,
            settling: subscribers_of_a_work_topic_share,
            settling: prefetch_bounds_what_is_unsettled,
            settling: acknowledgements_may_come_out_of_order,
            settling: acknowledging_again_or_too_late_is_harmless,
            settling: what_is_surely_acknowledged_comes_no_more,
            settling: a_dead_letter_moves_with_its_reason,
            settling: closing_ends_everything,
        }
    };
    (@each $make_bus:path; $($group:ident: $case:ident),+ $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let (bus, guard) = $make_bus().await;
                let bus: ::std::sync::Arc<dyn $crate::Bus> = bus;
                $crate::$group::$case(::std::sync::Arc::clone(&bus)).await;
                bus.close().await;
                drop(guard);
            }
        )+
    };
}

/// Waits for `future`.
///
/// # Panics
/// When it is not there before [`DEADLINE`].
async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(value) => value,
        Err(_) => panic!("not within {DEADLINE:?}: {what}"),
    }
}

async fn subscribe(bus: &dyn Bus, topic: &Topic, prefetch: u16) -> Subscriber {
    let subscription = Subscription {
        topic: topic.clone(),
        prefetch,
    };
    within(
        &format!("subscribing to {topic}"),
        bus.subscribe(subscription),
    )
    .await
    .unwrap_or_else(|error| panic!("subscribing to {topic}: {error}"))
}

/// A message whose body is a number.
fn numbered(topic: &Topic, number: u64) -> Outgoing {
    Outgoing::new(topic.clone(), Uuid::now_v7(), number.to_string())
}

async fn publish(bus: &dyn Bus, messages: Vec<Outgoing>) -> Result<(), PublishError> {
    within("a publish is answered", bus.publish(messages)).await
}

/// Publishes numbered messages in one call.
async fn send(bus: &dyn Bus, topic: &Topic, numbers: impl IntoIterator<Item = u64>) {
    let messages = numbers
        .into_iter()
        .map(|number| numbered(topic, number))
        .collect();
    publish(bus, messages)
        .await
        .unwrap_or_else(|error| panic!("publishing to {topic}: {error}"));
}

async fn receive(subscriber: &mut Subscriber) -> Delivery {
    within("a delivery", subscriber.next())
        .await
        .expect("the bus is open")
}

/// The next `count` deliveries, not settled.
async fn receive_many(subscriber: &mut Subscriber, count: usize) -> Vec<Delivery> {
    let mut deliveries = Vec::with_capacity(count);
    for _ in 0..count {
        deliveries.push(receive(subscriber).await);
    }
    deliveries
}

fn number(delivery: &Delivery) -> u64 {
    std::str::from_utf8(&delivery.body)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("not a numbered message: {delivery:?}"))
}

fn numbers(deliveries: &[Delivery]) -> Vec<u64> {
    deliveries.iter().map(number).collect()
}

/// Gives what is under way the chance to arrive: sends markers through the bus, one after the
/// other, and sees each of them.
async fn let_markers_pass(bus: &dyn Bus) {
    let topic = Topic::Reply(format!("attune.reply.marker-{}", Uuid::now_v7()));
    let mut markers = subscribe(bus, &topic, 1).await;
    for marker in 0..3 {
        send(bus, &topic, [marker]).await;
        let delivery = receive(&mut markers).await;
        assert_eq!(number(&delivery), marker);
        markers.settler().ack(&[delivery.tag]).await;
    }
}

/// Asserts that nothing has been delivered to `subscriber` although later markers have passed.
async fn assert_nothing_comes(bus: &dyn Bus, subscriber: &mut Subscriber, why: &str) {
    let_markers_pass(bus).await;
    if let Some(delivery) = subscriber.try_next() {
        panic!("{why}, but this was delivered: {delivery:?}");
    }
}

/// One topic of each kind that keeps messages for later subscribers.
fn keeping_topics() -> [Topic; 5] {
    [
        Topic::ControlKept(attune_core::PartitionId(3)),
        Topic::Commands(attune_core::PartitionId(3)),
        Topic::Calls(attune_core::PartitionId(3)),
        Topic::Completed,
        Topic::CompletedKept,
    ]
}

/// Spawns work of a case on its own handle of the bus.
fn spawn<F: Future<Output = ()> + Send + 'static>(
    bus: &Arc<dyn Bus>,
    work: impl FnOnce(Arc<dyn Bus>) -> F,
) -> tokio::task::JoinHandle<()> {
    tokio::spawn(work(Arc::clone(bus)))
}
