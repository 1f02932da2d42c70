//! Reading YAML: into a tree of its own, because that of the parser's crate does not tell a key in quotes from
//! one without, and `<<` without quotes is no key but says what else an object has.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;

use attune_core::nesting::check_nesting;
use attune_core::twice::{offset_of, there_twice};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, IgnoredAny, MapAccess, SeqAccess,
    VariantAccess as _, Visitor,
};
use serde_json::{Map, Number, Value};

/// So many values may a text have, with what its aliases stand for: a few kilobytes can stand for millions.
const MAX_VALUES: usize = 500_000;

/// What a document says.
#[derive(Debug, Clone)]
pub(super) enum Tree {
    /// Anything without parts.
    Leaf(Value),
    /// A number that JSON has not.
    NoNumber,
    /// A list.
    List(Vec<Tree>),
    /// An object; the values of `<<` stand apart.
    Object(Vec<(Key, Tree)>),
    /// A value with a tag.
    Tagged(String),
}

/// A key of an object.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Key {
    /// `<<` without quotes.
    Merge,
    /// Any other word, and also `<<` in quotes.
    Word(String),
    /// Something else than a word.
    Other,
}

/// The documents of a text, up to the first that is no YAML: what follows it cannot be told apart any more.
pub(super) fn documents(text: &str) -> Vec<Result<Tree, String>> {
    if let Err(problem) = check_nesting(text) {
        return vec![Err(problem)];
    }
    let (mut found, left, said) = (Vec::new(), Cell::new(MAX_VALUES), RefCell::new(None));
    let (left, said) = (&left, &said);
    for document in yaml_serde::Deserializer::from_str(text) {
        let tree = Reader { text, left, said }.deserialize(document);
        let is_broken = tree.is_err();
        // The parser adds to an error where the object begins in which it was made.
        found.push(tree.map_err(|error| said.take().unwrap_or_else(|| error.to_string())));
        if is_broken {
            break;
        }
    }
    found
}

impl Tree {
    /// The same in JSON, which has fewer kinds of values.
    ///
    /// # Errors
    /// What JSON has no word for, with its place.
    pub(super) fn into_json(self) -> Result<Value, String> {
        self.json("")
    }

    fn json(self, path: &str) -> Result<Value, String> {
        let at = |problem: String| match path {
            "" => problem,
            path => format!("{path}: {problem}"),
        };
        match self {
            Self::Leaf(value) => Ok(value),
            Self::NoNumber => Err(at("the number must be finite, and fit into 64 bits".into())),
            Self::Tagged(tag) => Err(at(format!("the tag {tag} has no meaning here"))),
            Self::List(items) => {
                let items = items.into_iter().enumerate();
                let items = items.map(|(index, item)| item.json(&join(path, &index.to_string())));
                items.collect::<Result<_, _>>().map(Value::Array)
            }
            Self::Object(members) => {
                let (mut own, mut merged) = (Map::new(), Vec::new());
                for (key, value) in members {
                    match key {
                        Key::Word(key) => {
                            let value = value.json(&join(path, &key))?;
                            own.insert(key, value);
                        }
                        Key::Merge => merged.push(value.json(&join(path, MERGE))?),
                        Key::Other => {
                            return Err(
                                at("keys must be words; put quotes around this one".into()),
                            );
                        }
                    }
                }
                let mut merged = merged.into_iter();
                merged.try_for_each(|it| merge(&mut own, it).map_err(at))?;
                Ok(Value::Object(own))
            }
        }
    }
}

/// The key that says what else an object has.
const MERGE: &str = "<<";

/// Puts into an object what it does not say itself: of another object, or of several, the first of them first.
fn merge(own: &mut Map<String, Value>, from: Value) -> Result<(), String> {
    let others = match from {
        Value::Array(others) => others,
        other => vec![other],
    };
    for other in others {
        let Value::Object(members) = other else {
            let words =
                "`<<` takes an object or a list of objects; put quotes around it if it is a field";
            return Err(words.to_owned());
        };
        for (key, value) in members {
            own.entry(key).or_insert(value);
        }
    }
    Ok(())
}

fn join(path: &str, key: &str) -> String {
    match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    }
}

/// Reads a value of a text.
#[derive(Clone, Copy)]
struct Reader<'t> {
    text: &'t str,
    /// How many values may still come, those of aliases among them.
    left: &'t Cell<usize>,
    /// What is wrong, where that is no error of the parser.
    said: &'t RefCell<Option<String>>,
}

