//! Messages between the shapes of the bus and of the relay.

use attune_bus::letters::SENDER;
use attune_bus::{Delivery, DeliveryTag, Outgoing, PublishError, Topic, letter};
use attune_core::PartitionId;
use attune_routing::{Answer, Arrived, DeliveryId, Message, Target};

/// Which topics the targets of a relay are.
#[derive(Debug, Clone)]
pub(crate) struct Topics {
    /// From where messages come.
    pub(crate) source: Topic,
    /// Where those for a partition go.
    pub(crate) partition: fn(PartitionId) -> Topic,
}

impl Topics {
    pub(crate) fn of(&self, target: Target) -> Topic {
        match target {
            Target::Partition(partition) => (self.partition)(partition),
            Target::Letters => Topic::DeadLetters,
            Target::Back => self.source.clone(),
        }
    }

    pub(crate) fn outgoing(&self, target: Target, message: Message) -> Outgoing {
        let Message {
            message_id,
            body,
            reply_to,
            headers,
            reason,
        } = message;
        if let Some(reason) = reason {
            let from = Delivery {
                tag: DeliveryTag {
                    generation: 0,
                    number: 0,
                },
                body: body.clone(),
                message_id: None,
                reply_to: None,
                redelivered: false,
                // Of the header it is known where it comes from.
                user_id: headers
                    .iter()
                    .find_map(|(name, user)| (name == SENDER).then(|| user.clone())),
                headers,
            };
            let mut letter = letter(&self.source, &from, body, &reason);
            letter.message_id = message_id;
            return letter;
        }
        Outgoing {
            topic: self.of(target),
            message_id,
            body,
            reply_to,
            headers,
        }
    }
}

/// A message as the relay knows it. Who had sent it goes with it wherever it goes, in a header: whoever sends
/// it on is another user to the broker.
pub(crate) fn arrived(id: DeliveryId, delivery: Delivery, own: Option<&str>) -> Arrived {
    let mut headers = delivery.headers;
    let said = headers.iter().find(|(name, _)| name == SENDER);
    let said = said.map(|(_, user)| user.clone());
    headers.retain(|(name, _)| name != SENDER);
    let user = match delivery.user_id {
        Some(user) if Some(&*user) == own => said.or(Some(user)),
        user => user,
    };
    if let Some(user) = &user {
        headers.push((SENDER.to_owned(), user.clone()));
    }
    Arrived {
        id,
        body: delivery.body,
        message_id: delivery.message_id,
        reply_to: delivery.reply_to,
        user,
        headers,
    }
}

pub(crate) fn answer(published: Result<(), PublishError>) -> Answer {
    match published {
        Ok(()) => Answer::Confirmed,
        Err(PublishError::Refused(refused)) => {
            let refused = refused.into_iter();
            Answer::Refused(refused.map(|one| (one.message_id, one.why)).collect())
        }
        Err(PublishError::Unconfirmed(_)) => Answer::Unknown,
        Err(PublishError::Closed) => Answer::Closed,
    }
}
