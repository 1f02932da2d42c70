//! Which values a schema marks as secret.

use std::cell::Cell;
use std::sync::Arc;

use serde_json::Value;

/// So many steps a walk through a value may take; beyond, whatever comes counts as secret.
const MAX_STEPS: usize = 500_000;
/// Keywords whose schemas apply to the same value, in an array.
const IN_ARRAYS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Keywords whose schema applies to the same value.
const BESIDE: [&str; 4] = ["if", "then", "else", "not"];
/// Keywords whose schemas apply to the same value, by names.
const BY_NAME: [&str; 2] = ["dependentSchemas", "dependencies"];
/// References that are not followed: what they lead to depends on more than the schema's text.
const DYNAMIC: [&str; 2] = ["$dynamicRef", "$recursiveRef"];

/// What a schema marks as secret. A value is as soon as one schema that may apply to it says so, whichever
/// branch of `anyOf` or the like is taken in the end, and whatever a pattern matches: in doubt it is.
#[derive(Debug, Clone)]
pub struct Marks {
    schema: Arc<Value>,
    /// A `$ref` means something else below a schema with an `$id` of its own.
    has_inner_id: bool,
}

/// All schemas that may apply to a value.
pub struct Spot<'a> {
    marks: &'a Marks,
    schemas: Vec<&'a Value>,
    is_secret: bool,
    /// Taken so far, by all spots of a walk.
    steps: std::rc::Rc<Cell<usize>>,
}

impl Marks {
    /// What the schema marks; nothing when it marks nothing.
    #[must_use]
    pub fn of(schema: &Value) -> Option<Self> {
        has_mark(schema).then(|| Self {
            schema: Arc::new(schema.clone()),
            has_inner_id: has_inner_id(schema),
        })
    }

    /// The spot of the whole value.
    #[must_use]
    pub fn root(&self) -> Spot<'_> {
        Spot::new(self, vec![&*self.schema], std::rc::Rc::default())
    }

    /// Whether what stands at a place, or something around it, is secret.
    pub fn covers<'k>(&self, keys: impl IntoIterator<Item = &'k str>) -> bool {
        self.depth_of_secret(keys).is_some()
    }

    /// How many of the keys lead to the first value on the way that is secret.
    pub fn depth_of_secret<'k>(&self, keys: impl IntoIterator<Item = &'k str>) -> Option<usize> {
        let mut spot = self.root();
        if spot.is_secret {
            return Some(0);
        }
        for (index, key) in keys.into_iter().enumerate() {
            spot = spot.of_key(key);
            if spot.is_secret {
                return Some(index + 1);
            }
        }
        None
    }

    /// What a `$ref` refers to, if that is another place of the schema.
    fn resolve(&self, reference: &str) -> Option<&Value> {
        let pointer = reference.strip_prefix('#')?;
        if self.has_inner_id || pointer.contains('%') {
            return None;
        }
        self.schema.pointer(pointer)
    }
}

impl<'a> Spot<'a> {
    /// With all that applies together with these schemas.
    fn new(marks: &'a Marks, mut open: Vec<&'a Value>, steps: std::rc::Rc<Cell<usize>>) -> Self {
        let mut schemas: Vec<&Value> = Vec::new();
        let mut is_secret = false;
        while let Some(schema) = open.pop() {
            steps.set(steps.get() + 1 + schemas.len() / 16);
            if steps.get() > MAX_STEPS {
                is_secret = true;
                break;
            }
            let Some(members) = schema.as_object() else {
                continue;
            };
            if schemas.iter().any(|known| std::ptr::eq(*known, schema)) {
                continue;
            }
            schemas.push(schema);
            is_secret |= is_marked(schema);
            is_secret |= DYNAMIC.iter().any(|name| members.contains_key(*name));
            if let Some(reference) = members.get("$ref").and_then(Value::as_str) {
                match marks.resolve(reference) {
                    Some(found) => open.push(found),
                    None => is_secret = true,
                }
            }
            let named = |name: &&str| members.get(*name);
            let arrays = IN_ARRAYS.iter().filter_map(named);
            open.extend(arrays.filter_map(Value::as_array).flatten());
            open.extend(BESIDE.iter().filter_map(named));
            let names = BY_NAME.iter().filter_map(named);
            open.extend(
                names
                    .filter_map(Value::as_object)
                    .flat_map(|it| it.values()),
            );
        }
        Self {
            marks,
            schemas,
            is_secret,
            steps,
        }
    }

