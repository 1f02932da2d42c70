//! `/api/v1/executions`: reading and cancelling.

use attune_bus::client::ClientError;
use attune_core::{Epoch, ExecutionId, PartitionId, RejectCode, RequestId, Seq, Status};
use axum::http::StatusCode;

use crate::fakes::{execution_id, record};
use crate::harness::Api;

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
    assert_eq!(
        cancel(execution_id(2)).await.error(),
        (503, "OUTCOME_UNKNOWN", "")
    );
}
