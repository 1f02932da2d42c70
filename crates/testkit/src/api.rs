//! Attune's HTTP interface as a client sees it.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::wait::wait_for;

/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// What a page of a list holds at most.
const PAGE: usize = 1000;

/// A client without settings of its own.
pub(crate) fn client() -> anyhow::Result<reqwest::Client> {
    Ok(builder().build()?)
}

fn builder() -> reqwest::ClientBuilder {
    // Needed even where nothing is encrypted; that it was done before is fine.
    let _done_before = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .timeout(REQUEST_TIMEOUT)
        .no_proxy()
}

/// Speaks to one server.
#[derive(Debug, Clone)]
pub struct Api {
    base: String,
    client: reqwest::Client,
    /// By what it says who it is.
    key: Option<String>,
}

/// What a server answered.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The header `Retry-After`.
    pub retry_after: Option<String>,
    /// The body; null when it is not JSON.
    pub body: Value,
}

/// An execution that was accepted.
#[derive(Debug, Clone, Deserialize)]
pub struct Submitted {
    /// Its id.
    pub id: i64,
    /// Where it stood.
    pub status: String,
    /// How many waited before it.
    pub position: Option<u64>,
    /// Whether the request had been accepted before.
    pub repeated: bool,
}

impl Answer {
    /// The body of an answer with this status.
    ///
    /// # Errors
    /// When the status is another; with the body.
    pub fn expect(self, status: u16) -> anyhow::Result<Value> {
        ensure!(
            self.status == status,
            "{status} was expected, not {}: {}",
            self.status,
            self.body
        );
        Ok(self.body)
    }

    /// The error of an answer with this status.
    ///
    /// # Errors
    /// When the status or the code is another; with the body.
    pub fn refused(self, status: u16, code: &str) -> anyhow::Result<Value> {
        let body = self.expect(status)?;
        ensure!(body["error"]["code"] == code, "{code} was expected: {body}");
        Ok(body["error"].clone())
    }
}

impl Api {
    /// A client of `http://HOST:PORT`.
    ///
    /// # Errors
    /// When no client can be made.
    pub fn new(base: impl Into<String>) -> anyhow::Result<Self> {
        Ok(Self {
            base: base.into(),
            client: client()?,
            key: None,
        })
    }

    /// A client of `https://HOST:PORT` that believes this authority (PEM) alone.
    ///
    /// # Errors
    /// When it is no certificate, or no client can be made.
    pub fn believing(base: impl Into<String>, authority: &str) -> anyhow::Result<Self> {
        let authority = reqwest::Certificate::from_pem(authority.as_bytes())?;
        Ok(Self {
            base: base.into(),
            client: builder().tls_certs_only([authority]).build()?,
            key: None,
        })
    }

    /// The same, as the owner of this key.
    #[must_use]
    pub fn with_key(&self, key: impl Into<String>) -> Self {
        Self {
            key: Some(key.into()),
            ..self.clone()
        }
    }

    /// The key by which it says who it is.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// `http://HOST:PORT`.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Sends a request with this body, as it is, and these headers.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> anyhow::Result<Answer> {
        let mut request = self.client.request(method, format!("{}{path}", self.base));
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        if !body.is_empty() {
            request = request
                .header("content-type", "application/json")
                .body(body);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await?;
        let status = response.status().as_u16();
        let retry_after = response.headers().get("retry-after");
        let retry_after = retry_after
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let body = serde_json::from_slice(&response.bytes().await?).unwrap_or(Value::Null);
        Ok(Answer {
            status,
            retry_after,
            body,
        })
    }

