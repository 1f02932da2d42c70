//! Whatever a schema marks is hidden and sealed, and nothing else is.

#![expect(
    clippy::unwrap_used,
    reason = "a test says by a panic that its set-up failed"
)]

use attune_core::secret::{MASK, masked_text};
use attune_core::{Marks, RawValue};
use attune_secrets::{Keyring, new_key};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const CANARY: &str = "canary";

/// A value and its schema, by which each text with a canary is secret, in one of the ways in which a schema can
/// say so.
#[derive(Debug, Clone)]
struct Case {
    value: Value,
    schema: Value,
}

fn open() -> impl Strategy<Value = Case> {
    let value = prop_oneof![
        "[a-z\"\\\\/~é]{0,6}".prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
    ];
    value.prop_map(|value| Case {
        value,
        schema: json!({}),
    })
}

fn secret() -> impl Strategy<Value = Case> {
    let schema = prop::sample::select(vec![
        json!({"secret": true}),
        json!({"writeOnly": true}),
        json!({"$ref": "#/$defs/mark"}),
        json!({"anyOf": [{"type": "null"}, {"secret": true}]}),
        json!({"allOf": [{"oneOf": [{"$ref": "#/$defs/mark"}]}]}),
        json!({"if": {"writeOnly": true}}),
    ]);
    let value = prop_oneof![
        "[a-z]{0,4}".prop_map(|text| json!(format!("{text}{CANARY}"))),
        "[a-z]{0,4}".prop_map(|text| json!({text: [CANARY, 1]})),
    ];
    (value, schema).prop_map(|(value, schema)| Case { value, schema })
}

fn case() -> impl Strategy<Value = Case> {
    let leaf = prop_oneof![3 => open(), 1 => secret()];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::btree_map("[a-z/~\"]{1,3}", inner.clone(), 0..5).prop_map(|all| {
                let part = |of: fn(&Case) -> Value| {
                    let parts = all.iter().map(|(key, case)| (key.clone(), of(case)));
                    parts.collect::<Map<_, _>>()
                };
                Case {
                    value: part(|case| case.value.clone()).into(),
                    schema: json!({"properties": part(|case| case.schema.clone())}),
                }
            }),
            prop::collection::vec(inner, 0..4).prop_map(|all| Case {
                value: all.iter().map(|case| case.value.clone()).collect(),
                schema: json!({"prefixItems": all.iter().map(|it| it.schema.clone()).collect::<Vec<_>>()}),
            }),
        ]
    })
}

/// The case as parameters, which are an object.
fn whole(case: Case) -> Case {
    Case {
        value: json!({"p": case.value}),
        schema: json!({"properties": {"p": case.schema}, "$defs": {"mark": {"secret": true}}}),
    }
}

/// The value with the mask in place of what is marked.
fn expected(value: &Value, schema: &Value) -> Value {
    let is_open = schema == &json!({});
    match value {
        Value::Object(members) if schema.get("properties").is_some() => members
            .iter()
            .map(|(key, member)| (key.clone(), expected(member, &schema["properties"][key])))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(items) if schema.get("prefixItems").is_some() => items
            .iter()
            .enumerate()
            .map(|(index, item)| expected(item, &schema["prefixItems"][index]))
            .collect(),
        value if is_open => value.clone(),
        _ => MASK.into(),
    }
}

fn raw(value: &Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).unwrap()
}

fn parsed(raw: &RawValue) -> Value {
    serde_json::from_str(raw.get()).unwrap()
}

proptest! {
    #[test]
    fn what_is_marked_is_hidden_and_nothing_else(case in case().prop_map(whole)) {
        let marks = Marks::of(&case.schema);
        let hidden = masked_text(&case.value.to_string(), marks.as_ref());
        let hidden: Value = serde_json::from_str(&hidden).unwrap();
        prop_assert_eq!(&hidden, &expected(&case.value, &case.schema));
        prop_assert!(!hidden.to_string().contains(CANARY));
    }

    #[test]
    fn what_is_sealed_says_nothing_and_opens_as_it_was(case in case().prop_map(whole)) {
        let keys = Keyring::parse(&new_key("k").unwrap()).unwrap();
        let marks = Marks::of(&case.schema).unwrap();
        let given = raw(&case.value);
        let Some(sealed) = keys.seal("a.b", &marks, &given).unwrap() else {
            prop_assert!(!given.get().contains(CANARY));
            return Ok(());
        };
        prop_assert!(!sealed.get().contains(CANARY));
        // Nobody needs the schema to hide it.
        let shown: Value = serde_json::from_str(&masked_text(sealed.get(), None)).unwrap();
        prop_assert_eq!(shown, expected(&case.value, &case.schema));
        let opened = keys.open("a.b", &sealed).unwrap().unwrap();
        prop_assert_eq!(parsed(&opened.parameters), case.value);
        prop_assert!(opened.values.iter().any(|value| value.contains(CANARY)));
    }
}