impl<'t> DeserializeSeed<'t> for Reader<'t> {
    type Value = Tree;

    fn deserialize<D: Deserializer<'t>>(self, from: D) -> Result<Tree, D::Error> {
        let Some(left) = self.left.get().checked_sub(1) else {
            return Err(Error::custom(format_args!(
                "more than {MAX_VALUES} values, with what aliases stand for"
            )));
        };
        self.left.set(left);
        from.deserialize_any(self)
    }
}

impl<'t> Visitor<'t> for Reader<'t> {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Leaf(value.into()))
    }

    fn visit_i128<E: Error>(self, _: i128) -> Result<Tree, E> {
        Ok(Tree::NoNumber)
    }

    fn visit_u128<E: Error>(self, _: u128) -> Result<Tree, E> {
        Ok(Tree::NoNumber)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Tree, E> {
        let number = Number::from_f64(value).map(Value::Number);
        Ok(number.map_or(Tree::NoNumber, Tree::Leaf))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Tree, E> {
        Ok(Tree::Leaf(text.into()))
    }

    fn visit_unit<E: Error>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Null))
    }

    fn visit_none<E: Error>(self) -> Result<Tree, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'t>>(self, from: D) -> Result<Tree, D::Error> {
        self.deserialize(from)
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut from: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = from.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'t>>(self, mut from: A) -> Result<Tree, A::Error> {
        let (mut members, mut seen) = (Vec::new(), HashMap::new());
        let at = Cell::new(None);
        let (text, at) = (self.text, &at);
        while let Some(key) = from.next_key_seed(KeyReader { text, at })? {
            let (quoted, word) = match &key {
                Key::Word(word) => (true, word.as_str()),
                Key::Merge => (false, MERGE),
                Key::Other => {
                    members.push((key, from.next_value_seed(self)?));
                    continue;
                }
            };
            let at = at.take();
            if let Some(first) = seen.insert((quoted, word.to_owned()), at) {
                *self.said.borrow_mut() = Some(there_twice(word, text, [first, at]));
                return Err(Error::custom("a key is there twice"));
            }
            members.push((key, from.next_value_seed(self)?));
        }
        Ok(Tree::Object(members))
    }

    fn visit_enum<A: EnumAccess<'t>>(self, from: A) -> Result<Tree, A::Error> {
        let (tag, value) = from.variant::<String>()?;
        value.newtype_variant::<IgnoredAny>()?;
        Ok(Tree::Tagged(format!("!{}", tag.trim_start_matches('!'))))
    }
}

/// Reads a key of an object.
struct KeyReader<'t, 'a> {
    text: &'t str,
    /// Where a key begins in the text, in bytes, if it stands there as it is.
    at: &'a Cell<Option<usize>>,
}

impl KeyReader<'_, '_> {
    /// Whether a part of the text stands in quotes there.
    fn is_quoted(&self, at: Option<usize>) -> bool {
        let before = at.and_then(|at| self.text.as_bytes().get(at.checked_sub(1)?));
        matches!(before, Some(b'"' | b'\''))
    }
}

impl<'t> DeserializeSeed<'t> for KeyReader<'t, '_> {
    type Value = Key;

