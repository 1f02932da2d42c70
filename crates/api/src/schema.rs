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
        let Some(first) = errors.next() else {
            return Ok(());
        };
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
        let two = schema.check(&json!({"tries": ["a"]})).unwrap_err();
        assert!(two.message.ends_with("(and 1 more)"), "{two}");
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
