//! Holding and resuming queues, against a small server on loopback.

use axum::extract::State;
use axum::routing::{delete, get};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::super::Exit;
use super::attune;

/// Everything that is held, and whether everything is.
type Held = (Vec<Value>, bool);

async fn resume_all(State((_, all)): State<Held>) -> Json<Value> {
    let before = all.then(|| pause("all", None));
    Json(json!({"before": before, "now": null, "also_held_by": [], "applied": "now"}))
}

async fn list(State((held, _)): State<Held>) -> Json<Value> {
    Json(json!({"version": 3, "pauses": held}))
}

fn pause(scope: &str, target: Option<&str>) -> Value {
    json!({"scope": scope, "target": target, "mode": "pause", "since": "2026-11-27T10:00:00Z",
           "who": "ann", "reason": null})
}

/// A server at which this is held, and maybe everything.
async fn start(held: Vec<Value>, all: bool) -> String {
    let router = Router::new()
        .route("/api/v1/pauses", get(list))
        .route("/api/v1/pauses/all", delete(resume_all))
        .with_state((held, all));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(axum::serve(listener, router).into_future());
    url
}

#[tokio::test]
async fn resuming_all_says_what_was_held_and_what_stays_so() {
    let line = "queues resume --all";
    let nothing = attune(&start(Vec::new(), false).await, line).await.unwrap();
    assert_eq!(
        nothing.text,
        "nothing was held: no queue is paused or drained"
    );
    assert_eq!(nothing.exit, Exit::Done);
    let url = start(vec![pause("action", Some("core.echo"))], true).await;
    let output = attune(&url, line).await.unwrap();
    assert_eq!(
        output.text,
        "every queue is resumed; in force everywhere\naction core.echo stays paused by ann (`attune queues \
         resume core.echo` ends that)"
    );
    let output = attune(&url, &format!("{line} --json")).await.unwrap();
    let document: Value = serde_json::from_str(&output.text).unwrap();
    assert_eq!(document["before"]["scope"], "all");
}

#[tokio::test]
async fn who_names_no_queues_is_told_how_to() {
    for command in ["pause", "drain", "resume", "clear"] {
        let line = format!("queues {command}");
        let failure = attune("http://127.0.0.1:1", &line).await.unwrap_err();
        assert_eq!(failure.exit, Exit::Refused, "{line}");
        for form in ["REF", "--pack PACK", "--all"] {
            assert!(failure.message.contains(form), "{line}: {failure:?}");
        }
    }
}
