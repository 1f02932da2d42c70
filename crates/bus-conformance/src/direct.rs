//! Cases about topics with one subscriber, of which nothing is kept and the publisher is told when
//! it is not there. One for a bounded bus says so.

use std::sync::Arc;

use attune_core::{OwnerId, WorkerId};
use uuid::Uuid;

use super::{
    MAX_MESSAGE_BYTES, ROOM_BYTES, assert_nothing_comes, number, numbered, publish, receive,
    receive_many, send, spawn, subscribe, within,
};
use attune_bus::{Bus, Outgoing, PublishError, Refusal, Topic};

/// One of each kind, of somebody nobody else knows.
fn direct_topics() -> [Topic; 2] {
    [
        Topic::link("default", WorkerId::fresh()),
        Topic::Reports(OwnerId::fresh()),
    ]
}

/// Publishes one message; whether somebody was there.
async fn finds_somebody(bus: &dyn Bus, topic: &Topic, number: u64) -> bool {
    let message = numbered(topic, number);
    let id = message.message_id;
    match publish(bus, vec![message]).await {
        Ok(()) => true,
        Err(error @ PublishError::Refused(_)) => {
            assert_eq!(
                error.refusal_of(id),
                Some(&Refusal::Unroutable),
                "{topic}: {error}"
            );
            false
        }
        Err(other) => panic!("{topic}: {other}"),
    }
}

/// Waits until the bus has noticed that nobody is there.
async fn until_nobody_is_there(bus: &dyn Bus, topic: &Topic) {
    let noticed = async {
        while finds_somebody(bus, topic, 0).await {
            tokio::task::yield_now().await;
        }
    };
    within(&format!("nobody is at {topic}"), noticed).await;
}

/// While it is subscribed, a subscriber receives what is sent, in order and once.
pub async fn a_direct_topic_delivers_in_order(bus: Arc<dyn Bus>) {
    const MESSAGES: u64 = 500;
    for topic in direct_topics() {
        let mut subscriber = subscribe(&*bus, &topic, 32).await;
        let publisher = spawn(&bus, |bus| {
            let topic = topic.clone();
            async move {
                let mut next = 0;
                for size in (1..=40).cycle() {
                    let end = MESSAGES.min(next + size);
                    send(&*bus, &topic, next..end).await;
                    next = end;
                    if next == MESSAGES {
                        return;
                    }
                }
            }
        });
        for expected in 0..MESSAGES {
            let delivery = receive(&mut subscriber).await;
            assert_eq!(number(&delivery), expected, "{topic}");
            assert!(
                !delivery.redelivered,
                "{topic}: {expected} came for the first time"
            );
            subscriber.settler().ack(&[delivery.tag]).await;
        }
        publisher.await.expect("the publisher ends well");
        assert_nothing_comes(&*bus, &mut subscriber, "every message has come").await;
        assert_eq!(*subscriber.renewals().borrow(), 0, "nothing broke");
    }
}

/// The publisher is told when nobody is there: nobody yet, whatever was declared, and nobody any
/// more. What goes elsewhere in the same call is confirmed.
pub async fn a_direct_topic_without_subscriber_is_unroutable(bus: Arc<dyn Bus>) {
    let mut others = subscribe(&*bus, &Topic::Completed, 16).await;
    for topic in direct_topics() {
        assert!(!finds_somebody(&*bus, &topic, 1).await, "{topic}: nobody");
        bus.declare(&topic)
            .await
            .expect("whether one may send there can be asked");
        assert!(
            !finds_somebody(&*bus, &topic, 2).await,
            "{topic}: still nobody"
        );
        let mut subscriber = subscribe(&*bus, &topic, 4).await;
        send(&*bus, &topic, [3]).await;
        assert_eq!(number(&receive(&mut subscriber).await), 3, "{topic}");
        drop(subscriber);
        until_nobody_is_there(&*bus, &topic).await;

        let (lost, kept) = (numbered(&topic, 4), numbered(&Topic::Completed, 5));
        let id = lost.message_id;
        match publish(&*bus, vec![lost, kept]).await {
            Err(PublishError::Refused(refused)) => {
                assert_eq!(refused.len(), 1, "{topic}: {refused:?}");
                assert_eq!(
                    (refused[0].message_id, &refused[0].why),
                    (id, &Refusal::Unroutable)
                );
            }
            other => panic!("{topic}: expected a refusal of one, got {other:?}"),
        }
        assert_eq!(number(&receive(&mut others).await), 5);
    }
    bus.check()
        .await
        .expect("that nobody is there is no trouble of the bus");
}

