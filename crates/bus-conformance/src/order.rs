//! Cases about order, and about nothing being lost.

use std::collections::HashMap;
use std::sync::Arc;

use attune_core::PartitionId;

use super::{
    assert_nothing_comes, keeping_topics, number, numbered, numbers, publish, receive,
    receive_many, send, spawn, subscribe, within,
};
use attune_bus::{Bus, Topic};

/// Messages of one publisher on one topic arrive in the order in which they were sent, however
/// they are spread over calls.
pub async fn one_publisher_keeps_its_order(bus: Arc<dyn Bus>) {
    const MESSAGES: u64 = 1_000;
    let topic = Topic::Control(PartitionId(0));
    let mut subscriber = subscribe(&*bus, &topic, 64).await;
    let publisher = spawn(&bus, |bus| async move {
        let mut next = 0;
        for size in (1..=40).cycle() {
            let end = MESSAGES.min(next + size);
            send(&*bus, &Topic::Control(PartitionId(0)), next..end).await;
            next = end;
            if next == MESSAGES {
                return;
            }
        }
    });
    for expected in 0..MESSAGES {
        let delivery = receive(&mut subscriber).await;
        assert_eq!(number(&delivery), expected);
        assert!(
            !delivery.redelivered,
            "message {expected} came for the first time"
        );
        subscriber.settler().ack(&[delivery.tag]).await;
    }
    publisher.await.expect("the publisher ends well");
    assert_nothing_comes(&*bus, &mut subscriber, "every message has come").await;
}

/// What a subscriber did not settle comes again to the next one: before anything newer, in
/// order, and marked.
pub async fn unsettled_messages_come_again_first_and_in_order(bus: Arc<dyn Bus>) {
    for topic in keeping_topics() {
        let mut first = subscribe(&*bus, &topic, 16).await;
        send(&*bus, &topic, 1..=8).await;
        let deliveries = receive_many(&mut first, 8).await;
        assert_eq!(numbers(&deliveries), (1..=8).collect::<Vec<_>>(), "{topic}");
        let settled: Vec<_> = deliveries[..3]
            .iter()
            .map(|delivery| delivery.tag)
            .collect();
        first.settler().ack(&settled).await;
        drop(first);
        send(&*bus, &topic, 9..=10).await;

        let mut second = subscribe(&*bus, &topic, 16).await;
        let again = receive_many(&mut second, 7).await;
        assert_eq!(numbers(&again), (4..=10).collect::<Vec<_>>(), "{topic}");
        for delivery in &again[..5] {
            assert!(
                delivery.redelivered,
                "{topic}: {} came before",
                number(delivery)
            );
        }
        let tags: Vec<_> = again.iter().map(|delivery| delivery.tag).collect();
        second.settler().ack(&tags).await;
        assert_nothing_comes(&*bus, &mut second, "everything is settled").await;
    }
}

/// Of several subscribers of an ordered topic only the oldest receives; when it is gone the
/// next takes over where it stopped.
pub async fn a_second_subscriber_of_an_ordered_topic_waits_its_turn(bus: Arc<dyn Bus>) {
    for topic in [
        Topic::Enforcements,
        Topic::Commands(PartitionId(15)),
        Topic::Calls(PartitionId(15)),
        Topic::ControlKept(PartitionId(15)),
        Topic::Control(PartitionId(15)),
    ] {
        let mut first = subscribe(&*bus, &topic, 16).await;
        let mut second = subscribe(&*bus, &topic, 16).await;
        send(&*bus, &topic, 1..=10).await;
        let deliveries = receive_many(&mut first, 10).await;
        assert_eq!(
            numbers(&deliveries),
            (1..=10).collect::<Vec<_>>(),
            "{topic}"
        );
        let settled: Vec<_> = deliveries[..5]
            .iter()
            .map(|delivery| delivery.tag)
            .collect();
        first.settler().ack(&settled).await;
        assert_nothing_comes(&*bus, &mut second, "the first subscriber lives").await;
        drop(first);
        send(&*bus, &topic, 11..=12).await;
        let rest = receive_many(&mut second, 7).await;
        assert_eq!(numbers(&rest), (6..=12).collect::<Vec<_>>(), "{topic}");
    }
}

/// While a publisher sends, subscribers come, settle a part and go: each message is seen, each
/// for the first time in its order, and what was settled does not come again.
pub async fn subscribers_come_and_go_and_nothing_is_lost(bus: Arc<dyn Bus>) {
    const MESSAGES: u64 = 300;
    let topic = Topic::Commands(PartitionId(1));
    bus.declare(&topic)
        .await
        .expect("the topic can be declared");
    let publisher = spawn(&bus, |bus| async move {
        for number in 0..MESSAGES {
            send(&*bus, &Topic::Commands(PartitionId(1)), [number]).await;
        }
    });
    // Everything below it is settled; a subscriber starts with exactly this message.
    let mut next = 0;
    while next < MESSAGES {
        let mut subscriber = subscribe(&*bus, &topic, 32).await;
        let count = 25.min(MESSAGES - next);
        let deliveries = receive_many(&mut subscriber, count as usize).await;
        assert_eq!(
            numbers(&deliveries),
            (next..next + count).collect::<Vec<_>>()
        );
        // Two thirds are settled, one message at a time; the rest goes back.
        let settled = (count * 2).div_ceil(3);
        for delivery in &deliveries[..settled as usize] {
            subscriber.settler().ack(&[delivery.tag]).await;
        }
        next += settled;
    }
    publisher.await.expect("the publisher ends well");
    let mut last = subscribe(&*bus, &topic, 32).await;
    assert_nothing_comes(&*bus, &mut last, "everything is settled").await;
}

/// Several publishers at once: every message arrives, and each publisher's order is kept.
pub async fn concurrent_publishers_lose_nothing(bus: Arc<dyn Bus>) {
    const PUBLISHERS: u64 = 10;
    const EACH: u64 = 500;
    let mut subscriber = subscribe(&*bus, &Topic::Completed, 256).await;
    let publishers: Vec<_> = (0..PUBLISHERS)
        .map(|publisher| {
            spawn(&bus, move |bus| async move {
                let all: Vec<_> = (0..EACH).map(|number| publisher * EACH + number).collect();
                for pack in all.chunks(1 + publisher as usize) {
                    let pack = pack
                        .iter()
                        .map(|&n| numbered(&Topic::Completed, n))
                        .collect();
                    publish(&*bus, pack)
                        .await
                        .expect("every publish is confirmed");
                }
            })
        })
        .collect();
    let mut next: HashMap<u64, u64> = HashMap::new();
    for _ in 0..PUBLISHERS * EACH {
        let delivery = receive(&mut subscriber).await;
        let (publisher, number) = (number(&delivery) / EACH, number(&delivery) % EACH);
        let expected = next.entry(publisher).or_default();
        assert_eq!(number, *expected, "publisher {publisher} kept its order");
        *expected += 1;
        subscriber.settler().ack(&[delivery.tag]).await;
    }
    for publisher in publishers {
        within("a publisher ends", publisher)
            .await
            .expect("it ends well");
    }
    assert_eq!(next.len() as u64, PUBLISHERS);
    assert!(next.values().all(|&count| count == EACH), "{next:?}");
}
