//! What two policy documents say differently, field by field.

use std::collections::BTreeSet;

use serde_json::Value;

/// A field that two documents say differently.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldDifference {
    /// Its path, as in `action_defaults.queue.max_length`. A member whose name is no plain word stands in
    /// quotation marks.
    pub field: String,
    /// What the earlier document says; nothing where it does not say it.
    pub before: Option<Value>,
    /// What the later document says, likewise.
    pub after: Option<Value>,
}

/// What two documents say differently, by path. Lists are compared as a whole, since the order of rules
/// counts; `null` and an empty object say nothing.
#[must_use]
pub fn differences(before: Option<&Value>, after: Option<&Value>) -> Vec<FieldDifference> {
    let mut found = Vec::new();
    compare(&mut String::new(), before, after, &mut found);
    found
}

/// Whether a value says nothing.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(members) => members.values().all(is_nothing),
        _ => false,
    }
}

fn compare(
    path: &mut String,
    before: Option<&Value>,
    after: Option<&Value>,
    found: &mut Vec<FieldDifference>,
) {
    let before = before.filter(|it| !is_nothing(it));
    let after = after.filter(|it| !is_nothing(it));
    if before == after {
        return;
    }
    // An object beside nothing is gone through as well: each of its fields is new, or gone.
    let members = match (before, after) {
        (Some(Value::Object(one)), Some(Value::Object(other))) => Some((Some(one), Some(other))),
        (Some(Value::Object(one)), None) => Some((Some(one), None)),
        (None, Some(Value::Object(other))) => Some((None, Some(other))),
        _ => None,
    };
    let Some((one, other)) = members else {
        found.push(FieldDifference {
            field: path.clone(),
            before: before.cloned(),
            after: after.cloned(),
        });
        return;
    };
    let names = [one, other].into_iter().flatten();
    let names: BTreeSet<&String> = names.flat_map(|it| it.keys()).collect();
    for name in names {
        let length = path.len();
        if length > 0 {
            path.push('.');
        }
        push_name(path, name);
        let (one, other) = [one, other].map(|it| it?.get(name)).into();
        compare(path, one, other, found);
        path.truncate(length);
    }
}

fn push_name(path: &mut String, name: &str) {
    let is_word = |it: char| it.is_ascii_alphanumeric() || it == '_';
    match !name.is_empty() && name.chars().all(is_word) {
        true => path.push_str(name),
        false => path.push_str(&format!("{name:?}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(before: Value, after: Value, expected: &[(&str, Value, Value)]) {
        let found = differences(Some(&before), Some(&after));
        let found: Vec<_> = found
            .iter()
            .map(|it| {
                let value = |value: &Option<Value>| value.clone().unwrap_or_default();
                (it.field.as_str(), value(&it.before), value(&it.after))
            })
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn fields_are_compared_one_by_one_and_lists_as_a_whole() {
        check(
            json!({"queue": {"max_length": 5, "ordering": "fifo"}, "priority": {"rules": [1, 2]}}),
            json!({"queue": {"max_length": 6, "ordering": "fifo"}, "priority": {"rules": [2, 1]}}),
            &[
                ("priority.rules", json!([1, 2]), json!([2, 1])),
                ("queue.max_length", json!(5), json!(6)),
            ],
        );
        check(
            json!({"tier": "gold", "policy": {}}),
            json!({"policy": {"priority": {"max": "low"}}}),
            &[
                ("policy.priority.max", json!(null), json!("low")),
                ("tier", json!("gold"), json!(null)),
            ],
        );
    }

    #[test]
    fn what_says_nothing_is_no_difference() {
        let nothing = json!({"limit": null, "queue": {"max_length": null}});
        check(nothing.clone(), json!({}), &[]);
        assert_eq!(differences(None, Some(&nothing)), []);
        assert_eq!(differences(None, None), []);
    }

    #[test]
    fn a_name_that_looks_like_a_path_is_told_from_one() {
        let weights = json!({"weights": {"labels.k:k1": 3, "": 1}});
        check(
            json!({}),
            weights,
            &[
                ("weights.\"\"", json!(null), json!(1)),
                ("weights.\"labels.k:k1\"", json!(null), json!(3)),
            ],
        );
    }
}
