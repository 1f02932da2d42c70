//! Cases about which message reaches whom, and in what shape.

use std::sync::Arc;

use attune_core::policy::EventKind;
use attune_core::{OwnerId, PartitionId, WorkerId};
use bytes::Bytes;
use uuid::Uuid;

use super::{
    assert_nothing_comes, keeping_topics, number, numbered, numbers, publish, receive,
    receive_many, send, subscribe,
};
use attune_bus::{Bus, Outgoing, PublishError, Refusal, Refused, Topic};

fn unroutable(message_id: Uuid) -> Refused {
    Refused {
        message_id,
        why: Refusal::Unroutable,
    }
}

/// A message that would have to be kept, where nothing was ever declared, is refused.
pub async fn what_nobody_declared_is_refused(bus: Arc<dyn Bus>) {
    for topic in keeping_topics() {
        let message = numbered(&topic, 1);
        let id = message.message_id;
        match publish(&*bus, vec![message]).await {
            Err(PublishError::Refused(refused)) => {
                assert_eq!(refused, [unroutable(id)], "{topic}");
            }
            other => panic!("{topic}: expected a refusal, got {other:?}"),
        }
        // The refusal left nothing behind, and the topic works once it is declared.
        let mut subscriber = subscribe(&*bus, &topic, 8).await;
        send(&*bus, &topic, [2]).await;
        assert_eq!(number(&receive(&mut subscriber).await), 2, "{topic}");
    }
}

/// In one call, what can be routed is confirmed and exactly the rest is named.
pub async fn only_the_unroutable_part_of_a_call_is_refused(bus: Arc<dyn Bus>) {
    let nowhere = Topic::QueueStats;
    let mut subscriber = subscribe(&*bus, &Topic::Completed, 8).await;
    let messages = vec![
        numbered(&Topic::Completed, 1),
        numbered(&nowhere, 2),
        numbered(&Topic::Completed, 3),
        numbered(&nowhere, 4),
        numbered(&Topic::Completed, 5),
    ];
    let expected = [&messages[1], &messages[3]].map(|message| unroutable(message.message_id));
    match publish(&*bus, messages).await {
        Err(PublishError::Refused(mut refused)) => {
            // In whatever order; the ids rise.
            refused.sort_unstable_by_key(|refused| refused.message_id);
            assert_eq!(refused, expected);
        }
        other => panic!("expected a refusal of two messages, got {other:?}"),
    }
    assert_eq!(numbers(&receive_many(&mut subscriber, 3).await), [1, 3, 5]);
}

/// A topic that was declared keeps what is published before anyone subscribes.
pub async fn what_was_declared_is_kept(bus: Arc<dyn Bus>) {
    for topic in keeping_topics()
        .into_iter()
        .chain([Topic::Enforcements, Topic::QueueStats])
    {
        bus.declare(&topic)
            .await
            .expect("the topic can be declared");
        send(&*bus, &topic, 1..=3).await;
        bus.declare(&topic)
            .await
            .expect("declaring again changes nothing");
        let mut subscriber = subscribe(&*bus, &topic, 8).await;
        assert_eq!(
            numbers(&receive_many(&mut subscriber, 3).await),
            [1, 2, 3],
            "{topic}"
        );
    }
}

/// A call without messages has nothing to wait for.
pub async fn nothing_to_publish_is_confirmed(bus: Arc<dyn Bus>) {
    publish(&*bus, Vec::new())
        .await
        .expect("nothing can go wrong");
    bus.check().await.expect("an open bus can be used");
}

/// Partitions, workers, executors and kinds of messages do not see each other's.
pub async fn topics_do_not_mix(bus: Arc<dyn Bus>) {
    let topics = [
        Topic::Enforcements,
        Topic::Commands(PartitionId(1)),
        Topic::Commands(PartitionId(11)),
        Topic::Calls(PartitionId(1)),
        Topic::Control(PartitionId(1)),
        Topic::ControlKept(PartitionId(1)),
        Topic::Completed,
        Topic::CompletedKept,
        Topic::HandedOver,
        Topic::Hello,
        Topic::link("default", WorkerId::fresh()),
        Topic::link("default", WorkerId::fresh()),
        Topic::Reports(OwnerId::fresh()),
        Topic::Reports(OwnerId::fresh()),
        Topic::QueueStats,
    ];
    let mut subscribers = Vec::new();
    for topic in &topics {
        subscribers.push(subscribe(&*bus, topic, 8).await);
    }
    let messages = topics
        .iter()
        .zip(1..)
        .map(|(topic, number)| numbered(topic, number))
        .collect();
    publish(&*bus, messages)
        .await
        .expect("everything is routed");
    for ((topic, subscriber), expected) in topics.iter().zip(&mut subscribers).zip(1..) {
        assert_eq!(number(&receive(subscriber).await), expected, "{topic}");
    }
    for (topic, subscriber) in topics.iter().zip(&mut subscribers) {
        assert_nothing_comes(&*bus, subscriber, &format!("{topic} had one message")).await;
    }
}

