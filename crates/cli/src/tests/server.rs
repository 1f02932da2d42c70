//! A small server on loopback that answers as the API does.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use attune_api_types::Execution;
use attune_core::{ExecutionId, RequestId, Status};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::record;

/// What it holds and how it behaves.
#[derive(Default)]
pub(super) struct Server {
    /// Submissions in the order in which they were accepted.
    pub(super) accepted: Vec<Value>,
    by_request: HashMap<String, usize>,
    /// How many submissions each call accepts; the rest finds the queue full.
    pub(super) room_per_call: Option<usize>,
    /// So many calls are answered as if the outcome were unknown, after being carried out.
    pub(super) lose_answers: usize,
    /// So many submissions find no executor yet.
    pub(super) ownerless: usize,
    pub(super) actions: BTreeMap<String, Value>,
    /// Who changed an action last.
    pub(super) changed_by: Option<String>,
    /// How often an execution was looked at.
    looks: usize,
    /// Nobody can look at an execution.
    pub(super) overloaded: bool,
    /// How every execution ends.
    pub(super) end: Option<Execution>,
}

pub(super) type Shared = Arc<Mutex<Server>>;
type Answer = (StatusCode, Json<Value>);

fn refusal(status: StatusCode, code: &str, field: &str, retry: Option<u32>) -> Answer {
    let error = json!({
        "code": code, "message": format!("{code} says the server"), "field": field,
        "retry_after_seconds": retry
    });
    (status, Json(json!({ "error": error })))
}

impl Server {
    fn accept(&mut self, submission: Value, request: String) -> Value {
        let (place, repeated) = match self.by_request.get(&request) {
            Some(place) => (*place, true),
            None => {
                self.accepted.push(submission);
                self.by_request
                    .insert(request.clone(), self.accepted.len() - 1);
                (self.accepted.len() - 1, false)
            }
        };
        json!({"id": place + 1, "status": "queued", "position": place, "repeated": repeated,
               "request_id": RequestId::from_key(&request).to_string()})
    }
}

