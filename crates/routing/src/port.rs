//! What a relay is told, and what it says.

use std::time::Duration;

use attune_core::{PartitionId, Refusal};
use attune_messages::PUT_BACK;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use uuid::Uuid;

/// Names a message that was received and waits to be acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryId(pub u64);

/// Names a call of publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// A message that was received.
#[derive(Debug, Clone)]
pub struct Arrived {
    /// By which it is acknowledged; no other message of this relay has the same.
    pub id: DeliveryId,
    /// The encoded envelope, as it came.
    pub body: Bytes,
    /// The message id among the properties, if the sender set one.
    pub message_id: Option<String>,
    /// Where answers go.
    pub reply_to: Option<String>,
    /// The user who sent it, as far as the broker vouches for it.
    pub user: Option<String>,
    /// Text headers.
    pub headers: Vec<(String, String)>,
}

impl Arrived {
    /// Whether it was among the dead letters, and somebody has put it back: as far as its sender can be believed.
    pub(crate) fn is_put_back(&self) -> bool {
        self.headers.iter().any(|(name, _)| name == PUT_BACK)
    }
}

/// Where a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// To the owner of a partition.
    Partition(PartitionId),
    /// Among the dead letters.
    Letters,
    /// To the end of the topic from which it came.
    Back,
}

/// A message to be published.
#[derive(Debug, Clone)]
pub struct Message {
    /// The same again when it is published again.
    pub message_id: Uuid,
    /// An encoded envelope, or garbage as it came.
    pub body: Bytes,
    /// Where answers go.
    pub reply_to: Option<String>,
    /// Headers that it came with.
    pub headers: Vec<(String, String)>,
    /// Of a dead letter: what is wrong with it.
    pub reason: Option<String>,
}

/// What became of a call of publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// All its messages are kept.
    Confirmed,
    /// These were refused, the others are kept.
    Refused(Vec<(Uuid, Refusal)>),
    /// Whether they are kept is not known.
    Unknown,
    /// The bus is closed: nothing can be published any more.
    Closed,
}

/// The moment of a step.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Since some start, by a clock that never steps back.
    pub elapsed: Duration,
    /// What messages are stamped with.
    pub wall: DateTime<Utc>,
}

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// These messages arrived, in this order.
    Delivered(Vec<Arrived>),
    /// What became of a publish.
    Answered(CallId, Answer),
    /// Time has passed.
    Timer,
    /// Nothing more shall be published: what is not confirmed comes again, to somebody else.
    Stop,
}

/// What is to be done, in this order. `N` is what the rules want to know again of an item.
#[derive(Debug)]
pub enum Output<N> {
    /// Count this: what was read. A message that cannot be read at all counts as one item.
    Taken {
        /// Items.
        received: usize,
        /// Of these, those that were changed so that they can be stored.
        changed: usize,
    },
    /// Count and record this: the bus has taken these items for their owners.
    Forwarded(Vec<N>),
    /// Count and record this: a dead letter is kept.
    Buried {
        /// Why it could not be used.
        reason: String,
    },
    /// Acknowledge these messages.
    Ack(Vec<DeliveryId>),
    /// Publish these messages to one target in one call and answer with its number.
    Publish {
        /// By which it is answered.
        call: CallId,
        /// Where they go.
        to: Target,
        /// Whether to declare the target first: nobody had.
        declare: bool,
        /// What to publish.
        messages: Vec<Message>,
    },
}
