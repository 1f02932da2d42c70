//! What is kept of a dead letter: pure.

use attune_bus::Delivery;
use attune_bus::letters::{
    BROKERS_QUEUE, BROKERS_REASON, DEAD_LETTER_REASON, DEAD_LETTER_TOPIC, SENDER,
};
use attune_core::RequestId;
use attune_messages::Envelope;
use attune_store::NewDeadLetter;

/// What is kept of a body that is no message, in bytes: enough to see what it is.
pub const GARBAGE_BYTES: usize = 4096;
/// What is kept of a reason or a source, in bytes.
const TEXT_BYTES: usize = 1024;

/// The row of a letter, as the bus delivered it. Bodies above `max_message_bytes` are cut like
/// garbage: nobody could read them when they came back.
pub fn row(delivery: &Delivery, max_message_bytes: usize) -> NewDeadLetter {
    let body = &delivery.body;
    let is_message = Envelope::parse(body, max_message_bytes).is_ok();
    let kept = match is_message {
        true => body.len(),
        false => body.len().min(GARBAGE_BYTES),
    };
    NewDeadLetter {
        message_id: message_id(delivery).0,
        reason: text(reason(delivery)),
        source: text(source(delivery)),
        body: body[..kept].to_vec(),
        bytes: body.len() as u64,
        sender: sender(delivery).map(text),
    }
}

/// By which a letter that comes again is known. What has no id has one by its content.
fn message_id(delivery: &Delivery) -> RequestId {
    match &delivery.message_id {
        Some(id) if !id.is_empty() => RequestId::from_key(id),
        _ => RequestId::from_key(&String::from_utf8_lossy(&delivery.body)),
    }
}

/// Why: in the words of the broker that gave it up, or of whoever did. What the broker says comes
/// first: the others are headers that whoever sent the message could have set, and a letter that
/// Attune makes carries none of the broker's.
fn reason(delivery: &Delivery) -> String {
    if let Some(reason) = delivery.header(BROKERS_REASON) {
        return format!("the broker moved it here: {reason}");
    }
    let reason = delivery.header(DEAD_LETTER_REASON);
    reason.unwrap_or("it does not say why").to_owned()
}

/// Who had sent it. What the broker moves here is the message as it was, with its user; a letter that Attune
/// makes is Attune's own, and names the user in a header.
fn sender(delivery: &Delivery) -> Option<String> {
    if delivery.header(BROKERS_REASON).is_some() {
        return delivery.user_id.clone();
    }
    delivery.header(SENDER).map(str::to_owned)
}

/// The routing key under which it arrived where it could not be used.
fn source(delivery: &Delivery) -> String {
    let Some(queue) = delivery.header(BROKERS_QUEUE) else {
        let topic = delivery.header(DEAD_LETTER_TOPIC);
        return topic.unwrap_or("unknown").to_owned();
    };
    // Before Attune's own name stands the prefix that an installation gives its queues.
    let own = queue.find("attune.").map_or(queue, |at| &queue[at..]);
    match own.strip_prefix("attune.") {
        Some("enforcements") => "enforcement.created".to_owned(),
        Some("completed") => "execution.completed".to_owned(),
        Some("completed.kept") => "execution.completed.kept".to_owned(),
        Some(rest) => match rest.strip_prefix("requested.") {
            Some(pool) => format!("execution.requested.{pool}"),
            None => rest.to_owned(),
        },
        None => queue.to_owned(),
    }
}

/// A text that every store can hold.
fn text(text: String) -> String {
    let mut text = text.replace('\0', "\u{fffd}");
    text.truncate(text.floor_char_boundary(TEXT_BYTES));
    text
}

#[cfg(test)]
mod tests {
    use attune_bus::DeliveryTag;
    use bytes::Bytes;
    use uuid::Uuid;

    use super::*;

    const MAX: usize = 10_000;

    fn delivery(body: impl Into<Vec<u8>>, headers: &[(&str, &str)]) -> Delivery {
        Delivery {
            tag: DeliveryTag {
                generation: 1,
                number: 1,
            },
            body: Bytes::from(body.into()),
            message_id: Some(Uuid::nil().to_string()),
            reply_to: None,
            redelivered: false,
            user_id: None,
            headers: headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        }
    }

