//! Sealing what is secret in parameters, and opening it.

use std::collections::BTreeMap;

use attune_core::secret::{
    MASK, Marks, PREFIX, Spot, Step, Walk, may_have_sealed, rewrite, sealed_text,
};
use attune_core::{RawValue, Reject};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use thiserror::Error;

use crate::keyring::{Keyring, NotHere};

/// What all secrets of one submission may take, as JSON, in bytes.
pub const MAX_BYTES: usize = 64 * 1024;
/// The form that is written.
const VERSION: &str = "v1";
/// For what a body of a message is sealed.
const OF_MESSAGE: &[u8] = b"message";

/// Why what is sealed cannot be opened. It names no value.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OpenError {
    /// No line of the file has the key.
    #[error(
        "`{field}` is sealed with the key `{key}`, which is not in secrets.key_file here; add its line to the \
         file and start this process again"
    )]
    NoKey {
        /// Where it stands.
        field: String,
        /// Which key it is.
        key: String,
    },
    /// The file has another key of that id.
    #[error(
        "`{field}` is sealed with a key named `{key}`, and secrets.key_file here has another one of that name: all \
         must have the line that the others have; put it there and start this process again"
    )]
    OtherKey {
        /// Where it stands.
        field: String,
        /// Which key it is.
        key: String,
    },
    /// It was sealed for another place or action, or it was changed.
    #[error("`{0}` cannot be opened: it was sealed for something else, or changed; submit it anew")]
    Broken(String),
}

impl OpenError {
    fn of(why: NotHere, field: String, name: &str) -> Self {
        // Whoever wrote it chose the name. Files of keys know their ids.
        let id = name.split('.').next().unwrap_or_default();
        let key = id.chars().take(64).collect();
        match why {
            NotHere::Unknown => Self::NoKey { field, key },
            NotHere::OtherBytes => Self::OtherKey { field, key },
        }
    }
}

/// Parameters as a program gets them.
#[derive(Clone)]
pub struct Opened {
    /// Them.
    pub parameters: Box<RawValue>,
    /// The texts of what was sealed in them.
    pub values: Vec<String>,
}

impl Keyring {
    /// Seals what is marked in the parameters of an action and is not sealed yet; nothing when there is nothing.
    ///
    /// # Errors
    /// When all of it together is more than [`MAX_BYTES`].
    pub fn seal(
        &self,
        action_ref: &str,
        marks: &Marks,
        parameters: &RawValue,
    ) -> Result<Option<Box<RawValue>>, Reject> {
        let mut seal = Seal {
            keys: self,
            action_ref,
            bytes: 0,
        };
        let root = marks.root();
        let text = rewrite(parameters.get(), &mut seal, root, Vec::new())?;
        Ok(text.and_then(|text| RawValue::from_string(text).ok()))
    }

    /// Opens what is sealed in the parameters of an action; nothing when there is nothing.
    ///
    /// # Errors
    /// When something of it cannot be opened.
    pub fn open(
        &self,
        action_ref: &str,
        parameters: &RawValue,
    ) -> Result<Option<Opened>, OpenError> {
        if !may_have_sealed(parameters.get()) {
            return Ok(None);
        }
        let mut open = Open {
            keys: self,
            action_ref,
            values: Vec::new(),
        };
        let text = rewrite(parameters.get(), &mut open, (), Vec::new())?;
        let parameters = text.and_then(|text| RawValue::from_string(text).ok());
        Ok(parameters.map(|parameters| Opened {
            parameters,
            values: open.values,
        }))
    }

    /// Seals a whole message that is kept, with whatever may be secret in it. Without a key it stays as it is.
    #[must_use]
    pub fn seal_message(&self, body: Vec<u8>) -> Vec<u8> {
        let sealed = self
            .first()
            .and_then(|key| Some((key, key.seal(OF_MESSAGE, &body)?)));
        match sealed {
            Some((key, sealed)) => {
                let head = format!("{PREFIX}{VERSION}:{}:", key.name());
                [head.as_bytes(), &sealed].concat()
            }
            None => body,
        }
    }

