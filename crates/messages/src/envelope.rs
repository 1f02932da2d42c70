//! The frame around every message.

use std::borrow::Cow;
use std::fmt;

use attune_core::foreign::cut;
use chrono::{DateTime, SecondsFormat, Utc};
use serde::de::{DeserializeOwned, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::traces::Traces;

/// An item that travels in an [`Envelope`].
pub trait Message: Serialize + DeserializeOwned {
    /// The `message_type` under which it travels.
    const TYPE: &'static str;
    /// The version of its form.
    const VERSION: u32;
    /// The oldest version of its form that is still read.
    const OLDEST: u32 = 1;
}

/// A message as it is on the wire; the payload is not looked into yet.
#[derive(Debug, Clone)]
pub struct Envelope<'a> {
    /// Names the message; a redelivery has the same.
    pub message_id: Uuid,
    /// What the payload holds.
    pub message_type: Cow<'a, str>,
    /// The version of the payload's form.
    pub version: u32,
    /// When it was made, by its sender's clock.
    pub timestamp: DateTime<Utc>,
    /// One item, or an array of items.
    pub payload: &'a RawValue,
    /// Of which traces items are a part, by their places; unread. It stands beside the payload, where a release
    /// that does not know it overlooks it. `None` as well where it is there twice.
    traces: Option<&'a RawValue>,
}

/// By hand, because a member that is there twice ends what serde derives, and `traces` must never cost a message.
impl<'de: 'a, 'a> Deserialize<'de> for Envelope<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(EnvelopeVisitor)
    }
}

struct EnvelopeVisitor;

/// The members of an envelope that are read.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Member {
    MessageId,
    MessageType,
    Version,
    Timestamp,
    Payload,
    Traces,
    #[serde(other)]
    Other,
}

/// A text that is borrowed where it has no escapes.
#[derive(Deserialize)]
struct Word<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Visitor<'de> for EnvelopeVisitor {
    type Value = Envelope<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let (mut message_id, mut message_type) = (None, None);
        let (mut version, mut timestamp, mut payload) = (None, None, None);
        let (mut traces, mut traced) = (None, 0_usize);
        while let Some(member) = members.next_key()? {
            match member {
                Member::MessageId => once(&mut message_id, "message_id", &mut members)?,
                Member::MessageType => once(&mut message_type, "message_type", &mut members)?,
                Member::Version => once(&mut version, "version", &mut members)?,
                Member::Timestamp => once(&mut timestamp, "timestamp", &mut members)?,
                Member::Payload => once(&mut payload, "payload", &mut members)?,
                Member::Traces => {
                    traces = Some(members.next_value::<&RawValue>()?);
                    traced += 1;
                }
                Member::Other => drop(members.next_value::<IgnoredAny>()?),
            }
        }
        let missing = A::Error::missing_field;
        let Word(message_type) = message_type.ok_or_else(|| missing("message_type"))?;
        Ok(Envelope {
            message_id: message_id.ok_or_else(|| missing("message_id"))?,
            message_type,
            version: version.ok_or_else(|| missing("version"))?,
            timestamp: timestamp.ok_or_else(|| missing("timestamp"))?,
            payload: payload.ok_or_else(|| missing("payload"))?,
            traces: traces.filter(|_| traced == 1),
        })
    }
}

/// Reads a member that may be there once.
fn once<'de, T: Deserialize<'de>, A: MapAccess<'de>>(
    read: &mut Option<T>,
    name: &'static str,
    members: &mut A,
) -> Result<(), A::Error> {
    match read.replace(members.next_value()?) {
        None => Ok(()),
        Some(_) => Err(A::Error::duplicate_field(name)),
    }
}

