//! What a bus has declared can be taken away.

use attune_bus::{Bus, PublishError, Topic};
use attune_bus_rabbitmq::RabbitBus;
use lapin::options::QueueDeclareOptions;

use crate::support::{Prefix, numbered, stranger, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removing_leaves_nothing() {
    let prefix = Prefix::new();
    let bus = RabbitBus::connect(prefix.options()).await.unwrap();
    let topics = [Topic::Completed, Topic::QueueStats, Topic::HandedOver];
    for topic in &topics {
        bus.declare(topic).await.unwrap();
    }
    bus.publish(vec![numbered(Topic::Completed, 1)])
        .await
        .unwrap();
    within("it is removed", bus.remove(&topics)).await.unwrap();
    within("what is not there is fine", bus.remove(&topics))
        .await
        .unwrap();
    for name in ["completed", "queue-stats", "dead-letters"] {
        // Each failure closes the channel.
        let (_connection, channel) = stranger().await;
        let passive = QueueDeclareOptions {
            passive: true,
            ..Default::default()
        };
        let name = prefix.name(&format!("attune.{name}"));
        let found = channel
            .queue_declare(name.as_str().into(), passive, Default::default())
            .await;
        assert!(
            found.unwrap_err().to_string().contains("NOT_FOUND"),
            "{name}"
        );
    }
    // The exchange is gone as well, which closes the channel; the next one declares it again.
    let message = numbered(Topic::Completed, 2);
    let lost = within("an answer", bus.publish(vec![message])).await;
    assert!(
        matches!(lost, Err(PublishError::Unconfirmed(_))),
        "{lost:?}"
    );
    bus.close().await;
}
