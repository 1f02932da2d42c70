//! Messages between the port's shape and the protocol's.

use attune_bus::letters::{DEAD_LETTER_REASON, DEAD_LETTER_TOPIC};
use attune_bus::port::MAX_HEADERS_BYTES;
use attune_bus::{Delivery, DeliveryTag, Outgoing, Refusal, Topic};
use bytes::Bytes;
use lapin::options::BasicPublishOptions;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation};
use uuid::Uuid;

use crate::barred::Route;
use crate::cause::Cause;
use crate::topology::{Topology, short};

/// What one header of a dead letter may keep, in bytes.
const DEAD_LETTER_HEADER_BYTES: usize = 8 << 10;

/// A message that is ready to be sent.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) id: Uuid,
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    /// Whether the broker shall send it back when it has nowhere to keep it.
    pub(crate) mandatory: bool,
    /// Whether nobody misses it when it does not come.
    pub(crate) is_hint: bool,
    pub(crate) properties: BasicProperties,
    pub(crate) body: Bytes,
}

impl Prepared {
    /// Publishes it, and waits until it is confirmed.
    pub(crate) async fn publish_on(self, channel: &Channel) -> lapin::Result<Confirmation> {
        let options = BasicPublishOptions {
            mandatory: self.mandatory,
            immediate: false,
        };
        let (exchange, key) = (self.exchange, self.routing_key);
        let publishing = channel.basic_publish(exchange, key, options, &self.body, self.properties);
        publishing.await?.await
    }

    /// By which way it goes.
    pub(crate) fn route(&self) -> Route {
        Route {
            exchange: self.exchange.clone(),
            key: self.routing_key.clone(),
        }
    }
}

/// Translates a message.
///
/// # Errors
/// When it is too large, or something in it is too long for the protocol: both for good.
pub(crate) fn prepare(
    topology: &Topology,
    mut message: Outgoing,
    max: usize,
) -> Result<Prepared, Refusal> {
    let dead_letter = message.topic == Topic::DeadLetters;
    let bytes = message.body.len();
    // A dead letter has come through the broker, so it fits; were it refused here for its size,
    // it would come again for ever.
    if bytes > max && !dead_letter {
        return Err(Refusal::TooLarge { bytes, max });
    }
    if dead_letter {
        message.headers = fitted(message.headers);
    }
    message.check_names()?;
    let prepared = translate(topology, message);
    prepared.map_err(|cause| Refusal::Invalid(cause.to_string()))
}

fn translate(topology: &Topology, message: Outgoing) -> Result<Prepared, Cause> {
    let Outgoing {
        topic,
        message_id,
        body,
        reply_to,
        headers,
    } = message;
    let (exchange, routing_key) = topology.route(&topic)?;
    let (must_route, is_lasting) = (topic.must_route(), topic.is_lasting());
    let is_hint = topic.is_broadcast();
    let mut properties = BasicProperties::default()
        .with_content_type("application/json".into())
        // 2 survives a restart of the broker; the rest is of use for a moment only, or is sent again.
        .with_delivery_mode(if is_lasting { 2 } else { 1 })
        .with_message_id(message_id.to_string().into());
    if let Some(user) = topology.user() {
        properties = properties.with_user_id(short(user.to_owned())?);
    }
    if let Some(address) = reply_to {
        properties = properties.with_reply_to(short(address)?);
    }
    if !headers.is_empty() {
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert(short(name)?, AMQPValue::LongString(value.into()));
        }
        properties = properties.with_headers(table);
    }
    Ok(Prepared {
        id: message_id,
        exchange,
        routing_key,
        mandatory: must_route,
        is_hint,
        properties,
        body,
    })
}

/// The headers of a dead letter, as far as there is room: why and from where first.
fn fitted(mut headers: Vec<(String, String)>) -> Vec<(String, String)> {
    let mut room = MAX_HEADERS_BYTES;
    headers.sort_by_key(|(name, _)| name != DEAD_LETTER_REASON && name != DEAD_LETTER_TOPIC);
    headers.retain_mut(|(name, value)| {
        value.truncate(value.floor_char_boundary(DEAD_LETTER_HEADER_BYTES));
        let size = name.len() + value.len();
        let fits = size <= room && ShortString::try_new(name.as_str()).is_ok();
        room -= if fits { size } else { 0 };
        fits
    });
    headers
}

/// Translates a delivery. Headers that are not text are left out.
pub(crate) fn received(delivery: lapin::message::Delivery, tag: DeliveryTag) -> Delivery {
    let properties = &delivery.properties;
    let text = |value: &Option<ShortString>| value.as_ref().map(ToString::to_string);
    let headers = properties
        .headers()
        .iter()
        .flat_map(FieldTable::inner)
        .filter_map(|(name, value)| {
            let value = match value {
                AMQPValue::LongString(value) => std::str::from_utf8(value.as_bytes()).ok()?,
                AMQPValue::ShortString(value) => value.as_str(),
                _ => return None,
            };
            Some((name.to_string(), value.to_owned()))
        });
    Delivery {
        tag,
        message_id: text(properties.message_id()),
        reply_to: text(properties.reply_to()),
        redelivered: delivery.redelivered,
        user_id: text(properties.user_id()),
        headers: headers.collect(),
        body: Bytes::from(delivery.data),
    }
}

#[cfg(test)]
mod tests {
    use attune_core::{OwnerId, PartitionId, WorkerId};

    use super::*;
    use crate::options::RabbitOptions;

