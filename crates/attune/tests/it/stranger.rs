//! Somebody else on the broker, who may send anything.

use anyhow::Context as _;
use attune_bus::{Bus, Outgoing, PublishError, Topic};
use attune_bus_rabbitmq::{RabbitBus, RabbitOptions};
use attune_testkit::{System, wait_for};
use serde_json::{Value, json};
use uuid::Uuid;

/// Connects to the broker of a cluster, without the bound that Attune puts on messages.
pub(crate) async fn connect(system: &System) -> anyhow::Result<RabbitBus> {
    let broker = system.broker()?;
    let mut options = RabbitOptions::new(broker.url());
    options.prefix = broker.prefix().to_owned();
    options.max_message_bytes = 16 * 1024 * 1024;
    RabbitBus::connect(options)
        .await
        .context("a stranger's connection")
}

/// A message of this type and version.
pub(crate) fn envelope(kind: &str, version: u32, payload: &Value) -> Vec<u8> {
    let message = json!({
        "message_id": Uuid::now_v7(), "message_type": kind, "version": version,
        "timestamp": "2026-01-01T00:00:00Z", "payload": payload,
    });
    message.to_string().into_bytes()
}

/// Publishes a body as it is, until the broker has confirmed it.
pub(crate) async fn publish(bus: &dyn Bus, topic: &Topic, body: Vec<u8>) -> anyhow::Result<()> {
    let message = Outgoing::new(topic.clone(), Uuid::now_v7(), body);
    wait_for("a confirm", async || {
        match bus.publish(vec![message.clone()]).await {
            // An owner that has just started declares its topics one after the other.
            Err(error @ PublishError::Refused(_)) => Err(error.into()),
            outcome => Ok(outcome),
        }
    })
    .await??;
    Ok(())
}
