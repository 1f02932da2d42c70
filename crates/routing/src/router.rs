//! Takes messages apart: what goes to which partition, and what is a dead letter.

use attune_core::PartitionId;
use attune_messages::{encode_raw, lasting_id};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::port::Arrived;
use crate::rules::{Item, Read, Rules};

/// Makes the ids of messages.
pub(crate) type Ids = Box<dyn FnMut() -> Uuid + Send>;

/// What a message leads to.
pub(crate) struct Routed<N> {
    pub(crate) parts: Vec<Part<N>>,
    pub(crate) received: usize,
    pub(crate) changed: usize,
}

/// A part of a message that goes somewhere.
pub(crate) enum Part<N> {
    Item(PartitionId, Box<RawValue>, N),
    Letter(Letter),
    /// The message waits for a newer program.
    Newer(Uuid),
}

/// A dead letter to be.
pub(crate) struct Letter {
    pub(crate) message_id: Uuid,
    pub(crate) body: Bytes,
    pub(crate) reason: String,
}

impl Letter {
    pub(crate) fn of(id: Uuid, body: Bytes, reason: String) -> Self {
        Self {
            message_id: letter_id(id, &body),
            body,
            reason,
        }
    }
}

/// The id of a dead letter follows from that of its message and from what is in it: a message that
/// comes twice has one letter, and two that were sent under one id have two.
fn letter_id(message_id: Uuid, body: &[u8]) -> Uuid {
    Uuid::new_v5(&message_id, body)
}

/// Decides what to do with each message.
pub(crate) struct Router<R> {
    rules: R,
    max_bytes: usize,
    ids: Ids,
}

impl<R: Rules> Router<R> {
    pub(crate) fn new(rules: R, max_bytes: usize, ids: Ids) -> Self {
        Self {
            rules,
            max_bytes,
            ids,
        }
    }

    pub(crate) fn ids(&mut self) -> &mut Ids {
        &mut self.ids
    }

    pub(crate) fn route(&mut self, wall: DateTime<Utc>, arrived: &Arrived) -> Routed<R::Note> {
        let own = arrived.message_id.as_deref();
        let id = own.and_then(|id| id.parse().ok());
        let id = id.unwrap_or_else(|| (self.ids)());
        let items = match self.rules.read(arrived, self.max_bytes) {
            Read::Newer => return Routed::of(Part::Newer(lasting_id(own, &arrived.body)), 0),
            Read::Garbage(reason) => {
                let letter = Letter::of(id, arrived.body.clone(), reason);
                return Routed::of(Part::Letter(letter), 1);
            }
            Read::Items(items) => items,
        };
        let (received, mut changed_count) = (items.len(), 0);
        let mut parts = Vec::with_capacity(received);
        for item in items {
            let part = match item {
                Item::Forward {
                    to,
                    item,
                    note,
                    changed,
                } => {
                    changed_count += usize::from(changed);
                    Part::Item(to, item, note)
                }
                // As it came, so that it is no larger than it was.
                Item::Refuse { reason, .. } if received == 1 => {
                    Part::Letter(Letter::of(id, arrived.body.clone(), reason))
                }
                Item::Refuse { item, reason } => {
                    let message_id = letter_id(id, item.get().as_bytes());
                    let body = encode_raw::<R::In>((self.ids)(), wall, &[&item]);
                    Part::Letter(Letter {
                        message_id,
                        body: body.into(),
                        reason,
                    })
                }
            };
            parts.push(part);
        }
        Routed {
            parts,
            received,
            changed: changed_count,
        }
    }
}

impl<N> Routed<N> {
    fn of(part: Part<N>, received: usize) -> Self {
        Self {
            parts: vec![part],
            received,
            changed: 0,
        }
    }
}