    /// Whether the value is secret, with all that is in it.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.is_secret
    }

    /// The spot of a member of an object.
    #[must_use]
    pub fn member(&self, key: &str) -> Self {
        let mut found = Vec::new();
        for schema in &self.schemas {
            match schema.get("properties").and_then(|it| it.get(key)) {
                Some(property) => found.push(property),
                None => {
                    let others = ["additionalProperties", "unevaluatedProperties"];
                    found.extend(others.into_iter().filter_map(|name| schema.get(name)));
                }
            }
            let patterns = schema.get("patternProperties").and_then(Value::as_object);
            found.extend(patterns.into_iter().flat_map(|it| it.values()));
        }
        Self::new(self.marks, found, self.steps.clone())
    }

    /// The spot of an item of an array.
    #[must_use]
    pub fn item(&self, index: usize) -> Self {
        let mut found = Vec::new();
        for schema in &self.schemas {
            let first = schema.get("prefixItems").and_then(Value::as_array);
            let items = schema.get("items");
            // Earlier drafts have a list there.
            let listed = first.or_else(|| items.and_then(Value::as_array));
            if let Some(own) = listed.and_then(|listed| listed.get(index)) {
                found.push(own);
            } else {
                found.extend(items);
                found.extend(schema.get("additionalItems"));
            }
            let others = ["contains", "unevaluatedItems"];
            found.extend(others.into_iter().filter_map(|name| schema.get(name)));
        }
        Self::new(self.marks, found, self.steps.clone())
    }

    /// The spot of what a text names, a member or an item.
    fn of_key(&self, key: &str) -> Self {
        let member = self.member(key);
        match key.parse() {
            Ok(index) if !member.is_secret => {
                let mut both = self.item(index);
                both.schemas.extend(member.schemas);
                both
            }
            _ => member,
        }
    }
}

fn is_marked(schema: &Value) -> bool {
    let says = |name: &str| schema.get(name) == Some(&Value::Bool(true));
    says("secret") || says("writeOnly")
}

fn has_mark(value: &Value) -> bool {
    is_marked(value) || parts(value).any(has_mark)
}

fn has_inner_id(schema: &Value) -> bool {
    let is_id = |value: &Value| value.get("$id").is_some_and(Value::is_string);
    fn within(value: &Value, is_id: &impl Fn(&Value) -> bool) -> bool {
        is_id(value) || parts(value).any(|part| within(part, is_id))
    }
    parts(schema).any(|part| within(part, &is_id))
}

fn parts(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(members) => Box::new(members.values()),
        _ => Box::new(std::iter::empty()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn covers(schema: Value, place: &str) -> bool {
        let marks = Marks::of(&schema);
        marks.is_some_and(|marks| marks.covers(place.split('.').filter(|it| !it.is_empty())))
    }

    #[test]
    fn every_way_to_a_mark_counts() {
        let mark = || json!({"secret": true});
        for (schema, secret, open) in [
            (json!({"properties": {"a": mark()}}), "a", "b"),
            (
                json!({"properties": {"a": {"writeOnly": true}}}),
                "a.x.1",
                "",
            ),
            (
                json!({"properties": {"a": {}}, "additionalProperties": mark()}),
                "b",
                "a",
            ),
            (json!({"properties": {"a": {"items": mark()}}}), "a.7", "a"),
            (
                json!({"properties": {"a": {"prefixItems": [{}, mark()], "items": {}}}}),
                "a.1",
                "a.0",
            ),
            (
                json!({"properties": {"a": {"items": [{}, mark()]}}}),
                "a.1",
                "a.2",
            ),
            (
                json!({"$defs": {"s": mark()}, "properties": {"a": {"$ref": "#/$defs/s"}}}),
                "a",
                "s",
            ),
            (
                json!({"properties": {"a": {"anyOf": [{"type": "null"}, mark()]}, "b": {}}}),
                "a",
                "b",
            ),
            (
                json!({"allOf": [{"oneOf": [{"properties": {"a": mark()}}]}]}),
                "a",
                "b",
            ),
            (json!({"if": {"properties": {"a": mark()}}}), "a", "b"),
            (
                json!({"dependentSchemas": {"x": {"properties": {"a": mark()}}}}),
                "a",
                "x",
            ),
            (
                json!({"properties": {"a": {"properties": {"b": mark()}}}}),
                "a.b",
                "a.c",
            ),
            (
                json!({"patternProperties": {"^s_": mark()}, "properties": {}}),
                "s_1",
                "",
            ),
            // What cannot be followed is secret where anything is.
            (
                json!({"properties": {"a": {"$ref": "#name"}, "b": mark(), "c": {}}}),
                "a",
                "c",
            ),
            (
                json!({"properties": {"a": {"$dynamicRef": "#n"}, "b": mark(), "c": {}}}),
                "a",
                "c",
            ),
            // One that refers to itself ends.
            (
                json!({"properties": {"next": {"$ref": "#"}, "pin": mark()}}),
                "next.next.pin",
                "next.next",
            ),
        ] {
            assert!(covers(schema.clone(), secret), "{schema}: {secret}");
            assert!(!covers(schema.clone(), open), "{schema}: {open}");
        }
        assert!(Marks::of(&json!({"properties": {"a": {"secret": false}}})).is_none());
        assert!(covers(mark(), ""), "the whole");
    }

    #[test]
    fn what_takes_too_long_is_secret() {
        let many: Vec<Value> = (0..1000).map(|n| json!({"title": n})).collect();
        let schema = json!({"items": {"anyOf": many}, "properties": {"a": {"secret": true}}});
        let marks = Marks::of(&schema).unwrap();
        let root = marks.root();
        let secret = (0..100_000).position(|index| root.item(index).is_secret());
        assert!(
            secret.is_some_and(|index| (5..1000).contains(&index)),
            "{secret:?}"
        );
    }
}