    fn deserialize<D: Deserializer<'t>>(self, from: D) -> Result<Key, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'t> Visitor<'t> for KeyReader<'t, '_> {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E: Error>(self, word: &'t str) -> Result<Key, E> {
        // The parser says nothing of quotes. What it lends is a part of the text, and they stand around it.
        let at = offset_of(word, self.text);
        self.at.set(at);
        match word == MERGE && !self.is_quoted(at) {
            true => Ok(Key::Merge),
            false => self.visit_str(word),
        }
    }

    /// What is no part of the text as it stands: it has escapes, so that it is in quotes, or several lines.
    fn visit_str<E: Error>(self, word: &str) -> Result<Key, E> {
        Ok(Key::Word(word.to_owned()))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Key, E> {
        Ok(Key::Other)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Key, E> {
        Ok(Key::Other)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Key, E> {
        Ok(Key::Other)
    }

    fn visit_i128<E: Error>(self, _: i128) -> Result<Key, E> {
        Ok(Key::Other)
    }

    fn visit_u128<E: Error>(self, _: u128) -> Result<Key, E> {
        Ok(Key::Other)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Key, E> {
        Ok(Key::Other)
    }

    fn visit_unit<E: Error>(self) -> Result<Key, E> {
        Ok(Key::Other)
    }

    fn visit_none<E: Error>(self) -> Result<Key, E> {
        Ok(Key::Other)
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut from: A) -> Result<Key, A::Error> {
        while from.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Key::Other)
    }

    fn visit_map<A: MapAccess<'t>>(self, mut from: A) -> Result<Key, A::Error> {
        while from.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Key::Other)
    }

    fn visit_enum<A: EnumAccess<'t>>(self, from: A) -> Result<Key, A::Error> {
        let (IgnoredAny, value) = from.variant()?;
        value.newtype_variant::<IgnoredAny>()?;
        Ok(Key::Other)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn json(text: &str) -> Result<Value, String> {
        let mut documents = documents(text);
        assert_eq!(documents.len(), 1, "{text}");
        documents.remove(0).and_then(Tree::into_json)
    }

    #[test]
    fn a_key_in_quotes_is_never_a_merge() {
        let base = "base: &base {a: 1, b: 2}\n";
        for (text, x) in [
            ("x: {<<: *base, a: 3}", json!({"a": 3, "b": 2})),
            (
                "x:\n  <<: [*base, {c: 4, a: 5}]",
                json!({"a": 1, "b": 2, "c": 4}),
            ),
            (
                "x: &x\n  <<: *base\n  c: 0\ny: {<<: *x}",
                json!({"a": 1, "b": 2, "c": 0}),
            ),
            (
                "x: {\"<<\": *base, a: 3}",
                json!({"<<": {"a": 1, "b": 2}, "a": 3}),
            ),
            ("x: {'<<': 7, <<: *base}", json!({"<<": 7, "a": 1, "b": 2})),
            ("x: {\"\\x3c<\": 7}", json!({"<<": 7})),
            ("x: {? \"<<\" : 7}", json!({"<<": 7})),
            ("x:\n  ? |-\n    <<\n  : 7", json!({"<<": 7})),
            ("x:\n  &k \"<<\": 7", json!({"<<": 7})),
            ("x: <<", json!("<<")),
        ] {
            let read = json(&format!("{base}{text}\n")).unwrap();
            assert_eq!(read["x"], x, "{text}");
            assert!(read.get("y").is_none_or(|y| *y == x), "{text}");
        }
    }

    #[test]
    fn a_merge_of_something_else_and_a_key_that_is_there_twice_are_refused() {
        for (text, problem) in [
            ("a: {<<: 1}", "a: `<<` takes an object or a list of objects"),
            ("a: {<<: [[]]}", "a: `<<` takes an object"),
            ("a: {<<: {b: .inf}}", "a.<<.b: the number must be finite"),
            (
                "a: 1\n'a': 2",
                "`a` is there twice, in lines 1 and 2: leave out one",
            ),
            ("<<: {}\n<<: {}", "`<<` is there twice, in lines 1 and 2: "),
            ("{'<<': 1, \"<<\": 2}", "`<<` is there twice, in line 1: "),
            (
                "a:\n  b: 1\nc: 1\n\"\\x63\": 2",
                "`c` is there twice, the first time in line 3: ",
            ),
            ("{[a]: 1}", "keys must be words"),
            ("{{a: b}: 1}", "keys must be words"),
            ("a: {!x b: 1}", "a: keys must be words"),
            (
                "a: 18446744073709551616",
                "a: the number must be finite, and fit into 64 bits",
            ),
        ] {
            let error = json(text).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    #[test]
    fn what_aliases_stand_for_is_bounded() {
        let keys: String = (0..1_000).map(|n| format!("k{n}: 1, ")).collect();
        let members: String = (0..1_000).map(|n| format!("m{n}: {{<<: *b}}\n")).collect();
        let error = json(&format!("b: &b {{{keys}}}\n{members}")).unwrap_err();
        assert!(error.contains("more than 500000 values"), "{error}");
    }

    #[test]
    fn what_is_nested_deep_is_refused_at_once() {
        let error = json(&"{a: ".repeat(1_000_000)).unwrap_err();
        assert!(
            error.contains("4096 brackets are open at line 1"),
            "{error}"
        );
    }
}
