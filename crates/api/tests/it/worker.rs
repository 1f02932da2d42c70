//! `/api/v1/worker`.

use std::time::Duration;

use attune_core::WorkerId;
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::harness::{Answer, Api, options};

async fn claim(api: &Api, change: fn(&mut Value)) -> Answer {
    let mut body = json!({
        "worker": WorkerId::fresh().to_string(),
        "name": "w1",
        "pool": "default",
        "slots": 4,
        "lease_seconds": 15,
        "items": [
            {"execution_id": 5, "attempt": 1},
            {"execution_id": 6, "attempt": 2},
            {"execution_id": 7, "attempt": 3}
        ]
    });
    change(&mut body);
    api.post("/api/v1/worker/claims", body.to_string()).await
}

#[tokio::test]
async fn claims_renew_the_lease_and_answer_what_was_won() {
    let api = Api::new();
    let answer = claim(&api, |_| ()).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(
        answer.body,
        json!({
            "claimed": [
                {"execution_id": 5, "attempt": 1, "cancel_requested": false},
                {"execution_id": 7, "attempt": 3, "cancel_requested": true}
            ],
            "lease_expires_in_ms": 15_000
        })
    );
    let lease = api.fake.with(|state| state.leases[0].clone());
    assert_eq!((lease.slots, lease.ttl), (4, Duration::from_secs(15)));

    let renewed = claim(&api, |body| body["items"] = json!([])).await;
    assert_eq!(renewed.body["claimed"], json!([]));
    assert_eq!(api.fake.with(|state| state.leases.len()), 2);
}

#[tokio::test]
async fn an_expired_lease_is_409() {
    let api = Api::new();
    api.fake.with(|state| state.leases_expired = true);
    assert_eq!(
        claim(&api, |_| ()).await.error(),
        (409, "LEASE_EXPIRED", "")
    );
}

#[tokio::test]
async fn bad_claims_name_their_field() {
    let mut options = options();
    options.max_body_bytes = 1_000_000;
    let api = Api::with(options);
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 10] = [
        (|body| body["worker"] = json!("w"), "worker"),
        (|body| body["name"] = json!(""), "name"),
        (|body| body["pool"] = json!("Big Pool"), "pool"),
        (
            |body| body["items"][0]["execution_id"] = json!(-1),
            "items.0.execution_id",
        ),
        (
            |body| body["items"][0]["attempt"] = json!(-1),
            "items.0.attempt",
        ),
        (|body| body["slots"] = json!(0), "slots"),
        (|body| body["lease_seconds"] = json!(301), "lease_seconds"),
        (
            |body| body["items"][0]["attempt"] = json!("1"),
            "items.0.attempt",
        ),
        (
            |body| body["items"] = json!(vec![json!({"execution_id": 1, "attempt": 1}); 1001]),
            "items",
        ),
        (|body| body["lease"] = json!(1), "lease"),
    ];
    for (change, field) in cases {
        assert_eq!(
            claim(&api, change).await.error(),
            (422, "INVALID_INPUT", field)
        );
    }
    assert!(api.fake.with(|state| state.leases.is_empty()));
}

#[tokio::test]
async fn a_worker_can_retire() {
    let api = Api::new();
    let worker = WorkerId::fresh();
    let body = json!({"worker": worker.to_string()}).to_string();
    assert_eq!(
        api.post("/api/v1/worker/retire", body).await.status,
        StatusCode::NO_CONTENT
    );
    assert_eq!(api.fake.with(|state| state.retired.clone()), [worker]);
}