    /// Opens what [`seal_message`](Self::seal_message) has sealed. What is not sealed stays as it is.
    ///
    /// # Errors
    /// When its key is not here.
    pub fn open_message(&self, body: Vec<u8>) -> Result<Vec<u8>, OpenError> {
        let head = format!("{PREFIX}{VERSION}:");
        let Some(rest) = body.strip_prefix(head.as_bytes()) else {
            return Ok(body);
        };
        let Some(end) = rest.iter().take(64).position(|byte| *byte == b':') else {
            return Ok(body);
        };
        let name = String::from_utf8_lossy(&rest[..end]);
        let key = self.find(&name);
        let key = key.map_err(|why| OpenError::of(why, "body".to_owned(), &name))?;
        // Somebody may have sent something that begins like that.
        Ok(key.open(OF_MESSAGE, &rest[end + 1..]).unwrap_or(body))
    }

    fn seal_value(&self, action_ref: &str, path: &[String], json: &str) -> Option<String> {
        let Some(key) = self.first() else {
            return Some(format!(
                "{PREFIX}{VERSION}::{}",
                URL_SAFE_NO_PAD.encode(json)
            ));
        };
        let sealed = key.seal(purpose(action_ref, path).as_bytes(), json.as_bytes())?;
        let sealed = URL_SAFE_NO_PAD.encode(sealed);
        Some(format!("{PREFIX}{VERSION}:{}:{sealed}", key.name()))
    }

    fn open_value(
        &self,
        action_ref: &str,
        path: &[String],
        sealed: &str,
    ) -> Result<String, OpenError> {
        let field = || named(path);
        let broken = || OpenError::Broken(field());
        let rest = sealed.strip_prefix(PREFIX).ok_or_else(broken)?;
        let rest = rest.strip_prefix(VERSION).ok_or_else(broken)?;
        let (name, bytes) = rest
            .strip_prefix(':')
            .and_then(|rest| rest.split_once(':'))
            .ok_or_else(broken)?;
        let mut bytes = URL_SAFE_NO_PAD.decode(bytes).map_err(|_| broken())?;
        if !name.is_empty() {
            let key = self.find(name);
            let key = key.map_err(|why| OpenError::of(why, field(), name))?;
            let purpose = purpose(action_ref, path);
            bytes = key.open(purpose.as_bytes(), &bytes).ok_or_else(broken)?;
        }
        String::from_utf8(bytes).map_err(|_| broken())
    }
}

/// For what a value is sealed: an action and a place in its parameters.
fn purpose(action_ref: &str, path: &[String]) -> String {
    let pointer = path.iter().fold(String::new(), |all, part| {
        all + "/" + &part.replace('~', "~0").replace('/', "~1")
    });
    format!("parameter\0{action_ref}\0{pointer}")
}

/// A place as fields are named.
fn named(path: &[String]) -> String {
    path.iter()
        .fold("parameters".to_owned(), |all, part| all + "." + part)
}

struct Seal<'k> {
    keys: &'k Keyring,
    action_ref: &'k str,
    bytes: usize,
}

impl<'k> Walk for Seal<'k> {
    type At = Spot<'k>;
    type Error = Reject;

    fn value(&mut self, at: &Spot<'k>, path: &[String], json: &str) -> Result<Step, Reject> {
        if !at.is_secret() {
            return Ok(Step::Descend);
        }
        if sealed_text(json).is_some() {
            return Ok(Step::Keep);
        }
        self.bytes += json.len();
        let field = named(path);
        if self.bytes > MAX_BYTES {
            let words = format!(
                "`{field}`: what is secret in the parameters takes more than {MAX_BYTES} bytes; name by a secret \
                 where the rest is"
            );
            return Err(Reject::field(&*field, words));
        }
        let sealed = self.keys.seal_value(self.action_ref, path, json);
        let sealed = sealed.ok_or_else(|| {
            Reject::field(
                &*field,
                format!("`{field}` cannot be encrypted; shorten it"),
            )
        })?;
        Ok(Step::Replace(format!("\"{sealed}\"")))
    }

    fn member(&mut self, at: &Spot<'k>, key: &str) -> Spot<'k> {
        at.member(key)
    }

    fn item(&mut self, at: &Spot<'k>, index: usize) -> Spot<'k> {
        at.item(index)
    }
}

struct Open<'k> {
    keys: &'k Keyring,
    action_ref: &'k str,
    values: Vec<String>,
}

impl Walk for Open<'_> {
    type At = ();
    type Error = OpenError;

