//! Messages between the shapes of the bus and of the relay.

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
                user_id: None,
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

pub(crate) fn arrived(id: DeliveryId, delivery: Delivery) -> Arrived {
    Arrived {
        id,
        body: delivery.body,
        message_id: delivery.message_id,
        reply_to: delivery.reply_to,
        headers: delivery.headers,
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
