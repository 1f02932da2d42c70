//! Operations on many executions, against a small server on loopback.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::super::Exit;
use super::attune;

/// What it holds and how it behaves.
#[derive(Default)]
struct Server {
    /// Operations in the order in which they were asked for.
    asked: Vec<Value>,
    /// How many executions each of them finds.
    matches: u64,
    /// It is over at this look; never, unless it is said.
    over_at_look: Option<usize>,
    looks: usize,
    /// How long the lease of the only executor holds.
    lease_ms: u64,
}

type Shared = Arc<Mutex<Server>>;
type Answer = (StatusCode, Json<Value>);

impl Server {
    fn view(&self, id: usize) -> Value {
        let asked = &self.asked[id - 1];
        let is_over = self.over_at_look.is_some_and(|at| self.looks >= at);
        let found = if is_over { self.matches } else { 0 };
        json!({
            "id": id, "kind": asked["kind"], "filter": asked["filter"], "priority": asked["priority"],
            "include_running": asked["include_running"] == true, "who": asked["who"],
            "reason": asked["reason"], "created": "2026-11-27T10:00:00Z",
            "request_id": asked["request_id"], "state": if is_over { "done" } else { "running" },
            "partitions": 1, "partitions_done": u32::from(is_over), "matched": found, "done": found,
            "skipped": 0
        })
    }
}

async fn begin(State(server): State<Shared>, Json(body): Json<Value>) -> Answer {
    let mut server = server.lock().unwrap();
    server.asked.push(body);
    let view = server.view(server.asked.len());
    (StatusCode::ACCEPTED, Json(view))
}

/// The newest first, 50 of them unless it is said; 60 at the most.
async fn list(
    State(server): State<Shared>,
    Query(query): Query<HashMap<String, String>>,
) -> Answer {
    let limit = query.get("limit").map_or(50, |it| it.parse().unwrap());
    if limit > 60 {
        let error = json!({"code": "INVALID_INPUT", "message": "too many", "field": "limit"});
        return (
            StatusCode::UNPROCESSABLE_ENTITY,
            Json(json!({"error": error})),
        );
    }
    let server = server.lock().unwrap();
    let before = query.get("before").map(|it| it.parse().unwrap());
    let before: usize = before.unwrap_or(server.asked.len() + 1);
    let first = before.saturating_sub(limit).max(1);
    let page: Vec<Value> = (first..before).rev().map(|id| server.view(id)).collect();
    let next = (first > 1).then_some(first);
    let list = json!({"operations": page, "next": next});
    (StatusCode::OK, Json(list))
}

async fn preview(State(server): State<Shared>) -> Json<Value> {
    Json(json!({"matched": server.lock().unwrap().matches}))
}

async fn show(State(server): State<Shared>, Path(id): Path<usize>) -> Answer {
    let mut server = server.lock().unwrap();
    server.looks += 1;
    if id > server.asked.len() {
        let error = json!({"code": "UNKNOWN_OPERATION", "message": "there is no such operation"});
        return (StatusCode::NOT_FOUND, Json(json!({"error": error})));
    }
    (StatusCode::OK, Json(server.view(id)))
}

async fn cluster(State(server): State<Shared>) -> Json<Value> {
    let lease = server.lock().unwrap().lease_ms;
    let id = "7d0c7d6e-6d0b-4c8e-9b7a-0f5c3b1a2d4e";
    Json(json!({
        "executors": [{"id": id, "name": "one", "partitions": 1, "lease_remaining_ms": lease}],
        "partitions": [{"partition": 0, "owner": id, "owner_name": "one", "epoch": 1,
                        "lease_remaining_ms": lease}],
        "workers": []
    }))
}

