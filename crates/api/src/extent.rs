//! How much work a schema can make, told from its text before it is compiled.
//!
//! What a check costs is not seen from the length of a schema: 25 definitions that each refer to
//! the one before twice are 33 million checks of one number, and a chain of references as long
//! as a schema may be is deeper than a stack. So a schema is measured *unfolded*: with each
//! reference replaced by what it refers to, except where that contains the reference itself.

use attune_core::Reject;
use serde_json::Value;

use crate::matching::{Places, Step};

/// How long a schema may be, as JSON, in bytes.
const MAX_BYTES: usize = 64 * 1024;
/// How many patterns a schema may have.
const MAX_PATTERNS: usize = 100;
/// How many parts an unfolded schema may have.
const MAX_PARTS: usize = 10_000;
/// How many schemas deep an unfolded schema may be. Parameters may be nested 32 deep and each
/// level may begin from the top: unoptimised, such a check takes half a mebibyte of stack, and
/// one that is five times as deep more than the two of a thread.
const MAX_DEPTH: usize = 100;
/// What a reference counts whose target is not looked for here, such as a `$dynamicRef`.
const UNKNOWN_PARTS: usize = MAX_PARTS / 10;
/// What stands below `unevaluatedProperties` is checked again to find out what it has covered;
/// measured, each such keyword around another makes the check 2.6 times as long.
const UNEVALUATED_FACTOR: usize = 3;
/// Keywords with several ways to fit or not: an error in one is explained with all errors of all
/// its schemas, which can be more than the memory holds.
const BRANCHES: [&str; 8] = [
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "contains",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// How much work a schema can make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Extent {
    /// The parts of the unfolded schema: schemas, and items of lists.
    pub(crate) parts: usize,
    /// The patterns in its text.
    pub(crate) patterns: usize,
    /// Whether a reference leads back to where it stands, or may do so.
    pub(crate) recursive: bool,
    /// Whether it has a keyword with several ways to fit.
    pub(crate) branches: bool,
}

impl Extent {
    /// Measures a schema, and finds its patterns.
    ///
    /// # Errors
    /// A [`Reject`] when it is too large to be used.
    pub(crate) fn of(schema: &Value) -> Result<(Self, Places), Reject> {
        Self::check_size(schema)?;
        let mut text = Text::default();
        text.read(schema, true);
        if text.patterns > MAX_PATTERNS {
            return Err(refused(&format!(
                "has {} patterns; a schema may have {MAX_PATTERNS}: let the program check the rest",
                text.patterns
            )));
        }
        let mut unfolding = Unfolding {
            root: schema,
            open: Vec::new(),
            path: Vec::new(),
            places: Places::default(),
            unknown_targets: text.unknown_targets,
            extent: Self {
                patterns: text.patterns,
                ..Self::default()
            },
        };
        unfolding.schema(schema)?;
        Ok((unfolding.extent, unfolding.places))
    }

    /// How many patterns are in the text of a schema.
    pub(crate) fn patterns_in(schema: &Value) -> usize {
        let mut text = Text::default();
        text.read(schema, true);
        text.patterns
    }

    /// Refuses a schema whose text is too long; quick, whatever it is.
    ///
    /// # Errors
    /// A [`Reject`] with the bytes that it may have.
    pub(crate) fn check_size(schema: &Value) -> Result<(), Reject> {
        let bytes = schema.to_string().len();
        if bytes > MAX_BYTES {
            return Err(refused(&format!(
                "has {bytes} bytes as JSON; a schema may have {MAX_BYTES}: let the program check \
                 what does not fit into it"
            )));
        }
        Ok(())
    }
}

fn refused(problem: &str) -> Reject {
    Reject::field("parameters", format!("`parameters` {problem}"))
}

/// Whether the values of this keyword are schemas by name, whose names are no keywords.
fn holds_named(keyword: &str) -> bool {
    matches!(
        keyword,
        "properties" | "patternProperties" | "dependentSchemas" | "dependencies"
    ) || holds_definitions(keyword)
}

/// Whether the schemas of this keyword count only where something refers to them.
fn holds_definitions(keyword: &str) -> bool {
    matches!(keyword, "$defs" | "definitions")
}

/// Whether the value of this keyword is data and not a schema.
fn holds_data(keyword: &str) -> bool {
    matches!(
        keyword,
        "enum" | "const" | "default" | "example" | "examples"
    )
}

/// What of a value the schemas of this keyword check, unless it is the value itself.
fn step_of(keyword: &str) -> Option<Step> {
    match keyword {
        "allOf" | "anyOf" | "oneOf" | "not" | "if" | "then" | "else" => None,
        "items"
        | "prefixItems"
        | "additionalItems"
        | "unevaluatedItems"
        | "contains"
        | "additionalProperties"
        | "unevaluatedProperties" => Some(Step::Each),
        "propertyNames" => Some(Step::Names),
        _ => Some(Step::Below),
    }
}

/// What the text of a schema tells without following references.
#[derive(Default)]
struct Text {
    patterns: usize,
    /// Whether there are references whose target a JSON pointer does not tell.
    unknown_targets: bool,
}

