//! Tests of the wire messages.

#![expect(
    clippy::unwrap_used,
    reason = "a test may say by a panic that its set-up failed"
)]

mod arbitrary;
mod golden;
mod protocol;
mod refusals;

use attune_messages::v1::{
    ActionChanged, ActionEvent, Answer, Cancel, EnforcementCreated, ExecutionCompleted, Explain,
    ForceRelease, HandedOver, OperationsChanged, PausesChanged, PoliciesChanged, QueueSnapshot,
    SlotRelease, Submit,
};
use attune_messages::v2::{Section, WorkerHello, WorkerReport};
use attune_messages::{DecodeError, Envelope, Message, encode, encode_raw};
use serde_json::value::to_raw_value;

/// How large a message may be in these tests.
const MAX_BYTES: usize = 1024 * 1024;

/// What a decoder made of a message: how many items it has, and both encodings of them.
struct Decoded {
    items: usize,
    encoded: Vec<u8>,
    encoded_raw: Vec<u8>,
}

type Decode = fn(&[u8]) -> Result<Decoded, DecodeError>;

fn decode<M: Message>(body: &[u8]) -> Result<Decoded, DecodeError> {
    let envelope = Envelope::parse(body, MAX_BYTES)?;
    let items = envelope.items::<M>()?;
    let raw: Vec<_> = items
        .iter()
        .map(|item| to_raw_value(item).unwrap())
        .collect();
    let raw: Vec<_> = raw.iter().map(|item| &**item).collect();
    Ok(Decoded {
        items: items.len(),
        encoded: encode(envelope.message_id, envelope.timestamp, &items),
        encoded_raw: encode_raw::<M>(envelope.message_id, envelope.timestamp, &raw),
    })
}

/// A type of messages.
struct Type {
    name: &'static str,
    version: u32,
    oldest: u32,
    decode: Decode,
}

/// Every type in its newest version.
fn all() -> [Type; 18] {
    fn entry<M: Message>() -> Type {
        Type {
            name: M::TYPE,
            version: M::VERSION,
            oldest: M::OLDEST,
            decode: decode::<M>,
        }
    }
    [
        entry::<EnforcementCreated>(),
        entry::<Submit>(),
        entry::<Cancel>(),
        entry::<Explain>(),
        entry::<ForceRelease>(),
        entry::<ActionChanged>(),
        entry::<PausesChanged>(),
        entry::<OperationsChanged>(),
        entry::<PoliciesChanged>(),
        entry::<Answer>(),
        entry::<Section>(),
        entry::<WorkerReport>(),
        entry::<WorkerHello>(),
        entry::<ExecutionCompleted>(),
        entry::<SlotRelease>(),
        entry::<HandedOver>(),
        entry::<QueueSnapshot>(),
        entry::<ActionEvent>(),
    ]
}

/// Every type with its decoder.
fn types() -> Vec<(&'static str, Decode)> {
    let all = all().into_iter();
    all.map(|of| (of.name, of.decode)).collect()
}

/// The version in which a type is written.
fn version(message_type: &str) -> u32 {
    let of = all().into_iter().find(|of| of.name == message_type);
    of.unwrap_or_else(|| panic!("{message_type} is no type"))
        .version
}

/// The golden file of a type, alone or as a batch.
fn golden(message_type: &str, form: &str) -> Vec<u8> {
    let name = golden_name(message_type, form);
    let path = golden_folder().join(&name);
    std::fs::read(path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn golden_name(message_type: &str, form: &str) -> String {
    format!("{message_type}.v{}{form}.json", version(message_type))
}

fn golden_folder() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}
