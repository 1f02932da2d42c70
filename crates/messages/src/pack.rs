//! How much fits into one message: exact, in items and in encoded bytes.
//!
//! A broker's cost is per message, so whoever sends packs what is ready at that moment. A message
//! above its bound is refused, and with it all that it holds; so the size of a message is known
//! here before it is written.

use std::marker::PhantomData;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::envelope::{Message, encode_payload};
use crate::traces::Traces;

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
/// ids and times are always written alike. A sender asks for it often, so it is added up and not
/// written each time.
fn frame_bytes<M: Message>() -> usize {
    const FRAME: &str = concat!(
        r#"{"message_id":"00000000-0000-0000-0000-000000000000","message_type":"","version":,"#,
        r#""timestamp":"1970-01-01T00:00:00.000000Z","payload":}"#
    );
    FRAME.len() + M::TYPE.len() + (M::VERSION.checked_ilog10().unwrap_or(0) + 1) as usize
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
    /// The items as they are written, with commas between them: one buffer for all of them.
    payload: Vec<u8>,
    tags: Vec<T>,
    message: PhantomData<fn() -> M>,
}

impl<M: Message, T> Pack<M, T> {
    /// Writes the message.
    pub fn encode(&self, message_id: Uuid, now: DateTime<Utc>) -> Vec<u8> {
        let traces = Traces::default();
        encode_payload::<M>((message_id, now), self.tags.len(), &self.payload, &traces)
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
    /// The item that is being added.
    item: Vec<u8>,
}

impl<M: Message, T> Packer<M, T> {
    /// No message yet.
    pub fn new(bounds: PackBounds) -> Self {
        Self {
            size: PackSize::of::<M>(bounds),
            packs: Vec::new(),
            item: Vec::new(),
        }
    }

    /// Adds an item.
    ///
    /// # Errors
    /// [`ItemTooLarge`], with what is remembered of it, when no message can hold it.
    ///
    /// # Panics
    /// When the item cannot be written as JSON, which no message type allows.
    pub fn add(&mut self, item: &M, tag: T) -> Result<(), (ItemTooLarge, T)> {
        self.item.clear();
        serde_json::to_writer(&mut self.item, item)
            .expect("messages have string keys and finite numbers");
        let bytes = self.item.len();
        let fits = match self.size.add(bytes) {
            Ok(fits) => fits,
            Err(too_large) => return Err((too_large, tag)),
        };
        if !fits {
            self.size.clear();
            // It has been judged above; alone it always fits.
            self.size.add(bytes).ok();
        }
        let open = if fits { self.packs.last_mut() } else { None };
        match open {
            Some(pack) => {
                pack.payload.push(b',');
                pack.payload.extend_from_slice(&self.item);
                pack.tags.push(tag);
            }
            None => self.packs.push(Pack {
                payload: self.item.clone(),
                tags: vec![tag],
                message: PhantomData,
            }),
        }
        Ok(())
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
    use crate::envelope::encode;
    use crate::v1::{ActionChanged, SlotRelease};
    use crate::v2::Section;

    /// An item that takes so many bytes when it is written.
    #[derive(Debug, serde::Serialize, serde::Deserialize)]
    struct Sized(String);

    impl Message for Sized {
        const TYPE: &'static str = "Sized";
        const VERSION: u32 = 12;
    }

    fn sized(bytes: usize) -> Sized {
        Sized("x".repeat(bytes - 2))
    }

    fn packs(bounds: PackBounds, sizes: &[usize]) -> Vec<Vec<usize>> {
        let mut packer = Packer::<Sized, usize>::new(bounds);
        for &size in sizes {
            packer.add(&sized(size), size).unwrap();
        }
        packer.finish().into_iter().map(Pack::into_tags).collect()
    }

    #[test]
    fn a_frame_is_as_long_as_it_is_added_up_to_be() {
        fn written<M: Message>() -> usize {
            encode::<M>(Uuid::nil(), Utc::now(), &[]).len() - "[]".len()
        }
        assert_eq!(frame_bytes::<Sized>(), written::<Sized>());
        assert_eq!(frame_bytes::<SlotRelease>(), written::<SlotRelease>());
        assert_eq!(frame_bytes::<Section>(), written::<Section>());
        assert_eq!(frame_bytes::<ActionChanged>(), written::<ActionChanged>());
    }

    #[test]
    fn a_pack_is_written_as_its_items_are() {
        let (id, now) = (Uuid::now_v7(), Utc::now());
        for count in 1..4 {
            let items: Vec<Sized> = (0..count).map(|n| sized(5 + n)).collect();
            let mut packer = Packer::new(PackBounds::new(10, 10_000));
            for item in &items {
                packer.add(item, ()).unwrap();
            }
            let packs = packer.finish();
            assert_eq!(packs.len(), 1);
            assert_eq!(packs[0].encode(id, now), encode(id, now, &items));
        }
    }

    #[test]
    fn items_bytes_and_the_bound_of_the_bus_hold_to_the_byte() {
        let frame = frame_bytes::<Sized>();
        assert_eq!(message_bytes::<Sized>(10), frame + 10);
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
        let mut packer = Packer::<Sized, &str>::new(goal);
        packer.add(&sized(10), "first").unwrap();
        let (error, tag) = packer.add(&sized(101), "large").unwrap_err();
        let (bytes, max) = (frame + 101, frame + 100);
        assert_eq!((error, tag), (ItemTooLarge { bytes, max }, "large"));
        packer.add(&sized(10), "second").unwrap();
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
            let max = frame_bytes::<Sized>() + room;
            let bounds = PackBounds::new(items, max);
            let mut packer = Packer::<Sized, usize>::new(bounds);
            for &size in &sizes {
                packer.add(&sized(size), size).unwrap();
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
