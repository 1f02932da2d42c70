//! The way to the dead letters ends where somebody can read them.

use attune_bus::{Topic, dead_letter};
use attune_bus_rabbitmq::{QueueType, RabbitOptions};
use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, BasicQosOptions, BasicRejectOptions};
use lapin::types::FieldTable;

use crate::support::{Prefix, connect, number, numbered, receive, stranger, subscribe, within};

/// A consumer of somebody else rejects; the broker itself moves the message.
async fn a_rejected_message_arrives(queue_type: QueueType) {
    let prefix = Prefix::new();
    let bus = connect(RabbitOptions {
        queue_type,
        ..prefix.options()
    })
    .await;
    bus.declare(&Topic::Completed).await.unwrap();
    let mut letters = subscribe(&*bus, Topic::DeadLetters, 8).await;
    let (connection, channel) = stranger().await;
    channel
        .basic_qos(1, BasicQosOptions::default())
        .await
        .unwrap();
    let queue = prefix.name("attune.completed");
    let mut consumer = channel
        .basic_consume(
            queue.as_str().into(),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await
        .unwrap();
    for expected in 1..=3 {
        bus.publish(vec![numbered(Topic::Completed, expected)])
            .await
            .unwrap();
        let delivery = within("a delivery", consumer.next())
            .await
            .unwrap()
            .unwrap();
        delivery
            .acker
            .reject(BasicRejectOptions { requeue: false })
            .await
            .unwrap();
        let letter = receive(&mut letters).await;
        assert_eq!(number(&letter), expected);
        for (name, value) in [
            ("x-first-death-reason", "rejected"),
            ("x-first-death-queue", queue.as_str()),
        ] {
            let header = (name.to_owned(), value.to_owned());
            assert!(
                letter.headers.contains(&header),
                "{header:?} in {:?}",
                letter.headers
            );
        }
        letters.settler().ack(&[letter.tag]).await;
    }
    connection.close(200, "done".into()).await.unwrap();
    bus.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_message_arrives_from_a_quorum_queue() {
    a_rejected_message_arrives(QueueType::Quorum).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_message_arrives_from_a_classic_queue() {
    a_rejected_message_arrives(QueueType::Classic).await;
}

/// Nobody reads the dead letters yet, the message is larger than we would send ourselves, and
/// its reason is long: it gets there all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_oversized_message_of_somebody_else_can_be_buried() {
    let prefix = Prefix::new();
    let bus = connect(RabbitOptions {
        max_message_bytes: 1_000,
        ..prefix.options()
    })
    .await;
    let mut subscriber = subscribe(&*bus, Topic::Enforcements, 8).await;
    let (connection, channel) = stranger().await;
    let body = vec![b'7'; 300_000];
    channel
        .basic_publish(
            prefix.name("attune.executions").into(),
            "enforcement.created".into(),
            Default::default(),
            &body,
            Default::default(),
        )
        .await
        .unwrap();
    let delivery = receive(&mut subscriber).await;
    let reason = "too large ".repeat(10_000);
    let settler = subscriber.settler();
    let burying = dead_letter(&*bus, &settler, &Topic::Enforcements, &delivery, &reason);
    within("it is buried", burying).await.unwrap();
    let mut letters = subscribe(&*bus, Topic::DeadLetters, 8).await;
    let letter = receive(&mut letters).await;
    assert!(letter.body == body);
    let (_, why) = letter
        .headers
        .iter()
        .find(|(name, _)| name == attune_bus::letters::DEAD_LETTER_REASON)
        .unwrap();
    assert!(
        why.len() > 1_000 && reason.starts_with(why.as_str()),
        "{why}"
    );
    connection.close(200, "done".into()).await.unwrap();
    bus.close().await;
}
