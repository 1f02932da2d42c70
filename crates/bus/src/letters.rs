//! Messages that could not be used: what is said of them, and by whom.

use bytes::Bytes;
use uuid::Uuid;

use crate::port::{Bus, Delivery, Outgoing, PublishError, Settler, Topic};

/// The header that says why a message is among the dead letters.
pub const DEAD_LETTER_REASON: &str = "x-attune-reason";
/// The header that says where it came from.
pub const DEAD_LETTER_TOPIC: &str = "x-attune-topic";

/// The header in which who puts a message back says who had sent it: the broker vouches for the one who puts
/// it back, or keeps it among the dead letters: the broker vouches for the one who does that. It counts only
/// from oneself, and on dead letters, which only parts of a system may write.
pub const SENDER: &str = "x-attune-user";

/// The header in which a broker that gives a message up by itself says why.
pub const BROKERS_REASON: &str = "x-first-death-reason";
/// The header in which a broker that gives a message up by itself says of which queue.
pub const BROKERS_QUEUE: &str = "x-first-death-queue";
/// What dead letters are judged by.
const DEAD_LETTER_HEADERS: [&str; 5] = [
    SENDER,
    DEAD_LETTER_REASON,
    DEAD_LETTER_TOPIC,
    BROKERS_REASON,
    BROKERS_QUEUE,
];

/// The message that [`dead_letter`] publishes, for callers that publish it together with others:
/// `body` is what could not be used of a delivery from `topic`, and `reason` says why.
pub fn letter(
    topic: &Topic,
    delivery: &Delivery,
    body: impl Into<Bytes>,
    reason: &str,
) -> Outgoing {
    let mut headers = delivery.headers.clone();
    // Whoever sent it may have set these; they are ours, and the broker's.
    headers.retain(|(name, _)| !DEAD_LETTER_HEADERS.contains(&name.as_str()));
    headers.push((DEAD_LETTER_REASON.to_owned(), reason.to_owned()));
    headers.push((DEAD_LETTER_TOPIC.to_owned(), topic.to_string()));
    headers.extend(
        delivery
            .user_id
            .clone()
            .map(|user| (SENDER.to_owned(), user)),
    );
    Outgoing {
        topic: Topic::DeadLetters,
        message_id: Uuid::now_v7(),
        body: body.into(),
        reply_to: None,
        headers,
    }
}

/// Puts a delivery among the dead letters with a reason, then acknowledges it. When the dead
/// letters cannot be reached it stays unacknowledged, so that it comes again.
///
/// # Errors
/// When the dead letters cannot be reached.
pub async fn dead_letter(
    bus: &dyn Bus,
    settler: &Settler,
    topic: &Topic,
    delivery: &Delivery,
    reason: &str,
) -> Result<(), PublishError> {
    let letter = letter(topic, delivery, delivery.body.clone(), reason);
    bus.publish(vec![letter]).await?;
    settler.ack(&[delivery.tag]).await;
    Ok(())
}

impl Delivery {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers.find_map(|(key, value)| (key == name).then_some(value.as_str()))
    }

    /// The queue that gave it up, where the broker has moved it here from another one. Its user is that of whoever
    /// sent it there.
    pub fn moved_from(&self) -> Option<&str> {
        self.header(BROKERS_QUEUE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::DeliveryTag;

    #[test]
    fn a_letter_says_nothing_that_its_sender_wrote_in_our_name() {
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut headers: Vec<_> = DEAD_LETTER_HEADERS
            .map(|name| header(name, "forged"))
            .into();
        headers.push(header("trace", "7"));
        let delivery = Delivery {
            tag: DeliveryTag {
                generation: 1,
                number: 1,
            },
            body: Bytes::new(),
            message_id: None,
            reply_to: None,
            redelivered: false,
            user_id: None,
            headers,
        };
        let letter = letter(&Topic::Completed, &delivery, "", "why");
        let expected = [
            header("trace", "7"),
            header(DEAD_LETTER_REASON, "why"),
            header(DEAD_LETTER_TOPIC, "execution.completed"),
        ];
        assert_eq!(letter.headers, expected);
    }
}
