//! How much fits into one message: exact, in items and in encoded bytes.
//!
//! A broker's cost is per message, so whoever sends packs what is ready at that moment. A message
//! above its bound is refused, and with it all that it holds; so the size of a message is known
//! here before it is written.

use std::marker::PhantomData;

use chrono::{DateTime, Utc};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::envelope::{Message, encode_raw};

/// Bounds of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackBounds {
    /// Items, at most; 0 counts as 1.
    pub items: usize,
    /// Bytes of the encoded message that a pack is filled to. An item that is larger goes alone.
    pub bytes: usize,
    /// Bytes of the encoded message, at most, as the bus carries them; no item may exceed it.
    pub max_bytes: usize,
}

impl PackBounds {
    /// Messages that may be filled as far as the bus allows.
    pub fn new(items: usize, max_bytes: usize) -> Self {
        Self {
            items,
            bytes: max_bytes,
            max_bytes,
        }
    }
}

/// An item that no message can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it would be a message of {bytes} bytes; at most {max} are allowed")]
pub struct ItemTooLarge {
    /// What a message with this item alone would take, in bytes.
    pub bytes: usize,
    /// What it may take.
    pub max: usize,
}

/// What a message of `M` takes with one item of so many bytes.
pub fn message_bytes<M: Message>(item_bytes: usize) -> usize {
    frame_bytes::<M>() + item_bytes
}

/// What the envelope takes around the payload. Every part of it has a fixed length for one type:
/// ids and times are always written alike.
fn frame_bytes<M: Message>() -> usize {
    const EMPTY: &str = "null";
    let payload = RawValue::from_string(EMPTY.to_owned()).expect("`null` is JSON");
    encode_raw::<M>(Uuid::nil(), DateTime::UNIX_EPOCH, &[&payload]).len() - EMPTY.len()
}

/// The size of one message while it is being filled.
#[derive(Debug, Clone)]
pub struct PackSize {
    bounds: PackBounds,
    frame: usize,
    items: usize,
    /// Of the items, with the commas between them.
    payload: usize,
}

impl PackSize {
    /// An empty message of `M`.
    pub fn of<M: Message>(bounds: PackBounds) -> Self {
        Self {
            bounds,
            frame: frame_bytes::<M>(),
            items: 0,
            payload: 0,
        }
    }

    /// Adds an item of so many bytes if the message can hold it as well; the first goes in as
    /// long as the bus carries it.
    ///
    /// # Errors
    /// [`ItemTooLarge`] when no message can hold it.
    pub fn add(&mut self, item_bytes: usize) -> Result<bool, ItemTooLarge> {
        let (alone, max) = (self.frame + item_bytes, self.bounds.max_bytes);
        if alone > max {
            return Err(ItemTooLarge { bytes: alone, max });
        }
        let payload = self.payload + usize::from(self.items > 0) + item_bytes;
        // Several items are an array.
        let with_it = self.frame + payload + 2;
        let fits = self.items == 0
            || (self.items < self.bounds.items && with_it <= self.bounds.bytes.min(max));
        if fits {
            self.items += 1;
            self.payload = payload;
        }
        Ok(fits)
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.items = 0;
        self.payload = 0;
    }
}

/// The items of one message, each with what its sender wants to remember of it.
#[derive(Debug)]
pub struct Pack<M, T = ()> {
    items: Vec<Box<RawValue>>,
    tags: Vec<T>,
    message: PhantomData<fn() -> M>,
}

impl<M: Message, T> Pack<M, T> {
    /// Writes the message.
    pub fn encode(&self, message_id: Uuid, now: DateTime<Utc>) -> Vec<u8> {
        let items: Vec<&RawValue> = self.items.iter().map(Box::as_ref).collect();
        encode_raw::<M>(message_id, now, &items)
    }

    /// What is remembered of the items, in their order; never empty.
    pub fn tags(&self) -> &[T] {
        &self.tags
    }

    /// The same, when the items are needed no more.
    pub fn into_tags(self) -> Vec<T> {
        self.tags
    }
}

/// Fills messages of one type one after the other, in the order in which items are added.
#[derive(Debug)]
pub struct Packer<M, T = ()> {
    size: PackSize,
    packs: Vec<Pack<M, T>>,
}

impl<M: Message, T> Packer<M, T> {
    /// No message yet.
    pub fn new(bounds: PackBounds) -> Self {
        Self {
            size: PackSize::of::<M>(bounds),
            packs: Vec::new(),
        }
    }

