//! Wire messages of Attune: versioned envelopes, codecs and golden files.
//!
//! Every message is a JSON [`Envelope`]; its payload is one item or a batch of items of one
//! [`Message`] type. Types live in versioned modules, old versions stay readable, and
//! `golden/` holds one file per type and version that must decode for ever.

pub mod copies;
pub mod envelope;
pub mod pack;
pub mod reply;
pub mod traces;
pub mod v1;
pub mod v2;

pub use copies::{Copies, Headers, MessageCopy, TIMES_BACK, lasting_id};
pub use envelope::{
    DecodeError, Envelope, Message, decode, decode_batch, encode, encode_raw, encode_traced, words,
};
pub use pack::{ItemTooLarge, Pack, PackBounds, PackSize, Packer, message_bytes};
pub use reply::{PUT_BACK, reply_address};
pub use traces::Traces;