    fn prepared(message: Outgoing, max_bytes: usize) -> Result<Prepared, String> {
        let topology = Topology::of(&RabbitOptions::new("amqp://127.0.0.1"));
        prepare(&topology, message, max_bytes).map_err(|refusal| refusal.to_string())
    }

    fn message(topic: Topic, body: usize) -> Outgoing {
        Outgoing::new(topic, Uuid::now_v7(), vec![0; body])
    }

    #[test]
    fn what_must_be_kept_is_persistent_and_what_must_arrive_is_mandatory() {
        let id = Uuid::from_u128(7).to_string();
        for (topic, exchange, key, mandatory, mode) in [
            (
                Topic::Completed,
                "attune.executions",
                "execution.completed",
                true,
                2,
            ),
            (
                Topic::CompletedKept,
                "attune.executions",
                "execution.completed.kept",
                true,
                1,
            ),
            (
                Topic::Calls(PartitionId(3)),
                "attune.executions",
                "partition.03.calls",
                true,
                1,
            ),
            (
                Topic::ControlKept(PartitionId(3)),
                "attune.executions",
                "partition.03.control.kept",
                true,
                1,
            ),
            (Topic::Hello, "attune.executions", "worker.hello", false, 1),
            (Topic::Reply("there".to_owned()), "", "there", false, 1),
            (
                Topic::link("default", WorkerId(Uuid::from_u128(7))),
                "attune.lives",
                &format!("default.{id}"),
                true,
                1,
            ),
            (
                Topic::Reports(OwnerId(Uuid::from_u128(7))),
                "attune.reports",
                &id,
                true,
                1,
            ),
            (
                Topic::DeadLetters,
                "attune.dead-letters",
                "dead-letters",
                true,
                2,
            ),
        ] {
            let prepared = prepared(message(topic, 3), 3).unwrap();
            assert_eq!(prepared.exchange.as_str(), exchange);
            assert_eq!(prepared.routing_key.as_str(), key);
            assert_eq!(prepared.mandatory, mandatory);
            assert_eq!(prepared.properties.delivery_mode(), &Some(mode));
            let id = prepared.properties.message_id().as_ref().unwrap();
            assert_eq!(id.as_str(), prepared.id.to_string());
        }
    }

    #[test]
    fn what_the_protocol_cannot_carry_is_refused() {
        let too_large = prepared(message(Topic::Completed, 11), 10).unwrap_err();
        assert!(too_large.contains("11 bytes"), "{too_large}");
        let mut long_address = message(Topic::Completed, 1);
        long_address.reply_to = Some("a".repeat(256));
        assert!(prepared(long_address, 10).unwrap_err().contains("256"));
        let mut long_name = message(Topic::Completed, 1);
        long_name.headers = vec![("n".repeat(256), String::new())];
        assert!(prepared(long_name, 10).unwrap_err().contains("256"));
        let mut heavy = message(Topic::Completed, 1);
        heavy.headers = vec![("n".to_owned(), "v".repeat(MAX_HEADERS_BYTES))];
        assert!(prepared(heavy, 10).unwrap_err().contains("headers"));
        let nowhere = message(Topic::Reply("a".repeat(256)), 1);
        assert!(prepared(nowhere, 10).unwrap_err().contains("cannot be"));
    }

    #[test]
    fn a_dead_letter_can_always_be_sent_and_keeps_its_reason() {
        let mut letter = message(Topic::DeadLetters, 11);
        letter.headers = (0..20)
            .map(|n| (format!("h{n}"), "ä".repeat(6_000)))
            .collect();
        letter
            .headers
            .push(("n".repeat(256), "unusable".to_owned()));
        letter
            .headers
            .push((DEAD_LETTER_REASON.to_owned(), "why ".repeat(10_000)));
        letter
            .headers
            .push((DEAD_LETTER_TOPIC.to_owned(), "from.where".to_owned()));
        let prepared = prepared(letter, 10).unwrap();
        let headers = prepared.properties.headers().as_ref().unwrap().inner();
        let size = |name: &str| match headers.get(name) {
            Some(AMQPValue::LongString(value)) => value.len(),
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(size(DEAD_LETTER_REASON), DEAD_LETTER_HEADER_BYTES);
        assert_eq!(size(DEAD_LETTER_TOPIC), "from.where".len());
        assert_eq!(size("h0"), DEAD_LETTER_HEADER_BYTES);
        assert!(
            headers.len() < 10,
            "the rest did not fit: {}",
            headers.len()
        );
    }

    #[test]
    fn a_delivery_keeps_what_is_text() {
        let mut headers = FieldTable::default();
        headers.insert("long".into(), AMQPValue::LongString("a".into()));
        headers.insert("short".into(), AMQPValue::ShortString("b".into()));
        headers.insert("bytes".into(), AMQPValue::LongString(vec![0xff].into()));
        headers.insert("number".into(), AMQPValue::LongLongInt(1));
        let mut delivery =
            lapin::message::Delivery::mock(7, "e".into(), "k".into(), true, b"body".to_vec());
        delivery.properties = BasicProperties::default()
            .with_headers(headers)
            .with_user_id("somebody".into())
            .with_reply_to("there".into());
        let tag = DeliveryTag {
            generation: 2,
            number: 7,
        };
        let delivery = received(delivery, tag);
        assert_eq!(delivery.tag, tag);
        assert_eq!(&delivery.body[..], b"body");
        assert!(delivery.redelivered);
        assert_eq!(delivery.message_id, None);
        assert_eq!(delivery.user_id.as_deref(), Some("somebody"));
        assert_eq!(delivery.reply_to.as_deref(), Some("there"));
        let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        assert_eq!(delivery.headers, [("long", "a"), ("short", "b")].map(text));
    }
}
