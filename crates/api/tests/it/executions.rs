//! `/api/v1/executions`: reading, cancelling and running again.

use attune_commands::ClientError;
use attune_core::{
    Epoch, ExecutionId, PartitionId, Priority, RejectCode, RequestId, Seq, Status, Submission,
};
use axum::http::StatusCode;

use crate::fakes::{State, execution_id, record};
use crate::harness::{Api, options};

fn api() -> Api {
    let api = Api::new();
    api.fake.with(|state| {
        for n in 0..5 {
            let status = if n % 2 == 0 {
                Status::Queued
            } else {
                Status::Succeeded
            };
            // Two of each age, so that the id has to break ties.
            let record = record(n, status, i64::from(n / 2));
            state.executions.insert(record.id, record);
        }
    });
    api
}

#[tokio::test]
async fn an_execution_is_shown_whole() {
    let api = api();
    let id = execution_id(1);
    let answer = api.get(&format!("/api/v1/executions/{id}")).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.body["id"], id.0);
    assert_eq!(answer.body["status"], "succeeded");
    assert_eq!(answer.body["created"], "2027-01-15T08:00:00Z");

    let missing = api
        .get(&format!("/api/v1/executions/{}", execution_id(99)))
        .await;
    assert_eq!(missing.error(), (404, "UNKNOWN_EXECUTION", ""));
    for bad in ["x", "-1", "0", "1.5", "99999999999999999999", "%ff"] {
        let answer = api.get(&format!("/api/v1/executions/{bad}")).await;
        assert_eq!(answer.error(), (422, "INVALID_INPUT", "id"), "{bad}");
    }
}