impl Text {
    fn read(&mut self, schema: &Value, is_root: bool) {
        let members = match schema {
            Value::Object(members) => members,
            Value::Array(items) => return items.iter().for_each(|item| self.read(item, false)),
            _ => return,
        };
        for (keyword, value) in members {
            match (keyword.as_str(), value) {
                ("pattern", Value::String(_)) => self.patterns += 1,
                ("$ref", Value::String(target)) => {
                    self.unknown_targets |= pointer_of(target).is_none();
                }
                ("$dynamicRef" | "$recursiveRef", Value::String(_)) => self.unknown_targets = true,
                // Below it a pointer begins there and not at the root.
                ("$id" | "id", Value::String(_)) => self.unknown_targets |= !is_root,
                (keyword, _) if holds_data(keyword) => {}
                (keyword, Value::Object(named)) if holds_named(keyword) => {
                    if keyword == "patternProperties" {
                        self.patterns += named.len();
                    }
                    named.values().for_each(|named| self.read(named, false));
                }
                _ => self.read(value, false),
            }
        }
    }
}

/// The JSON pointer in a reference into its own document.
fn pointer_of(reference: &str) -> Option<&str> {
    let pointer = reference.strip_prefix('#')?;
    ((pointer.is_empty() || pointer.starts_with('/')) && !pointer.contains('%')).then_some(pointer)
}

/// A walk through a schema that follows references.
struct Unfolding<'a> {
    root: &'a Value,
    /// The schemas in which the walk is, each with how long the path was there.
    open: Vec<(&'a Value, usize)>,
    /// What of the parameters the schema checks in which it is.
    path: Vec<Step>,
    places: Places,
    unknown_targets: bool,
    extent: Extent,
}

impl<'a> Unfolding<'a> {
    fn schema(&mut self, schema: &'a Value) -> Result<(), Reject> {
        self.grow(1)?;
        let Value::Object(keywords) = schema else {
            return Ok(());
        };
        if self.open.len() >= MAX_DEPTH {
            return Err(refused(&format!(
                "is nested more than {MAX_DEPTH} schemas deep once each reference is replaced by \
                 what it refers to: shorten the chains of references"
            )));
        }
        self.open.push((schema, self.path.len()));
        let unevaluated = ["unevaluatedProperties", "unevaluatedItems"];
        let times = match unevaluated.iter().any(|it| keywords.contains_key(*it)) {
            true => UNEVALUATED_FACTOR,
            false => 1,
        };
        for _ in 0..times {
            for (keyword, value) in keywords {
                self.keyword(keyword, value)?;
            }
        }
        self.open.pop();
        Ok(())
    }

