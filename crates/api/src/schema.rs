//! Parameter schemas: JSON Schema, compiled once per version of an action.

use attune_core::Reject;
use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::Value;

use crate::extent::Extent;

/// How often a pattern of a schema may backtrack over one text; beyond it the text is refused.
/// Some tens of milliseconds, where a bad pattern could take hours.
const BACKTRACK_LIMIT: usize = 100_000;
/// How large a compiled pattern may be, in bytes.
const PATTERN_BYTES: usize = 1024 * 1024;

/// A check that can be no more work than this is done at once: parts of the schema times bytes
/// of the parameters. At the worst some milliseconds.
const LIGHT_WORK: usize = 1024 * 1024;
/// How much of an explanation is shown, in characters: it can quote all of the parameters.
const MAX_EXPLANATION: usize = 1000;

/// The compiled schema of an action's parameters.
pub(crate) struct ParameterSchema {
    validator: Validator,
    extent: Extent,
}

impl ParameterSchema {
    /// Compiles a schema. References to other documents are refused: nothing is fetched.
    ///
    /// # Errors
    /// A [`Reject`] that names the place in the schema.
    pub(crate) fn compile(schema: &Value) -> Result<Self, Reject> {
        // Before anything else: what is too large may be too much for the compiler as well.
        let extent = Extent::of(schema)?;
        jsonschema::options()
            .with_pattern_options(
                PatternOptions::fancy_regex()
                    .backtrack_limit(BACKTRACK_LIMIT)
                    .size_limit(PATTERN_BYTES),
            )
            .build(schema)
            .map(|validator| Self { validator, extent })
            .map_err(|error| {
                let place = path("parameters", error.instance_path().as_str());
                let error = cut(&error.to_string());
                Reject::field(&*place, format!("`{place}` is not a JSON schema: {error}"))
            })
    }

    /// How many patterns it has compiled.
    pub(crate) fn patterns(&self) -> usize {
        self.extent.patterns
    }

    /// Whether parameters of so many bytes are checked in no time, whatever they are.
    pub(crate) fn is_light_for(&self, bytes: usize) -> bool {
        let work = self.extent.parts.saturating_mul(bytes);
        !self.extent.recursive && self.extent.patterns == 0 && work <= LIGHT_WORK
    }

    /// Whether looking for the first error costs no more than seeing that there is one. Where a
    /// schema offers several ways or refers to itself, it can cost more than all memory.
    fn explains(&self) -> bool {
        !self.extent.branches && !self.extent.recursive
    }

    /// Checks parameters.
    ///
    /// # Errors
    /// A [`Reject`] that names the first field that is wrong, where that is cheap to find.
    pub(crate) fn check(&self, parameters: &Value) -> Result<(), Reject> {
        if self.validator.is_valid(parameters) {
            return Ok(());
        }
        if self.explains()
            && let Err(first) = self.validator.validate(parameters)
        {
            let place = path("parameters", &place_of(&first));
            let message = format!("`{place}`: {}", cut(&first.to_string()));
            return Err(Reject::field(place, message));
        }
        Err(Reject::field(
            "parameters",
            "`parameters` do not fit the action's schema. The field is not named, because the \
             schema refers to itself or has `anyOf`, `oneOf`, `allOf`, `not`, `if` or the like: \
             compare them with the schema that `attune action show REF` prints",
        ))
    }
}

/// The beginning of a text that may quote what was sent.
fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_EXPLANATION) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text.to_owned(),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn broken(schema: Value) -> Reject {
        ParameterSchema::compile(&schema).err().unwrap()
    }

    #[test]
    fn what_is_no_schema_names_the_place() {
        for (schema, field) in [
            (json!({"type": "objekt"}), "parameters.type"),
            (
                json!({"properties": {"a": {"type": "foo"}}}),
                "parameters.properties.a.type",
            ),
            (
                json!({"properties": {"a": {"pattern": "("}}}),
                "parameters.properties.a.pattern",
            ),
            (json!({"$ref": "http://127.0.0.1:1/schema"}), "parameters"),
            (json!({"$ref": "file:///etc/passwd"}), "parameters"),
            (json!({"$ref": "#/nowhere"}), "parameters"),
        ] {
            assert_eq!(
                broken(schema.clone()).field.as_deref(),
                Some(field),
                "{schema}"
            );
        }
    }

    #[test]
    fn the_wrong_field_is_named() {
        let schema = ParameterSchema::compile(&json!({
            "type": "object",
            "required": ["url"],
            "additionalProperties": false,
            "properties": {
                "url": {"type": "string"},
                "tries": {"type": "array", "items": {"type": "integer", "minimum": 1}}
            }
        }))
        .unwrap();
        for (parameters, field) in [
            (json!({}), "parameters.url"),
            (json!({"url": 7}), "parameters.url"),
            (json!({"url": "x", "a/b": 1}), "parameters.a/b"),
            (json!({"url": "x", "tries": [1, 0]}), "parameters.tries.1"),
        ] {
            let reject = schema.check(&parameters).unwrap_err();
            assert_eq!(reject.field.as_deref(), Some(field), "{reject}");
            assert!(reject.message.contains(field), "{reject}");
        }
        assert_eq!(schema.check(&json!({"url": "x", "tries": [1]})), Ok(()));
        let long = json!({"url": "x".repeat(5000).split("").collect::<Vec<_>>()});
        let long = schema.check(&long).unwrap_err();
        assert!(long.message.chars().count() < 1100, "{long}");
    }

    #[test]
    fn where_looking_could_take_all_memory_no_field_is_named() {
        for schema in [
            json!({"properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}),
            json!({"properties": {"a": {"not": {"type": "string"}}}}),
            json!({"properties": {"a": {"type": "integer"}, "b": {"$ref": "#"}}}),
        ] {
            let schema = ParameterSchema::compile(&schema).unwrap();
            let reject = schema.check(&json!({"a": "x"})).unwrap_err();
            assert_eq!(reject.field.as_deref(), Some("parameters"), "{reject}");
            assert!(reject.message.contains("attune action show"), "{reject}");
        }
        let schema = json!({
            "$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}
        });
        let schema = ParameterSchema::compile(&schema).unwrap();
        let reject = schema.check(&json!({"a": "x"})).unwrap_err();
        assert_eq!(reject.field.as_deref(), Some("parameters.a"), "{reject}");
    }

    #[test]
    fn what_may_take_long_is_known_before() {
        let light = |schema: Value, bytes| {
            let schema = ParameterSchema::compile(&schema).unwrap();
            schema.is_light_for(bytes)
        };
        let object = json!({"properties": {"a": {"type": "string"}}});
        assert!(light(object.clone(), 10_000));
        assert!(!light(object, 1_000_000));
        assert!(!light(json!({"properties": {"a": {"pattern": "x"}}}), 10));
        assert!(!light(json!({"properties": {"a": {"$ref": "#"}}}), 10));
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        for schema in [
            json!({"$ref": "#"}),
            json!({"allOf": [{"$ref": "#"}]}),
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
            json!({"$dynamicAnchor": "x", "$dynamicRef": "#x"}),
        ] {
            let schema = ParameterSchema::compile(&schema).unwrap();
            assert_eq!(schema.check(&json!({"a": {"a": 1}})), Ok(()));
        }
    }

    #[test]
    fn a_bad_pattern_is_cut_short() {
        let schema = json!({"properties": {"a": {"pattern": "^(a|a)*(?=c)b$"}}});
        let schema = ParameterSchema::compile(&schema).unwrap();
        assert!(schema.check(&json!({"a": "a".repeat(5000)})).is_err());
    }
}