    /// Asks for something.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn get(&self, path: &str) -> anyhow::Result<Answer> {
        self.send(Method::GET, path, &[], Vec::new()).await
    }

    /// Sends JSON.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Answer> {
        self.send(Method::POST, path, &[], serde_json::to_vec(body)?)
            .await
    }

    /// Puts JSON.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn put(&self, path: &str, body: &Value) -> anyhow::Result<Answer> {
        self.send(Method::PUT, path, &[], serde_json::to_vec(body)?)
            .await
    }

    /// All metrics, as Prometheus reads them.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn metrics(&self) -> anyhow::Result<String> {
        let request = self.client.get(format!("{}/metrics", self.base));
        let response = request.send().await?.error_for_status()?;
        Ok(response.text().await?)
    }

    /// What `/metrics` says of one series without labels, or of the sum of its series.
    ///
    /// # Errors
    /// When there is no such series.
    pub async fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let text = self.metrics().await?;
        let mut values = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            if series.split('{').next() == Some(name) {
                values.push(value.parse::<f64>()?);
            }
        }
        ensure!(!values.is_empty(), "there is no metric {name}");
        Ok(values.iter().sum())
    }

    /// Creates or changes an action; its ref is in the spec.
    ///
    /// # Errors
    /// When it is refused or not in force.
    pub async fn apply(&self, spec: &Value) -> anyhow::Result<Value> {
        let action_ref = spec["ref"].as_str().context("the spec has no ref")?;
        let path = format!("/api/v1/actions/{action_ref}");
        let answer = self
            .send(Method::PUT, &path, &[], serde_json::to_vec(spec)?)
            .await?;
        let status = answer.status;
        ensure!(
            matches!(status, 200 | 201),
            "{action_ref}: {status}: {}",
            answer.body
        );
        ensure!(
            answer.body["applied"] == "now",
            "not in force: {}",
            answer.body
        );
        Ok(answer.body)
    }

    /// Submits something.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn try_submit(&self, body: &Value) -> anyhow::Result<Answer> {
        self.post("/api/v1/executions", body).await
    }

    /// Submits one execution, which must be accepted.
    ///
    /// # Errors
    /// When it is not.
    pub async fn submit(&self, action_ref: &str, parameters: Value) -> anyhow::Result<Submitted> {
        let body = json!({"action_ref": action_ref, "parameters": parameters});
        let answer = self.try_submit(&body).await?.expect(201)?;
        Ok(serde_json::from_value(answer)?)
    }

    /// Submits several in one request, all of which must be accepted; their ids in order.
    ///
    /// # Errors
    /// When one is not.
    pub async fn submit_batch(
        &self,
        action_ref: &str,
        parameters: impl IntoIterator<Item = Value>,
    ) -> anyhow::Result<Vec<i64>> {
        let parameters = parameters.into_iter();
        let body: Value = parameters
            .map(|parameters| json!({"action_ref": action_ref, "parameters": parameters}))
            .collect();
        let answer = self.try_submit(&body).await?.expect(200)?;
        let items: Vec<Submitted> = serde_json::from_value(answer.clone())
            .with_context(|| format!("not all were accepted: {answer}"))?;
        Ok(items.into_iter().map(|item| item.id).collect())
    }

    /// One execution.
    ///
    /// # Errors
    /// When it does not exist.
    pub async fn execution(&self, id: i64) -> anyhow::Result<Value> {
        self.get(&format!("/api/v1/executions/{id}"))
            .await?
            .expect(200)
    }

    /// Cancels an execution.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn cancel(&self, id: i64) -> anyhow::Result<Answer> {
        let path = format!("/api/v1/executions/{id}/cancel");
        self.send(Method::POST, &path, &[], Vec::new()).await
    }

    /// Waits until an execution has this status.
    ///
    /// # Errors
    /// When it does not come; with what is stored.
    pub async fn until(&self, id: i64, status: &str) -> anyhow::Result<Value> {
        wait_for(&format!("{status} for execution {id}"), async || {
            let execution = self.execution(id).await?;
            ensure!(execution["status"] == status, "{execution}");
            Ok(execution)
        })
        .await
    }

    /// Every execution of an action, the oldest first.
    ///
    /// # Errors
    /// When a page cannot be read.
    pub async fn executions(&self, action_ref: &str) -> anyhow::Result<Vec<Value>> {
        let mut executions = Vec::new();
        let first = format!("/api/v1/executions?action={action_ref}&limit={PAGE}");
        let mut path = first.clone();
        loop {
            let mut page = self.get(&path).await?.expect(200)?;
            let Value::Array(items) = page["executions"].take() else {
                anyhow::bail!("no list: {page}");
            };
            executions.extend(items);
            match page["next"].as_str() {
                Some(cursor) => path = format!("{first}&cursor={cursor}"),
                None => break,
            }
        }
        executions.sort_by_key(|execution| execution["id"].as_i64());
        Ok(executions)
    }

    /// Waits until nothing of an action waits or holds a slot, then returns all of it, the oldest
    /// first.
    ///
    /// # Errors
    /// When something goes on; with one execution that does.
    pub async fn until_idle(&self, action_ref: &str) -> anyhow::Result<Vec<Value>> {
        let open = format!(
            "/api/v1/executions?action={action_ref}&status=queued,requested,running&limit=1"
        );
        wait_for(&format!("the end of all of {action_ref}"), async || {
            let page = self.get(&open).await?.expect(200)?;
            ensure!(page["executions"] == json!([]), "{page}");
            Ok(())
        })
        .await?;
        self.executions(action_ref).await
    }

    /// The queue of an action, as it was stored last.
    ///
    /// # Errors
    /// When there is no such action.
    pub async fn queue(&self, action_ref: &str) -> anyhow::Result<Value> {
        let path = format!("/api/v1/actions/{action_ref}/queue-stats");
        self.get(&path).await?.expect(200)
    }

    /// Waits until the stored figures of a queue contain these.
    ///
    /// # Errors
    /// When they do not come; with what is stored.
    pub async fn until_queue(&self, action_ref: &str, figures: Value) -> anyhow::Result<Value> {
        let wanted = figures.as_object().context("figures are an object")?;
        wait_for(&format!("{figures} for {action_ref}"), async || {
            let queue = self.queue(action_ref).await?;
            ensure!(
                wanted.iter().all(|(name, value)| queue[name] == *value),
                "{queue}"
            );
            Ok(queue)
        })
        .await
    }

    /// Waits until the server can do its work.
    ///
    /// # Errors
    /// When it cannot; with what it lacks.
    pub async fn until_ready(&self) -> anyhow::Result<()> {
        wait_for("readiness", async || self.get("/readyz").await?.expect(200)).await?;
        Ok(())
    }
}
