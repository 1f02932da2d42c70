//! Parameter schemas: JSON Schema, compiled once per version of an action.

use attune_core::Reject;
use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::Value;

/// How often a pattern of a schema may backtrack over one text; beyond it the text is refused.
/// Some tens of milliseconds, where a bad pattern could take hours.
const BACKTRACK_LIMIT: usize = 100_000;
/// How large a compiled pattern may be, in bytes.
const PATTERN_BYTES: usize = 1024 * 1024;

/// The compiled schema of an action's parameters.
pub(crate) struct ParameterSchema(Validator);

impl ParameterSchema {
    /// Compiles a schema. References to other documents are refused: nothing is fetched.
    ///
    /// # Errors
    /// A [`Reject`] that names the place in the schema.
    pub(crate) fn compile(schema: &Value) -> Result<Self, Reject> {
        if let Some(problem) = endless_reference(schema) {
            return Err(Reject::field("parameters", problem));
        }
        jsonschema::options()
            .with_pattern_options(
                PatternOptions::fancy_regex()
                    .backtrack_limit(BACKTRACK_LIMIT)
                    .size_limit(PATTERN_BYTES),
            )
            .build(schema)
            .map(Self)
            .map_err(|error| {
                let place = path("parameters", error.instance_path().as_str());
                Reject::field(&*place, format!("`{place}` is not a JSON schema: {error}"))
            })
    }

    /// Checks parameters.
    ///
    /// # Errors
    /// A [`Reject`] that names the first field that is wrong, and how many more there are.
    pub(crate) fn check(&self, parameters: &Value) -> Result<(), Reject> {
        // Valid parameters are the rule, and this way they cost the least.
        if self.0.is_valid(parameters) {
            return Ok(());
        }
        let mut errors = self.0.iter_errors(parameters);
        let Some(first) = errors.next() else { return Ok(()) };
        let more = errors.count();
        let place = path("parameters", &place_of(&first));
        let mut message = format!("`{place}`: {first}");
        if more > 0 {
            message.push_str(&format!(" (and {more} more)"));
        }
        Err(Reject::field(place, message))
    }
}

/// Where an error is, as a JSON pointer; a missing or unexpected property counts as the place.
fn place_of(error: &ValidationError<'_>) -> String {
    let mut pointer = error.instance_path().as_str().to_owned();
    let name = match error.kind() {
        ValidationErrorKind::Required { property } => property.as_str(),
        ValidationErrorKind::AdditionalProperties { unexpected }
        | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
            unexpected.first().map(String::as_str)
        }
        _ => None,
    };
    if let Some(name) = name {
        pointer.push('/');
        pointer.push_str(&name.replace('~', "~0").replace('/', "~1"));
    }
    pointer
}

/// A JSON pointer in `root`, in the form in which fields are named everywhere.
fn path(root: &str, pointer: &str) -> String {
    let mut path = root.to_owned();
    for part in pointer.split('/').skip(1) {
        path.push('.');
        path.push_str(&part.replace("~1", "/").replace("~0", "~"));
    }
    path
}

/// A chain of references inside the schema that comes back to itself without looking at any
/// part of the value, as in `{"$ref": "#"}`: checking a value against it would never end.
fn endless_reference(schema: &Value) -> Option<String> {
    let mut places = vec![String::new()];
    let mut stack = vec![(schema, String::new())];
    while let Some((value, pointer)) = stack.pop() {
        let children: Vec<(String, &Value)> = match value {
            Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), value)).collect(),
            Value::Array(list) => {
                list.iter().enumerate().map(|(index, value)| (index.to_string(), value)).collect()
            }
            _ => continue,
        };
        for (key, child) in children {
            let key = key.replace('~', "~0").replace('/', "~1");
            let pointer = format!("{pointer}/{key}");
            places.push(pointer.clone());
            stack.push((child, pointer));
        }
    }
    places.iter().find(|start| returns(schema, start)).map(|start| {
        let place = path("parameters", start);
        format!("`{place}` refers to itself without end")
    })
}

/// Whether the schema at `start` leads back to itself through references alone.
fn returns(schema: &Value, start: &str) -> bool {
    let mut seen = std::collections::BTreeSet::new();
    let mut open: Vec<String> = in_place(schema, start);
    while let Some(pointer) = open.pop() {
        if pointer == start {
            return true;
        }
        if seen.insert(pointer.clone()) {
            open.extend(in_place(schema, &pointer));
        }
    }
    false
}

/// The schemas that the one at `pointer` applies to the very same value.
fn in_place(schema: &Value, pointer: &str) -> Vec<String> {
    let Some(Value::Object(map)) = schema.pointer(pointer) else { return Vec::new() };
    let mut found = Vec::new();
    for (keyword, value) in map {
        match (keyword.as_str(), value) {
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(target)) => {
                // Only pointers into this document are followed; anchors are resolved by the
                // compiler, which we do not mirror.
                if let Some(target) = target.strip_prefix('#')
                    && (target.is_empty() || target.starts_with('/'))
                {
                    found.push(target.to_owned());
                }
            }
            ("allOf" | "anyOf" | "oneOf", Value::Array(list)) => {
                found.extend((0..list.len()).map(|index| format!("{pointer}/{keyword}/{index}")));
            }
            ("not" | "if" | "then" | "else", Value::Object(_)) => {
                found.push(format!("{pointer}/{keyword}"));
            }
            _ => {}
        }
    }
    found
}
