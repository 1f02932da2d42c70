//! Queues and bindings that somebody deletes while everybody is connected.

use std::time::Duration;

use attune_bus::{PublishError, Topic};
use attune_core::PartitionId;
use lapin::options::{ExchangeDeleteOptions, QueueDeleteOptions};
use lapin::types::FieldTable;

use crate::support::{
    Prefix, connect, number, numbered, publish_until_confirmed, receive, stranger, subscribe,
    until_check, within,
};

/// The other side of a topic: its queue's name on the broker.
fn queue(prefix: &Prefix, topic: &Topic) -> String {
    let name = match topic {
        Topic::Completed => "attune.completed".to_owned(),
        Topic::Commands(partition) => format!("attune.partition.{:02}.commands", partition.0),
        Topic::DeadLetters => "attune.dead-letters".to_owned(),
        other => panic!("no queue of {other} is deleted here"),
    };
    prefix.name(&name)
}

async fn unbind(prefix: &Prefix, topic: &Topic) {
    let (connection, channel) = stranger().await;
    let exchange = match topic {
        Topic::DeadLetters => prefix.name("attune.dead-letters"),
        _ => prefix.name("attune.executions"),
    };
    let (queue, key) = (queue(prefix, topic), topic.routing_key());
    let arguments = FieldTable::default();
    channel
        .queue_unbind(queue.into(), exchange.into(), key.into(), arguments)
        .await
        .unwrap();
    connection.close(200, "done".into()).await.unwrap();
}

/// Who publishes has declared nothing: it binds the queue that it finds. A partition's commands
/// and completions go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_binding_is_made_again_by_who_publishes() {
    let prefix = Prefix::new();
    let (here, there) = (
        connect(prefix.options()).await,
        connect(prefix.options()).await,
    );
    for topic in [Topic::Completed, Topic::Commands(PartitionId(3))] {
        let mut subscriber = subscribe(&*there, topic.clone(), 8).await;
        unbind(&prefix, &topic).await;
        let again = publish_until_confirmed(&*here, vec![numbered(topic.clone(), 1)]).await;
        assert!(again > 0, "{topic}: it was not deleted");
        assert_eq!(number(&receive(&mut subscriber).await), 1, "{topic}");
        drop(subscriber);
    }
    until_check(&*here, true).await;
    here.close().await;
    there.close().await;
}

/// Nobody consumes at the moment, so nobody notices that the queue is gone but who publishes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_queue_is_declared_again_by_who_declared_it() {
    let prefix = Prefix::new();
    let bus = connect(prefix.options()).await;
    for topic in [Topic::Commands(PartitionId(3)), Topic::DeadLetters] {
        bus.declare(&topic).await.unwrap();
        let (connection, channel) = stranger().await;
        let options = QueueDeleteOptions::default();
        channel
            .queue_delete(queue(&prefix, &topic).into(), options)
            .await
            .unwrap();
        connection.close(200, "done".into()).await.unwrap();
        let again = publish_until_confirmed(&*bus, vec![numbered(topic.clone(), 1)]).await;
        assert!(again > 0, "{topic}: it was not deleted");
        let mut subscriber = subscribe(&*bus, topic.clone(), 8).await;
        assert_eq!(number(&receive(&mut subscriber).await), 1, "{topic}");
        drop(subscriber);
    }
    bus.close().await;
}

/// A topic that nobody has declared stays unroutable, and the bus says so after a while; it is
/// well again when somebody declares it, without another message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_reaches_no_queue_for_long_is_said() {
    let prefix = Prefix::new();
    let (here, there) = (
        connect(prefix.options()).await,
        connect(prefix.options()).await,
    );
    let refused = within(
        "an answer",
        here.publish(vec![numbered(Topic::Completed, 1)]),
    )
    .await;
    assert!(
        matches!(refused, Err(PublishError::Refused(_))),
        "{refused:?}"
    );
    here.check().await.expect("once is nothing");
    let why = until_check(&*here, false).await.unwrap();
    assert!(why.contains("execution.completed"), "{why}");
    there.declare(&Topic::Completed).await.unwrap();
    until_check(&*here, true).await;
    here.publish(vec![numbered(Topic::Completed, 2)])
        .await
        .unwrap();
    here.close().await;
    there.close().await;
}

/// Whoever publishes to all never learns that somebody receives nothing; so the one who receives
/// makes its binding again from time to time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_binding_of_a_broadcast_is_made_again() {
    let prefix = Prefix::new();
    let mut options = prefix.options();
    options.rebind_interval = Duration::from_millis(50);
    let bus = connect(options).await;
    let mut subscriber = subscribe(&*bus, Topic::HandedOver, 8).await;
    let (connection, channel) = stranger().await;
    // The bindings go with their exchange. It is there again at once, as another client makes it.
    let exchange = prefix.name("attune.executions");
    channel
        .exchange_delete(exchange.into(), ExchangeDeleteOptions::default())
        .await
        .unwrap();
    connection.close(200, "done".into()).await.unwrap();
    let other = connect(prefix.options()).await;
    let received = async {
        let mut again = tokio::time::interval(Duration::from_millis(50));
        loop {
            tokio::select! {
                delivery = subscriber.next() => break delivery,
                _ = again.tick() => {
                    other.publish(vec![numbered(Topic::HandedOver, 7)]).await.ok();
                }
            }
        }
    };
    let delivery = within("a broadcast", received).await;
    assert_eq!(number(&delivery.expect("the bus is open")), 7);
    bus.close().await;
    other.close().await;
}
