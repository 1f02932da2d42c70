//! What of an action's parameters is secret, and what stands in the place of what is.
//!
//! A schema marks a value with `"secret": true` or `"writeOnly": true`. From the door on, such a value is
//! a *sealed* text: it begins with [`PREFIX`], whatever the schema says later. So the mark travels with the
//! value, and whoever shows parameters needs no schema to know what is not to be seen.

mod env;
mod marks;
mod rewrite;

pub use env::{EnvValue, MAX_SECRET_NAME, check_secret_name};
pub use marks::{Marks, Spot};
pub use rewrite::{Step, Walk, rewrite};

use std::convert::Infallible;

use serde_json::Value;

/// What a sealed value begins with; nobody else may begin a text like that.
pub const PREFIX: &str = "attune:secret:";
/// What is shown in place of a secret.
pub const MASK: &str = "********";

/// Whether a text is, or claims to be, a sealed value.
#[must_use]
pub fn is_sealed(text: &str) -> bool {
    text.starts_with(PREFIX)
}

/// The text of a JSON string that is, or claims to be, a sealed value.
#[must_use]
pub fn sealed_text(json: &str) -> Option<String> {
    let text: String = json
        .starts_with('"')
        .then(|| serde_json::from_str(json).ok())??;
    is_sealed(&text).then_some(text)
}

/// Whether a JSON text can have a sealed value in it; false says that it has none.
#[must_use]
pub fn may_have_sealed(json: &str) -> bool {
    json.contains(PREFIX) || json.contains("\\u")
}

/// The place of the first sealed value in a JSON text, in the form in which fields are named.
#[must_use]
pub fn find_sealed(field: &str, json: &str) -> Option<String> {
    struct Find(Option<String>);

    impl Walk for Find {
        type At = ();
        type Error = Infallible;

        fn value(&mut self, (): &(), path: &[String], json: &str) -> Result<Step, Infallible> {
            if self.0.is_none() && sealed_text(json).is_some() {
                self.0 = Some(path.join("."));
            }
            Ok(Step::Descend)
        }

        fn member(&mut self, (): &(), _key: &str) {}

        fn item(&mut self, (): &(), _index: usize) {}
    }

    if !may_have_sealed(json) {
        return None;
    }
    let mut find = Find(None);
    let Ok(_) = rewrite(json, &mut find, (), vec![field.to_owned()]);
    find.0
}

/// Hides what is secret in parameters as they are shown: what is sealed, and what the schema of the action marks
/// now. What is no object by now is not looked into.
#[must_use]
pub fn masked(parameters: Value, marks: Option<&Marks>) -> Value {
    if marks.is_none() && !has_sealed(&parameters) {
        return parameters;
    }
    let text = masked_text(&parameters.to_string(), marks);
    serde_json::from_str(&text).unwrap_or_else(|_| MASK.into())
}

/// As [`masked`], of a JSON text.
#[must_use]
pub fn masked_text(json: &str, marks: Option<&Marks>) -> String {
    struct Hide<'a>(std::marker::PhantomData<&'a Marks>);

    impl<'a> Walk for Hide<'a> {
        type At = Option<Spot<'a>>;
        type Error = Infallible;

        fn value(
            &mut self,
            at: &Self::At,
            _path: &[String],
            json: &str,
        ) -> Result<Step, Infallible> {
            let hidden = at.as_ref().is_some_and(Spot::is_secret) || sealed_text(json).is_some();
            Ok(match hidden {
                true => Step::Replace(format!("\"{MASK}\"")),
                false => Step::Descend,
            })
        }

        fn member(&mut self, at: &Self::At, key: &str) -> Self::At {
            at.as_ref().map(|spot| spot.member(key))
        }

        fn item(&mut self, at: &Self::At, index: usize) -> Self::At {
            at.as_ref().map(|spot| spot.item(index))
        }
    }

    let root = marks.map(Marks::root);
    let Ok(hidden) = rewrite(json, &mut Hide(std::marker::PhantomData), root, Vec::new());
    hidden.unwrap_or_else(|| json.to_owned())
}

fn has_sealed(value: &Value) -> bool {
    match value {
        Value::String(text) => is_sealed(text),
        Value::Array(items) => items.iter().any(has_sealed),
        Value::Object(members) => members.values().any(has_sealed),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_sealed_is_hidden_without_a_schema() {
        let shown = masked(
            json!({"a": "attune:secret:v1::IjEi", "b": [1, "attune:secret:"], "c": "x"}),
            None,
        );
        assert_eq!(shown, json!({"a": MASK, "b": [1, MASK], "c": "x"}));
    }

    #[test]
    fn what_the_schema_marks_now_is_hidden_whatever_it_is() {
        let marks = Marks::of(&json!({"properties": {"p": {"secret": true}}})).unwrap();
        for value in [json!("x"), json!(1), json!({"k": 1}), json!(null)] {
            let shown = masked(json!({"p": value, "q": 1}), Some(&marks));
            assert_eq!(shown, json!({"p": MASK, "q": 1}));
        }
    }

    #[test]
    fn nobody_can_bring_what_looks_sealed() {
        for (text, place) in [
            (
                r#"{"a":{"b":["x","attune:secret:v1::eA"]}}"#,
                Some("parameters.a.b.1"),
            ),
            (r#"{"a":"\u0061ttune:secret:v1::eA"}"#, Some("parameters.a")),
            (r#"{"a":"see attune:secret:v1"}"#, None),
            (r#"{"attune:secret:":1}"#, None),
        ] {
            assert_eq!(find_sealed("parameters", text).as_deref(), place, "{text}");
        }
    }
}
