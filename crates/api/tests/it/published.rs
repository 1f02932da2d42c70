//! The schemas that are published for editors take what the server takes: each bound of a number is that of the
//! check, and what has another shape is refused by both.

use attune_core::{ActionSpec, PolicyDocument};
use jsonschema::Validator;
use serde_json::{Map, Value, json};

fn published(name: &str) -> Value {
    let path = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// A number of a schema.
#[derive(Debug, Clone)]
struct Bounded {
    /// Where it stands in a document; `*` is any member of an object, and `0` one of a list.
    path: Vec<String>,
    min: Value,
    max: Value,
}

/// Every number that a document of this schema can have.
fn numbers(root: &Value, schema: &Value, path: &[String], found: &mut Vec<Bounded>) {
    if let Some(target) = schema["$ref"].as_str() {
        return numbers(root, root.pointer(&target[1..]).unwrap(), path, found);
    }
    let inside = |name: &str| [path, &[name.to_owned()]].concat();
    let kinds = match &schema["type"] {
        Value::Array(kinds) => kinds.clone(),
        kind => vec![kind.clone()],
    };
    // A test of a rule may be any JSON.
    let is_any = kinds.len() > 2;
    if !is_any
        && kinds
            .iter()
            .any(|kind| kind == "integer" || kind == "number")
    {
        found.push(Bounded {
            path: path.to_vec(),
            min: schema["minimum"].clone(),
            max: schema["maximum"].clone(),
        });
    }
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        numbers(root, member, &inside(name), found);
    }
    let choices = schema["oneOf"].as_array().into_iter().flatten();
    choices.for_each(|choice| numbers(root, choice, path, found));
    for (part, name) in [("items", "0"), ("additionalProperties", "*")] {
        if schema[part].is_object() {
            numbers(root, &schema[part], &inside(name), found);
        }
    }
}

/// What else a policy says for a field to have a meaning, or to be as large as it may.
fn beside(field: &str) -> Value {
    let most = i32::MAX;
    match field {
        "concurrency.group_limit" => json!({"concurrency": {"group_by": ["user"]}}),
        "concurrency.cost.max" => {
            json!({"concurrency": {"limit": most, "cost": {"path": "labels.c"}}})
        }
        "concurrency.cost.default" => {
            json!({"concurrency": {"limit": most, "cost": {"path": "labels.c", "max": u16::MAX}}})
        }
        "fairness.default_weight" | "fairness.weights.*" => {
            json!({"fairness": {"by": ["user"], "weights": {}}})
        }
        "quotas.0.max" => json!({"quotas": [{"per": "day"}]}),
        "rate_limit.max_executions" => json!({"rate_limit": {"window_seconds": 1}}),
        "rate_limit.window_seconds" => json!({"rate_limit": {"max_executions": 1}}),
        "retry.backoff.max_ms" => json!({"retry": {"backoff": {"initial_ms": 1}}}),
        "retry.backoff.initial_ms" => json!({"retry": {"backoff": {"max_ms": 2_678_400_000_u64}}}),
        _ => json!({}),
    }
}

/// Puts a value where it stands in a document.
fn put(document: &mut Value, path: &[String], value: &Value) {
    let Some((first, rest)) = path.split_first() else {
        *document = value.clone();
        return;
    };
    match (document, first.as_str()) {
        (Value::Array(items), _) => put(&mut items[0], rest, value),
        (document, name) => {
            let name = if name == "*" { "user:ann" } else { name };
            if document.is_null() {
                *document = json!({});
            }
            put(&mut document[name], rest, value);
        }
    }
}

/// The next smaller number and the next larger, of whole ones: outside of what there may be.
fn beyond(bounds: &Bounded) -> [Value; 2] {
    let fractions = bounds.min.as_f64().zip(bounds.max.as_f64());
    match (bounds.min.as_i64(), bounds.max.as_i64(), fractions) {
        (Some(min), Some(max), _) => [json!(min - 1), json!(max + 1)],
        (_, _, Some((min, max))) => [json!(min / 2.0), json!(max * 2.0)],
        _ => panic!("a number without bounds: {bounds:?}"),
    }
}

/// Checks that schema and server say the same of documents with a number at its bounds, and beyond.
fn compare(
    bounds: &Bounded,
    schema: &Validator,
    document: &Value,
    server: impl Fn(&Value) -> bool,
) {
    let with = |value: &Value| {
        let mut document = document.clone();
        put(&mut document, &bounds.path, value);
        document
    };
    for value in [&bounds.min, &bounds.max] {
        let document = with(value);
        assert!(server(&document), "the server refuses {document}");
        assert!(schema.is_valid(&document), "the schema refuses {document}");
    }
    for value in beyond(bounds) {
        let document = with(&value);
        assert!(!server(&document), "the server takes {document}");
        assert!(!schema.is_valid(&document), "the schema takes {document}");
    }
}

fn reads_policy(document: &Value) -> bool {
    let document = serde_json::from_value::<PolicyDocument>(document.clone());
    document.is_ok_and(|it| it.read().is_ok())
}

fn reads_action(document: &Value) -> bool {
    let spec = serde_json::from_value::<ActionSpec>(document.clone());
    spec.is_ok_and(|it| it.check().is_ok())
}

#[test]
fn every_number_of_a_policy_document_has_the_bounds_of_the_server() {
    let schema = published("policy.schema.json");
    let validator = jsonschema::validator_for(&schema).unwrap();
    let mut found = Vec::new();
    numbers(&schema, &schema, &[], &mut found);
    assert_eq!(found.len(), 27, "{found:#?}");
    for bounds in found {
        let part = bounds.path[0].clone();
        let mut document = match part.as_str() {
            "policy" => json!({"scope": "action", "target": "a.b"}),
            _ => json!({"scope": "global"}),
        };
        document[&part] = beside(&bounds.path[1..].join("."));
        compare(&bounds, &validator, &document, reads_policy);
    }
}

