//! Schemas that are more work than they look.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::harness::{Answer, Api, options};

const SUBMIT: &str = "/api/v1/executions";

fn spec(schema: &Value) -> Value {
    json!({"ref": "demo.build", "run": {"builtin": "noop"}, "parameters": schema})
}

/// An API that takes bodies of a mebibyte, and whose action `demo.build` has this schema.
async fn api(schema: &Value) -> Api {
    api_with(schema, options().check_timeout).await
}

async fn api_with(schema: &Value, check_timeout: Duration) -> Api {
    let mut options = options();
    options.max_body_bytes = 1024 * 1024;
    options.check_timeout = check_timeout;
    let api = Api::with(options);
    let answer = api.put("/api/v1/actions/demo.build", &spec(schema)).await;
    assert_eq!(answer.status.as_u16(), 201, "{answer:?}");
    api
}

async fn submit(api: &Api, parameters: &Value) -> Answer {
    let body = json!({"action_ref": "demo.build", "parameters": parameters});
    api.post(SUBMIT, body.to_string()).await
}

/// The most memory that this process has ever had, in KiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    let words: Vec<&str> = line.unwrap().split_whitespace().collect();
    words[1].parse().unwrap()
}

#[tokio::test]
async fn a_tree_that_fits_nowhere_is_refused_at_once_and_takes_no_memory() {
    let node = |op: &str| {
        json!({
            "type": "object",
            "properties": {"op": {"const": op}, "child": {"$ref": "#/$defs/node"}}
        })
    };
    let schema = json!({
        "$defs": {"node": {"anyOf": [{"type": "integer"}, node("and"), node("or")]}},
        "properties": {"rule": {"$ref": "#/$defs/node"}}
    });
    let api = api(&schema).await;
    let tree = |leaf: Value| {
        let tree = (0..28).fold(leaf, |child, _| json!({"op": "and", "child": child}));
        json!({"rule": tree})
    };
    let good = submit(&api, &tree(json!(1))).await;
    assert_eq!(good.status.as_u16(), 201, "{good:?}");

    let (before, started) = (peak_memory(), Instant::now());
    let answer = submit(&api, &tree(json!("x"))).await;
    assert_eq!(answer.error(), (422, "INVALID_INPUT", "parameters"));
    assert!(answer.body.to_string().contains("attune action show"));
    assert!(started.elapsed() < Duration::from_secs(1));
    // The kernel counts pages by processor and adds them up now and then: a peak may fall a little.
    assert!(peak_memory().saturating_sub(before) < 32 * 1024);
}

#[tokio::test]
async fn schemas_that_are_too_large_are_refused() {
    let doubled = |length: usize| {
        let mut definitions = Map::new();
        definitions.insert("n0".to_owned(), json!({"type": "integer"}));
        for n in 1..=length {
            let before = json!({"$ref": format!("#/$defs/n{}", n - 1)});
            definitions.insert(format!("n{n}"), json!({"anyOf": [before, before]}));
        }
        json!({"$defs": definitions, "properties": {"a": {"$ref": format!("#/$defs/n{length}")}}})
    };
    let api = api(&doubled(8)).await;
    for value in [json!({"a": "x"}), json!({"a": {"b": 1}})] {
        let answer = submit(&api, &value).await;
        assert_eq!(answer.error(), (422, "INVALID_INPUT", "parameters"));
    }
    assert_eq!(submit(&api, &json!({"a": 1})).await.status.as_u16(), 201);

    let patterns: Map<String, Value> = (0..101)
        .map(|n| (format!("p{n}"), json!({"pattern": "x"})))
        .collect();
    for schema in [
        doubled(25),
        json!({"description": "x".repeat(70_000)}),
        json!({"properties": patterns}),
    ] {
        let body = spec(&schema);
        let answer = api.put("/api/v1/actions/demo.build", &body).await;
        assert_eq!(answer.error(), (422, "INVALID_INPUT", "parameters"));
    }
}

