//! What is refused before anything is done, because it would be done otherwise than it was said; and what
//! need not be done again.

use attune_commands::ClientError;
use attune_core::PartitionId;
use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use crate::harness::Api;
use crate::policies::{defaults, send};

#[tokio::test]
async fn a_condition_that_is_not_looked_at_is_refused() {
    let api = Api::new();
    let action = json!({"ref": "core.new", "run": {"builtin": "noop"}});
    let global = json!({"scope": "global", "action_defaults": {}});
    for (method, path, body) in [
        ("PUT", "/api/v1/actions/core.new", action),
        ("POST", "/api/v1/policies", json!({"documents": [global]})),
    ] {
        let refused = send(&api, method, path, Some("\"99\""), &body).await;
        assert_eq!(refused.status, 422, "{:?}", refused.body);
        assert_eq!(refused.body["error"]["field"], "If-Match");
        let words = refused.body["error"]["message"].as_str().unwrap();
        assert!(!words.contains("several"), "{words}");
    }
    let request = Request::builder()
        .method("PUT")
        .uri("/api/v1/policies/global");
    let request = request.header("content-type", "application/json");
    let request = request.header("if-match", "*").header("if-match", "\"3\"");
    let twice = request.body(Body::from(defaults(&json!({})).to_string()));
    let refused = api.send(twice.unwrap()).await;
    assert_eq!(refused.body["error"]["field"], "If-Match");
}

/// Whoever asks for a dry run must not have it done.
#[tokio::test]
async fn nothing_is_done_that_says_more_than_is_looked_at() {
    let api = Api::new();
    api.fake.add_action("core.echo", |_| ());
    let clear = json!({"kind": "clear", "filter": {"action": "core.echo"}});
    let submit = json!({"action_ref": "core.echo"});
    let pause = json!({"mode": "pause"});
    for (method, path, body) in [
        ("POST", "/api/v1/operations", &clear),
        ("POST", "/api/v1/operations/preview", &clear),
        ("POST", "/api/v1/executions", &submit),
        ("PUT", "/api/v1/pauses/action/core.echo", &pause),
        ("PUT", "/api/v1/pauses/all", &pause),
    ] {
        for (query, header, field) in [
            ("?dry_run=true", "x-nothing", "dry_run"),
            ("", "if-match", "If-Match"),
        ] {
            let request = Request::builder()
                .method(method)
                .uri(format!("{path}{query}"))
                .header("content-type", "application/json")
                .header(header, "\"3\"")
                .body(Body::from(body.to_string()));
            let refused = api.send(request.unwrap()).await;
            assert_eq!(refused.error(), (422, "INVALID_INPUT", field), "{path}");
        }
    }
    let version = api.get("/api/v1/policies/user/ann?version=1").await;
    assert_eq!(version.error(), (422, "INVALID_INPUT", "version"));
    api.fake.with(|state| {
        assert!(state.pause_changes.is_empty());
        assert!(state.told.is_empty(), "{:?}", state.told);
    });
}

#[tokio::test]
async fn what_would_be_stored_otherwise_than_it_was_said_is_refused() {
    let api = Api::new();
    let path = "/api/v1/policies/user/ann?reason=%ff";
    let refused = api.put(path, &json!({"tier": "gold"})).await;
    assert_eq!(refused.status, 422, "{:?}", refused.body);
    assert_eq!(refused.body["error"]["field"], "query");
    assert_eq!(api.get("/api/v1/policies/user/ann").await.status, 404);
    api.fake.add_action("core.echo", |_| ());
    let half = r#"{"action_ref": "core.echo", "parameters": {"message": "\ud800"}}"#;
    let refused = api.post("/api/v1/executions", half.to_owned()).await;
    assert_eq!(refused.body["error"]["field"], "parameters.message");
    let words = refused.body["error"]["message"].as_str().unwrap();
    assert!(words.contains("half of a surrogate pair"), "{words}");
}

#[tokio::test]
async fn what_cannot_be_read_is_named_by_what_it_is() {
    let api = Api::new();
    for path in ["/api/v1/pauses/action/%ff", "/api/v1/policies/user/%ff"] {
        let refused = api.put(path, &json!({"mode": "pause"})).await;
        assert_eq!(refused.error(), (422, "INVALID_INPUT", "target"), "{path}");
    }
    for depth in [100, 200] {
        let deep = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let body = format!(r#"{{"action_defaults": {deep}}}"#);
        let request = Request::put("/api/v1/policies/global")
            .header("content-type", "application/json")
            .body(Body::from(body));
        let refused = api.send(request.unwrap()).await;
        let words = refused.body["error"]["message"].as_str().unwrap();
        assert!(words.contains("nested deeper than 32 levels"), "{words}");
    }
}

#[tokio::test]
async fn a_place_that_nobody_could_say_is_refused_by_its_length() {
    let api = Api::new();
    let of = |by: String| {
        let quota = json!({"per": "month", "max": 1, "by": [by]});
        json!({"ref": "core.new", "run": {"builtin": "noop"}, "policy": {"quotas": [quota]}})
    };
    for (name, most) in [("labels", 256), ("parameters", 512)] {
        let fits = of(format!("{name}.{}", "x".repeat(most)));
        let applied = api.put("/api/v1/actions/core.new", &fits).await;
        assert!(applied.status.is_success(), "{:?}", applied.body);
        let long = of(format!("{name}.{}", "x".repeat(most + 1)));
        let refused = api.put("/api/v1/actions/core.new", &long).await;
        assert_eq!(refused.status, 422, "{:?}", refused.body);
        let words = refused.body["error"]["message"].as_str().unwrap();
        assert!(words.contains(&most.to_string()), "{words}");
    }
}

#[tokio::test]
async fn what_is_in_force_everywhere_need_not_be_told_again() {
    let api = Api::new();
    let document = defaults(&json!({"queue": {"max_length": 5}}));
    let applied = api.put("/api/v1/policies/global", &document).await;
    assert_eq!(
        (applied.status.as_u16(), &applied.body["applied"]),
        (200, &json!("now"))
    );
    api.fake
        .with(|state| state.commands_fail = Some(ClientError::Unroutable(PartitionId(0))));
    let again = api.put("/api/v1/policies/global", &document).await;
    assert_eq!(
        (
            again.status.as_u16(),
            &again.body["applied"],
            &again.body["pending_reason"]
        ),
        (200, &json!("now"), &Value::Null)
    );
}