    fn value(&mut self, (): &(), path: &[String], json: &str) -> Result<Step, OpenError> {
        let Some(sealed) = sealed_text(json) else {
            return Ok(Step::Descend);
        };
        let plain = self.keys.open_value(self.action_ref, path, &sealed)?;
        // The schema may have marked a part first and then the whole.
        let within = match plain.starts_with(['{', '[']) {
            true => rewrite(&plain, self, (), path.to_vec())?,
            false => None,
        };
        let plain = within.unwrap_or(plain);
        let _whole: &RawValue =
            serde_json::from_str(&plain).map_err(|_| OpenError::Broken(named(path)))?;
        texts(&plain, &mut self.values);
        Ok(Step::Replace(plain))
    }

    fn member(&mut self, (): &(), _key: &str) {}

    fn item(&mut self, (): &(), _index: usize) {}
}

/// The texts of a value by which it could be told in what somebody writes: as it is, and as it was written. A
/// program is given what was written, where a slash may be escaped and a number have any form.
fn texts(written: &str, out: &mut Vec<String>) {
    let written = written.trim();
    if let Some(inner) = written
        .strip_prefix('"')
        .and_then(|it| it.strip_suffix('"'))
    {
        let Ok(text) = serde_json::from_str::<String>(written) else {
            return;
        };
        if text != MASK {
            if inner != text {
                out.push(inner.to_owned());
            }
            out.push(text);
        }
    } else if let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(written) {
        items.into_iter().for_each(|item| texts(item.get(), out));
    } else if let Ok(members) = serde_json::from_str::<BTreeMap<String, &RawValue>>(written) {
        members.into_values().for_each(|it| texts(it.get(), out));
    } else if let Ok(Value::Number(number)) = serde_json::from_str::<Value>(written) {
        let shown = number.to_string();
        if shown != written {
            out.push(written.to_owned());
        }
        out.push(shown);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::new_key;

    #[test]
    fn a_value_is_told_by_each_way_that_it_is_written() {
        let told = |written: &str| {
            let mut out = Vec::new();
            texts(written, &mut out);
            out
        };
        assert_eq!(told(r#""tok\/en""#), [r"tok\/en", "tok/en"]);
        assert_eq!(told(r#""p\u0061ss""#), [r"p\u0061ss", "pass"]);
        assert_eq!(told("[4.111111e15]"), ["4.111111e15", "4111111000000000.0"]);
        assert_eq!(told(r#"{"a":{"b":"x\/y"}, "c":true}"#), [r"x\/y", "x/y"]);
        assert_eq!(told(&format!("\"{MASK}\"")), Vec::<String>::new());
    }

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    fn marks() -> Marks {
        let schema = json!({"properties": {
            "password": {"secret": true},
            "list": {"items": {"properties": {"pin": {"writeOnly": true}}}},
        }});
        Marks::of(&schema).unwrap()
    }

    const PLAIN: &str = r#"{"n": 12345678901234567890123, "password":"s3cret-\"x\"","list":[{"pin": 12345678},{}]}"#;

    #[test]
    fn what_was_sealed_is_what_is_opened_and_the_rest_stays_as_it_was_written() {
        for keys in [
            Keyring::default(),
            Keyring::parse(&new_key("k").unwrap()).unwrap(),
        ] {
            let sealed = keys.seal("a.b", &marks(), &raw(PLAIN)).unwrap().unwrap();
            assert!(!sealed.get().contains("s3cret") && !sealed.get().contains("12345678}"));
            assert!(
                sealed.get().contains(r#""n":12345678901234567890123"#),
                "{sealed}"
            );
            let again = keys.seal("a.b", &marks(), &raw(PLAIN)).unwrap().unwrap();
            assert_eq!(again.get(), sealed.get(), "a repeated request is the same");
            assert!(
                keys.seal("a.b", &marks(), &sealed).unwrap().is_none(),
                "once"
            );
            let opened = keys.open("a.b", &sealed).unwrap().unwrap();
            let (one, two): (Value, Value) = (
                serde_json::from_str(opened.parameters.get()).unwrap(),
                serde_json::from_str(PLAIN).unwrap(),
            );
            assert_eq!(one, two);
            let told = [r#"s3cret-\"x\""#, r#"s3cret-"x""#, "12345678"];
            assert_eq!(opened.values, told);
        }
    }

    #[test]
    fn what_is_sealed_opens_at_its_place_with_its_key_alone() {
        let (one, two) = (new_key("one").unwrap(), new_key("two").unwrap());
        let first = Keyring::parse(&one).unwrap();
        let sealed = first.seal("a.b", &marks(), &raw(PLAIN)).unwrap().unwrap();
        let rotated = Keyring::parse(&format!("{two}\n{one}")).unwrap();
        assert!(rotated.open("a.b", &sealed).is_ok());
        let newer = rotated.seal("a.b", &marks(), &raw(PLAIN)).unwrap().unwrap();
        assert!(newer.get().contains("attune:secret:v1:two."));
        let why = first.open("a.b", &newer).err().unwrap().to_string();
        assert!(
            why.contains("`two`") && why.contains("secrets.key_file"),
            "{why}"
        );
        assert!(matches!(
            first.open("a.c", &sealed),
            Err(OpenError::Broken(_))
        ));
        let same_name = Keyring::parse(&new_key("one").unwrap()).unwrap();
        let why = same_name.open("a.b", &sealed).err().unwrap();
        assert!(matches!(why, OpenError::OtherKey { .. }), "{why}");
        let name = first.first().unwrap().name();
        let by_id_alone = sealed.get().replace(&name, "one");
        assert!(
            first.open("a.b", &raw(&by_id_alone)).is_ok(),
            "as it was sealed once"
        );
        let moved = sealed.get().replace("\"password\":", "\"other\":");
        assert!(matches!(
            first.open("a.b", &raw(&moved)),
            Err(OpenError::Broken(_))
        ));
        let none = Keyring::default();
        assert!(matches!(
            none.open("a.b", &sealed),
            Err(OpenError::NoKey { .. })
        ));
    }

    #[test]
    fn a_part_that_was_sealed_before_the_whole_is_opened_with_it() {
        let keys = Keyring::parse(&new_key("k").unwrap()).unwrap();
        let part = keys.seal("a.b", &marks(), &raw(PLAIN)).unwrap().unwrap();
        let whole = Marks::of(&json!({"properties": {"list": {"secret": true}}})).unwrap();
        let both = keys.seal("a.b", &whole, &part).unwrap().unwrap();
        let opened = keys.open("a.b", &both).unwrap().unwrap();
        assert!(
            opened.parameters.get().contains(r#"[{"pin":12345678},{}]"#),
            "{}",
            opened.parameters
        );
        assert!(opened.values.contains(&"12345678".to_owned()));
    }

    #[test]
    fn secrets_are_bounded() {
        let long = format!(r#"{{"password":"{}"}}"#, "x".repeat(MAX_BYTES));
        let reject = Keyring::default()
            .seal("a.b", &marks(), &raw(&long))
            .unwrap_err();
        assert_eq!(reject.field.as_deref(), Some("parameters.password"));
        assert!(!reject.message.contains("xxx"), "{reject}");
    }

    #[test]
    fn a_message_is_sealed_whole() {
        let keys = Keyring::parse(&new_key("k").unwrap()).unwrap();
        let body = b"{\"payload\": 1}\xff".to_vec();
        let sealed = keys.seal_message(body.clone());
        assert!(sealed.starts_with(b"attune:secret:v1:k."));
        let other = Keyring::parse(&new_key("k").unwrap()).unwrap();
        assert!(matches!(
            other.open_message(sealed.clone()),
            Err(OpenError::OtherKey { .. })
        ));
        assert_eq!(keys.open_message(sealed.clone()).unwrap(), body);
        assert!(Keyring::default().open_message(sealed).is_err());
        assert_eq!(Keyring::default().seal_message(body.clone()), body);
        for other in [
            body,
            b"attune:secret:v1:k:garbage".to_vec(),
            b"attune:secret:v1:".to_vec(),
        ] {
            assert_eq!(keys.open_message(other.clone()).unwrap(), other);
        }
    }
}
