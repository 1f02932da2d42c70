//! What outlives the broker.

use attune_bus::Topic;
use attune_core::PartitionId;

use crate::support::{
    Prefix, connect, number, numbered, publish_until_confirmed, receive, services, subscribe,
    until_check,
};

/// What a queue keeps that need not outlive the broker ends with it, and the queue goes on; all else is
/// still there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "restarts the broker"]
async fn a_broker_that_restarts_keeps_what_is_to_last() {
    let prefix = Prefix::new();
    let bus = connect(prefix.options()).await;
    let pairs = [
        (Topic::Completed, Topic::CompletedKept),
        (
            Topic::Commands(PartitionId(3)),
            Topic::Calls(PartitionId(3)),
        ),
        (
            Topic::Control(PartitionId(3)),
            Topic::ControlKept(PartitionId(3)),
        ),
    ];
    for (lasting, passing) in &pairs {
        for topic in [lasting, passing] {
            bus.declare(topic).await.unwrap();
            bus.publish(vec![numbered(topic.clone(), 1)]).await.unwrap();
        }
    }
    services(&["restart", "rabbitmq"]).await;
    until_check(&*bus, true).await;
    for (lasting, passing) in pairs {
        for (topic, first) in [(lasting, 1), (passing, 2)] {
            publish_until_confirmed(&*bus, vec![numbered(topic.clone(), 2)]).await;
            let mut subscriber = subscribe(&*bus, topic.clone(), 8).await;
            assert_eq!(number(&receive(&mut subscriber).await), first, "{topic}");
        }
    }
    bus.close().await;
}
