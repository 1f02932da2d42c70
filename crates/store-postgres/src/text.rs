//! Text on its way into the database and back.
//!
//! PostgreSQL refuses some text that clients and programs can produce. One refused value would
//! hold back the whole batch it is in, again and again, so it is changed to something that can
//! be stored instead.

use std::borrow::Cow;

use chrono::{DateTime, Utc};
use serde_json::Value;
use serde_json::value::RawValue;

/// How deep stored JSON may be nested. The server reads JSON recursively and refuses what
/// would overflow its stack; whoever reads it back here refuses from 128 on.
const MAX_DEPTH: usize = 127;

/// Text without NUL, which PostgreSQL cannot store.
pub(crate) fn text(value: &str) -> Cow<'_, str> {
    if value.contains('\0') {
        Cow::Owned(value.replace('\0', "\u{fffd}"))
    } else {
        Cow::Borrowed(value)
    }
}

/// As [`text`], for text that may be missing.
pub(crate) fn optional(value: Option<&String>) -> Option<Cow<'_, str>> {
    value.map(|value| text(value))
}

/// JSON as it was written; what is nested too deep becomes a string that holds it.
pub(crate) fn json(value: &RawValue) -> Cow<'_, str> {
    let json = value.get();
    if is_deep(json.as_bytes()) {
        Cow::Owned(Value::from(json).to_string())
    } else {
        Cow::Borrowed(json)
    }
}

/// JSON read back. What serde cannot represent (a lone surrogate, a number out of range) is
/// shown as the text it is stored as.
pub(crate) fn value(json: String) -> Value {
    serde_json::from_str(&json).unwrap_or(Value::String(json))
}

/// A time that both sides can represent: years 1 to 9999.
pub(crate) fn time(at: DateTime<Utc>) -> DateTime<Utc> {
    at.clamp(FIRST, LAST)
}

/// The first time that both sides can represent.
pub(crate) const FIRST: DateTime<Utc> = at_second(-62_135_596_800);
/// The last one.
pub(crate) const LAST: DateTime<Utc> = at_second(253_402_300_799);

const fn at_second(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(seconds, 0).expect("the years 1 and 9999 are in range")
}

fn is_deep(json: &[u8]) -> bool {
    // Most values cannot be deep, which a plain count shows.
    if json
        .iter()
        .filter(|byte| matches!(byte, b'[' | b'{'))
        .count()
        <= MAX_DEPTH
    {
        return false;
    }
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return true;
                }
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn nul_is_replaced() {
        assert_eq!(text("a\0b"), "a\u{fffd}b");
        assert!(matches!(text("ab"), Cow::Borrowed("ab")));
        assert_eq!(optional(None), None);
    }

    #[test]
    fn only_deep_json_is_changed() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(json(&raw(&nested(127))), nested(127));
        let deep = json(&raw(&nested(128))).into_owned();
        assert_eq!(value(deep), Value::from(nested(128)));
        for flat in [
            format!("[{}{{}}]", "{},".repeat(500)),
            format!("[\"{}\"]", "[\\\"".repeat(500)),
        ] {
            assert_eq!(json(&raw(&flat)), flat);
        }
    }

    #[test]
    fn what_serde_refuses_comes_back_as_text() {
        let lone = r#"{"a":"\ud800"}"#;
        assert_eq!(value(lone.to_owned()), Value::from(lone));
        assert_eq!(value("{\"a\":1}".to_owned()), serde_json::json!({"a": 1}));
    }

    #[test]
    fn times_are_clamped() {
        let usual: DateTime<Utc> = "2030-01-02T03:04:05Z".parse().unwrap();
        assert_eq!(time(usual), usual);
        assert_eq!(time(DateTime::<Utc>::MAX_UTC), LAST);
        assert_eq!(time(DateTime::<Utc>::MIN_UTC), FIRST);
        assert_eq!(LAST.to_rfc3339(), "9999-12-31T23:59:59+00:00");
    }
}
