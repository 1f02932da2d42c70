//! A router that asks for keys, and what is asked of it with them.

use attune_core::Auth;
use attune_identity::{Grants, Role};
use axum::body::Body;
use axum::http::{Request, header};
use serde_json::Value;

use crate::harness::{Answer, Api, options};

/// A router that asks for keys.
pub(crate) fn api() -> Api {
    let mut options = options();
    options.auth = Auth::Required;
    Api::with(options)
}

/// Of this role, for everything.
pub(crate) fn whole(role: Role) -> Grants {
    let mut grants = Grants::new([role]);
    grants.pools = vec!["*".parse().unwrap()];
    grants
}

impl Api {
    /// Asks with this key, if any.
    pub(crate) async fn ask(
        &self,
        key: &str,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        if !key.is_empty() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let body = match body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Body::from(body.to_string())
            }
            None => Body::empty(),
        };
        self.send(request.body(body).unwrap()).await
    }

    pub(crate) async fn submits(&self, key: &str, body: &Value) -> Answer {
        self.ask(key, "POST", "/api/v1/executions", Some(body))
            .await
    }
}
