//! `POST /api/v1/executions`.

use attune_commands::ClientError;
use attune_core::{PartitionId, RequestId};
use axum::http::{StatusCode, header};
use serde_json::{Value, json};

use crate::fakes::execution_id;
use crate::harness::{Answer, Api};

const PATH: &str = "/api/v1/executions";

fn api() -> Api {
    let api = Api::new();
    api.fake.add_action("core.echo", |spec| {
        spec.parameters = Some(json!({
            "type": "object",
            "properties": {"message": {"type": "string"}, "count": {"type": "integer"}}
        }));
    });
    api
}

async fn submit(api: &Api, body: Value, key: Option<&str>) -> Answer {
    let headers: Vec<_> = key
        .map(|key| ("idempotency-key", key))
        .into_iter()
        .collect();
    api.post_with(PATH, body.to_string(), &headers).await
}

#[tokio::test]
async fn an_accepted_submission_is_201_and_has_a_place() {
    let api = api();
    let answer = submit(&api, json!({"action_ref": "core.echo"}), None).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{answer:?}");
    let id = execution_id(0).0;
    assert_eq!(
        answer.header(header::LOCATION),
        format!("/api/v1/executions/{id}")
    );
    assert_eq!(answer.body["id"], id);
    assert_eq!(answer.body["status"], "queued");
    assert_eq!(answer.body["position"], 0);
    assert_eq!(answer.body["repeated"], false);
    let sent = api.fake.with(|state| state.submitted[0].clone());
    assert_eq!(
        answer.body["request_id"],
        sent.request_id.unwrap().to_string()
    );
}

#[tokio::test]
async fn a_repeated_key_gives_the_same_execution_and_another_body_is_409() {
    let api = api();
    let body = json!({"action_ref": "core.echo", "parameters": {"message": "a"}});
    let first = submit(&api, body.clone(), Some("order-7")).await;
    let second = submit(&api, body.clone(), Some("order-7")).await;
    assert_eq!(
        (first.status, second.status),
        (StatusCode::CREATED, StatusCode::OK)
    );
    assert_eq!(second.body["id"], first.body["id"]);
    assert_eq!(second.body["repeated"], true);
    let key = RequestId::from_key("order-7").to_string();
    assert_eq!(second.body["request_id"], key);

    let other = json!({"action_ref": "core.echo", "parameters": {"message": "b"}});
    let third = submit(&api, other, Some("order-7")).await;
    assert_eq!(third.error(), (409, "CONFLICT", ""));
    assert_eq!(third.body["error"]["request_id"], key);
}

/// Nobody can have asked before for what is named when it comes, however often its owner was asked.
#[tokio::test]
async fn what_the_server_names_is_never_a_repetition() {
    let api = api();
    api.fake.with(|state| state.is_asked_twice = true);
    let body = json!({"action_ref": "core.echo"});
    let unnamed = submit(&api, body.clone(), None).await;
    assert_eq!(unnamed.status, StatusCode::CREATED, "{unnamed:?}");
    assert_eq!(unnamed.body["repeated"], false);
    // Of one that its client has named the owner alone knows.
    let named = submit(&api, body.clone(), Some("order-7")).await;
    assert_eq!(
        (named.status, &named.body["repeated"]),
        (StatusCode::OK, &json!(true))
    );
    let batch = submit(&api, json!([body]), None).await;
    assert_eq!(batch.body[0]["repeated"], false);
}

#[tokio::test]
async fn key_and_request_id_must_agree() {
    let api = api();
    let id = RequestId::fresh().to_string();
    let body = json!({"action_ref": "core.echo", "request_id": id});
    assert_eq!(
        submit(&api, body.clone(), Some(&id)).await.status,
        StatusCode::CREATED
    );
    assert_eq!(
        submit(&api, body.clone(), None).await.status,
        StatusCode::OK
    );
    let differs = submit(&api, body, Some("order-8")).await;
    assert_eq!(differs.error(), (422, "INVALID_INPUT", "request_id"));
    let empty = submit(&api, json!({"action_ref": "core.echo"}), Some(" ")).await;
    assert_eq!(empty.error(), (422, "INVALID_INPUT", "Idempotency-Key"));
}

