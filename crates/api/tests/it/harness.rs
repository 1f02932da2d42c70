//! A router on fakes, and a client of it.

use std::time::Duration;

use attune_api::{ApiOptions, router};
use attune_record::Recorder;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use serde_json::Value;
use tower::ServiceExt;

use crate::fakes::Fake;

/// An answer of the router.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    /// The code and the field of an error.
    pub(crate) fn error(&self) -> (u16, &str, &str) {
        let error = &self.body["error"];
        assert!(
            error["message"].as_str().is_some_and(|it| !it.is_empty()),
            "{self:?}"
        );
        let text = |name: &str| error[name].as_str().unwrap_or_default();
        (self.status.as_u16(), text("code"), text("field"))
    }

    pub(crate) fn header(&self, name: header::HeaderName) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }
}

/// A router on fakes.
pub(crate) struct Api {
    pub(crate) fake: Fake,
    pub(crate) router: Router,
}

pub(crate) fn options() -> ApiOptions {
    let mut options = ApiOptions::new("127.0.0.1:0".parse().unwrap(), 1);
    options.max_body_bytes = 10_000;
    options.max_message_bytes = 9_000;
    options.max_page_size = 100;
    options
}

impl Api {
    pub(crate) fn new() -> Self {
        Self::with(options())
    }

    pub(crate) fn with(options: ApiOptions) -> Self {
        Self::build(options, None)
    }

    /// Records what it answers.
    pub(crate) fn recording(recorder: Recorder) -> Self {
        Self::build(options(), Some(recorder))
    }

    fn build(options: ApiOptions, recorder: Option<Recorder>) -> Self {
        let fake = Fake::default();
        let extra = Router::new().route("/metrics", axum::routing::get(|| async { "up 1" }));
        Self {
            router: router(options, fake.ports().with_recorder(recorder), extra),
            fake,
        }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Answer {
            status: head.status,
            headers: head.headers,
            body,
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap())
            .await
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Body>) -> Answer {
        self.post_with(path, body, &[]).await
    }

    pub(crate) async fn post_with(
        &self,
        path: &str,
        body: impl Into<Body>,
        headers: &[(&str, &str)],
    ) -> Answer {
        let mut request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(body.into()).unwrap()).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        let request = Request::put(path).header(header::CONTENT_TYPE, "application/json");
        self.send(request.body(Body::from(body.to_string())).unwrap())
            .await
    }
}

/// Lets other tasks run until `condition` holds.
pub(crate) async fn until(condition: impl Fn() -> bool) {
    let reached = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), reached)
        .await
        .expect("the condition holds");
}