    fn keyword(&mut self, keyword: &str, value: &'a Value) -> Result<(), Reject> {
        match (keyword, value) {
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(target)) => {
                let pointer = pointer_of(target).filter(|_| keyword == "$ref");
                self.reference(pointer)
            }
            (keyword, Value::Array(items)) if holds_data(keyword) => self.grow(items.len()),
            (keyword, _) if holds_data(keyword) => Ok(()),
            (keyword, Value::Object(_)) if holds_definitions(keyword) && !self.unknown_targets => {
                Ok(())
            }
            ("pattern", Value::String(pattern)) => {
                self.places.note(&self.path, pattern);
                Ok(())
            }
            ("properties", Value::Object(named)) => named.iter().try_for_each(|(name, named)| {
                let step = self.places.member(name);
                self.within(Some(step), named)
            }),
            ("patternProperties", Value::Object(named)) => {
                named.iter().try_for_each(|(pattern, named)| {
                    self.path.push(Step::Names);
                    // Once more by whatever checks the others.
                    self.places.note(&self.path, pattern);
                    self.places.note(&self.path, pattern);
                    self.path.pop();
                    self.within(Some(Step::Each), named)
                })
            }
            (keyword, Value::Object(named)) if holds_named(keyword) => {
                named.values().try_for_each(|named| self.nested(named))
            }
            (keyword, _) => {
                self.extent.branches |= BRANCHES.contains(&keyword);
                self.within(step_of(keyword), value)
            }
        }
    }

    fn within(&mut self, step: Option<Step>, value: &'a Value) -> Result<(), Reject> {
        let length = self.path.len();
        self.path.extend(step);
        let outcome = self.nested(value);
        self.path.truncate(length);
        outcome
    }

    /// Whatever it is for: a keyword that is not known counts as if it held schemas.
    fn nested(&mut self, value: &'a Value) -> Result<(), Reject> {
        match value {
            Value::Array(items) => {
                self.grow(items.len())?;
                items.iter().try_for_each(|item| self.nested(item))
            }
            Value::Object(_) => self.schema(value),
            _ => Ok(()),
        }
    }

    fn reference(&mut self, pointer: Option<&str>) -> Result<(), Reject> {
        let target = pointer
            .filter(|_| !self.unknown_targets)
            .and_then(|pointer| self.root.pointer(pointer));
        let Some(target) = target else {
            self.extent.recursive = true;
            self.places.note_loop(&[]);
            return self.grow(UNKNOWN_PARTS);
        };
        let mut open = self.open.iter();
        if let Some((_, from)) = open.find(|(open, _)| std::ptr::eq(*open, target)) {
            self.extent.recursive = true;
            self.places
                .note_loop(self.path.get(*from..).unwrap_or_default());
            return Ok(());
        }
        self.schema(target)
    }

    fn grow(&mut self, parts: usize) -> Result<(), Reject> {
        self.extent.parts += parts;
        if self.extent.parts <= MAX_PARTS {
            return Ok(());
        }
        Err(refused(&format!(
            "has more than {MAX_PARTS} parts once each reference is replaced by what it refers to \
             (one that is no JSON pointer, such as `#/$defs/name`, counts {UNKNOWN_PARTS}): let \
             schemas refer to each other less often"
        )))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    fn message(schema: &Value) -> String {
        let reject = Extent::of(schema).err().unwrap();
        assert_eq!(reject.field.as_deref(), Some("parameters"));
        reject.message
    }

    /// Definitions that each use the one before as `link` says.
    fn chain(length: usize, link: impl Fn(Value) -> Value) -> Value {
        let mut definitions = Map::new();
        definitions.insert("n0".to_owned(), json!({"type": "integer"}));
        for n in 1..=length {
            let before = json!({"$ref": format!("#/$defs/n{}", n - 1)});
            definitions.insert(format!("n{n}"), link(before));
        }
        json!({"$defs": definitions, "$ref": format!("#/$defs/n{length}")})
    }

    #[test]
    fn an_ordinary_schema_is_small_and_plain() {
        let schema = json!({
            "$defs": {"line": {"type": "object", "properties": {"$ref": {"type": "string"}}}},
            "required": ["a", "b"],
            "properties": {
                "anyOf": {"$ref": "#/$defs/line"},
                "b": {"enum": ["x", "y", "z"], "pattern": "^.$"},
                "c": {"const": {"anyOf": [{"$ref": "x"}]}}
            }
        });
        let extent = Extent {
            parts: 11,
            patterns: 1,
            recursive: false,
            branches: false,
        };
        assert_eq!(Extent::of(&schema).unwrap().0, extent);
    }

    #[test]
    fn references_count_each_time() {
        let doubled = |before: Value| json!({"anyOf": [before, before]});
        let (extent, _) = Extent::of(&chain(8, doubled)).unwrap();
        assert!(extent.branches && !extent.recursive && extent.parts > 512);
        assert!(message(&chain(25, doubled)).contains("10000 parts"));
        let by_name = |before: Value| json!({"properties": {"a": before, "b": before}});
        assert!(message(&chain(25, by_name)).contains("10000 parts"));
    }

    #[test]
    fn long_chains_of_references_are_refused() {
        let link = |before: Value| json!({"allOf": [before]});
        assert!(Extent::of(&chain(30, link)).is_ok());
        assert!(message(&chain(256, link)).contains("100 schemas deep"));
    }

    #[test]
    fn recursion_is_one_level_and_a_web_of_it_is_refused() {
        let tree = json!({"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}});
        let (extent, _) = Extent::of(&tree).unwrap();
        assert!(extent.recursive && !extent.branches && extent.parts < 10);

        let all: Vec<Value> = (0..12)
            .map(|n| json!({"$ref": format!("#/$defs/n{n}")}))
            .collect();
        let definitions: Map<String, Value> = (0..12)
            .map(|n| (format!("n{n}"), json!({"anyOf": all})))
            .collect();
        let web = json!({"$defs": definitions, "$ref": "#/$defs/n0"});
        assert!(message(&web).contains("10000 parts"));
    }

    #[test]
    fn references_that_are_no_pointers_are_few() {
        let named = |count: usize| {
            let refs = vec![json!({"$ref": "#name"}); count];
            json!({"$defs": {"a": {"$anchor": "name"}}, "prefixItems": refs})
        };
        assert!(Extent::of(&named(5)).unwrap().0.recursive);
        assert!(message(&named(11)).contains("JSON pointer"));
        let moved = json!({"properties": {"a": {"$id": "x", "$ref": "#/$defs/n"}}});
        assert!(Extent::of(&moved).unwrap().0.recursive);
    }

    #[test]
    fn what_is_checked_again_and_again_is_refused() {
        let nest = |levels: usize| {
            (0..levels).fold(
                json!({}),
                |inner, _| json!({"allOf": [inner], "unevaluatedProperties": false}),
            )
        };
        assert!(Extent::of(&nest(4)).is_ok());
        assert!(message(&nest(12)).contains("10000 parts"));
    }

    #[test]
    fn texts_and_patterns_are_bounded() {
        let text = json!({"description": "x".repeat(70_000)});
        assert!(message(&text).contains("65536"));
        let patterns: Map<String, Value> = (0..60)
            .map(|n| (format!("^{n}"), json!({"pattern": "x"})))
            .collect();
        let patterns = json!({"patternProperties": patterns});
        assert!(message(&patterns).contains("120 patterns"));
    }
}