async fn submit(
    State(server): State<Shared>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Answer {
    let mut server = server.lock().unwrap();
    let Value::Array(items) = body else {
        let key = headers["idempotency-key"].to_str().unwrap().to_owned();
        if server.ownerless > 0 {
            server.ownerless -= 1;
            return refusal(StatusCode::SERVICE_UNAVAILABLE, "NO_OWNER", "", Some(1));
        }
        if body["action_ref"] == "core.gone" {
            return refusal(
                StatusCode::UNPROCESSABLE_ENTITY,
                "UNKNOWN_ACTION",
                "action_ref",
                None,
            );
        }
        return (StatusCode::CREATED, Json(server.accept(body, key)));
    };
    assert!(items.len() <= 100, "{} lines in one batch", items.len());
    let mut room = server.room_per_call.unwrap_or(usize::MAX);
    let answers: Vec<Value> = items
        .into_iter()
        .map(|item| {
            if item["action_ref"] == "core.gone" {
                let status = StatusCode::UNPROCESSABLE_ENTITY;
                return refusal(status, "UNKNOWN_ACTION", "action_ref", None).1.0;
            }
            if room == 0 {
                return refusal(StatusCode::TOO_MANY_REQUESTS, "QUEUE_FULL", "", Some(0))
                    .1
                    .0;
            }
            room -= 1;
            let request = item["request_id"].as_str().unwrap().to_owned();
            server.accept(item, request)
        })
        .collect();
    if server.lose_answers > 0 {
        server.lose_answers -= 1;
        return refusal(
            StatusCode::SERVICE_UNAVAILABLE,
            "OUTCOME_UNKNOWN",
            "",
            Some(0),
        );
    }
    (StatusCode::OK, Json(Value::Array(answers)))
}

async fn list(
    State(server): State<Shared>,
    Query(query): Query<HashMap<String, String>>,
) -> Answer {
    let limit: usize = query.get("limit").map_or(50, |it| it.parse().unwrap());
    if limit > 100 {
        return refusal(
            StatusCode::UNPROCESSABLE_ENTITY,
            "INVALID_INPUT",
            "limit",
            None,
        );
    }
    let start: usize = query.get("cursor").map_or(0, |it| it.parse().unwrap());
    let total = server.lock().unwrap().accepted.len();
    let end = total.min(start + limit);
    let page: Vec<Execution> = (start..end)
        .map(|n| record(i64::try_from(n).unwrap() + 1, Status::Queued))
        .collect();
    let next = (end < total).then(|| end.to_string());
    (
        StatusCode::OK,
        Json(json!({"executions": page, "next": next})),
    )
}

async fn show(State(server): State<Shared>, Path(id): Path<i64>) -> Answer {
    let mut server = server.lock().unwrap();
    server.looks += 1;
    if server.overloaded {
        return refusal(StatusCode::SERVICE_UNAVAILABLE, "OVERLOADED", "", None);
    }
    let ended = server.end.clone().filter(|_| server.looks >= 3);
    let mut found = ended.unwrap_or_else(|| record(id, Status::Running));
    found.id = ExecutionId(id);
    (StatusCode::OK, Json(serde_json::to_value(found).unwrap()))
}

async fn cancel(Path(id): Path<i64>) -> Answer {
    match id {
        1 => (
            StatusCode::ACCEPTED,
            Json(json!({"id": 1, "status": "cancelled"})),
        ),
        2 => (
            StatusCode::ACCEPTED,
            Json(json!({"id": 2, "status": "running"})),
        ),
        4 => (
            StatusCode::ACCEPTED,
            Json(json!({"id": 4, "status": "requested"})),
        ),
        _ => refusal(StatusCode::NOT_FOUND, "UNKNOWN_EXECUTION", "", None),
    }
}

async fn resubmit(State(server): State<Shared>, Path(id): Path<i64>, headers: HeaderMap) -> Answer {
    if id == 3 {
        return refusal(StatusCode::CONFLICT, "NOT_ENDED", "", None);
    }
    let key = headers["idempotency-key"].to_str().unwrap().to_owned();
    let mut server = server.lock().unwrap();
    let answer = server.accept(json!({"requeue_of": id}), key);
    (StatusCode::CREATED, Json(answer))
}

async fn apply(
    State(server): State<Shared>,
    Path(name): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
    Json(spec): Json<Value>,
) -> Answer {
    if spec["description"] == "refuse" {
        return refusal(
            StatusCode::UNPROCESSABLE_ENTITY,
            "INVALID_INPUT",
            "parameters",
            None,
        );
    }
    if query.contains_key("check") {
        return (StatusCode::NO_CONTENT, Json(Value::Null));
    }
    server.lock().unwrap().changed_by = query.get("who").cloned();
    let old = server
        .lock()
        .unwrap()
        .actions
        .insert(name.clone(), spec.clone());
    let pending = spec["description"] == "pending";
    let answer = json!({
        "created": old.is_none(), "changed": old.as_ref() != Some(&spec),
        "applied": if pending { "pending" } else { "now" },
        "pending_reason": pending.then_some("nobody owns it"),
        "ref": name, "id": 1, "partition": 0, "version": 1, "spec": spec
    });
    (StatusCode::OK, Json(answer))
}

async fn show_action(Path(name): Path<String>) -> Answer {
    if name == "core.gone" {
        return refusal(StatusCode::NOT_FOUND, "UNKNOWN_ACTION", "", None);
    }
    let spec = json!({"ref": name, "run": {"builtin": "echo"}});
    let answer = json!({"ref": name, "id": 1, "partition": 0, "version": 1, "spec": spec});
    (StatusCode::OK, Json(answer))
}

/// A server and its address.
pub(super) async fn start() -> (Shared, String) {
    let shared = Shared::default();
    let router = Router::new()
        .route("/api/v1/executions", post(submit).get(list))
        .route("/api/v1/executions/{id}", get(show))
        .route("/api/v1/executions/{id}/cancel", post(cancel))
        .route("/api/v1/executions/{id}/resubmit", post(resubmit))
        .route("/api/v1/actions/{ref}", put(apply).get(show_action))
        .with_state(shared.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(axum::serve(listener, router).into_future());
    (shared, url)
}