    /// Adds an item that is encoded already.
    ///
    /// # Errors
    /// [`ItemTooLarge`], with what is remembered of it, when no message can hold it.
    pub fn add_raw(&mut self, item: Box<RawValue>, tag: T) -> Result<(), (ItemTooLarge, T)> {
        let bytes = item.get().len();
        let fits = match self.size.add(bytes) {
            Ok(fits) => fits,
            Err(too_large) => return Err((too_large, tag)),
        };
        if !fits {
            self.size.clear();
        }
        let open = if fits { self.packs.last_mut() } else { None };
        match open {
            Some(pack) => {
                pack.items.push(item);
                pack.tags.push(tag);
            }
            None => {
                if !fits {
                    // It has been judged above; alone it always fits.
                    self.size.add(bytes).ok();
                }
                self.packs.push(Pack {
                    items: vec![item],
                    tags: vec![tag],
                    message: PhantomData,
                });
            }
        }
        Ok(())
    }

    /// Adds an item.
    ///
    /// # Errors
    /// See [`add_raw`](Self::add_raw).
    ///
    /// # Panics
    /// When the item cannot be written as JSON, which no message type allows.
    pub fn add(&mut self, item: &M, tag: T) -> Result<(), (ItemTooLarge, T)> {
        let item = serde_json::value::to_raw_value(item)
            .expect("messages have string keys and finite numbers");
        self.add_raw(item, tag)
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.packs.is_empty()
    }

    /// The messages, none of them empty.
    pub fn finish(self) -> Vec<Pack<M, T>> {
        self.packs
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    use super::*;
    use crate::v1::{ActionChanged, SlotRelease};

    fn raw(bytes: usize) -> Box<RawValue> {
        RawValue::from_string(format!("\"{}\"", "x".repeat(bytes - 2))).unwrap()
    }

    fn packs(bounds: PackBounds, sizes: &[usize]) -> Vec<Vec<usize>> {
        let mut packer = Packer::<SlotRelease, usize>::new(bounds);
        for &size in sizes {
            packer.add_raw(raw(size), size).unwrap();
        }
        packer.finish().into_iter().map(Pack::into_tags).collect()
    }

    #[test]
    fn items_bytes_and_the_bound_of_the_bus_hold_to_the_byte() {
        let frame = frame_bytes::<SlotRelease>();
        assert_eq!(message_bytes::<SlotRelease>(10), frame + 10);
        let bounds = |items, bytes, max_bytes| PackBounds {
            items,
            bytes,
            max_bytes,
        };
        let many = bounds(2, 10_000, 10_000);
        assert_eq!(packs(many, &[5, 6, 7]), [vec![5, 6], vec![7]]);
        // Two items take a comma and two brackets.
        let exact = PackBounds::new(100, frame + 203);
        assert_eq!(packs(exact, &[100, 100]), [[100, 100]]);
        let short = PackBounds::new(100, frame + 202);
        assert_eq!(packs(short, &[100, 100]), [[100], [100]]);
        // Larger than a pack is filled to, and not too large.
        let goal = bounds(100, frame + 50, frame + 100);
        assert_eq!(packs(goal, &[10, 100, 10]), [[10], [100], [10]]);
        let mut packer = Packer::<SlotRelease, &str>::new(goal);
        packer.add_raw(raw(10), "first").unwrap();
        let (error, tag) = packer.add_raw(raw(101), "large").unwrap_err();
        let (bytes, max) = (frame + 101, frame + 100);
        assert_eq!((error, tag), (ItemTooLarge { bytes, max }, "large"));
        packer.add_raw(raw(10), "second").unwrap();
        let packs = packer.finish();
        assert_eq!(packs.len(), 1);
        assert_eq!(packs[0].tags(), ["first", "second"]);
    }

    proptest! {
        #[test]
        fn no_message_exceeds_its_bound_and_none_could_hold_more(
            sizes in prop::collection::vec(2_usize..400, 0..60),
            items in 0_usize..9,
            room in 400_usize..1500,
        ) {
            let max = frame_bytes::<ActionChanged>() + room;
            let bounds = PackBounds::new(items, max);
            let mut packer = Packer::<ActionChanged, usize>::new(bounds);
            for &size in &sizes {
                packer.add_raw(raw(size), size).unwrap();
            }
            let packs = packer.finish();
            let mut seen = Vec::new();
            let mut before: Option<(usize, usize)> = None;
            for pack in &packs {
                let bytes = pack.encode(Uuid::now_v7(), Utc::now()).len();
                let count = pack.tags().len();
                prop_assert!(bytes <= max && count <= items.max(1));
                if let Some((bytes, count)) = before {
                    let brackets = if count == 1 { 2 } else { 0 };
                    let full = bytes + brackets + 1 + pack.tags()[0] > max;
                    prop_assert!(full || count == items.max(1));
                }
                before = Some((bytes, count));
                seen.extend_from_slice(pack.tags());
            }
            prop_assert_eq!(seen, sizes);
        }
    }
}
