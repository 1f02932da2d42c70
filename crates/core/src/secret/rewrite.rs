//! Rewriting a JSON text value by value. What is not replaced stays as it was written, digits of large numbers
//! and the order of keys included.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// What becomes of a value.
pub enum Step {
    /// It stays, with all that is in it.
    Keep,
    /// What is in it is looked at.
    Descend,
    /// This JSON takes its place.
    Replace(String),
}

/// Says what becomes of each value of a JSON text.
pub trait Walk {
    /// What is known of a place.
    type At;
    /// Why it cannot be said.
    type Error;

    /// What becomes of the value at a place, which is written like this.
    ///
    /// # Errors
    /// When that cannot be said; it ends the walk.
    fn value(&mut self, at: &Self::At, path: &[String], json: &str) -> Result<Step, Self::Error>;

    /// The place of a member of an object.
    fn member(&mut self, at: &Self::At, key: &str) -> Self::At;

    /// The place of an item of an array.
    fn item(&mut self, at: &Self::At, index: usize) -> Self::At;
}

/// Rewrites a JSON text from the place `at` on, which is at `path`; nothing when it stays as it is. A text that
/// is no JSON stays.
///
/// # Errors
/// What `walk` says.
pub fn rewrite<W: Walk>(
    json: &str,
    walk: &mut W,
    at: W::At,
    mut path: Vec<String>,
) -> Result<Option<String>, W::Error> {
    let mut out = String::new();
    let is_changed = value(json.trim(), walk, &at, &mut path, &mut out)?;
    Ok(is_changed.then_some(out))
}

/// Writes one value; says whether it is another than it was.
fn value<W: Walk>(
    json: &str,
    walk: &mut W,
    at: &W::At,
    path: &mut Vec<String>,
    out: &mut String,
) -> Result<bool, W::Error> {
    match walk.value(at, path, json)? {
        Step::Keep => {}
        Step::Replace(other) => {
            out.push_str(&other);
            return Ok(true);
        }
        Step::Descend => {
            let start = out.len();
            let is_changed = match json.as_bytes().first() {
                Some(b'{') => members(json, walk, at, path, out)?,
                Some(b'[') => items(json, walk, at, path, out)?,
                _ => false,
            };
            if is_changed {
                return Ok(true);
            }
            out.truncate(start);
        }
    }
    out.push_str(json);
    Ok(false)
}

fn members<W: Walk>(
    json: &str,
    walk: &mut W,
    at: &W::At,
    path: &mut Vec<String>,
    out: &mut String,
) -> Result<bool, W::Error> {
    let Ok(Members(members)) = serde_json::from_str(json) else {
        return Ok(false);
    };
    let mut is_changed = false;
    out.push('{');
    for (index, (key, member)) in members.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push_str(&serde_json::Value::from(key.as_str()).to_string());
        out.push(':');
        let there = walk.member(at, &key);
        path.push(key);
        is_changed |= value(member.get(), walk, &there, path, out)?;
        path.pop();
    }
    out.push('}');
    Ok(is_changed)
}

fn items<W: Walk>(
    json: &str,
    walk: &mut W,
    at: &W::At,
    path: &mut Vec<String>,
    out: &mut String,
) -> Result<bool, W::Error> {
    let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(json) else {
        return Ok(false);
    };
    let mut is_changed = false;
    out.push('[');
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        let there = walk.item(at, index);
        path.push(index.to_string());
        is_changed |= value(item.get(), walk, &there, path, out)?;
        path.pop();
    }
    out.push(']');
    Ok(is_changed)
}

/// The members of an object in their order, with values as they were written.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        from.deserialize_map(Read)
    }
}
