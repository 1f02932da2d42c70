//! Of which traces the items of a message are a part.
//!
//! They stand in the frame, beside the payload: of a frame every release reads what it knows, while an item with a
//! field that is new is refused by those before it.

use std::collections::BTreeMap;
use std::fmt;

use attune_core::TraceParent;
use attune_core::trace::TRACEPARENT;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

/// The traces of items, by their places in the message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Traces(BTreeMap<usize, TraceParent>);

impl Traces {
    /// What one takes in a message at most, in bytes, its share of the frame with it.
    pub const BYTES: usize = 96;

    /// Those of items in this order.
    pub fn of(items: impl IntoIterator<Item = Option<TraceParent>>) -> Self {
        let traces = items.into_iter().enumerate();
        Self(
            traces
                .filter_map(|(place, trace)| Some((place, trace?)))
                .collect(),
        )
    }

    /// Whether no item has one.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// That of the item at this place.
    pub fn get(&self, place: usize) -> Option<TraceParent> {
        self.0.get(&place).copied()
    }

    /// Reads what stands in a frame; what is malformed or there twice is left out, or all where it is no object.
    pub(crate) fn read(text: &RawValue) -> Self {
        let Members(members) = serde_json::from_str(text.get()).unwrap_or_default();
        let mut read: BTreeMap<usize, Option<TraceParent>> = BTreeMap::new();
        for (place, trace) in members {
            let place = place
                .parse()
                .ok()
                .filter(|it: &usize| it.to_string() == place);
            let Some(place) = place else { continue };
            let trace: Option<String> = serde_json::from_str(trace.get()).ok();
            let trace = trace.and_then(|text| TraceParent::parse(&text));
            // Two that differ, or do not, name none.
            let said = read.entry(place);
            said.and_modify(|said| *said = None).or_insert(trace);
        }
        let read = read.into_iter();
        Self(
            read.filter_map(|(place, trace)| Some((place, trace?)))
                .collect(),
        )
    }
}

/// The members of an object as they stand there, those too that have the same name.
#[derive(Default)]
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut found = Vec::new();
        while let Some(member) = members.next_entry()? {
            found.push(member);
        }
        Ok(Members(found))
    }
}

