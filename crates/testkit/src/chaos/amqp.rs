//! Clients on the broker: rule firings that want answers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures_util::StreamExt as _;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Confirmation, Connection, ConnectionProperties};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::actions::Action;
use super::http::Shared;
use super::stranger::properties;

/// The exchange of everything.
pub(crate) const EXCHANGE: &str = "attune.executions";
/// How long a confirm is waited for.
const PATIENCE: Duration = Duration::from_secs(8);

/// A message that was sent and not confirmed.
struct Pending {
    message_id: Uuid,
    requests: Vec<Uuid>,
    body: Vec<u8>,
}

/// Publishes rule firings at this pace until it is stopped, and reads the answers. When its
/// connection breaks it makes another and repeats what was not confirmed, as clients must.
pub(crate) async fn client(shared: Arc<Shared>, seed: u64, pace: Duration) -> anyhow::Result<()> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut pending = VecDeque::new();
    while !shared.stop.is_cancelled() {
        // Its end is nothing but a reason to begin again.
        let _end = session(&shared, &mut random, pace, &mut pending).await;
        let pause = Duration::from_millis(random.random_range(100..1000));
        tokio::time::sleep(pause).await;
    }
    Ok(())
}

/// Connects to the broker.
pub(crate) async fn connect(url: &str) -> anyhow::Result<Connection> {
    let mut url = url::Url::parse(url)?;
    url.set_query(Some("heartbeat=5"));
    let connecting = Connection::connect(url.as_str(), ConnectionProperties::default());
    Ok(tokio::time::timeout(PATIENCE, connecting).await??)
}

async fn session(
    shared: &Arc<Shared>,
    random: &mut StdRng,
    pace: Duration,
    pending: &mut VecDeque<Pending>,
) -> anyhow::Result<()> {
    let connection = connect(&shared.broker_url).await?;
    let channel = connection.create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let options = QueueDeclareOptions {
        exclusive: true,
        auto_delete: true,
        ..QueueDeclareOptions::default()
    };
    let queue = channel
        .queue_declare("".into(), options, FieldTable::default())
        .await?;
    let reply_to = queue.name().clone();
    let options = BasicConsumeOptions {
        no_ack: true,
        ..BasicConsumeOptions::default()
    };
    let mut answers = connection
        .create_channel()
        .await?
        .basic_consume(reply_to.clone(), "".into(), options, FieldTable::default())
        .await?;
    let for_answers = Arc::clone(shared);
    // Ends with the session: what it holds would keep the connection open.
    let reading = AbortOnDropHandle::new(tokio::spawn(async move {
        while let Some(Ok(answer)) = answers.next().await {
            if let Err(error) = note(&for_answers, &answer.data) {
                eprintln!("chaos: an answer cannot be read: {error:#}");
            }
        }
    }));
    let mut ticks = tokio::time::interval(pace);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut again = pending.len();
    loop {
        if again == 0 {
            if shared.stop.is_cancelled() {
                break;
            }
            ticks.tick().await;
            pending.push_back(fresh(shared, random)?);
        }
        again = again.saturating_sub(1);
        let message = pending.front().context("something was just added")?;
        publish(
            &channel,
            EXCHANGE,
            "enforcement.created",
            message,
            &reply_to,
            shared.user,
        )
        .await?;
        shared.ledger.confirmed(&message.requests)?;
        pending.pop_front();
    }
    // The last answers are on their way; whoever misses one has its confirm.
    let _ended = tokio::time::timeout(Duration::from_secs(2), reading).await;
    Ok(())
}

fn fresh(shared: &Shared, random: &mut StdRng) -> anyhow::Result<Pending> {
    let mut requests = Vec::new();
    let mut items = Vec::new();
    for _ in 0..random.random_range(1..=3) {
        let action = Action::pick(&shared.actions, random);
        let request_id = Uuid::now_v7();
        let submission = action.submission(request_id, random);
        shared.ledger.invoke_by_amqp(&submission)?;
        requests.push(request_id);
        items.push(submission);
    }
    let message_id = Uuid::now_v7();
    let body = envelope(message_id, "enforcement.created", 1, &items.into());
    Ok(Pending {
        message_id,
        requests,
        body,
    })
}

/// A message of this type and version.
pub(crate) fn envelope(message_id: Uuid, kind: &str, version: u32, payload: &Value) -> Vec<u8> {
    let message = json!({
        "message_id": message_id, "message_type": kind, "version": version,
        "timestamp": "2026-01-01T00:00:00Z", "payload": payload,
    });
    message.to_string().into_bytes()
}

async fn publish(
    channel: &Channel,
    exchange: &str,
    key: &str,
    message: &Pending,
    reply_to: &lapin::types::ShortString,
    user: Option<&'static str>,
) -> anyhow::Result<()> {
    let properties = properties(user)
        .with_message_id(message.message_id.to_string().into())
        .with_reply_to(reply_to.clone());
    let options = BasicPublishOptions {
        mandatory: true,
        ..BasicPublishOptions::default()
    };
    let publishing = async {
        channel
            .basic_publish(
                exchange.into(),
                key.into(),
                options,
                &message.body,
                properties,
            )
            .await?
            .await
    };
    match tokio::time::timeout(PATIENCE, publishing).await?? {
        Confirmation::Ack(None) => Ok(()),
        other => bail!("not confirmed: {other:?}"),
    }
}

/// Notes the answers in a message.
fn note(shared: &Shared, body: &[u8]) -> anyhow::Result<()> {
    let message: Value = serde_json::from_slice(body)?;
    let payload = &message["payload"];
    let one = std::slice::from_ref(payload);
    for item in payload.as_array().map_or(one, Vec::as_slice) {
        let request_id: Uuid = item["request_id"].as_str().context("no id")?.parse()?;
        let accepted = &item["outcome"]["accepted"];
        if let Some(id) = accepted["execution_id"].as_i64() {
            shared.ledger.accepted(request_id, id)?;
        } else {
            // What the broker has confirmed is kept as rejected.
            let code = item["outcome"]["rejected"]["code"].as_str();
            shared.ledger.unknown(request_id, code.unwrap_or("?"))?;
        }
    }
    Ok(())
}
