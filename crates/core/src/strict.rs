//! Reading what people wrote without reading more into it than stands there.
//!
//! Three things that serde takes are mistakes in a document: a list in the place of an object, whose items
//! would be taken for the object's members one after the other (so that `[]` stands for every default); a
//! key that is given twice, of which the last would win; and a key of the JSON parser's own, by which it
//! reads a text as JSON in the middle of other JSON, each time as deep as it reads a whole document: some tens of
//! kilobytes of that, one in the other, are deeper than a stack.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize as _;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use crate::input::RESERVED_KEYS;

/// A deserializer that wants an object where one is expected, and each key once. For formats that say
/// of each value what it is, such as JSON.
///
/// What a type keeps as it was written (`RawValue`) or leaves out is not looked into.
///
/// ```
/// use attune_core::strict::Strict;
/// use attune_core::OperationFilter;
/// use serde::Deserialize as _;
///
/// let read = |text| OperationFilter::deserialize(Strict(&mut serde_json::Deserializer::from_str(text)));
/// assert!(read(r#"{"labels": {"a": "1"}}"#).is_ok());
/// assert!(read("[]").is_err());
/// assert!(read(r#"{"labels": {"a": "1", "a": "2"}}"#).is_err());
/// ```
#[derive(Debug)]
pub struct Strict<D>(
    /// What it reads from.
    pub D,
);

/// The value that a text is as JSON.
///
/// # Errors
/// What is wrong with it.
pub fn value(text: &str) -> Result<Value, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value = Value::deserialize(Strict(&mut json))?;
    json.end().map(|()| value)
}

/// A place in the form in which fields are named everywhere: `items.0.attempt`. Empty for the whole.
#[must_use]
pub fn place(path: &Path) -> String {
    let segments = path.iter().filter_map(|segment| match segment {
        Segment::Seq { index } => Some(index.to_string()),
        Segment::Map { key } => Some(key.clone()),
        Segment::Enum { variant } => Some(variant.clone()),
        Segment::Unknown => None,
    });
    segments.collect::<Vec<_>>().join(".")
}

/// The field that is missing, not known or there twice, where that is what the parser says.
#[must_use]
pub fn named(problem: &str) -> Option<&str> {
    let said = ["missing field `", "unknown field `", "duplicate field `"];
    let rest = said.iter().find_map(|said| problem.strip_prefix(said))?;
    rest.split('`').next()
}

