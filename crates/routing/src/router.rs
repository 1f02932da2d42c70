//! Takes messages apart: what goes to which partition, and what is a dead letter.

use attune_core::PartitionId;
use attune_messages::{Message, PackBounds, PackSize, encode_raw, lasting_id};
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

/// How many items of one message that cannot be used have a dead letter each.
const LETTERS: usize = 16;

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

    pub(crate) fn rules(&self) -> &R {
        &self.rules
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
        let mut parts = Vec::new();
        let mut refused = Vec::new();
        for item in items {
            match item {
                Item::Forward {
                    to,
                    item,
                    note,
                    changed,
                } => {
                    changed_count += usize::from(changed);
                    parts.push(Part::Item(to, item, note));
                }
                // As it came, so that it is no larger than it was.
                Item::Refuse { reason, .. } if received == 1 => {
                    let letter = Letter::of(id, arrived.body.clone(), reason);
                    parts.push(Part::Letter(letter));
                }
                Item::Refuse { item, reason } => refused.push((item, reason)),
            }
        }
        // The first of them each in a letter of its own, the rest together: a message of a megabyte can have
        // hundreds of thousands of items, and each letter has a body, a row and a place in memory.
        let rest = refused.split_off(refused.len().min(LETTERS));
        for item in refused {
            parts.push(Part::Letter(self.letter(id, wall, &[item])));
        }
        for items in packs::<R::In>(&rest, self.max_bytes) {
            parts.push(Part::Letter(self.letter(id, wall, items)));
        }
        Routed {
            parts,
            received,
            changed: changed_count,
        }
    }

    /// One letter of items of a message that were refused, at least one; the reason of the first stands for all.
    fn letter(
        &mut self,
        id: Uuid,
        wall: DateTime<Utc>,
        items: &[(Box<RawValue>, String)],
    ) -> Letter {
        let texts: Vec<&RawValue> = items.iter().map(|(item, _)| &**item).collect();
        let joined: Vec<&str> = texts.iter().map(|item| item.get()).collect();
        let reason = items.first().map_or("", |(_, reason)| reason);
        let reason = match items.len() - 1 {
            0 => reason.to_owned(),
            more => format!("{reason}; with {more} more items of its message that cannot be used"),
        };
        Letter {
            message_id: letter_id(id, joined.join(",").as_bytes()),
            body: encode_raw::<R::In>((self.ids)(), wall, &texts).into(),
            reason,
        }
    }
}

/// The items as messages of at most so many bytes can hold them.
fn packs<M: Message>(
    items: &[(Box<RawValue>, String)],
    max_bytes: usize,
) -> impl Iterator<Item = &[(Box<RawValue>, String)]> {
    let bytes = |(item, _): &(Box<RawValue>, String)| item.get().len();
    let mut size = PackSize::of::<M>(PackBounds::new(usize::MAX, max_bytes));
    let mut add = move |bytes| {
        let fits = size.add(bytes).unwrap_or(false);
        if !fits {
            // The next message begins with it.
            size.clear();
            size.add(bytes).ok();
        }
        fits
    };
    if let Some(first) = items.first() {
        add(bytes(first));
    }
    items.chunk_by(move |_, next| add(bytes(next)))
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