/// Lives of workers do not see each other's messages, nor do executors, nor one the other's although
/// their ids are the same.
pub async fn direct_topics_do_not_mix(bus: Arc<dyn Bus>) {
    let ids = [(); 2].map(|()| Uuid::now_v7());
    let topics = ids.map(|id| {
        [
            Topic::link("default", WorkerId(id)),
            Topic::Reports(OwnerId(id)),
        ]
    });
    let topics = topics.as_flattened();
    let mut subscribers = Vec::new();
    for topic in topics {
        subscribers.push(subscribe(&*bus, topic, 4).await);
    }
    let messages = topics.iter().zip(1..).map(|(topic, n)| numbered(topic, n));
    publish(&*bus, messages.collect())
        .await
        .expect("everybody is there");
    for (subscriber, expected) in subscribers.iter_mut().zip(1..) {
        assert_eq!(number(&receive(subscriber).await), expected);
        assert_nothing_comes(&*bus, subscriber, "it had one message").await;
    }
    // One that goes takes nothing of the others along.
    subscribers.remove(0);
    until_nobody_is_there(&*bus, &topics[0]).await;
    for (subscriber, topic) in subscribers.iter_mut().zip(&topics[1..]) {
        send(&*bus, topic, [9]).await;
        assert_eq!(number(&receive(subscriber).await), 9, "{topic}");
    }
}

/// What was delivered or waited and was not settled ends with the subscriber: the next one of the
/// same topic receives what is sent to it, and nothing before.
pub async fn what_a_direct_topic_held_ends_with_its_subscriber(bus: Arc<dyn Bus>) {
    for topic in direct_topics() {
        let mut first = subscribe(&*bus, &topic, 3).await;
        send(&*bus, &topic, 1..=8).await;
        let held = receive_many(&mut first, 3).await;
        let settler = first.settler();
        settler.ack(&[held[1].tag]).await;
        drop(first);
        until_nobody_is_there(&*bus, &topic).await;

        let mut second = subscribe(&*bus, &topic, 8).await;
        assert_nothing_comes(&*bus, &mut second, "all of it was the first one's").await;
        settler.ack(&[held[0].tag]).await;
        send(&*bus, &topic, 11..=12).await;
        for expected in 11..=12 {
            let delivery = receive(&mut second).await;
            assert_eq!(number(&delivery), expected, "{topic}");
            assert!(!delivery.redelivered, "{topic}");
        }
    }
}

/// A bounded bus: who does not read gets no more than there is room for, and its publisher is told;
/// others do not feel it, and what was taken comes.
pub async fn a_direct_topic_that_is_not_read_is_full(bus: Arc<dyn Bus>) {
    for topic in direct_topics() {
        let mut subscriber = subscribe(&*bus, &topic, 1).await;
        let mut taken = Vec::new();
        loop {
            let body = vec![b'1'; MAX_MESSAGE_BYTES];
            let message = Outgoing::new(topic.clone(), Uuid::now_v7(), body);
            let id = message.message_id;
            match publish(&*bus, vec![message]).await {
                Ok(()) => taken.push(id.to_string()),
                Err(error) => {
                    assert_eq!(
                        error.refusal_of(id),
                        Some(&Refusal::Full),
                        "{topic}: {error}"
                    );
                    break;
                }
            }
            // A broker may look at its bound a little late.
            assert!(taken.len() < 1_000, "the bound holds at some point");
        }
        assert!(taken.len() * MAX_MESSAGE_BYTES >= ROOM_BYTES - MAX_MESSAGE_BYTES);
        for other in direct_topics() {
            let mut idle = subscribe(&*bus, &other, 1).await;
            send(&*bus, &other, [1]).await;
            assert_eq!(number(&receive(&mut idle).await), 1, "{other}");
        }
        for expected in &taken {
            let delivery = receive(&mut subscriber).await;
            assert_eq!(delivery.message_id.as_ref(), Some(expected), "{topic}");
            subscriber.settler().ack(&[delivery.tag]).await;
        }
    }
}
