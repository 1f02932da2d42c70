//! Bounds on what comes from outside.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};

use crate::plain;
use crate::reject::Reject;

/// How deep parameters may be nested.
pub const MAX_DEPTH: usize = 32;
/// How long a name, key or label may be, in bytes.
pub const MAX_TEXT_BYTES: usize = 256;
/// How many labels an execution may have.
pub const MAX_LABELS: usize = 32;
/// How large a body may be unless the settings say otherwise, in bytes.
pub const DEFAULT_MAX_BYTES: usize = 1024 * 1024;
/// The longest a run may take, in seconds: 30 days.
pub const MAX_RUN_SECONDS: u32 = 30 * 24 * 3600;

/// What the JSON parser's own keys begin with. It reads an object with such a key as something
/// else (`{"$serde_json::private::RawValue": "[1]"}` as `[1]`), so what was checked would not be
/// what is run.
pub(crate) const RESERVED_KEYS: &str = "$serde_json::private::";

/// Checks a short text that may be left out: not empty, no NUL (PostgreSQL cannot store it), not
/// too long.
///
/// # Errors
/// A [`Reject`] that names `field`.
pub fn check_text(field: &str, value: &str) -> Result<(), Reject> {
    let named = format_args!("`{field}`");
    check_short(field, named, value, "leave it out or fill it")
}

/// As [`check_text`], of a text that must be there.
///
/// # Errors
/// A [`Reject`] that names `field`.
pub fn check_required_text(field: &str, value: &str) -> Result<(), Reject> {
    let named = format_args!("`{field}`");
    check_short(field, named, value, "it is required, so fill it")
}

/// As [`check_text`], of a label's key.
///
/// # Errors
/// A [`Reject`] that names `labels`.
pub fn check_label_key(key: &str) -> Result<(), Reject> {
    let named = format_args!("a key in `labels`");
    check_short("labels", named, key, "name the label or leave it out")
}

fn check_short(
    field: &str,
    named: fmt::Arguments<'_>,
    value: &str,
    when_empty: &str,
) -> Result<(), Reject> {
    if value.is_empty() {
        return Err(Reject::field(
            field,
            format!("{named} is empty; {when_empty}"),
        ));
    }
    if value.len() > MAX_TEXT_BYTES {
        return Err(Reject::field(
            field,
            format!(
                "{named} has {} bytes; at most {MAX_TEXT_BYTES} are allowed",
                value.len()
            ),
        ));
    }
    if value.contains('\0') {
        return Err(Reject::field(
            field,
            format!("{named} contains a NUL character; remove it"),
        ));
    }
    Ok(())
}

/// Checks a run timeout: from 1 second to 30 days.
///
/// # Errors
/// A [`Reject`] that names `timeout_seconds`.
pub fn check_run_timeout(seconds: u32) -> Result<(), Reject> {
    if (1..=MAX_RUN_SECONDS).contains(&seconds) {
        return Ok(());
    }
    Err(Reject::field(
        "timeout_seconds",
        format!("`timeout_seconds` is {seconds}; it must be from 1 to {MAX_RUN_SECONDS}"),
    ))
}

/// Checks that `text` is a JSON object, nested at most [`MAX_DEPTH`] deep, without NUL
/// characters and keys of the parser's own, with numbers that a double can hold and no key given twice.
///
/// # Errors
/// A [`Reject`] that names the place inside `field`.
pub fn check_json_object(field: &str, text: &str) -> Result<(), Reject> {
    if !text.trim_start().starts_with('{') {
        return Err(Reject::field(
            field,
            format!("`{field}` must be a JSON object, like {{\"key\": 1}}"),
        ));
    }
    check(field, text, true)
}

/// Checks that `text` is one JSON value of any kind, within the bounds of
/// [`check_json_object`]; a key may come twice.
///
/// # Errors
/// A [`Reject`] that names the place inside `field`.
pub fn check_json(field: &str, text: &str) -> Result<(), Reject> {
    check(field, text, false)
}

fn check(field: &str, text: &str, unique_keys: bool) -> Result<(), Reject> {
    let mut path = vec![field.to_owned()];
    let mut deserializer = serde_json::Deserializer::from_str(text);
    // Our own bound is lower than the parser's and names the place.
    let checked = Checker {
        path: &mut path,
        depth: 1,
        unique_keys,
    }
    .deserialize(&mut deserializer)
    .and_then(|()| deserializer.end());
    checked.map_err(|error| {
        let place = path.join(".");
        let message = error.to_string();
        let problem = plain::half_pair(&message)
            .unwrap_or_else(|| message.split(" at line ").next().unwrap_or(&message));
        Reject::field(&*place, format!("`{place}`: {problem}"))
    })
}

/// Walks a JSON value without building it; `path` is left at the place of the first problem.
struct Checker<'a> {
    path: &'a mut Vec<String>,
    depth: usize,
    /// Parsers differ in which of two values they take: what was checked and what is used must be one.
    unique_keys: bool,
}