#[tokio::test]
async fn a_check_that_takes_long_is_503_and_the_others_go_on() {
    // Each number is long searched and fits at last.
    let mut ways: Vec<Value> = (0..2000).map(|n| json!({"minimum": 1000 + n})).collect();
    ways.push(json!({"type": "integer"}));
    let schema = json!({"properties": {"a": {"items": {"anyOf": ways}}}});
    let api = api_with(&schema, Duration::from_secs(2)).await;
    api.fake.add_action("demo.other", |spec| {
        spec.parameters = Some(json!({"properties": {"a": {"pattern": "^b$"}}}));
    });
    let slow = json!({"a": vec![1; 400_000]});
    let other = async {
        let body = json!({"action_ref": "demo.other", "parameters": {"a": "b"}});
        api.post(SUBMIT, body.to_string()).await
    };
    let (slow, other) = tokio::join!(submit(&api, &slow), other);
    assert_eq!(slow.error(), (503, "OVERLOADED", ""));
    assert!(slow.body["error"]["request_id"].is_string(), "{slow:?}");
    assert_eq!(other.status.as_u16(), 201, "{other:?}");
    assert_eq!(api.fake.with(|state| state.submitted.len()), 1);
}

#[tokio::test]
async fn patterns_that_could_take_minutes_are_refused_when_an_action_is_applied() {
    let api = api(&json!({"properties": {"a": {"pattern": "^a*$"}}})).await;
    let schema = json!({"properties": {"a": {"pattern": "(?<=a+)b"}}});
    let answer = api.put("/api/v1/actions/demo.build", &spec(&schema)).await;
    let place = "parameters.properties.a.pattern";
    assert_eq!(answer.error(), (422, "INVALID_INPUT", place));
    assert!(answer.body.to_string().contains("look-around"));
    let long = submit(&api, &json!({"a": "a".repeat(1_000_000)})).await;
    assert_eq!(long.status.as_u16(), 201, "{long:?}");
}

#[tokio::test]
async fn more_text_than_patterns_can_be_matched_with_is_refused_at_once() {
    let ways: Vec<Value> = (0..100)
        .map(|n| json!({"pattern": format!("[ab]*a[ab]{{{n},{}}}d", 880 - n)}))
        .collect();
    let api = api(&json!({"properties": {"a": {"anyOf": ways}, "b": {}}})).await;
    let text = "ab".repeat(400_000);
    let refused = submit(&api, &json!({"a": text})).await;
    assert_eq!(refused.error(), (422, "INVALID_INPUT", "parameters.a"));
    assert!(
        refused.body.to_string().contains("send less text"),
        "{refused:?}"
    );
    // What no pattern meets may be as long as ever.
    let taken = submit(&api, &json!({"a": "abd", "b": text})).await;
    assert_eq!(taken.status.as_u16(), 201, "{taken:?}");
}

#[tokio::test]
async fn what_is_parsed_at_once_is_bounded() {
    // Each of its million bytes of text becomes 65 of a tree, and the schema makes it no light
    // check.
    let properties: Map<String, Value> = (0..20)
        .map(|n| (format!("p{n}"), json!({"type": "string"})))
        .collect();
    let api = api(&json!({"properties": properties})).await;
    let body = format!(
        r#"{{"action_ref":"demo.build","parameters":{{"a":[{}{{}}]}}}}"#,
        r#"{"":1},"#.repeat(148_000)
    );
    let answers = futures_util::future::join_all((0..30).map(|_| api.post(SUBMIT, body.clone())));
    for answer in answers.await {
        assert!([201, 503].contains(&answer.status.as_u16()), "{answer:?}");
    }
    assert!(peak_memory() < 512 * 1024, "{} KiB", peak_memory());
}

/// What a schema demands names itself in the answer, and a batch has as many answers as items.
#[tokio::test]
async fn a_long_name_in_a_schema_is_cut_in_what_is_answered() {
    let name = "\"".repeat(30_000);
    let api = api(&json!({"required": [name]})).await;
    let item = json!({"action_ref": "demo.build", "parameters": {"a": 1}});
    let items = Value::from(vec![item; 1000]);
    let answer = api.post(SUBMIT, items.to_string()).await;
    assert_eq!(answer.status.as_u16(), 200);
    let bytes = answer.body.to_string().len();
    assert!(bytes < 3_500_000, "{bytes} bytes for 1000 items");
    let first = &answer.body[0]["error"];
    assert_eq!(first["code"], "INVALID_INPUT");
    assert!(
        first["field"].as_str().unwrap().starts_with("parameters."),
        "{first}"
    );
}
