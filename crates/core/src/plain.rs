//! What a parser says about a value, in words that need no knowledge of the language it is
//! written in.

use std::borrow::Cow;

/// Rewrites what serde says about a value of the wrong kind or size: `invalid type: sequence,
/// expected a map` becomes `a list does not fit; expected an object`. Everything else stays as it
/// is, such as the names of unknown fields.
///
/// ```
/// use attune_core::plain::plain;
///
/// let said = "invalid value: integer `-1`, expected u32";
/// assert_eq!(plain(said), "-1 does not fit; expected a whole number that is not negative");
/// assert_eq!(plain("missing field `run`"), "missing field `run`");
/// ```
#[must_use]
pub fn plain(said: &str) -> Cow<'_, str> {
    let value = ["invalid type: ", "invalid value: "]
        .iter()
        .find_map(|start| said.strip_prefix(start));
    match value.and_then(|value| value.rsplit_once(", expected ")) {
        Some((found, expected)) => format!(
            "{} does not fit; expected {}",
            kind(found),
            wanted(found, expected)
        )
        .into(),
        None => said.into(),
    }
}

/// Rewrites what the standard library says about a text that is no number, or neither of two words.
/// Everything else stays as it is.
///
/// ```
/// use attune_core::plain::unparsed;
///
/// let said = "x".parse::<i64>().expect_err("no number").to_string();
/// assert_eq!(unparsed(&said), "a whole number is expected");
/// assert_eq!(unparsed("something else"), "something else");
/// ```
#[must_use]
pub fn unparsed(said: &str) -> &str {
    match said {
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            "a whole number is expected"
        }
        "number too large to fit in target type" | "number too small to fit in target type" => {
            "the number is out of range"
        }
        "provided string was not `true` or `false`" => "`true` or `false` is expected",
        other => other,
    }
}

/// What is to be said of half of a surrogate pair, if that is what the parser of JSON found.
///
/// ```
/// use attune_core::plain::half_pair;
///
/// let said = |text| serde_json::from_str::<String>(text).expect_err(text).to_string();
/// assert!(half_pair(&said(r#""\ud800""#)).is_some());
/// assert!(half_pair(&said(r#""\ud800\u00e9""#)).is_some());
/// assert_eq!(half_pair("the key `surrogate` is given twice"), None);
/// ```
#[must_use]
pub fn half_pair(said: &str) -> Option<&'static str> {
    // The beginning only: other messages quote names, which can be any words.
    let is_half = ["lone leading surrogate", "unexpected end of hex escape"]
        .iter()
        .any(|words| said.starts_with(words));
    is_half.then_some(
        "the text has half of a surrogate pair (`\\ud800` to `\\udfff`); write both halves, or the \
         character itself",
    )
}

/// A value as serde names it: `integer `-1``, `string "x"`, `sequence`.
fn kind(found: &str) -> Cow<'_, str> {
    let written = |quoted: &str| quoted.trim_matches('`').to_owned().into();
    if let Some((word, value)) = found.split_once(' ') {
        match word {
            "integer" | "boolean" => return written(value),
            "string" => return format!("the text {value}").into(),
            "floating" => return written(value.trim_start_matches("point ")),
            _ => {}
        }
    }
    match found {
        "sequence" => "a list",
        "map" => "an object",
        "null" | "unit value" | "Option value" => "an empty value",
        _ => found,
    }
    .into()
}

/// What serde expects, such as `u32`, `a sequence` or `struct ActionPolicy`, in the place of what was found.
fn wanted<'a>(found: &str, expected: &'a str) -> Cow<'a, str> {
    let range = |min: i128, max: i128| format!("a whole number from {min} to {max}").into();
    // Which numbers make sense is checked later and often said in narrower bounds: a bound of the type is told
    // to whom it concerns.
    let natural = |max: u64| {
        let number = found
            .strip_prefix("integer `")
            .and_then(|it| it.strip_suffix('`'));
        match number.is_some_and(|digits| !digits.starts_with('-')) {
            true => format!("a whole number up to {max}").into(),
            false => "a whole number that is not negative".into(),
        }
    };
    match expected {
        "u8" => natural(u8::MAX.into()),
        "u16" => natural(u16::MAX.into()),
        "u32" => natural(u32::MAX.into()),
        "u64" | "usize" => natural(u64::MAX),
        "i32" => range(i32::MIN.into(), i32::MAX.into()),
        "i64" => range(i64::MIN.into(), i64::MAX.into()),
        "f64" => "a number".into(),
        "a sequence" => "a list".into(),
        "a string" => "a text".into(),
        "a boolean" => "true or false".into(),
        "a map" => "an object".into(),
        "string or map" => "a word, or an object with one member".into(),
        "map with a single key" => "an object with exactly one member".into(),
        "variant identifier" => "a word".into(),
        name if name.starts_with("struct ") => "an object".into(),
        name if name.starts_with("enum ") => "a word, or an object with one member".into(),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use crate::{ActionSpec, Submission};

    fn said<T: DeserializeOwned>(value: Value) -> String {
        let error = serde_json::from_value::<T>(value).err().unwrap();
        plain(&error.to_string()).into_owned()
    }

    #[test]
    fn no_word_of_the_language_is_left() {
        let with = |field: &str, value: Value| {
            let mut spec = json!({"ref": "a.b", "run": {"builtin": "noop"}});
            spec[field] = value;
            said::<ActionSpec>(spec)
        };
        for (field, value, words) in [
            (
                "timeout_seconds",
                json!(-1),
                "-1 does not fit; expected a whole number that is not negative",
            ),
            (
                "timeout_seconds",
                json!("x"),
                "the text \"x\" does not fit; expected a whole number that is not negative",
            ),
            (
                "timeout_seconds",
                json!(1.5),
                "1.5 does not fit; expected a whole number that is not negative",
            ),
            ("policy", json!([3]), "3 does not fit; expected an object"),
            ("env", json!([]), "a list does not fit; expected an object"),
            ("pool", json!(true), "true does not fit; expected a text"),
            (
                "pool",
                Value::Null,
                "an empty value does not fit; expected a text",
            ),
            (
                "run",
                json!({"program": {}}),
                "an object does not fit; expected a list",
            ),
        ] {
            assert_eq!(with(field, value.clone()), words, "{field}: {value}");
        }
        let found = said::<Submission>(json!({"action_ref": "a.b", "labels": 7}));
        assert_eq!(found, "7 does not fit; expected an object");
    }
}
