//! `/api/v1/actions`.

use std::sync::Arc;

use attune_commands::ClientError;
use attune_core::PartitionId;
use axum::http::{Request, StatusCode, header};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::harness::{Api, until};

fn spec(limit: u32) -> Value {
    json!({
        "ref": "demo.build",
        "run": {"program": ["/bin/true"]},
        "policy": {"concurrency": {"limit": limit}}
    })
}

#[tokio::test]
async fn applying_creates_changes_and_tells_the_owner() {
    let api = Api::new();
    let created = api.put("/api/v1/actions/demo.build", &spec(2)).await;
    assert_eq!(created.status, StatusCode::CREATED, "{created:?}");
    assert_eq!(created.body["created"], true);
    assert_eq!(created.body["applied"], "now");
    assert_eq!(created.body["spec"]["timeout_seconds"], 3600);

    let changed = api.put("/api/v1/actions/demo.build", &spec(3)).await;
    assert_eq!(
        (changed.status, &changed.body["changed"]),
        (StatusCode::OK, &json!(true))
    );
    assert_eq!(changed.body["version"], 2);

    let same = api.put("/api/v1/actions/demo.build", &spec(3)).await;
    assert_eq!(same.body["changed"], false);
    // The owner is told each time: it may have missed the change before.
    assert_eq!(api.fake.with(|state| state.told.len()), 3);

    let shown = api.get("/api/v1/actions/demo.build").await;
    assert_eq!(shown.body["ref"], "demo.build");
    assert_eq!(shown.body["spec"]["policy"]["concurrency"]["limit"], 3);
}

#[tokio::test]
async fn an_owner_that_cannot_be_told_leaves_the_change_pending() {
    let api = Api::new();
    api.fake
        .with(|state| state.commands_fail = Some(ClientError::Unroutable(PartitionId(0))));
    let answer = api.put("/api/v1/actions/demo.build", &spec(2)).await;
    assert_eq!(answer.status, StatusCode::CREATED);
    assert_eq!(answer.body["applied"], "pending");
    assert!(
        answer.body["pending_reason"]
            .as_str()
            .unwrap()
            .contains("partition 0")
    );
    assert_eq!(
        api.get("/api/v1/actions/demo.build").await.status,
        StatusCode::OK
    );
}

#[tokio::test]
async fn a_client_that_goes_away_does_not_stop_the_news() {
    let api = Arc::new(Api::new());
    let hold = Arc::new(Notify::new());
    api.fake.with(|state| state.hold = Some(hold.clone()));
    let client = Arc::clone(&api);
    let request =
        tokio::spawn(async move { client.put("/api/v1/actions/demo.build", &spec(2)).await });
    until(|| api.fake.with(|state| !state.actions.is_empty())).await;
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
    hold.notify_one();
    until(|| api.fake.with(|state| state.told == ["demo.build"])).await;
}

#[tokio::test]
async fn a_bad_spec_names_its_field_and_stores_nothing() {
    let api = Api::new();
    let with = |change: fn(&mut Value)| {
        let mut spec = spec(1);
        change(&mut spec);
        spec
    };
    for (body, field) in [
        (with(|it| it["ref"] = json!("demo.other")), "ref"),
        (with(|it| it["run"] = json!({"program": []})), "run.program"),
        (
            with(|it| it["policy"]["concurrency"]["limit"] = json!(0)),
            "policy.concurrency.limit",
        ),
        (
            with(|it| it["policy"]["concurrency"]["limt"] = json!(1)),
            "policy.concurrency.limt",
        ),
        (
            with(|it| it["parameters"] = json!({"type": "objekt"})),
            "parameters.type",
        ),
        (with(|it| it["parameters"] = json!([])), "parameters"),
        (with(|it| it["policy"] = json!([])), "policy"),
        (
            with(|it| it["policy"] = json!({"queue": []})),
            "policy.queue",
        ),
        (
            with(|it| it["timeout_seconds"] = json!(0)),
            "timeout_seconds",
        ),
    ] {
        let answer = api.put("/api/v1/actions/demo.build", &body).await;
        assert_eq!(answer.error(), (422, "INVALID_INPUT", field), "{body}");
    }
    assert_eq!(
        api.put("/api/v1/actions/Demo", &spec(1)).await.error().2,
        "ref"
    );
    assert!(
        api.fake
            .with(|state| state.actions.is_empty() && state.told.is_empty())
    );
}

#[tokio::test]
async fn what_is_given_twice_is_refused_by_name() {
    let api = Api::new();
    api.fake.add_action("demo.build", |_| {});
    let commands =
        r#"{"ref": "demo.build", "run": {"builtin": "noop"}, "env": {"A": "1", "A": "2"}}"#;
    for (method, path, body, field) in [
        ("PUT", "/api/v1/actions/demo.build", commands, "env.A"),
        (
            "PUT",
            "/api/v1/policies/global",
            r#"{"action_defaults": {"queue": {"max_length": 9}}, "action_defaults": {}}"#,
            "action_defaults",
        ),
        (
            "PUT",
            "/api/v1/policies/global",
            r#"{"action_defaults": {"queue": {"max_length": 9, "max_length": 1}}}"#,
            "action_defaults.queue.max_length",
        ),
        (
            "POST",
            "/api/v1/executions",
            r#"{"action_ref": "demo.build", "labels": {"k": "1", "k": "2"}}"#,
            "labels.k",
        ),
        (
            "POST",
            "/api/v1/operations",
            r#"{"kind": "cancel", "filter": {"labels": {"k": "1", "k": "2"}}}"#,
            "filter.labels.k",
        ),
    ] {
        let request = Request::builder().method(method).uri(path);
        let request = request.header(header::CONTENT_TYPE, "application/json");
        let answer = api.send(request.body(body.into()).unwrap()).await;
        assert_eq!(answer.error(), (422, "INVALID_INPUT", field), "{body}");
    }
    let kept = api.get("/api/v1/policies/global").await;
    assert_eq!(kept.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn actions_are_listed_in_pages() {
    let api = Api::new();
    for name in ["a.one", "a.two", "b.one"] {
        api.fake.add_action(name, |_| {});
    }
    let first = api.get("/api/v1/actions?limit=2").await;
    let refs = |answer: &Value| -> Vec<String> {
        let actions = answer["actions"].as_array().unwrap();
        actions
            .iter()
            .map(|it| it["ref"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(refs(&first.body), ["a.one", "a.two"]);
    assert_eq!(first.body["next"], "a.two");
    let second = api.get("/api/v1/actions?limit=2&after=a.two").await;
    assert_eq!(refs(&second.body), ["b.one"]);
    assert_eq!(second.body["next"], Value::Null);
    let missing = api.get("/api/v1/actions/a.three").await;
    assert_eq!(missing.error(), (404, "UNKNOWN_ACTION", "action_ref"));
}