/// Methods that ask the same of what is inside: a type that asks for a text is given a text or an error,
/// even where it could be read from a list as well.
macro_rules! as_asked {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method(Strict(visitor))
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        if name.starts_with(RESERVED_KEYS) {
            // A value that stays as it was written comes as an object with a key of the parser's own.
            return self.0.deserialize_newtype_struct(name, visitor);
        }
        self.0.deserialize_newtype_struct(name, Strict(visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        // A format takes a list for a struct as well, and for a map it does not.
        self.0.deserialize_map(Strict(visitor))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_enum(name, variants, Strict(visitor))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_ignored_any(visitor)
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }

    as_asked! {
        deserialize_any deserialize_option deserialize_bool deserialize_i8 deserialize_i16
        deserialize_i32 deserialize_i64 deserialize_i128 deserialize_u8 deserialize_u16 deserialize_u32
        deserialize_u64 deserialize_u128 deserialize_f32 deserialize_f64 deserialize_char
        deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf deserialize_unit
        deserialize_seq deserialize_map deserialize_identifier
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_unit_struct(name, Strict(visitor))
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple(len, Strict(visitor))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_tuple_struct(name, len, Strict(visitor))
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Strict<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<V::Value, E> {
        self.0.visit_bool(value)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<V::Value, E> {
        self.0.visit_i64(value)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<V::Value, E> {
        self.0.visit_u64(value)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<V::Value, E> {
        self.0.visit_f64(value)
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<V::Value, E> {
        self.0.visit_str(value)
    }

    fn visit_borrowed_str<E: serde::de::Error>(self, value: &'de str) -> Result<V::Value, E> {
        self.0.visit_borrowed_str(value)
    }

    fn visit_string<E: serde::de::Error>(self, value: String) -> Result<V::Value, E> {
        self.0.visit_string(value)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(Strict(inner))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(Strict(inner))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(Strict(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<V::Value, A::Error> {
        let seen = HashSet::new();
        self.0.visit_map(Members { members, seen })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(Strict(data))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Strict<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Strict(deserializer))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Strict(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

/// The members of an object, and which keys it has had.
struct Members<A> {
    members: A,
    seen: HashSet<String>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Members<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let Some(key) = self.members.next_key::<String>()? else {
            return Ok(None);
        };
        if key.starts_with(RESERVED_KEYS) {
            let words = format_args!(
                "a key begins with `{RESERVED_KEYS}`, which the JSON parser keeps for itself; name it \
                 otherwise"
            );
            return Err(A::Error::custom(words));
        }
        if !self.seen.insert(key.clone()) {
            // In the words of serde, which finds this itself where it knows the fields.
            let words = format_args!("duplicate field `{key}`");
            return Err(A::Error::custom(words));
        }
        seed.deserialize(key.into_deserializer()).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.members.next_value_seed(Strict(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.members.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Strict<A> {
    type Error = A::Error;
    type Variant = Strict<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let (value, variant) = self.0.variant_seed(seed)?;
        Ok((value, Strict(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Strict<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(Strict(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(len, Strict(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        // As `deserialize_struct`: the content as a map of its own.
        self.0.newtype_variant_seed(Object(visitor))
    }
}

/// What reads the members of a variant.
struct Object<V>(V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for Object<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        deserializer.deserialize_map(Strict(self.0))
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::{ActionSpec, Submission};

    fn problem<T: DeserializeOwned>(text: &str) -> Option<(String, String)> {
        let mut json = serde_json::Deserializer::from_str(text);
        let read: Result<T, _> = serde_path_to_error::deserialize(Strict(&mut json));
        let wrong = read.err()?;
        let said = wrong.inner().to_string();
        let said = said.split(" at line ").next().map(str::to_owned);
        Some((wrong.path().to_string(), said.unwrap_or_default()))
    }

    fn action(rest: &str) -> Option<(String, String)> {
        let text = format!(r#"{{"ref":"a.b","run":{{"builtin":"noop"}},{rest}}}"#);
        problem::<ActionSpec>(&text)
    }

    #[test]
    fn a_list_is_no_object_wherever_it_stands() {
        for (rest, place) in [
            (r#""policy":[]"#, "policy"),
            (r#""policy":[{"limit":1}]"#, "policy"),
            (r#""policy":{"queue":[]}"#, "policy.queue"),
            (r#""policy":{"concurrency":[3]}"#, "policy.concurrency"),
            (r#""policy":{"retry":[]}"#, "policy.retry"),
            (
                r#""policy":{"retry":{"backoff":[]}}"#,
                "policy.retry.backoff",
            ),
            (
                r#""policy":{"priority":{"rules":[[]]}}"#,
                "policy.priority.rules[0]",
            ),
            (r#""policy":{"quotas":[[5]]}"#, "policy.quotas[0]"),
        ] {
            let (found, said) = action(rest).unwrap_or_default();
            let told = (said.starts_with("invalid type: "), found.as_str());
            assert_eq!(told, (true, place), "{rest}: {said}");
        }
        let (_, said) = action(r#""policy":[]"#).unwrap();
        let words = "a list does not fit; expected an object";
        assert_eq!(crate::plain::plain(&said), words);
    }

    #[test]
    fn a_key_is_given_once_wherever_it_stands() {
        for (rest, place) in [
            (r#""env":{"A":"1","A":"2"}"#, "env"),
            (r#""env":{"A":"1","\u0041":"2"}"#, "env"),
            (
                r#""parameters":{"type":"object","type":"array"}"#,
                "parameters",
            ),
            (
                r#""policy":{"queue":{"max_length":1,"max_length":2}}"#,
                "policy.queue",
            ),
        ] {
            let (found, said) = action(rest).unwrap_or_default();
            assert!(found.starts_with(place), "{rest}: {found}: {said}");
            assert!(said.starts_with("duplicate field `"), "{rest}: {said}");
        }
        let labels = r#"{"action_ref":"a.b","labels":{"k":"1","k":"2"}}"#;
        assert!(problem::<Submission>(labels).is_some());
        assert_eq!(
            problem::<Value>(r#"{"a":{"a":1},"b":[{"a":1},{"a":1}]}"#),
            None
        );
    }

    #[test]
    fn a_text_is_no_list_of_numbers() {
        let id: Vec<u8> = (0..16).collect();
        let text = format!(r#"{{"action_ref":"a.b","request_id":{id:?}}}"#);
        let (place, said) = problem::<Submission>(&text).unwrap();
        assert_eq!(place, "request_id", "{said}");
    }

    #[test]
    fn no_text_is_read_as_json_in_the_middle_of_json() {
        // Each level is read with a stack of its own, of which ten of these would fill two megabytes.
        let mut deep = "1".to_owned();
        for _ in 0..40 {
            let inner = deep.replace('\\', "\\u005c").replace('"', "\\u0022");
            let key = "$serde_json::private::RawValue";
            deep = format!(
                "{}{{\"{key}\":\"{inner}\"}}{}",
                "[".repeat(120),
                "]".repeat(120)
            );
        }
        for text in [
            format!(r#"{{"ref":"a.b","run":{{"builtin":"noop"}},"parameters":{deep}}}"#),
            r#"{"ref":"a.b","run":{"builtin":"noop"},"parameters":{"$serde_json::private::RawValue":"1"}}"#.to_owned(),
        ] {
            let (place, said) = problem::<ActionSpec>(&text).unwrap();
            assert!(place.starts_with("parameters"), "{place}");
            assert!(said.contains("name it otherwise"), "{said}");
        }
    }

    #[test]
    fn everything_else_is_read_as_without_it() {
        let submission = r#"{"action_ref":"a.b","parameters":{"big":12345678901234567890123, "a" :1},
            "labels":{"k":"v"},"priority":"high","timeout_seconds":5,"request_id":null}"#;
        let strict: Submission = serde::Deserialize::deserialize(Strict(
            &mut serde_json::Deserializer::from_str(submission),
        ))
        .unwrap();
        let plain: Submission = serde_json::from_str(submission).unwrap();
        assert_eq!(format!("{strict:?}"), format!("{plain:?}"));
        let text = r#"{"ref":"a.b","run":{"program":["x","y"]},"parameters":{"n":[1,-2,2.5,null,true]},
            "policy":{"concurrency":{"limit":2,"on_limit":"reject"},"retry":{"max_attempts":3,
            "on":["failed"],"backoff":{"initial_ms":5}},"priority":{"default":"low"}}}"#;
        let plain: ActionSpec = serde_json::from_str(text).unwrap();
        let strict: ActionSpec =
            serde::Deserialize::deserialize(Strict(&mut serde_json::Deserializer::from_str(text)))
                .unwrap();
        assert_eq!(strict, plain);
        let value: Value = serde_json::from_str(text).unwrap();
        let strict: ActionSpec = serde::Deserialize::deserialize(Strict(&value)).unwrap();
        assert_eq!(strict, plain);
    }
}