#[test]
fn every_number_of_an_action_has_the_bounds_of_the_server() {
    let schema = published("action.schema.json");
    let validator = jsonschema::validator_for(&schema).unwrap();
    let mut found = Vec::new();
    numbers(&schema, &schema, &[], &mut found);
    assert_eq!(found.len(), 23, "{found:#?}");
    for bounds in found {
        let mut document = json!({"ref": "a.b", "run": {"builtin": "noop"}});
        if bounds.path[0] == "policy" {
            document["policy"] = beside(&bounds.path[1..].join("."));
        }
        compare(&bounds, &validator, &document, reads_action);
    }
}

#[test]
fn a_shape_that_the_server_refuses_the_schema_refuses_too() {
    let schema = jsonschema::validator_for(&published("policy.schema.json")).unwrap();
    let of_action = |policy: Value| json!({"scope": "action", "target": "a.b", "policy": policy});
    let of_user = |policy: Value| json!({"scope": "user", "target": "ann", "policy": policy});
    let rule =
        |when: Value| of_action(json!({"priority": {"rules": [{"when": when, "then": "low"}]}}));
    let weights = |count: usize| {
        let weights = (0..count).map(|n| (format!("user:{n}"), json!(1)));
        let weights: Map<String, Value> = weights.collect();
        of_action(json!({"fairness": {"by": ["user"], "weights": weights}}))
    };
    let labels = |count: usize| Value::from_iter((0..count).map(|n| (format!("labels.l{n}"), "x")));
    let quotas = |count: usize| {
        let quotas =
            (0..count).map(|n| json!({"per": "day", "max": 1, "by": [format!("labels.l{n}")]}));
        of_action(json!({"quotas": quotas.collect::<Vec<_>>()}))
    };
    for taken in [
        json!({"scope": "global", "action_defaults": {}}),
        json!({"scope": "global", "action_defaults": {"retry": {"on": []}}, "policy": null}),
        json!({"scope": "pack", "target": "a", "action_defaults": {"queue": {"max_length": null}}}),
        of_action(json!({})),
        of_action(json!({"concurrency": {"group_by": []}, "quotas": [], "events": []})),
        of_action(
            json!({"fairness": {"by": ["user", "labels.a", "group"]}, "concurrency": {"group_by": ["user"], "group_limit": 1}}),
        ),
        rule(json!({"user": ["ann"], "parameters.x": {"a": [1]}, "labels.a": {"exists": true}})),
        rule(labels(16)),
        weights(1_000),
        quotas(8),
        json!({"scope": "user", "target": "*", "tier": "gold"}),
        of_user(json!({"priority": {"max": "low"}})),
        of_user(json!({"priority": {}})),
    ] {
        assert!(reads_policy(&taken), "the server refuses {taken}");
        assert!(schema.is_valid(&taken), "the schema refuses {taken}");
    }
    for refused in [
        json!({"action_defaults": {}}),
        json!({"scope": "global"}),
        json!({"scope": "global", "target": "a", "action_defaults": {}}),
        json!({"scope": "global", "action_defaults": {}, "policy": {}}),
        json!({"scope": "global", "action_defaults": {"concurrency": {"limit": 1}}}),
        json!({"scope": "global", "action_defaults": []}),
        json!({"scope": "pack", "action_defaults": {}}),
        json!({"scope": "pack", "target": "a.b", "action_defaults": {}}),
        json!({"scope": "pack", "target": "a", "tier": "gold", "action_defaults": {}}),
        json!({"scope": "action", "target": "a", "policy": {}}),
        json!({"scope": "action", "target": "a.b"}),
        json!({"scope": "action", "target": "a.b", "policy": {}, "action_defaults": {}}),
        json!({"scope": "user"}),
        json!({"scope": "user", "target": "ann", "action_defaults": {}}),
        json!({"scope": "user", "target": "ann", "tier": ""}),
        json!({"scope": "user", "target": "ann", "weight": 2}),
        of_user(json!({"per_user_limit": 1})),
        of_user(json!({"priority": {"default": "low"}})),
        of_action(json!([])),
        of_action(json!({"fairness": {"by": []}})),
        of_action(json!({"fairness": {}})),
        of_action(json!({"fairness": {"by": ["user", "user"]}})),
        of_action(json!({"fairness": {"by": ["user", "labels.a", "labels.b", "labels.c"]}})),
        of_action(json!({"concurrency": {"group_by": ["user", "user"], "group_limit": 1}})),
        of_action(
            json!({"rate_limit": {"max_executions": 1, "window_seconds": 1, "by": ["user", "user"]}}),
        ),
        of_action(json!({"quotas": [{"per": "day", "max": 1, "by": ["user", "user"]}]})),
        of_action(json!({"events": ["nothing"]})),
        rule(json!({})),
        rule(json!({"user": []})),
        rule(labels(17)),
        weights(1_001),
        quotas(9),
    ] {
        assert!(!reads_policy(&refused), "the server takes {refused}");
        assert!(!schema.is_valid(&refused), "the schema takes {refused}");
    }
    let schema = jsonschema::validator_for(&published("action.schema.json")).unwrap();
    let runs = |run: Value| json!({"ref": "a.b", "run": run});
    for refused in [
        runs(json!({"program": []})),
        runs(json!({})),
        runs(json!([])),
    ] {
        assert!(
            !reads_action(&refused) && !schema.is_valid(&refused),
            "{refused}"
        );
    }
    let taken = runs(json!({"program": ["/bin/true"]}));
    assert!(reads_action(&taken) && schema.is_valid(&taken), "{taken}");
}
