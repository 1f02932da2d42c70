//! Somebody on the broker who listens in and sends anything.

use std::time::Duration;

use anyhow::{Context as _, bail};
use futures_util::StreamExt as _;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use serde_json::Value;
use tokio::sync::Mutex;
use uuid::Uuid;

use super::amqp::{EXCHANGE, connect};
use super::ledger::Ledger;
use crate::{Spoiler, illegible_properties};

/// Where owners tell lives of workers what to do, and where workers tell executors what came of it.
pub(crate) const LIVES: &str = "attune.lives";
pub(crate) const REPORTS: &str = "attune.reports";
/// How many overheard messages are kept, and how many more are overheard at a time.
const KEPT: usize = 800;
const AT_A_TIME: usize = 200;
/// How long one visit may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A message that was overheard.
#[derive(Debug, Clone)]
pub(crate) struct Overheard {
    exchange: ShortString,
    key: ShortString,
    message_id: Option<ShortString>,
    body: Vec<u8>,
}

/// What is said to an exchange: under which routing key, and the message.
type Said = (ShortString, ShortString, BasicProperties, Vec<u8>);

/// The stranger; it connects for each visit.
#[derive(Debug)]
pub(crate) struct Stranger {
    broker_url: String,
    /// As whom it speaks, where that must be said.
    user: Option<&'static str>,
    /// What it has overheard so far, the oldest first.
    memory: Mutex<Vec<Overheard>>,
}

impl Stranger {
    pub(crate) fn new(broker_url: &str, user: Option<&'static str>) -> Self {
        Self {
            broker_url: broker_url.to_owned(),
            user,
            memory: Mutex::default(),
        }
    }