#[tokio::test]
async fn bad_input_names_the_field_and_reaches_no_owner() {
    let api = api();
    let deep = (0..33).fold(json!(1), |value, _| json!({"a": value}));
    for (body, code, field) in [
        (
            json!({"action_ref": "core.ecko"}),
            "UNKNOWN_ACTION",
            "action_ref",
        ),
        (json!({"action_ref": "Echo"}), "INVALID_INPUT", "action_ref"),
        (json!({}), "INVALID_INPUT", "action_ref"),
        (
            json!({"action_ref": "core.echo", "x": 1}),
            "INVALID_INPUT",
            "x",
        ),
        (
            json!({"action_ref": "core.echo", "parameters": {"message": 1}}),
            "INVALID_INPUT",
            "parameters.message",
        ),
        (
            json!({"action_ref": "core.echo", "parameters": {"message": "a\u{0}"}}),
            "INVALID_INPUT",
            "parameters.message",
        ),
        (
            json!({"action_ref": "core.echo", "parameters": [1]}),
            "INVALID_INPUT",
            "parameters",
        ),
        (
            json!({"action_ref": "core.echo", "priority": "urgent"}),
            "INVALID_INPUT",
            "priority",
        ),
        (
            json!({"action_ref": "core.echo", "timeout_seconds": 0}),
            "INVALID_INPUT",
            "timeout_seconds",
        ),
        (json!("core.echo"), "INVALID_INPUT", ""),
    ] {
        let answer = submit(&api, body.clone(), None).await;
        assert_eq!(answer.error(), (422, code, field), "{body}: {answer:?}");
    }
    let answer = submit(
        &api,
        json!({"action_ref": "core.echo", "parameters": deep}),
        None,
    )
    .await;
    let (status, _, field) = answer.error();
    assert!(
        status == 422 && field.starts_with("parameters.a"),
        "{answer:?}"
    );
    let unknown = submit(&api, json!({"action_ref": "core.ecko"}), None).await;
    assert!(
        unknown.body["error"]["message"]
            .as_str()
            .unwrap()
            .contains("core.ecko")
    );
    let number = r#"{"action_ref": "core.echo", "parameters": {"count": 1e999}}"#;
    assert_eq!(
        api.post(PATH, number).await.status,
        StatusCode::UNPROCESSABLE_ENTITY
    );
    assert!(api.fake.with(|state| state.submitted.is_empty()));
}

#[tokio::test]
async fn malformed_json_has_line_and_column() {
    let api = api();
    let answer = api.post(PATH, "{\"action_ref\":\n oops}").await;
    assert_eq!(answer.error(), (400, "MALFORMED_JSON", ""));
    let message = answer.body["error"]["message"].as_str().unwrap();
    assert!(message.ends_with("line 2, column 2"), "{message}");
    assert_eq!(
        api.post(PATH, "[{]").await.error(),
        (400, "MALFORMED_JSON", "")
    );
    assert_eq!(
        api.post(PATH, "").await.error(),
        (400, "MALFORMED_JSON", "")
    );
}

#[tokio::test]
async fn a_full_queue_is_429_and_says_when_to_try_again() {
    let api = api();
    api.fake.with(|state| state.room = Some(0));
    let answer = submit(&api, json!({"action_ref": "core.echo"}), None).await;
    assert_eq!(answer.error(), (429, "QUEUE_FULL", ""));
    assert_eq!(answer.header(header::RETRY_AFTER), "1");
    assert_eq!(answer.body["error"]["retry_after_seconds"], 1);
}

