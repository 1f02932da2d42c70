//! What holds for every route.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use attune_api::{ApiOptions, Probe};
use attune_runtime::Health;
use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use serde_json::json;

use crate::fakes::Fake;
use crate::harness::{Api, options};

#[tokio::test]
async fn unknown_paths_and_methods_are_json() {
    let api = Api::new();
    assert_eq!(api.get("/nowhere").await.error(), (404, "NOT_FOUND", ""));
    assert_eq!(
        api.get("/api/v1/nowhere").await.error(),
        (404, "NOT_FOUND", "")
    );
    let answer = api.post("/api/v1/actions", "{}").await;
    assert_eq!(answer.error(), (405, "METHOD_NOT_ALLOWED", ""));
    assert!(answer.header(header::ALLOW).contains("GET"), "{answer:?}");
    let answer = api.post("/healthz", "").await;
    assert_eq!(answer.error(), (405, "METHOD_NOT_ALLOWED", ""));
}

#[tokio::test]
async fn only_json_of_a_bounded_size_is_read() {
    let api = Api::new();
    for content_type in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/jsonp",
    ] {
        let request = Request::post("/api/v1/executions")
            .header(header::CONTENT_TYPE, content_type)
            .body(Body::from("{}"))
            .unwrap();
        let answer = api.send(request).await;
        assert_eq!(
            answer.error(),
            (415, "UNSUPPORTED_MEDIA_TYPE", ""),
            "{content_type}"
        );
    }
    let request = Request::post("/api/v1/executions")
        .header(header::CONTENT_TYPE, "Application/JSON; charset=utf-8")
        .body(Body::from("{}"))
        .unwrap();
    assert_eq!(
        api.send(request).await.status,
        StatusCode::UNPROCESSABLE_ENTITY
    );

    let encoded = async |codings: &[&str]| {
        let mut request =
            Request::post("/api/v1/executions").header(header::CONTENT_TYPE, "application/json");
        for coding in codings {
            request = request.header(header::CONTENT_ENCODING, *coding);
        }
        api.send(request.body(Body::from("{}")).unwrap()).await
    };
    for codings in [
        ["gzip"].as_slice(),
        &["br, gzip"],
        &["identity, GZIP"],
        &["identity", "deflate"],
        &["x-none"],
    ] {
        let answer = encoded(codings).await;
        let refused = (415, "UNSUPPORTED_MEDIA_TYPE", "");
        assert_eq!(answer.error(), refused, "{codings:?}");
        let message = answer.body["error"]["message"].as_str().unwrap();
        assert!(message.contains("`Content-Encoding: "), "{message}");
    }
    // That is none.
    for codings in [["identity"].as_slice(), &["Identity", ""]] {
        let answer = encoded(codings).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    }

    let large = format!("{{\"x\":\"{}\"}}", "x".repeat(10_000));
    let answer = api.post("/api/v1/executions", large).await;
    assert_eq!(answer.error(), (413, "TOO_LARGE", ""));
    assert!(
        answer.body["error"]["message"]
            .as_str()
            .unwrap()
            .contains("10000")
    );
}

