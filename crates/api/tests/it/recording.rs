//! What the API records of the submissions that it answers.

use std::path::Path;
use std::sync::Arc;

use attune_commands::ClientError;
use attune_core::{ExecutionId, RequestId};
use attune_record::{Record, Recorder, read_dir};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::fakes::execution_id;
use crate::harness::{Api, until};

const PATH: &str = "/api/v1/executions";

/// Status, execution and code of what was recorded of each request, in order.
type Answers = Vec<(RequestId, u16, Option<ExecutionId>, Option<String>)>;

fn answers(dir: &Path) -> Answers {
    let records = read_dir(dir).unwrap().map(Result::unwrap);
    let of = |record| match record {
        Record::Answered {
            request_id,
            http_status,
            execution_id,
            code,
            ..
        } => Some((request_id, http_status, execution_id, code)),
        _ => None,
    };
    records.filter_map(of).collect()
}

fn submission(action_ref: &str, request_id: RequestId) -> Value {
    json!({"action_ref": action_ref, "request_id": request_id})
}

#[tokio::test]
async fn every_answer_is_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let api = Api::recording(Recorder::create(dir.path(), "api").unwrap());
    api.fake.add_action("core.echo", |_| {});
    let [a, b, c, d] = [(); 4].map(|()| RequestId::fresh());
    for _ in 0..2 {
        api.post(PATH, submission("core.echo", a).to_string()).await;
    }
    // Refused here, and in a batch by the owner as well; nothing is known of the last.
    let batch = json!([submission("core.ecko", b), submission("core.echo", c)]);
    api.fake.with(|state| state.room = Some(1));
    api.post(PATH, batch.to_string()).await;
    api.fake.with(|state| {
        state.commands_fail = Some(ClientError::NotConfirmed {
            request_id: d,
            reason: "silence".to_owned(),
        });
    });
    api.post(PATH, submission("core.echo", d).to_string()).await;
    // Without an id nothing was asked for.
    api.post(PATH, "[]").await;
    drop(api);
    let id = Some(execution_id(0));
    let code = |code: &str| Some(code.to_owned());
    let expected = [
        (a, 201, id, None),
        (a, 200, id, None),
        (b, 422, None, code("UNKNOWN_ACTION")),
        (c, 429, None, code("QUEUE_FULL")),
        (d, 503, None, code("OUTCOME_UNKNOWN")),
    ];
    assert_eq!(answers(dir.path()), expected);
}

#[tokio::test]
async fn what_a_client_that_hangs_up_asked_for_is_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(dir.path(), "api").unwrap();
    let api = Arc::new(Api::recording(recorder.clone()));
    api.fake.add_action("core.echo", |_| {});
    let hold = Arc::new(Notify::new());
    api.fake.with(|state| state.hold = Some(hold.clone()));
    let request_id = RequestId::fresh();
    let client = Arc::clone(&api);
    let request = tokio::spawn(async move {
        let body = submission("core.echo", request_id).to_string();
        client.post(PATH, body).await
    });
    until(|| Arc::strong_count(&hold) > 2).await;
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
    hold.notify_one();
    until(|| {
        recorder.flush().unwrap();
        answers(dir.path()) == [(request_id, 201, Some(execution_id(0)), None)]
    })
    .await;
}

#[tokio::test]
async fn every_limit_that_was_asked_for_is_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let api = Api::recording(Recorder::create(dir.path(), "api").unwrap());
    let spec = |limit: u32| {
        json!({"ref": "demo.build", "run": {"builtin": "noop"},
            "policy": {"concurrency": {"limit": limit}}})
    };
    let path = "/api/v1/actions/demo.build";
    let answer = api.put(path, &spec(2)).await;
    assert_eq!(answer.status, 201);
    // Stored, and its owner has not said that it goes by it.
    api.fake.with(|state| {
        state.commands_fail = Some(ClientError::NotConfirmed {
            request_id: RequestId::fresh(),
            reason: "silence".to_owned(),
        });
    });
    let answer = api.put(path, &spec(3)).await;
    assert_eq!(answer.status, 200);
    drop(api);
    let records = read_dir(dir.path()).unwrap().map(Result::unwrap);
    let mut asked = Vec::new();
    let mut outcomes = Vec::new();
    for record in records {
        match record {
            Record::ApplyInvoke {
                apply_id,
                action_ref,
                limit,
                ..
            } => asked.push((apply_id, action_ref, limit)),
            Record::ApplyOk {
                apply_id, in_force, ..
            } => outcomes.push((apply_id, in_force)),
            _ => {}
        }
    }
    let limits: Vec<_> = asked
        .iter()
        .map(|(_, name, limit)| (name.as_str(), *limit))
        .collect();
    assert_eq!(limits, [("demo.build", Some(2)), ("demo.build", Some(3))]);
    assert_eq!(outcomes, [(asked[0].0, true), (asked[1].0, false)]);
}