#[tokio::test]
async fn no_answer_is_503_with_the_id_to_repeat_it() {
    let api = api();
    let key = RequestId::fresh();
    let failures = [
        (
            ClientError::NotConfirmed {
                request_id: key,
                reason: "late".to_owned(),
            },
            "OUTCOME_UNKNOWN",
        ),
        (ClientError::Unroutable(PartitionId(3)), "NO_OWNER"),
        (
            ClientError::Overloaded {
                max_in_flight: 1,
                retry_after_seconds: 2,
            },
            "OVERLOADED",
        ),
    ];
    for (failure, code) in failures {
        api.fake.with(|state| state.commands_fail = Some(failure));
        let body = json!({"action_ref": "core.echo"});
        let answer = submit(&api, body, Some(&key.to_string())).await;
        assert_eq!(answer.error(), (503, code, ""));
        assert_eq!(answer.body["error"]["request_id"], key.to_string());
        let message = answer.body["error"]["message"].as_str().unwrap();
        let unknown = code == "OUTCOME_UNKNOWN";
        let says = message.ends_with(&format!("repeat it under the same request id, {key}"));
        assert_eq!(says, unknown, "{message}");
        assert!(!answer.header(header::RETRY_AFTER).is_empty());
    }
}

#[tokio::test]
async fn a_batch_answers_each_item_in_its_place() {
    let api = api();
    api.fake.add_action("core.noop", |_| {});
    let body = json!([
        {"action_ref": "core.echo", "parameters": {"message": "a"}},
        {"action_ref": "core.gone"},
        {"action_ref": "core.noop", "labels": {"n": 1}},
        {"action_ref": "core.noop"},
        7,
    ]);
    let answer = submit(&api, body.clone(), Some("batch-1")).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let items = answer.body.as_array().unwrap();
    assert_eq!(items.len(), 5);
    assert_eq!(items[0]["id"], execution_id(0).0);
    assert_eq!(items[1]["error"]["code"], "UNKNOWN_ACTION");
    assert_eq!(items[2]["error"]["field"], "labels.n");
    assert_eq!(items[3]["id"], execution_id(1).0);
    assert_eq!(items[4]["error"]["code"], "INVALID_INPUT");
    let order: Vec<String> = api.fake.with(|state| {
        state
            .submitted
            .iter()
            .map(|it| it.action_ref.clone())
            .collect()
    });
    assert_eq!(order, ["core.echo", "core.noop"]);

    // Each item has an id of its own, made from the key, so that the batch can be repeated.
    let again = submit(&api, body, Some("batch-1")).await;
    assert_eq!(again.body[0]["repeated"], true);
    assert_eq!(again.body[3]["id"], items[3]["id"]);
    assert_eq!(api.fake.with(|state| state.submitted.len()), 2);
}

#[tokio::test]
async fn a_batch_is_bounded() {
    let api = api();
    assert_eq!(
        submit(&api, json!([]), None).await.error(),
        (422, "INVALID_INPUT", "")
    );
    let answer = submit(&api, json!(vec![7; 1001]), None).await;
    assert_eq!(answer.error(), (422, "INVALID_INPUT", ""));
    assert!(
        answer.body["error"]["message"]
            .as_str()
            .unwrap()
            .contains("1000")
    );
}

#[tokio::test]
async fn a_full_queue_refuses_only_the_items_that_do_not_fit() {
    let api = api();
    api.fake.with(|state| state.room = Some(2));
    let body = json!(vec![json!({"action_ref": "core.echo"}); 3]);
    let answer = submit(&api, body, None).await;
    assert!(answer.body[1]["id"].is_i64());
    assert_eq!(answer.body[2]["error"]["code"], "QUEUE_FULL");
    assert_eq!(answer.body[2]["error"]["retry_after_seconds"], 1);
    assert!(answer.body[2]["error"]["request_id"].is_string());
}

#[tokio::test]
async fn an_action_is_read_once_and_a_change_is_seen_at_once() {
    let api = api();
    for _ in 0..20 {
        submit(&api, json!({"action_ref": "core.echo"}), None).await;
    }
    // Once, and again for each second that a slow machine took.
    let reads = api.fake.with(|state| state.action_reads);
    assert!(reads < 10, "{reads} reads");
    let spec = json!({
        "ref": "core.echo", "run": {"builtin": "echo"},
        "parameters": {"type": "object", "required": ["message"]}
    });
    assert_eq!(
        api.put("/api/v1/actions/core.echo", &spec).await.status,
        StatusCode::OK
    );
    let answer = submit(&api, json!({"action_ref": "core.echo"}), None).await;
    assert_eq!(answer.error(), (422, "INVALID_INPUT", "parameters.message"));
}