/// A message that cannot be used. All but [`Newer`](Self::Newer) belong to the dead letters.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// It is larger than this system takes.
    #[error("the message has {bytes} bytes; at most {max} are allowed")]
    TooLarge {
        /// How large it is.
        bytes: usize,
        /// How large it may be.
        max: usize,
    },
    /// It is not an envelope.
    #[error("not a message envelope: {0}")]
    Envelope(String),
    /// Its type does not belong here.
    #[error("message type `{found}` is not one of those expected here: {expected}")]
    Type {
        /// The type it has.
        found: String,
        /// The types that would be right, in words.
        expected: String,
    },
    /// Its version is none: versions count from 1.
    #[error("version 0 of `{message_type}` does not exist; versions count from 1")]
    Version {
        /// The message's type.
        message_type: &'static str,
    },
    /// Its version was given up: nobody who writes it can run beside this program.
    #[error(
        "version {found} of `{message_type}` is not used any more; this program reads {oldest} to {known}"
    )]
    Older {
        /// The message's type.
        message_type: &'static str,
        /// The version it has.
        found: u32,
        /// The lowest version that can be read.
        oldest: u32,
        /// The highest version that can be read.
        known: u32,
    },
    /// It was written by a newer program. It is no poison: it waits, unsettled, until a program
    /// that can read it takes it.
    #[error(
        "version {found} of `{message_type}` is newer than this program, which reads up to {known}"
    )]
    Newer {
        /// The message's type.
        message_type: &'static str,
        /// The version it has.
        found: u32,
        /// The highest version that can be read.
        known: u32,
    },
    /// Its payload does not fit its type.
    #[error("the payload is not a `{message_type}`: {why}")]
    Payload {
        /// The message's type.
        message_type: &'static str,
        /// What is wrong.
        why: String,
    },
    /// Its payload has no item.
    #[error("the payload is an empty batch")]
    Empty,
}

/// What is wrong with JSON, in words that may quote it: never more than a few hundred bytes of it, since
/// they go into logs, dead letters and the health of queues.
pub fn words(error: &serde_json::Error) -> String {
    const MOST: usize = 500;
    let words = error.to_string();
    let begins = cut(&words, MOST);
    if begins.len() == words.len() {
        return words;
    }
    // The place stands at the end of the words.
    let (line, column) = (error.line(), error.column());
    format!("{begins} at line {line} column {column}")
}

/// [`words`], with the field that they are about: found by reading once more, as nearly all can be read.
fn words_with_field<M: Message>(text: &str, error: &serde_json::Error) -> String {
    let mut json = serde_json::Deserializer::from_str(text);
    let read = match text.starts_with('[') {
        true => serde_path_to_error::deserialize::<_, Vec<M>>(&mut json).map(drop),
        false => serde_path_to_error::deserialize::<_, M>(&mut json).map(drop),
    };
    let path = read.err().map(|wrong| wrong.path().to_string());
    match path.filter(|path| path != ".") {
        Some(path) => format!("{}: {}", cut(&path, 200), words(error)),
        None => words(error),
    }
}

impl DecodeError {
    /// Whether a newer program can read it: it must wait, not be buried.
    pub fn is_newer(&self) -> bool {
        matches!(self, Self::Newer { .. })
    }
}

impl<'a> Envelope<'a> {
    /// Reads the frame of a message of at most `max_bytes`.
    ///
    /// # Errors
    /// When it is too large or not an envelope.
    pub fn parse(body: &'a [u8], max_bytes: usize) -> Result<Self, DecodeError> {
        if body.len() > max_bytes {
            return Err(DecodeError::TooLarge {
                bytes: body.len(),
                max: max_bytes,
            });
        }
        serde_json::from_slice(body).map_err(|error| DecodeError::Envelope(words(&error)))
    }

    /// Whether it holds items of this type, of whatever version.
    pub fn is<M: Message>(&self) -> bool {
        self.message_type == M::TYPE
    }

    /// The refusal of a message whose type does not belong where it arrived.
    pub fn unexpected(&self, expected: &str) -> DecodeError {
        DecodeError::Type {
            found: self.message_type.chars().take(64).collect(),
            expected: expected.to_owned(),
        }
    }

    /// Of which traces items are a part, by their places. What cannot be read names none.
    pub fn traces(&self) -> Traces {
        self.traces.map(Traces::read).unwrap_or_default()
    }

    /// The items of the payload, at least one.
    ///
    /// # Errors
    /// When the type, the version or the payload does not fit.
    pub fn items<M: Message>(&self) -> Result<Vec<M>, DecodeError> {
        if !self.is::<M>() {
            return Err(self.unexpected(M::TYPE));
        }
        let message_type = M::TYPE;
        if self.version == 0 {
            return Err(DecodeError::Version { message_type });
        }
        if self.version < M::OLDEST {
            return Err(DecodeError::Older {
                message_type,
                found: self.version,
                oldest: M::OLDEST,
                known: M::VERSION,
            });
        }
        if self.version > M::VERSION {
            return Err(DecodeError::Newer {
                message_type,
                found: self.version,
                known: M::VERSION,
            });
        }
        let text = self.payload.get();
        let items = if text.starts_with('[') {
            serde_json::from_str(text)
        } else {
            serde_json::from_str(text).map(|item| vec![item])
        };
        let items: Vec<M> = items.map_err(|error| DecodeError::Payload {
            message_type: M::TYPE,
            why: words_with_field::<M>(text, &error),
        })?;
        if items.is_empty() {
            Err(DecodeError::Empty)
        } else {
            Ok(items)
        }
    }
}