#[tokio::test]
async fn a_panic_is_500_without_details_and_the_server_goes_on() {
    let api = Api::new();
    api.fake.with(|state| state.store_panics = true);
    let answer = api.get("/api/v1/actions").await;
    assert_eq!(answer.error(), (500, "INTERNAL", ""));
    assert!(!answer.body.to_string().contains("secret"), "{answer:?}");
    // Also when the panic is in a task of its own.
    let spec = json!({"ref": "a.b", "run": {"builtin": "noop"}});
    assert_eq!(
        api.put("/api/v1/actions/a.b", &spec).await.error(),
        (500, "INTERNAL", "")
    );
    api.fake.with(|state| state.store_panics = false);
    assert_eq!(api.get("/api/v1/actions").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_store_that_is_away_is_503_without_details() {
    let api = Api::new();
    api.fake.with(|state| state.store_down = true);
    let answer = api.get("/api/v1/executions").await;
    assert_eq!(answer.error(), (503, "STORE_UNAVAILABLE", ""));
    assert_eq!(answer.header(header::RETRY_AFTER), "1");
    assert!(!answer.body.to_string().contains("secret"), "{answer:?}");
}

#[tokio::test]
async fn foreign_pages_are_refused() {
    let api = Api::new();
    let send = async |name: header::HeaderName, value: &str| {
        let request = Request::post("/api/v1/executions/1/cancel").header(name, value);
        api.send(request.body(Body::empty()).unwrap()).await
    };
    assert_eq!(
        send(header::HOST, "evil.example").await.error(),
        (403, "FOREIGN_ORIGIN", "")
    );
    let page = "http://evil.example";
    assert_eq!(
        send(header::ORIGIN, page).await.error(),
        (403, "FOREIGN_ORIGIN", "")
    );
    assert_eq!(send(header::HOST, "localhost:1").await.error().0, 404);
}

#[tokio::test]
async fn health_and_readiness_differ() {
    let api = Api::new();
    assert_eq!(api.get("/healthz").await.body, json!({"status": "ok"}));
    let ready = api.get("/readyz").await;
    assert_eq!(ready.status, StatusCode::OK);
    assert_eq!(ready.body["components"]["fake"]["state"], "ready");

    api.fake
        .with(|state| state.probe = Some("partition 3 has no owner".to_owned()));
    let waiting = api.get("/readyz").await;
    assert_eq!(waiting.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(waiting.body["ready"], false);
    assert_eq!(
        waiting.body["components"]["fake"],
        json!({"state": "waiting", "reason": "partition 3 has no owner"})
    );
    assert_eq!(api.get("/healthz").await.status, StatusCode::OK);
}

#[tokio::test]
async fn readiness_follows_the_daemon() {
    let fake = Fake::default();
    let health = Health::new();
    let component = health.component("broker");
    let ports = fake.ports().with_health(health.clone());
    let api = Api {
        router: attune_api::router(options(), ports, Router::new()),
        fake,
    };
    assert_eq!(
        api.get("/readyz").await.status,
        StatusCode::SERVICE_UNAVAILABLE
    );
    component.ready();
    assert_eq!(api.get("/readyz").await.status, StatusCode::OK);
    health.stopping();
    let stopping = api.get("/readyz").await;
    assert_eq!(stopping.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(stopping.body["stopping"], true);
}

#[tokio::test]
async fn extra_routes_are_served() {
    let api = Api::new();
    assert_eq!(api.get("/metrics").await.body, "up 1");
}

/// Says nothing for ever.
struct Silent;

#[async_trait]
impl Probe for Silent {
    fn name(&self) -> &'static str {
        "silent"
    }

    async fn probe(&self) -> Result<(), String> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_silent_component_does_not_hold_up_readiness() {
    let fake = Fake::default();
    let ports = fake.ports().with_probe(Arc::new(Silent));
    let api = Api {
        router: attune_api::router(options(), ports, Router::new()),
        fake,
    };
    let answer = tokio::time::timeout(Duration::from_secs(20), api.get("/readyz"))
        .await
        .unwrap();
    assert_eq!(answer.body["components"]["silent"]["state"], "waiting");
    assert_eq!(answer.body["components"]["fake"]["state"], "ready");
}

#[tokio::test]
async fn more_requests_than_allowed_are_refused() {
    let mut options = options();
    options.max_requests = 0;
    let api = Api::with(options);
    assert_eq!(
        api.get("/api/v1/actions").await.error(),
        (503, "OVERLOADED", "")
    );
    assert_eq!(api.get("/healthz").await.status, StatusCode::OK);
}

/// In a process that is an executor as well the threads that read bodies serve its queues.
#[tokio::test]
async fn documents_that_are_large_are_read_beside_everything_else() {
    let api = Api::with(ApiOptions {
        max_body_bytes: 1 << 20,
        ..options()
    });
    let many = |word: &str| {
        let members = (0..40_000).map(|n| format!("\"k{n}\":{word}"));
        format!("{{{}}}", members.collect::<Vec<_>>().join(","))
    };
    let document = format!("{{\"action_defaults\":{{\"queue\":{}}}}}", many("1"));
    let run = r#""run":{"builtin":"noop"}"#;
    let bodies = [
        ("PUT", "/api/v1/policies/pack/t", document.clone()),
        (
            "POST",
            "/api/v1/policies",
            format!("{{\"documents\":[{document}]}}"),
        ),
        (
            "PUT",
            "/api/v1/actions/t.a",
            format!("{{\"ref\":\"t.a\",{run},\"parameters\":{}}}", many("1")),
        ),
        (
            "POST",
            "/api/v1/operations/preview",
            format!(
                "{{\"kind\":\"clear\",\"filter\":{{\"labels\":{}}}}}",
                many("\"v\"")
            ),
        ),
    ];
    for (method, path, body) in bodies {
        let order = Mutex::new(Vec::new());
        let large = async {
            let request = Request::builder().method(method).uri(path);
            let request = request.header(header::CONTENT_TYPE, "application/json");
            let answer = api.send(request.body(Body::from(body)).unwrap()).await;
            order.lock().unwrap().push("large");
            answer
        };
        let small = async {
            let answer = api.get("/healthz").await;
            order.lock().unwrap().push("small");
            answer
        };
        let (large, small) = tokio::join!(large, small);
        assert_eq!(
            (large.status.as_u16(), small.status.as_u16()),
            (422, 200),
            "{large:?}"
        );
        assert_eq!(*order.lock().unwrap(), ["small", "large"], "{path}");
    }
}