    /// Listens for a moment, also to what is said on direct exchanges under these keys; what it has
    /// overheard, lately and before, that may be sent again without changing what is asked for.
    pub(crate) async fn overhear(
        &self,
        ledger: &Ledger,
        direct: &[(&'static str, String)],
    ) -> anyhow::Result<Vec<Overheard>> {
        tokio::time::timeout(PATIENCE, self.listen(direct)).await??;
        let memory = self.memory.lock().await;
        let harmless = memory.iter().filter(|message| is_harmless(message, ledger));
        Ok(harmless.cloned().collect())
    }

    async fn listen(&self, direct: &[(&'static str, String)]) -> anyhow::Result<()> {
        let (connection, channel) = self.visit().await?;
        let options = QueueDeclareOptions {
            exclusive: true,
            auto_delete: true,
            ..QueueDeclareOptions::default()
        };
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongInt(1000));
        let queue = channel.queue_declare("".into(), options, arguments).await?;
        let queue = queue.name().clone();
        let direct = direct.iter().map(|(exchange, key)| (*exchange, &**key));
        for (exchange, key) in [(EXCHANGE, "#")].into_iter().chain(direct) {
            let options = QueueBindOptions::default();
            let queue = queue.clone();
            channel
                .queue_bind(
                    queue,
                    exchange.into(),
                    key.into(),
                    options,
                    FieldTable::default(),
                )
                .await?;
        }
        let options = BasicConsumeOptions {
            no_ack: true,
            ..BasicConsumeOptions::default()
        };
        let mut messages = channel
            .basic_consume(queue, "".into(), options, FieldTable::default())
            .await?;
        let mut heard = Vec::new();
        let listening = async {
            while heard.len() < AT_A_TIME {
                let Some(Ok(message)) = messages.next().await else {
                    break;
                };
                heard.push(Overheard {
                    exchange: message.exchange.clone(),
                    key: message.routing_key.clone(),
                    message_id: message.properties.message_id().clone(),
                    body: message.data,
                });
            }
        };
        // Nothing may be said for a while.
        let _silence = tokio::time::timeout(Duration::from_secs(2), listening).await;
        leave(&connection).await;
        let mut memory = self.memory.lock().await;
        memory.append(&mut heard);
        let surplus = memory.len().saturating_sub(KEPT);
        memory.drain(..surplus);
        Ok(())
    }

    /// Sends messages again, as they were.
    pub(crate) async fn repeat(&self, messages: &[Overheard]) -> anyhow::Result<()> {
        let messages = messages.iter().map(|message| {
            let mut properties = properties(self.user);
            if let Some(id) = &message.message_id {
                properties = properties.with_message_id(id.clone());
            }
            let place = (message.exchange.clone(), message.key.clone());
            (place.0, place.1, properties, message.body.clone())
        });
        self.send(messages.collect()).await
    }

    /// Sends these bodies to these exchanges and routing keys.
    pub(crate) async fn say(
        &self,
        messages: Vec<(&'static str, String, Vec<u8>)>,
    ) -> anyhow::Result<()> {
        let messages = messages.into_iter().map(|(exchange, key, body)| {
            (exchange.into(), key.into(), properties(self.user), body)
        });
        self.send(messages.collect()).await
    }

    /// Sends one message and waits for its confirm.
    ///
    /// # Errors
    /// When it is not known to be kept.
    pub(crate) async fn ask(&self, key: &str, body: Vec<u8>) -> anyhow::Result<()> {
        let asking = async {
            let (connection, channel) = self.visit().await?;
            let options = BasicPublishOptions {
                mandatory: true,
                ..BasicPublishOptions::default()
            };
            let confirm = channel
                .basic_publish(
                    EXCHANGE.into(),
                    key.into(),
                    options,
                    &body,
                    properties(self.user),
                )
                .await?
                .await?;
            leave(&connection).await;
            match confirm {
                Confirmation::Ack(None) => Ok(()),
                other => bail!("not confirmed: {other:?}"),
            }
        };
        tokio::time::timeout(PATIENCE, asking).await?
    }

    /// Puts messages that no library reads into these queues, by their names: whoever listens to an
    /// exchange need not be able to stand them.
    pub(crate) async fn say_illegibly(&self, queues: &[String]) -> anyhow::Result<()> {
        let spoiler = Spoiler::start(&self.broker_url).await?;
        let url = spoiler.url(&self.broker_url)?;
        let saying = async {
            let (connection, channel) = visit(&url).await?;
            for queue in queues {
                for properties in illegible_properties() {
                    let options = BasicPublishOptions::default();
                    let confirm = channel
                        .basic_publish("".into(), queue.as_str().into(), options, b"[]", properties)
                        .await?;
                    confirm.await?;
                }
            }
            leave(&connection).await;
            anyhow::Ok(())
        };
        tokio::time::timeout(PATIENCE, saying).await?
    }

    async fn send(&self, messages: Vec<Said>) -> anyhow::Result<()> {
        let sending = async {
            let (connection, channel) = self.visit().await?;
            for (exchange, key, properties, body) in messages {
                // That nobody takes it is fine.
                let options = BasicPublishOptions::default();
                let confirm = channel
                    .basic_publish(exchange, key, options, &body, properties)
                    .await?;
                confirm.await?;
            }
            leave(&connection).await;
            anyhow::Ok(())
        };
        tokio::time::timeout(PATIENCE, sending).await?
    }

    /// How many messages lie in these queues; one that does not exist holds none.
    pub(crate) async fn depths(&self, queues: &[String]) -> anyhow::Result<Vec<(String, u32)>> {
        let counting = async {
            let mut depths = Vec::new();
            let (connection, _) = self.visit().await?;
            for queue in queues {
                let options = QueueDeclareOptions {
                    passive: true,
                    ..QueueDeclareOptions::default()
                };
                // One that does not exist costs the channel.
                let channel = connection.create_channel().await?;
                let name: ShortString = queue.as_str().into();
                let found = channel
                    .queue_declare(name, options, FieldTable::default())
                    .await;
                depths.push((
                    queue.clone(),
                    found.map_or(0, |queue| queue.message_count()),
                ));
            }
            leave(&connection).await;
            anyhow::Ok(depths)
        };
        tokio::time::timeout(PATIENCE, counting).await?
    }

    async fn visit(&self) -> anyhow::Result<(Connection, Channel)> {
        visit(&self.broker_url).await
    }
}

async fn visit(broker_url: &str) -> anyhow::Result<(Connection, Channel)> {
    let connection = connect(broker_url).await?;
    let channel = connection.create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    Ok((connection, channel))
}

/// Ends a visit. That channels are closing already is no failure.
async fn leave(connection: &Connection) {
    let _closing = connection.close(200, "done".into()).await;
}

/// What every message says of itself; as whom it is sent, where that must be said.
pub(super) fn properties(user: Option<&'static str>) -> BasicProperties {
    let properties = BasicProperties::default()
        .with_content_type("application/json".into())
        .with_delivery_mode(2);
    match user {
        Some(user) => properties.with_user_id(user.into()),
        None => properties,
    }
}

/// A submission that was refused, or of which nobody knows yet, could be accepted by its
/// repetition, against what its sender was told.
fn is_harmless(message: &Overheard, ledger: &Ledger) -> bool {
    requests(message).is_ok_and(|requests| {
        let known = ledger.known();
        let is_stored = |id: &Uuid| known.accepted.contains_key(id) || known.confirmed.contains(id);
        requests.iter().all(is_stored)
    })
}

/// The request ids of the submissions in a message.
fn requests(message: &Overheard) -> anyhow::Result<Vec<Uuid>> {
    let body: Value = serde_json::from_slice(&message.body)?;
    let payload = &body["payload"];
    let one = std::slice::from_ref(payload);
    let items = payload.as_array().map_or(one, Vec::as_slice).iter();
    let ids: Vec<&Value> = match body["message_type"].as_str().context("no type")? {
        "partition.submit" => items
            .map(|item| &item["submission"]["request_id"])
            .collect(),
        "enforcement.created" => items.map(|item| &item["request_id"]).collect(),
        _ => Vec::new(),
    };
    ids.into_iter()
        .map(|id| Ok(id.as_str().context("no request id")?.parse()?))
        .collect()
}
