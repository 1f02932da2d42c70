//! Of which trace a request is a part: the `traceparent` of the W3C recommendation "Trace Context".

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::ids::{Attempt, ExecutionId};

/// The name under which it travels: a header over HTTP and over AMQP.
pub const TRACEPARENT: &str = "traceparent";

/// How many characters one has that this program writes, and one of version 00.
const LENGTH: usize = 55;
/// How many characters one of a higher version may have; a longer one is ignored.
const LONGEST: usize = 256;
/// The flags that are passed on: sampled, and that the id of the trace is random.
const FLAGS: u8 = 0b11;

/// A trace, and the span in it that stands above whatever is made next.
///
/// As text it has 55 characters, such as `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceParent {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    flags: u8,
}

/// What a span of an execution is about: a part of its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanOf {
    /// From when it might have had a slot until it was granted.
    Queue,
    /// From its start at its worker to its end.
    Run,
}

impl TraceParent {
    /// One of these ids; nothing where either is 0, which names nothing.
    #[must_use]
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8], is_sampled: bool) -> Option<Self> {
        let flags = u8::from(is_sampled);
        let named = trace_id != [0; 16] && span_id != [0; 8];
        named.then_some(Self {
            trace_id,
            span_id,
            flags,
        })
    }

    /// Reads one as the recommendation says: version 00 to the letter, of a higher one what version 00 has too.
    /// What is malformed is nothing, and no error: who asks is served all the same.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if !(LENGTH..=LONGEST).contains(&bytes.len()) {
            return None;
        }
        let (begin, more) = bytes.split_at(LENGTH);
        let dashes = [begin[2], begin[35], begin[52]] == [b'-'; 3];
        let [version] = digits::<1>(&begin[..2])?;
        let fits = match version {
            0 => more.is_empty(),
            0xff => false,
            _ => more.first().is_none_or(|next| *next == b'-'),
        };
        if !dashes || !fits {
            return None;
        }
        let [flags] = digits::<1>(&begin[53..])?;
        let read = Self::new(digits(&begin[3..35])?, digits(&begin[36..52])?, false)?;
        Some(Self {
            flags: flags & FLAGS,
            ..read
        })
    }

    /// The id of the trace.
    #[must_use]
    pub fn trace_id(&self) -> TraceId {
        TraceId(self.trace_id)
    }

    /// The id of the span.
    #[must_use]
    pub fn span_id(&self) -> [u8; 8] {
        self.span_id
    }

    /// Whether whoever began the trace wants its spans.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags & 1 != 0
    }

    /// The same trace, with another span above what is made next.
    #[must_use]
    pub fn below(&self, span_id: [u8; 8]) -> Self {
        Self { span_id, ..*self }
    }

    /// The same trace, with a span of this attempt below the one that stood above. Its id follows from all of
    /// these: whoever makes it a second time makes the same, and nobody needs to be told it.
    #[must_use]
    pub fn span_of(&self, of: SpanOf, (execution, attempt): (ExecutionId, Attempt)) -> Self {
        let kind: &[u8] = match of {
            SpanOf::Queue => b"attune span: queue",
            SpanOf::Run => b"attune span: run",
        };
        let hash = Sha256::new()
            .chain_update(kind)
            .chain_update(self.trace_id)
            .chain_update(self.span_id)
            .chain_update(execution.0.to_be_bytes())
            .chain_update(attempt.0.to_be_bytes())
            .finalize();
        let mut span_id = [0; 8];
        span_id.copy_from_slice(&hash[..8]);
        if span_id == [0; 8] {
            span_id[7] = 1;
        }
        self.below(span_id)
    }
}

/// Bytes from lower case hexadecimal digits.
fn digits<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |letter: u8| match letter {
        b'0'..=b'9' => Some(letter - b'0'),
        b'a'..=b'f' => Some(letter - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// The id of a trace: 32 hexadecimal digits as text.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(pub [u8; 16]);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (self.trace_id(), u64::from_be_bytes(self.span_id));
        write!(f, "00-{trace}-{span:016x}-{:02x}", self.flags)
    }
}

impl fmt::Debug for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for TraceParent {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TraceParent {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::parse(&text).ok_or_else(|| D::Error::custom("no `traceparent`"))
    }
}