/// A server whose operations find so many executions, and its address.
async fn start(matches: u64, over_at_look: Option<usize>) -> (Shared, String) {
    let shared: Shared = Arc::default();
    {
        let mut server = shared.lock().unwrap();
        (server.matches, server.over_at_look, server.lease_ms) = (matches, over_at_look, 9_000);
    }
    let router = Router::new()
        .route("/api/v1/operations", post(begin).get(list))
        .route("/api/v1/operations/preview", post(preview))
        .route("/api/v1/operations/{id}", get(show))
        .route("/api/v1/cluster", get(cluster))
        .with_state(shared.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(axum::serve(listener, router).into_future());
    (shared, url)
}

#[tokio::test]
async fn the_wait_for_an_operation_has_an_end() {
    let (server, url) = start(3, None).await;
    for line in [
        "queues clear core.echo",
        "executions cancel --user ann",
        "executions cancel 7",
        "executions reprioritise 7 --to high",
        "executions front --all",
    ] {
        let output = attune(&url, &format!("{line} --wait 0")).await.unwrap();
        assert_eq!(output.exit, Exit::Unknown, "{line}");
        assert!(output.text.ends_with(" so far"), "{line}: {output:?}");
        let [words] = &output.problems[..] else {
            panic!("{line}: {output:?}");
        };
        let id = server.lock().unwrap().asked.len();
        let look = format!("`attune operations show {id}`");
        assert!(words.contains(&look), "{line}: {words}");
        assert!(words.contains("goes on by itself"), "{line}: {words}");
        assert!(!words.contains("no executor lives"), "{line}: {words}");
    }
    assert_eq!(server.lock().unwrap().looks, 0, "nobody waited");
    let begun = Instant::now();
    let output = attune(&url, "queues clear core.echo --wait 1 --json").await;
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert!(server.lock().unwrap().looks > 1);
    let output = output.unwrap();
    let document: Value = serde_json::from_str(&output.text).unwrap();
    assert_eq!(
        (&document["state"], output.exit),
        (&json!("running"), Exit::Unknown)
    );
    assert!(
        output.problems[0].contains("not over after 1 s"),
        "{output:?}"
    );
}

#[tokio::test]
async fn who_waits_in_vain_is_told_that_no_executor_lives() {
    let (server, url) = start(3, None).await;
    server.lock().unwrap().lease_ms = 0;
    let output = attune(&url, "queues clear core.echo --wait 0")
        .await
        .unwrap();
    let words = &output.problems[0];
    assert!(
        words.contains("no executor lives (`attune cluster`)"),
        "{words}"
    );
}

#[tokio::test]
async fn an_operation_that_ends_in_time_is_told_with_its_counts() {
    let (server, url) = start(3, Some(2)).await;
    let output = attune(&url, "queues clear core.echo").await.unwrap();
    assert_eq!(output.text, "operation 1: 3 of 3 cancelled");
    assert_eq!((output.exit, output.problems.len()), (Exit::Done, 0));
    assert_eq!(server.lock().unwrap().looks, 2);
}

#[tokio::test]
async fn operations_are_listed_the_newest_first() {
    let (server, url) = start(3, None).await;
    let none = attune(&url, "operations list").await.unwrap();
    assert_eq!(none.text, "there are no operations");
    for _ in 0..129 {
        let filter = json!({"user": "ann", "labels": {"batch": "7"}});
        server.lock().unwrap().asked.push(json!({
            "kind": "reprioritise", "priority": "high", "filter": filter, "who": "eve",
            "request_id": "7d0c7d6e-6d0b-4c8e-9b7a-0f5c3b1a2d4e"
        }));
    }
    let clear = "queues clear core.echo --who bob --wait 0";
    attune(&url, clear).await.unwrap();
    let output = attune(&url, "operations list --limit 2").await.unwrap();
    let rows: Vec<Vec<&str>> = output
        .text
        .lines()
        .map(|row| {
            row.split("  ")
                .map(str::trim)
                .filter(|it| !it.is_empty())
                .collect()
        })
        .collect();
    let title = "id age state kind about matched done skipped who";
    assert_eq!(rows[0], title.split(' ').collect::<Vec<_>>());
    let (first, second) = (&rows[1], &rows[2]);
    assert_eq!(first[0], "130");
    assert_eq!(
        first[2..],
        ["running", "clear", "action core.echo", "0", "0", "0", "bob"]
    );
    let about = "user ann, label batch=7";
    assert_eq!(
        second[2..],
        [
            "running",
            "reprioritise to high",
            about,
            "0",
            "0",
            "0",
            "eve"
        ]
    );
    assert!(
        output
            .text
            .ends_with("(there are more: --limit N or --all)"),
        "{output:?}"
    );
    // The server allows pages of 60, so the large page is refused first.
    for (line, many, next) in [("--all", 130, Value::Null), ("--limit 70", 70, json!(61))] {
        let line = format!("operations list --json {line}");
        let output = attune(&url, &line).await.unwrap();
        let document: Value = serde_json::from_str(&output.text).unwrap();
        let ids = document["operations"].as_array().unwrap().iter();
        let ids: Vec<i64> = ids.map(|it| it["id"].as_i64().unwrap()).collect();
        let expected: Vec<i64> = (131 - many..=130).rev().collect();
        assert_eq!((ids, &document["next"]), (expected, &next), "{line}");
    }
}

#[tokio::test]
async fn an_operation_is_shown_with_who_is_missing() {
    let (server, url) = start(3, None).await;
    let ask = "executions cancel --user ann --who eve --reason late --wait 0";
    attune(&url, ask).await.unwrap();
    let output = attune(&url, "operations show 1").await.unwrap();
    for line in [
        "id           1\n",
        "state        running\n",
        "kind         cancel\n",
        "about        user ann\n",
        "partitions   0 of 1 are over\n",
        "who          eve\n",
        "reason       late\n",
        "created      2026-11-27T10:00:00.000Z\n",
    ] {
        assert!(output.text.contains(line), "{line}: {}", output.text);
    }
    assert_eq!(output.exit, Exit::Done);
    server.lock().unwrap().lease_ms = 0;
    let output = attune(&url, "operations show 1").await.unwrap();
    assert!(
        output.text.contains("waits        no executor lives"),
        "{}",
        output.text
    );
    let output = attune(&url, "operations show 1 --wait 0 --json")
        .await
        .unwrap();
    assert_eq!((output.exit, output.problems.len()), (Exit::Unknown, 1));
    server.lock().unwrap().over_at_look = Some(5);
    let output = attune(&url, "operations show 1 --wait 60").await.unwrap();
    assert_eq!((output.exit, output.problems.len()), (Exit::Done, 0));
    assert!(output.text.contains("matched      3\n"), "{}", output.text);
    let unknown = attune(&url, "operations show 9").await.unwrap_err();
    assert_eq!(unknown.exit, Exit::Refused);
    assert!(unknown.message.contains("UNKNOWN_OPERATION"), "{unknown:?}");
}

#[tokio::test]
async fn numbers_of_whom_nobody_waits_are_refused() {
    let (server, url) = start(0, Some(0)).await;
    let nobody = |problems: &[String], words: &str| {
        assert_eq!(problems.len(), 1, "{problems:?}");
        let where_ = "(`attune executions show ID` says where one is)";
        assert_eq!(problems[0], format!("of the {words} {where_}"));
    };
    for line in [
        "executions front 7",
        "executions front 7 --json",
        "executions reprioritise 7 --to high",
    ] {
        let output = attune(&url, line).await.unwrap();
        assert_eq!(output.exit, Exit::Refused, "{line}");
        nobody(&output.problems, "1 that are named nobody waits");
        assert!(
            output.text.contains("operation") || line.ends_with("--json"),
            "{output:?}"
        );
    }
    let output = attune(&url, "executions cancel 7 8 --reason r")
        .await
        .unwrap();
    assert_eq!(output.exit, Exit::Refused);
    nobody(&output.problems, "2 that are named nobody waits or runs");
    let output = attune(&url, "executions front 7 --user ann").await.unwrap();
    nobody(
        &output.problems,
        "1 that are named nobody waits and is meant by the options",
    );
    // That options find nobody is no mistake.
    let output = attune(&url, "executions front --user ann").await.unwrap();
    assert_eq!(output.exit, Exit::Done);
    assert_eq!(output.text, "operation 6: 0 of 0 moved to the front");

    server.lock().unwrap().matches = 1;
    let output = attune(&url, "executions front 7 8 9").await.unwrap();
    assert_eq!((output.exit, output.problems.len()), (Exit::Done, 0));
    let found = "operation 7: 1 of 1 moved to the front";
    assert_eq!(
        output.text,
        format!("{found}; 2 of the 3 that are named do not wait")
    );
    let output = attune(&url, "executions cancel 7 8 --reason r")
        .await
        .unwrap();
    let others = "; 1 of the 2 that are named neither wait nor run";
    assert!(output.text.ends_with(others), "{output:?}");
}