/// A broadcast reaches everyone who is subscribed at that moment, in order; a later subscriber
/// gets what comes later, and nobody being there is no error.
pub async fn a_broadcast_reaches_everyone_who_is_there(bus: Arc<dyn Bus>) {
    let event = Topic::Event(EventKind::Finished);
    for topic in [Topic::HandedOver, Topic::Hello, event] {
        send(&*bus, &topic, [0]).await;
        let mut everyone = Vec::new();
        for _ in 0..3 {
            everyone.push(subscribe(&*bus, &topic, 4).await);
        }
        send(&*bus, &topic, 1..=20).await;
        for subscriber in &mut everyone {
            for expected in 1..=20 {
                let delivery = receive(subscriber).await;
                assert_eq!(number(&delivery), expected);
                subscriber.settler().ack(&[delivery.tag]).await;
            }
        }
        drop(everyone.pop());
        let mut late = subscribe(&*bus, &topic, 4).await;
        send(&*bus, &topic, [21]).await;
        for subscriber in everyone.iter_mut().chain([&mut late]) {
            assert_eq!(number(&receive(subscriber).await), 21);
        }
    }
}

/// Who listens to all events receives those of every kind, in order; who listens to one, that alone.
pub async fn events_reach_who_listens_to_their_kind_or_to_all(bus: Arc<dyn Bus>) {
    let topics = [EventKind::Accepted, EventKind::OperationFinished].map(Topic::Event);
    let mut of_all = subscribe(&*bus, &Topic::Events, 8).await;
    let mut of_one = subscribe(&*bus, &topics[1], 8).await;
    for (topic, expected) in topics.iter().cycle().zip(1..=6) {
        send(&*bus, topic, [expected]).await;
    }
    for expected in 1..=6 {
        let delivery = receive(&mut of_all).await;
        assert_eq!(number(&delivery), expected);
        of_all.settler().ack(&[delivery.tag]).await;
    }
    for expected in [2, 4, 6] {
        assert_eq!(number(&receive(&mut of_one).await), expected);
    }
    assert_nothing_comes(&*bus, &mut of_one, "it listens to one kind").await;
    assert_nothing_comes(&*bus, &mut of_all, "there were six").await;
}

/// An answer reaches the subscriber with its address and no other.
pub async fn an_answer_reaches_its_address_only(bus: Arc<dyn Bus>) {
    let [here, there] =
        ["here", "there"].map(|name| format!("attune.reply.{name}-{}", Uuid::now_v7()));
    let mut at_here = subscribe(&*bus, &Topic::Reply(here.clone()), 4).await;
    let mut at_there = subscribe(&*bus, &Topic::Reply(there.clone()), 4).await;
    // As in use: the asker puts its address on the question, whoever answers takes it from there.
    let mut questions = subscribe(&*bus, &Topic::Commands(PartitionId(0)), 4).await;
    let mut question = numbered(&Topic::Commands(PartitionId(0)), 1);
    question.reply_to = Some(here.clone());
    publish(&*bus, vec![question])
        .await
        .expect("the question is confirmed");
    let question = receive(&mut questions).await;
    assert_eq!(question.reply_to.as_deref(), Some(here.as_str()));
    let address = question.reply_to.expect("it was compared above");
    send(&*bus, &Topic::Reply(address), 7..=9).await;
    send(&*bus, &Topic::Reply(there), [10]).await;
    assert_eq!(numbers(&receive_many(&mut at_here, 3).await), [7, 8, 9]);
    assert_eq!(number(&receive(&mut at_there).await), 10);
    assert_nothing_comes(&*bus, &mut at_here, "the rest went elsewhere").await;
    assert_nothing_comes(&*bus, &mut at_there, "the rest went elsewhere").await;
}

/// An answer to an address that never was, or is no more, is no error.
pub async fn an_answer_to_nobody_is_fine(bus: Arc<dyn Bus>) {
    let never = Topic::Reply(format!("attune.reply.never-{}", Uuid::now_v7()));
    send(&*bus, &never, [1]).await;
    let gone = Topic::Reply(format!("attune.reply.gone-{}", Uuid::now_v7()));
    drop(subscribe(&*bus, &gone, 4).await);
    send(&*bus, &gone, 2..=3).await;
}

/// Message id, reply address, headers and a binary body of 1 MiB arrive as they were sent.
pub async fn properties_and_large_binary_bodies_survive(bus: Arc<dyn Bus>) {
    let mut subscriber = subscribe(&*bus, &Topic::Completed, 4).await;
    // Every byte value, in no text encoding.
    let body: Vec<u8> = (0..1024 * 1024_u32)
        .map(|i| (i.wrapping_mul(31) >> 3) as u8)
        .collect();
    let mut large = Outgoing::new(Topic::Completed, Uuid::now_v7(), body);
    large.reply_to = Some("attune.reply.someone".to_owned());
    large.headers = vec![
        ("x-attune-test".to_owned(), "größer als ASCII".to_owned()),
        ("x-attune-empty".to_owned(), String::new()),
    ];
    let bare = Outgoing::new(Topic::Completed, Uuid::now_v7(), Bytes::new());
    publish(&*bus, vec![large.clone(), bare.clone()])
        .await
        .expect("both are confirmed");

    let delivery = receive(&mut subscriber).await;
    assert!(
        delivery.body == large.body,
        "the body of 1 MiB is unchanged"
    );
    assert_eq!(delivery.message_id, Some(large.message_id.to_string()));
    assert_eq!(delivery.reply_to, large.reply_to);
    for header in &large.headers {
        assert!(
            delivery.headers.contains(header),
            "{header:?} in {:?}",
            delivery.headers
        );
    }
    let delivery = receive(&mut subscriber).await;
    assert!(delivery.body.is_empty());
    assert_eq!(delivery.message_id, Some(bare.message_id.to_string()));
    assert_eq!(delivery.reply_to, None);
}