/// Reads a field that may hold one. Whatever else it holds is nothing: nobody is refused for it.
///
/// # Errors
/// None of its own: those of what is read, where that is no JSON.
pub fn trace_or_nothing<'de, D>(from: D) -> Result<Option<TraceParent>, D::Error>
where
    D: Deserializer<'de>,
{
    let given = serde_json::Value::deserialize(from)?;
    Ok(given.as_str().and_then(TraceParent::parse))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

    use super::*;

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn version_00_is_read_to_the_letter() {
        let read = TraceParent::parse(GIVEN).unwrap();
        assert_eq!(read.to_string(), GIVEN);
        assert!(read.is_sampled());
        let id = read.trace_id().to_string();
        assert_eq!(id, "4bf92f3577b34da6a3ce929d0e0e4736");
        let silent = TraceParent::parse(&GIVEN.replace("-01", "-00")).unwrap();
        assert!(!silent.is_sampled());
        for wrong in [
            "",
            "00",
            &GIVEN[..54],
            &format!("{GIVEN}-"),
            &format!("{GIVEN}0"),
            &format!(" {}", &GIVEN[..54]),
            &GIVEN.to_uppercase(),
            &GIVEN.replace("00-4b", "ff-4b"),
            &GIVEN.replace("00-4b", "0x-4b"),
            &GIVEN.replace('-', "_"),
            &GIVEN.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &GIVEN.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &GIVEN.replace("-01", "-0g"),
            &format!("{}é", &GIVEN[..53]),
        ] {
            assert_eq!(TraceParent::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn of_a_higher_version_what_is_known_is_read() {
        let higher = GIVEN.replace("00-4b", "cc-4b");
        for more in ["", "-", "-what-the-future-will-be-like"] {
            let read = TraceParent::parse(&format!("{higher}{more}"));
            assert_eq!(read, TraceParent::parse(GIVEN), "{more}");
        }
        assert_eq!(TraceParent::parse(&format!("{higher}.what")), None);
        let long = format!("{higher}-{}", "x".repeat(LONGEST));
        assert_eq!(TraceParent::parse(&long), None);
        // Flags that nobody knows yet are not passed on.
        let flags = TraceParent::parse(&higher.replace("-01", "-ff")).unwrap();
        assert_eq!(flags.to_string(), GIVEN.replace("-01", "-03"));
    }

    #[test]
    fn the_id_of_a_span_stays_what_it_was() {
        // Executor and worker of different releases make it of the same.
        let given = TraceParent::parse(GIVEN).unwrap();
        let key = (ExecutionId(256), Attempt(1));
        let queue = given.span_of(SpanOf::Queue, key);
        assert_eq!(queue.trace_id(), given.trace_id());
        assert_eq!(
            queue.to_string(),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-a3d52930ee965526-01"
        );
        let others = [
            given,
            given.span_of(SpanOf::Run, key),
            given.span_of(SpanOf::Queue, (ExecutionId(256), Attempt(2))),
            given.span_of(SpanOf::Queue, (ExecutionId(512), Attempt(1))),
            queue.span_of(SpanOf::Queue, key),
        ];
        assert!(others.iter().all(|other| *other != queue));
    }

    #[test]
    fn a_field_that_holds_none_is_no_error() {
        #[derive(Deserialize)]
        struct Holder {
            #[serde(default, deserialize_with = "trace_or_nothing")]
            trace: Option<TraceParent>,
        }
        let read = |text: &str| serde_json::from_str::<Holder>(text).unwrap().trace;
        let given = format!(r#"{{"trace":"{GIVEN}"}}"#);
        assert_eq!(read(&given), TraceParent::parse(GIVEN));
        for other in ["{}", r#"{"trace":null}"#, r#"{"trace":"00-"}"#] {
            assert_eq!(read(other), None);
        }
        assert_eq!(read(r#"{"trace":{"a":[1]}}"#), None);
    }

    /// As the recommendation words it, by other means than the reader.
    fn is_valid(text: &str) -> bool {
        let parts: Vec<&str> = text.splitn(5, '-').collect();
        let is_hex = |part: &str, length: usize| {
            part.len() == length
                && part
                    .chars()
                    .all(|it| it.is_ascii_digit() || ('a'..='f').contains(&it))
        };
        let [version, trace, span, flags, ..] = parts[..] else {
            return false;
        };
        is_hex(version, 2)
            && version != "ff"
            && is_hex(trace, 32)
            && trace.chars().any(|it| it != '0')
            && is_hex(span, 16)
            && span.chars().any(|it| it != '0')
            && is_hex(flags, 2)
            && (parts.len() == 4 || version != "00")
            && text.len() <= LONGEST
    }

    proptest! {
        #[test]
        fn only_what_is_valid_is_read_and_comes_out_as_it_went_in(
            text in prop_oneof![
                any::<String>(),
                "[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}",
                "00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-3]",
                "[0-9a-fA-F-]{50,60}",
                "0[0-1]-0{31}[01]-0{15}[01]-[0-9a-g]{2}(-.{0,9})?",
            ],
        ) {
            let read = TraceParent::parse(&text);
            prop_assert_eq!(read.is_some(), is_valid(&text), "{}", text);
            if let Some(read) = read {
                let written = read.to_string();
                prop_assert_eq!(written.len(), LENGTH);
                prop_assert_eq!(TraceParent::parse(&written), Some(read));
                let own = text.starts_with("00-") && text[53..].starts_with('0');
                if own && text[54..] < *"4" {
                    prop_assert_eq!(written, text);
                }
            }
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 40..70)) {
            let text = String::from_utf8_lossy(&bytes);
            prop_assert!(TraceParent::parse(&text).is_none_or(|it| it.to_string().len() == LENGTH));
        }
    }
}
