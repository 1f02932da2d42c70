//! `/api/v1/worker`.

use std::time::Duration;

use attune_core::{Attempt, ExecutionId, WorkerId};
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::harness::{Answer, Api};

async fn renew(api: &Api, change: fn(&mut Value)) -> Answer {
    let mut body = json!({
        "worker": WorkerId::fresh().to_string(),
        "name": "w1",
        "pool": "default",
        "slots": 4,
        "lease_seconds": 15
    });
    change(&mut body);
    api.post("/api/v1/worker/lease", body.to_string()).await
}

#[tokio::test]
async fn a_worker_registers_renews_and_says_that_it_drains() {
    let api = Api::new();
    let answer = renew(&api, |_| ()).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(answer.body, json!({"lease_expires_in_ms": 15_000}));
    let lease = api.fake.with(|state| state.leases[0].clone());
    assert_eq!((lease.slots, lease.ttl), (4, Duration::from_secs(15)));
    assert!(!lease.draining);

    let renewed = renew(&api, |body| body["draining"] = json!(true)).await;
    assert_eq!(renewed.status, StatusCode::OK, "{renewed:?}");
    assert!(api.fake.with(|state| state.leases[1].draining));

    let renewed = renew(&api, |body| body["draining"] = Value::Null).await;
    assert_eq!(renewed.status, StatusCode::OK, "{renewed:?}");
    assert!(!api.fake.with(|state| state.leases[2].draining));
}

#[tokio::test]
async fn an_expired_lease_is_409() {
    let api = Api::new();
    api.fake.with(|state| state.leases_expired = true);
    assert_eq!(
        renew(&api, |_| ()).await.error(),
        (409, "LEASE_EXPIRED", "")
    );
}

#[tokio::test]
async fn a_bad_lease_names_its_field() {
    let api = Api::new();
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 8] = [
        (|body| body["worker"] = json!("w"), "worker"),
        (|body| body["name"] = json!(""), "name"),
        (|body| body["pool"] = json!("Big Pool"), "pool"),
        (|body| body["slots"] = json!(0), "slots"),
        (|body| body["lease_seconds"] = json!(301), "lease_seconds"),
        (|body| body["draining"] = json!("no"), "draining"),
        (|body| body["items"] = json!([]), "items"),
        (|body| body["lease"] = json!(1), "lease"),
    ];
    for (change, field) in cases {
        assert_eq!(
            renew(&api, change).await.error(),
            (422, "INVALID_INPUT", field)
        );
    }
    assert!(api.fake.with(|state| state.leases.is_empty()));
}

#[tokio::test]
async fn claims_are_gone() {
    let api = Api::new();
    let answer = api.post("/api/v1/worker/claims", "{}").await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND, "{answer:?}");
}

#[tokio::test]
async fn a_worker_can_retire() {
    let api = Api::new();
    let worker = WorkerId::fresh();
    let begun = json!([{"execution_id": 7, "attempt": 2}]);
    for (begun, known) in [
        (json!(null), None),
        (json!([]), Some(vec![])),
        (begun, Some(vec![(ExecutionId(7), Attempt(2))])),
    ] {
        let body = json!({"worker": worker.to_string(), "begun": begun}).to_string();
        let answer = api.post("/api/v1/worker/retire", body).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT);
        let told = api.fake.with(|state| state.retired.pop());
        assert_eq!(told, Some((worker, known)));
    }
}