impl Checker<'_> {
    fn check_depth<E: serde::de::Error>(&self) -> Result<(), E> {
        if self.depth > MAX_DEPTH {
            return Err(E::custom(format_args!(
                "nested deeper than {MAX_DEPTH} levels"
            )));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Checker<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Checker<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        if text.contains('\0') {
            return Err(E::custom(
                "contains a NUL character (\\u0000), which cannot be stored",
            ));
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        self.check_depth()?;
        let mut index = 0_usize;
        loop {
            self.path.push(index.to_string());
            let next = Checker {
                path: &mut *self.path,
                depth: self.depth + 1,
                unique_keys: self.unique_keys,
            };
            if seq.next_element_seed(next)?.is_none() {
                self.path.pop();
                return Ok(());
            }
            self.path.pop();
            index += 1;
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.check_depth()?;
        let mut seen = HashSet::new();
        while let Some(Key(key)) = map.next_key()? {
            if self.unique_keys && !seen.insert(key.clone()) {
                self.path.push(key);
                return Err(A::Error::custom("the key is given twice"));
            }
            if key.contains('\0') {
                return Err(A::Error::custom("a key contains a NUL character (\\u0000)"));
            }
            if key.starts_with(RESERVED_KEYS) {
                return Err(A::Error::custom(format_args!(
                    "a key begins with `{RESERVED_KEYS}`, which the JSON parser keeps for itself; \
                     name it otherwise"
                )));
            }
            self.path.push(key);
            map.next_value_seed(Checker {
                path: &mut *self.path,
                depth: self.depth + 1,
                unique_keys: self.unique_keys,
            })?;
            self.path.pop();
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Key(String);

/// How much of a text, in bytes of its own, takes at most `max` bytes in JSON without its quotes.
pub fn json_prefix(text: &str, max: usize) -> usize {
    let mut taken = 0;
    let over = text.char_indices().find(|(_, character)| {
        taken += json_bytes(*character);
        taken > max
    });
    over.map_or(text.len(), |(at, _)| at)
}

/// How many bytes a character takes in JSON.
fn json_bytes(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        control if control < ' ' => 6,
        other => other.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize) -> String {
        format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth))
    }

    #[test]
    fn depth_is_bounded_exactly() {
        assert_eq!(check_json_object("parameters", &nested(MAX_DEPTH)), Ok(()));
        assert!(check_json_object("parameters", &nested(MAX_DEPTH + 1)).is_err());
        assert!(check_json_object("parameters", &nested(100_000)).is_err());
    }

    #[test]
    fn the_place_of_a_problem_is_named() {
        let reject = check_json_object("parameters", r#"{"a":[1,{"b":"\u0000"}]}"#).unwrap_err();
        assert_eq!(reject.field.as_deref(), Some("parameters.a.1.b"));
        let reject = check_json_object("parameters", r#"{"a":1e999}"#).unwrap_err();
        assert!(reject.message.contains("out of range"), "{reject}");
    }

    #[test]
    fn a_key_that_is_given_twice_is_refused() {
        for (text, place) in [
            (r#"{"a":1,"a":2}"#, "parameters.a"),
            (r#"{"l":[{"b":{"c":1,"d":2,"c":3}}]}"#, "parameters.l.0.b.c"),
            (r#"{"a":1,"\u0061":2}"#, "parameters.a"),
        ] {
            let reject = check_json_object("parameters", text).unwrap_err();
            assert_eq!(reject.field.as_deref(), Some(place), "{reject}");
            // What a program returned is kept as it is.
            assert_eq!(check_json("result", text), Ok(()));
        }
        assert_eq!(
            check_json_object("parameters", r#"{"a":{"a":1},"b":{"a":1}}"#),
            Ok(())
        );
    }

    #[test]
    fn keys_of_the_parser_are_refused() {
        for key in ["RawValue", "Number", "other"] {
            let text = format!(r#"{{"a":[{{"$serde_json::private::{key}":"[1]"}}]}}"#);
            let reject = check_json_object("parameters", &text).unwrap_err();
            assert_eq!(reject.field.as_deref(), Some("parameters.a.0"), "{reject}");
            assert!(reject.message.contains("name it otherwise"), "{reject}");
            assert!(check_json("result", &text).is_err(), "{text}");
        }
        let escaped = r#"{"\u0024serde_json::private::RawValue":"[1]"}"#;
        assert!(check_json_object("parameters", escaped).is_err());
        let good = r#"{"$serde_json":1,"x$serde_json::private::RawValue":2}"#;
        assert_eq!(check_json_object("parameters", good), Ok(()));
    }

    #[test]
    fn any_json_value_has_the_same_bounds() {
        for good in ["1", "\"x\"", "[1, {\"a\": null}]", "{}"] {
            assert_eq!(check_json("result", good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "1 2",
            "1,\"x\":2",
            "\"\\u0000\"",
            &"[".repeat(40),
            "1e999",
        ] {
            assert!(check_json("result", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn texts_are_bounded() {
        assert!(check_text("group", "").is_err());
        assert!(check_text("group", &"x".repeat(257)).is_err());
        assert!(check_text("group", "a\0b").is_err());
        assert_eq!(check_text("group", "customer-7"), Ok(()));
    }

    #[test]
    fn what_is_empty_and_the_way_out_are_named() {
        let long = "x".repeat(257);
        for (checked, field, words) in [
            (
                check_text("group", ""),
                "group",
                "`group` is empty; leave it out or fill it",
            ),
            (
                check_required_text("reason", ""),
                "reason",
                "`reason` is empty; it is required, so fill it",
            ),
            (
                check_label_key(""),
                "labels",
                "a key in `labels` is empty; name the label or leave it out",
            ),
            (
                check_label_key(&long),
                "labels",
                "a key in `labels` has 257 bytes; at most 256 are allowed",
            ),
        ] {
            let reject = checked.unwrap_err();
            assert_eq!(reject.field.as_deref(), Some(field));
            assert_eq!(reject.message, words);
        }
    }
}