    fn message(payload_bytes: usize) -> String {
        let payload = "x".repeat(payload_bytes);
        format!(
            r#"{{"message_id":"00000000-0000-0000-0000-000000000007","message_type":"t","version":1,"timestamp":"2026-01-02T03:04:05Z","payload":"{payload}"}}"#
        )
    }

    #[test]
    fn a_message_is_kept_whole_and_garbage_keeps_its_beginning() {
        let whole = row(&delivery(message(6_000), &[]), MAX);
        assert_eq!(whole.bytes, whole.body.len() as u64);
        assert_eq!(whole.body, message(6_000).as_bytes());
        for garbage in [vec![0xff; 6_000], message(MAX).into_bytes()] {
            let cut = row(&delivery(garbage.clone(), &[]), MAX);
            assert_eq!(cut.body, garbage[..GARBAGE_BYTES]);
            assert_eq!(cut.bytes, garbage.len() as u64);
        }
        let short = row(&delivery("no message", &[]), MAX);
        assert_eq!((short.body.len(), short.bytes), (10, 10));
    }

    #[test]
    fn reason_and_source_are_those_of_whoever_gave_it_up() {
        let long = format!("a\0{}", "é".repeat(2_000));
        let own = [
            (DEAD_LETTER_REASON, &*long),
            (DEAD_LETTER_TOPIC, "queue.stats"),
        ];
        let kept = row(&delivery("", &own), MAX);
        assert!(kept.reason.starts_with("a\u{fffd}é") && kept.reason.len() <= TEXT_BYTES);
        assert_eq!(kept.source, "queue.stats");
        for (queue, source) in [
            ("attune.enforcements", "enforcement.created"),
            ("team-a.attune.completed", "execution.completed"),
            ("attune.completed.kept", "execution.completed.kept"),
            ("attune.partition.07.calls", "partition.07.calls"),
            ("attune.requested.gpu", "execution.requested.gpu"),
            ("p.attune.partition.07.control", "partition.07.control"),
            ("somebody-elses", "somebody-elses"),
        ] {
            let brokers = [
                ("x-first-death-queue", queue),
                ("x-first-death-reason", "delivery_limit"),
            ];
            let kept = row(&delivery("", &brokers), MAX);
            assert_eq!(kept.source, source);
            assert!(kept.reason.ends_with("delivery_limit"), "{}", kept.reason);
        }
        // Whoever publishes to a queue of ours could set these.
        let forged = [
            (DEAD_LETTER_REASON, "all is well"),
            (DEAD_LETTER_TOPIC, "enforcement.created"),
            (BROKERS_QUEUE, "attune.requested.gpu"),
            (BROKERS_REASON, "delivery_limit"),
        ];
        let kept = row(&delivery("", &forged), MAX);
        assert_eq!(kept.source, "execution.requested.gpu");
        assert!(kept.reason.ends_with("delivery_limit"), "{}", kept.reason);
        let bare = row(&delivery("", &[]), MAX);
        assert_eq!(bare.source, "unknown");
    }

    #[test]
    fn the_sender_is_whom_the_broker_vouches_for() {
        let own = [(SENDER, "shop"), (DEAD_LETTER_REASON, "no such action")];
        let mut made_by_us = delivery("", &own);
        made_by_us.user_id = Some("attune-executor".to_owned());
        assert_eq!(row(&made_by_us, MAX).sender.as_deref(), Some("shop"));
        // The broker moves what it was sent: the header is the sender's own.
        let moved = [(SENDER, "somebody-else"), (BROKERS_REASON, "maxlen")];
        let mut moved = delivery("", &moved);
        assert_eq!(row(&moved, MAX).sender, None);
        moved.user_id = Some("shop".to_owned());
        assert_eq!(row(&moved, MAX).sender.as_deref(), Some("shop"));
        assert_eq!(row(&delivery("", &[]), MAX).sender, None);
    }

    #[test]
    fn the_same_letter_has_the_same_id() {
        let mut first = delivery("same", &[]);
        assert_eq!(row(&first, MAX).message_id, Uuid::nil());
        first.message_id = None;
        let again = row(&first, MAX).message_id;
        assert_eq!(again, row(&first, MAX).message_id);
        first.message_id = Some("not-a-uuid".to_owned());
        assert_ne!(again, row(&first, MAX).message_id);
        first.message_id = None;
        first.body = Bytes::from_static(b"other");
        assert_ne!(again, row(&first, MAX).message_id);
    }
}