/// What the headers of a message say for all of its items. Two that differ say nothing.
pub fn trace_of_headers(headers: &[(String, String)]) -> Option<TraceParent> {
    let mut named = headers.iter().filter(|(name, _)| name == TRACEPARENT);
    let (_, value) = named.next()?;
    match named.next() {
        None => TraceParent::parse(value),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use chrono::Utc;
    use serde_json::value::to_raw_value;
    use uuid::Uuid;

    use super::*;
    use crate::envelope::{Envelope, encode, encode_traced};
    use crate::pack::message_bytes;
    use crate::v1::ActionChanged;

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn items(count: usize) -> Vec<Box<RawValue>> {
        let item = ActionChanged {
            request_id: attune_core::RequestId(Uuid::nil()),
            action_ref: "core.echo".to_owned(),
        };
        (0..count).map(|_| to_raw_value(&item).unwrap()).collect()
    }

    #[test]
    fn they_travel_beside_the_items_within_their_bound() {
        let items = items(1001);
        let items: Vec<&RawValue> = items.iter().map(|item| &**item).collect();
        let payload: usize = items.iter().map(|item| item.get().len() + 1).sum();
        let given = TraceParent::parse(GIVEN);
        for (many, traced) in [(1, 0), (2, 1), (1001, 1000)] {
            let traces = Traces::of(
                (0..many).map(|place| given.filter(|_| place == traced || traced == 1000)),
            );
            let body =
                encode_traced::<ActionChanged>(Uuid::nil(), Utc::now(), &items[..many], &traces);
            let read = Envelope::parse(&body, 1 << 20).unwrap();
            assert_eq!(read.traces(), traces);
            assert_eq!(read.traces().get(traced.min(many - 1)), given);
            assert_eq!(read.items::<ActionChanged>().unwrap().len(), many);
            let most = message_bytes::<ActionChanged>(payload) + 2 + traces.0.len() * Traces::BYTES;
            assert!(body.len() <= most, "{} > {most}", body.len());
        }
    }

    #[test]
    fn a_message_without_any_is_as_it_was() {
        let (id, now) = (Uuid::now_v7(), Utc::now());
        let items = items(2);
        let raw: Vec<&RawValue> = items.iter().map(|item| &**item).collect();
        let typed: Vec<ActionChanged> = raw
            .iter()
            .map(|item| serde_json::from_str(item.get()).unwrap())
            .collect();
        let body = encode_traced::<ActionChanged>(id, now, &raw, &Traces::default());
        assert_eq!(body, encode(id, now, &typed));
    }

    #[test]
    fn what_is_malformed_is_left_out_and_harms_nothing() {
        let message = |traces: &str| {
            let body = String::from_utf8(encode(
                Uuid::nil(),
                Utc::now(),
                &[ActionChanged {
                    request_id: attune_core::RequestId(Uuid::nil()),
                    action_ref: "core.echo".to_owned(),
                }],
            ))
            .unwrap();
            body.replacen(
                "\"payload\"",
                &format!("\"traces\":{traces},\"payload\""),
                1,
            )
        };
        for wrong in [
            "null",
            "7",
            "[]",
            "{\"0\":7}",
            "{\"x\":\"y\"}",
            "{\"-1\":\"\"}",
            "{\"0\":\"00-00\"}",
        ] {
            let body = message(wrong);
            let read = Envelope::parse(body.as_bytes(), 1 << 20).unwrap();
            assert!(read.traces().is_empty(), "{wrong}");
            assert!(read.items::<ActionChanged>().is_ok(), "{wrong}");
        }
        let given = format!("\"0\":\"{GIVEN}\"");
        let only_first = Traces::of([TraceParent::parse(GIVEN)]);
        let twice = format!("{{{given}}},\"traces\":{{{given}}}");
        for (traces, expected) in [
            (format!("{{{given},\"1\":\"{GIVEN}x\"}}"), &only_first),
            // What is no place does not take along what is one, nor does a number that none can hold.
            (format!("{{{given},\"x\":\"{GIVEN}\"}}"), &only_first),
            (format!("{{{given},\"00\":\"{GIVEN}\"}}"), &only_first),
            (format!("{{{given},\"1\":1e999}}"), &only_first),
            // What is there twice says nothing, whether it is a place or the whole.
            (format!("{{{given},{given}}}"), &Traces::default()),
            (format!("{{{given},\"0\":7}}"), &Traces::default()),
            (format!("{{{given},{given},{given}}}"), &Traces::default()),
            (
                format!("{{{given},\"1\":\"{GIVEN}\",\"1\":\"{GIVEN}\"}}"),
                &only_first,
            ),
            (twice.clone(), &Traces::default()),
            (format!("{twice},\"traces\":null"), &Traces::default()),
        ] {
            let body = message(&traces);
            let read = Envelope::parse(body.as_bytes(), 1 << 20).unwrap();
            assert_eq!(read.traces(), *expected, "{traces}");
            assert!(read.items::<ActionChanged>().is_ok(), "{traces}");
        }
    }

    #[test]
    fn a_header_that_is_given_twice_says_nothing() {
        let header = |value: &str| (TRACEPARENT.to_owned(), value.to_owned());
        let other = ("other".to_owned(), GIVEN.to_owned());
        assert_eq!(
            trace_of_headers(&[other.clone(), header(GIVEN)]),
            TraceParent::parse(GIVEN)
        );
        assert_eq!(trace_of_headers(&[header(GIVEN), header(GIVEN)]), None);
        assert_eq!(trace_of_headers(&[other, header("00")]), None);
        assert_eq!(trace_of_headers(&[]), None);
    }
}