/// Reads a whole message of one expected type.
///
/// # Errors
/// See [`DecodeError`].
pub fn decode<M: Message>(body: &[u8], max_bytes: usize) -> Result<(Uuid, Vec<M>), DecodeError> {
    let envelope = Envelope::parse(body, max_bytes)?;
    Ok((envelope.message_id, envelope.items()?))
}

/// The items of a whole message of one expected type; see [`decode`].
///
/// # Errors
/// See [`DecodeError`].
pub fn decode_batch<M: Message>(body: &[u8], max_bytes: usize) -> Result<Vec<M>, DecodeError> {
    decode(body, max_bytes).map(|(_, items)| items)
}

/// Writes a message: one item alone, several as an array.
///
/// # Panics
/// When an item cannot be written as JSON, which no message type allows.
pub fn encode<M: Message>(message_id: Uuid, now: DateTime<Utc>, items: &[M]) -> Vec<u8> {
    match items {
        [item] => frame::<M, _>((message_id, now), &Traces::default(), item),
        items => frame::<M, _>((message_id, now), &Traces::default(), items),
    }
}

/// Writes a message whose items are written already, for senders that must know their sizes
/// before they pack them; otherwise as [`encode`].
pub fn encode_raw<M: Message>(
    message_id: Uuid,
    now: DateTime<Utc>,
    items: &[&RawValue],
) -> Vec<u8> {
    let bytes = items.iter().map(|item| item.get().len() + 1).sum();
    let mut payload = Vec::with_capacity(bytes);
    for item in items {
        if !payload.is_empty() {
            payload.push(b',');
        }
        payload.extend_from_slice(item.get().as_bytes());
    }
    encode_payload::<M>((message_id, now), items.len(), &payload, &Traces::default())
}

/// The same, with the traces of which items are a part.
pub fn encode_traced<M: Message>(
    message_id: Uuid,
    now: DateTime<Utc>,
    items: &[&RawValue],
    traces: &Traces,
) -> Vec<u8> {
    let payload: Vec<&[u8]> = items.iter().map(|item| item.get().as_bytes()).collect();
    let payload = payload.join(&b',');
    encode_payload::<M>((message_id, now), items.len(), &payload, traces)
}

/// Writes a message around so many items with commas between them.
pub(crate) fn encode_payload<M: Message>(
    named: (Uuid, DateTime<Utc>),
    items: usize,
    payload: &[u8],
    traces: &Traces,
) -> Vec<u8> {
    /// How the frame of a message without a payload ends.
    const END: &[u8] = b"null}";
    let mut message = frame::<M, _>(named, traces, ());
    message.truncate(message.len() - END.len());
    message.reserve_exact(payload.len() + 3);
    let (open, close): (&[u8], &[u8]) = if items == 1 {
        (b"", b"}")
    } else {
        (b"[", b"]}")
    };
    for part in [open, payload, close] {
        message.extend_from_slice(part);
    }
    message
}

fn frame<M: Message, P: Serialize>(
    (message_id, now): (Uuid, DateTime<Utc>),
    traces: &Traces,
    payload: P,
) -> Vec<u8> {
    #[derive(Serialize)]
    struct Frame<'a, P> {
        message_id: Uuid,
        message_type: &'a str,
        version: u32,
        timestamp: String,
        #[serde(skip_serializing_if = "Traces::is_empty")]
        traces: &'a Traces,
        // The last: `encode_payload` writes it by itself.
        payload: P,
    }
    serde_json::to_vec(&Frame {
        message_id,
        message_type: M::TYPE,
        version: M::VERSION,
        timestamp: now.to_rfc3339_opts(SecondsFormat::Micros, true),
        traces,
        payload,
    })
    .expect("messages have string keys and finite numbers")
}