#[tokio::test]
async fn pages_follow_each_other_without_gap_or_repetition() {
    let api = api();
    let mut seen = Vec::new();
    let mut path = "/api/v1/executions?limit=2".to_owned();
    loop {
        let answer = api.get(&path).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        let page = answer.body["executions"].as_array().unwrap();
        assert!(page.len() <= 2);
        seen.extend(page.iter().map(|it| it["id"].as_i64().unwrap()));
        match answer.body["next"].as_str() {
            Some(next) => path = format!("/api/v1/executions?limit=2&cursor={next}"),
            None => break,
        }
        assert!(seen.len() <= 5, "the pages do not end");
    }
    let expected: Vec<i64> = [1, 0, 3, 2, 4].map(|n| execution_id(n).0).to_vec();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn filters_are_checked() {
    let api = api();
    let answer = api
        .get("/api/v1/executions?status=succeeded,failed&action=core.echo")
        .await;
    assert_eq!(answer.body["executions"].as_array().unwrap().len(), 2);
    for (query, field) in [
        ("status=gone", "status"),
        ("action=Core", "action"),
        ("user=", "user"),
        ("group=%00", "group"),
        ("limit=101", "limit"),
        ("cursor=abc", "cursor"),
        ("state=queued", "state"),
    ] {
        let answer = api.get(&format!("/api/v1/executions?{query}")).await;
        assert_eq!(answer.error(), (422, "INVALID_INPUT", field), "{query}");
    }
}

#[tokio::test]
async fn cancelling_answers_202_404_and_409() {
    let api = api();
    let cancel = async |id: ExecutionId| {
        api.post(&format!("/api/v1/executions/{id}/cancel"), "")
            .await
    };
    let waiting = cancel(execution_id(0)).await;
    assert_eq!(waiting.status, StatusCode::ACCEPTED);
    assert_eq!(waiting.body["id"], execution_id(0).0);
    assert_eq!(waiting.body["status"], "cancelled");
    for forgotten in [RejectCode::AlreadyEnded, RejectCode::UnknownExecution] {
        api.fake.with(|state| state.forgotten = Some(forgotten));
        let ended = cancel(execution_id(1)).await;
        assert_eq!(ended.error(), (409, "ALREADY_ENDED", ""));
        let message = ended.body["error"]["message"].as_str().unwrap();
        assert!(
            message.ends_with("has ended already: succeeded"),
            "{message}"
        );
        let missing = cancel(execution_id(99)).await;
        assert_eq!(missing.error(), (404, "UNKNOWN_EXECUTION", ""));
    }
    // A partition that this cluster does not have.
    let foreign = ExecutionId::new(PartitionId(9), Seq::new(Epoch(1), 1));
    assert_eq!(
        cancel(foreign).await.error(),
        (404, "UNKNOWN_EXECUTION", "")
    );

    let late = ClientError::NotConfirmed {
        request_id: RequestId::fresh(),
        reason: "late".to_owned(),
    };
    api.fake.with(|state| state.commands_fail = Some(late));
    let unknown = cancel(execution_id(2)).await;
    assert_eq!(unknown.error(), (503, "OUTCOME_UNKNOWN", ""));
    // A cancellation has no key: it says where to look.
    let message = unknown.body["error"]["message"].as_str().unwrap();
    assert!(message.ends_with("/readyz), and repeat it"), "{message}");
}

/// What it was given cannot be read any more; to end it, or to say that it has ended, needs none of that.
#[tokio::test]
async fn what_cannot_be_shown_can_be_cancelled() {
    let api = Api::new();
    let (running, ended) = (execution_id(1), execution_id(2));
    api.fake.with(|state| {
        for (n, status) in [(1, Status::Running), (2, Status::Failed)] {
            let record = record(n, status, 0);
            state.unreadable.push(record.id);
            state.executions.insert(record.id, record);
        }
    });
    let path = |id: ExecutionId| format!("/api/v1/executions/{id}/cancel");
    let shown = api.get(&format!("/api/v1/executions/{running}")).await;
    assert_eq!(shown.error(), (500, "INTERNAL", ""));
    let cancelled = api.post(&path(running), "").await;
    assert_eq!(cancelled.status, StatusCode::ACCEPTED, "{cancelled:?}");
    assert_eq!(cancelled.body["status"], "running");
    let marked = |state: &mut State| state.executions[&running].cancel_requested;
    assert!(api.fake.with(marked));
    let refused = api.post(&path(ended), "").await;
    assert_eq!(refused.error(), (409, "ALREADY_ENDED", ""));
}

/// Everything that was asked for is asked for again, under a request of its own, and the old one is named.
#[tokio::test]
async fn what_has_ended_is_run_again_as_a_new_one() {
    let api = Api::new();
    api.fake.add_action("core.echo", |_| {});
    let old = execution_id(70);
    api.fake.with(|state| {
        let mut ended = record(70, Status::Failed, 0);
        ended.priority = Priority::High;
        ended.parameters = serde_json::json!({"n": 1});
        ended.requested_by = Some("ann".to_owned());
        ended.group = Some("g".to_owned());
        ended.labels.insert("a".to_owned(), "b".to_owned());
        ended.timeout_seconds = Some(9);
        ended.not_before = Some(ended.created);
        state.executions.insert(ended.id, ended);
    });
    let path = format!("/api/v1/executions/{old}/resubmit");
    let key = [("idempotency-key", "once")];
    let first = api.post_with(&path, "", &key).await;
    assert_eq!(first.status, StatusCode::CREATED, "{first:?}");
    let location = format!("/api/v1/executions/{}", first.body["id"]);
    assert_eq!(first.header(axum::http::header::LOCATION), location);
    let second = api.post_with(&path, "", &key).await;
    assert_eq!(second.status, StatusCode::OK, "{second:?}");
    assert_eq!(second.body["id"], first.body["id"]);
    // Without a key it is another one each time.
    assert_eq!(api.post(&path, "").await.status, StatusCode::CREATED);
    let asked = api.fake.with(|state| std::mem::take(&mut state.submitted));
    assert_eq!(asked.len(), 2);
    let expected = Submission {
        request_id: Some(RequestId::from_key("once")),
        parameters: serde_json::value::to_raw_value(&serde_json::json!({"n": 1})).unwrap(),
        priority: Some(Priority::High),
        requested_by: Some("ann".to_owned()),
        group: Some("g".to_owned()),
        labels: [("a".to_owned(), "b".to_owned())].into(),
        timeout_seconds: Some(9),
        requeue_of: Some(old),
        ..Submission::new("core.echo")
    };
    let text = |it: &Submission| serde_json::to_string(it).unwrap();
    assert_eq!(text(&asked[0]), text(&expected));
    assert_ne!(asked[1].request_id, asked[0].request_id);
}

#[tokio::test]
async fn what_cannot_be_run_again_is_refused() {
    let api = api();
    let resubmit = async |id: ExecutionId| {
        api.post(&format!("/api/v1/executions/{id}/resubmit"), "")
            .await
    };
    let waiting = resubmit(execution_id(0)).await;
    assert_eq!(waiting.error(), (409, "NOT_ENDED", ""));
    let message = waiting.body["error"]["message"].as_str().unwrap();
    assert!(message.contains("it is queued"), "{message}");
    let missing = resubmit(execution_id(99)).await;
    assert_eq!(missing.error(), (404, "UNKNOWN_EXECUTION", ""));
    let gone = resubmit(execution_id(1)).await;
    assert_eq!(gone.error(), (422, "UNKNOWN_ACTION", "action_ref"));
    // What it was given does not fit the action any more.
    let schema = serde_json::json!({"type": "object", "required": ["n"]});
    api.fake.add_action("core.echo", |spec| {
        spec.parameters = serde_json::from_value(schema).unwrap();
    });
    let unfit = resubmit(execution_id(3)).await;
    assert_eq!((unfit.error().0, unfit.error().1), (422, "INVALID_INPUT"));
    assert!(api.fake.with(|state| state.submitted.is_empty()));
    let twice = [("idempotency-key", "a"), ("idempotency-key", "b")];
    let path = format!("/api/v1/executions/{}/resubmit", execution_id(1));
    let answer = api.post_with(&path, "", &twice).await;
    assert_eq!(answer.error(), (422, "INVALID_INPUT", "Idempotency-Key"));
}

/// Executions with this many bytes in each of their long parts.
fn long(count: u32, bytes: usize) -> Api {
    let mut options = options();
    options.page_bytes = 100_000;
    let api = Api::with(options);
    api.fake.with(|state| {
        for n in 0..count {
            let mut record = record(n, Status::Succeeded, i64::from(n));
            record.parameters = serde_json::json!({"pad": "x".repeat(bytes)});
            record.result = Some(serde_json::json!("x".repeat(bytes)));
            record.stdout = Some("x".repeat(bytes));
            state.executions.insert(record.id, record);
        }
    });
    api
}

#[tokio::test]
async fn a_list_has_the_long_parts_that_are_asked_for() {
    let api = long(3, 100);
    let parts = ["parameters", "result", "stdout", "stderr"];
    for included in [&[][..], &["stdout"], &["parameters", "result"], &parts] {
        let query = if included.is_empty() {
            String::new()
        } else {
            format!("?include={}", included.join(","))
        };
        let answer = api.get(&format!("/api/v1/executions{query}")).await;
        let first = answer.body["executions"][0].as_object().unwrap();
        let present: Vec<&str> = parts
            .into_iter()
            .filter(|part| first.contains_key(*part))
            .collect();
        assert_eq!(present, included, "{query}");
    }
    let path = format!("/api/v1/executions/{}", execution_id(0));
    let shown = api.get(&path).await;
    let shown = shown.body.as_object().unwrap();
    assert!(parts.iter().all(|part| shown.contains_key(*part)));
    assert_eq!(shown["stderr"], serde_json::Value::Null);
    let unknown = api.get("/api/v1/executions?include=env").await;
    assert_eq!(unknown.error(), (422, "INVALID_INPUT", "include"));
}

#[tokio::test]
async fn a_page_of_long_executions_ends_early_and_the_next_goes_on() {
    let api = long(20, 10_000);
    let all = "/api/v1/executions?limit=100&include=parameters,result,stdout,stderr";
    let (mut seen, mut path, mut pages) = (Vec::new(), all.to_owned(), 0);
    loop {
        let answer = api.get(&path).await;
        let length = answer.body.to_string().len();
        assert!(length <= 101_000, "{length} bytes");
        let page = answer.body["executions"].as_array().unwrap();
        assert!(!page.is_empty());
        seen.extend(page.iter().map(|it| it["id"].as_i64().unwrap()));
        pages += 1;
        let Some(next) = answer.body["next"].as_str() else {
            break;
        };
        path = format!("{all}&cursor={next}");
    }
    assert_eq!(seen, (0..20).map(|n| execution_id(n).0).collect::<Vec<_>>());
    assert_eq!(pages, 7);
    // Never all that might fit by their number are in memory at once.
    assert!(api.fake.with(|state| state.longest_step) <= 8);
}
