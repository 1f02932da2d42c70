//! What is particular to one kind of message.

use attune_core::{PartitionId, TraceParent};
use attune_messages::Message;
use serde_json::value::RawValue;

use crate::port::Arrived;
use crate::senders::Senders;

/// What is in a message.
pub enum Read<N> {
    /// A newer program wrote it, and can read it.
    Newer,
    /// Nobody can use it, for this reason.
    Garbage(String),
    /// Items, at least one. Each stands for itself: one that cannot be used does not take the
    /// others with it.
    Items(Vec<Item<N>>),
}

/// An item of a message.
pub enum Item<N> {
    /// It goes to the owner of this partition.
    Forward {
        /// Which partition.
        to: PartitionId,
        /// The item as its owner reads it.
        item: Box<RawValue>,
        /// What is told of it when it is confirmed.
        note: N,
        /// Whether it had to be changed so that it can be stored.
        changed: bool,
    },
    /// It cannot be used.
    Refuse {
        /// The item as it came.
        item: Box<RawValue>,
        /// What is wrong with it.
        reason: String,
    },
}

/// Decides about messages of one kind, from what is in them alone.
pub trait Rules {
    /// What arrives.
    type In: Message;
    /// What owners are sent.
    type Out: Message;
    /// What is told of an item when it is confirmed.
    type Note;
    /// Whether the order in which items arrive must be kept within a partition.
    const ORDERED: bool;
    /// What the items are called, for operators.
    const NAME: &'static str;

    /// Who may say what.
    fn senders(&self) -> &Senders;

    /// Reads a message of at most `max_bytes`; what it forwards must fit into one of `max_bytes`.
    fn read(&self, arrived: &Arrived, max_bytes: usize) -> Read<Self::Note>;

    /// Of which trace an item is a part.
    fn trace(_note: &Self::Note) -> Option<TraceParent> {
        None
    }

    /// An item for an owner as it arrived, for the dead letters or the end of its topic.
    fn turn_back(item: &RawValue) -> Box<RawValue>;
}
