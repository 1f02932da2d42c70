//! Goes through a YAML text once, before it is read: what would fill all memory, and what stands there twice.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;

use attune_core::twice::{offset_of, there_twice};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, IgnoredAny, MapAccess, SeqAccess,
    VariantAccess as _, Visitor,
};

/// How many values and keys a settings file may have, with each alias replaced by what it stands
/// for.
const MAX_NODES: usize = 10_000;

/// Looks whether a text can be read.
///
/// The parser of `config` copies what an alias stands for each time, so that some hundred bytes of nested aliases
/// would fill all memory; this one follows them without keeping anything. And of a key that is there twice that
/// parser speaks to programmers.
///
/// # Errors
/// Words for people.
pub(crate) fn walk(text: &str) -> Result<(), String> {
    let (nodes, said) = (Cell::new(0), RefCell::new(None));
    let walk = Walk {
        text,
        nodes: &nodes,
        said: &said,
    };
    let walked = walk.deserialize(yaml_serde::Deserializer::from_str(text));
    // The parser adds to an error where the object begins in which it was made.
    walked.map_err(|error| said.take().unwrap_or_else(|| error.to_string()))
}

/// Counts the values and keys of a YAML document, and keeps the keys of the objects that it is in.
#[derive(Clone, Copy)]
struct Walk<'t> {
    text: &'t str,
    nodes: &'t Cell<usize>,
    /// What is wrong, where that is no error of the parser.
    said: &'t RefCell<Option<String>>,
}

impl Walk<'_> {
    fn count<E: Error>(self) -> Result<(), E> {
        self.nodes.set(self.nodes.get() + 1);
        if self.nodes.get() > MAX_NODES {
            return Err(E::custom(format_args!(
                "it has more than {MAX_NODES} values, each alias (`*name`) replaced by what it \
                 stands for"
            )));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.count()
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.count()
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.count()
    }

    fn visit_i128<E: Error>(self, _: i128) -> Result<(), E> {
        self.count()
    }

    fn visit_u128<E: Error>(self, _: u128) -> Result<(), E> {
        self.count()
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.count()
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        self.count()
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.count()
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        self.count()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.count()?;
        while items.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        self.count()?;
        let mut seen: HashMap<String, Option<usize>> = HashMap::new();
        while let Some(key) = members.next_key_seed(KeyOf(self))? {
            if let Some((key, at)) = key {
                let first = seen.get(&key).copied();
                if let Some(first) = first {
                    let words = there_twice(&key, self.text, [first, at]);
                    *self.said.borrow_mut() = Some(words);
                    return Err(A::Error::custom("a key is there twice"));
                }
                seen.insert(key, at);
            }
            members.next_value_seed(self)?;
        }
        Ok(())
    }

    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<(), A::Error> {
        let (IgnoredAny, value) = tagged.variant()?;
        value.newtype_variant_seed(self)
    }
}

/// Reads a key: its text, and where that stands if it stands there as it is. Nothing for a key with parts or a tag,
/// which no setting has.
#[derive(Clone, Copy)]
struct KeyOf<'t>(Walk<'t>);

/// What is read of a key.
type KeyRead = Option<(String, Option<usize>)>;

impl KeyOf<'_> {
    fn scalar<E: Error>(self, key: impl fmt::Display) -> Result<KeyRead, E> {
        self.0.count()?;
        Ok(Some((key.to_string(), None)))
    }
}

impl<'de> DeserializeSeed<'de> for KeyOf<'_> {
    type Value = KeyRead;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<KeyRead, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for KeyOf<'_> {
    type Value = KeyRead;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_bool<E: Error>(self, key: bool) -> Result<KeyRead, E> {
        self.scalar(key)
    }

    fn visit_i64<E: Error>(self, key: i64) -> Result<KeyRead, E> {
        self.scalar(key)
    }

    fn visit_u64<E: Error>(self, key: u64) -> Result<KeyRead, E> {
        self.scalar(key)
    }

    fn visit_i128<E: Error>(self, key: i128) -> Result<KeyRead, E> {
        self.scalar(key)
    }

    fn visit_u128<E: Error>(self, key: u128) -> Result<KeyRead, E> {
        self.scalar(key)
    }

    fn visit_f64<E: Error>(self, key: f64) -> Result<KeyRead, E> {
        self.scalar(key)
    }

    fn visit_borrowed_str<E: Error>(self, key: &'de str) -> Result<KeyRead, E> {
        self.0.count()?;
        Ok(Some((key.to_owned(), offset_of(key, self.0.text))))
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<KeyRead, E> {
        self.scalar(key)
    }

    fn visit_unit<E: Error>(self) -> Result<KeyRead, E> {
        self.scalar("~")
    }

    fn visit_none<E: Error>(self) -> Result<KeyRead, E> {
        self.scalar("~")
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<KeyRead, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<KeyRead, A::Error> {
        self.0.visit_seq(items).map(|()| None)
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<KeyRead, A::Error> {
        self.0.visit_map(members).map(|()| None)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<KeyRead, A::Error> {
        self.0.visit_enum(tagged).map(|()| None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_there_twice_is_told_with_its_lines() {
        for (text, words) in [
            (
                "log:\n  level: info\n  format: json\n  level: warn\n",
                "`level` is there twice, in lines 2 and 4: ",
            ),
            (
                "log: {level: info}\n# more\n'log': {}\n",
                "`log` is there twice, in lines 1 and 3: ",
            ),
            (
                "log: {level: info, \"level\": warn}",
                "`level` is there twice, in line 1: ",
            ),
            (
                "log:\n  \"l\\x65vel\": info\n  level: warn\n",
                "`level` is there twice, the second time in line 3: ",
            ),
            (
                "1: a\n'1': b\n",
                "`1` is there twice, the second time in line 2: ",
            ),
            ("true: a\ntrue: b\n", "`true` is there twice: "),
            ("a: [{b: 1, b: 2}]", "`b` is there twice, in line 1: "),
        ] {
            let said = walk(text).unwrap_err();
            assert!(said.starts_with(words), "{text}: {said}");
            assert!(!said.contains("\"") && !said.contains(" at line"), "{said}");
        }
        let other = walk("a: [b").unwrap_err();
        assert!(other.contains("line 1"), "{other}");
        assert_eq!(walk("a: {b: 1}\nc: {b: 1}\nd: [{b: 1}, {b: 2}]"), Ok(()));
        assert_eq!(walk("base: &b {x: 1}\none: *b\nother: *b"), Ok(()));
    }
}
