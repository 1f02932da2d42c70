//! Executions asked for over HTTP, as clients do.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use attune_api_types::{BatchItem, ErrorBody, ErrorDetail, Submitted};
use attune_bench::SubmitOutcome;
use attune_bench::load::Way;
use attune_cli::Trust;
use attune_config::ApiSettings;
use attune_core::Submission;
use attune_identity::{Grants, Key, Rate, Role};
use attune_store::{Actor, NewKey, Store};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use serde::de::DeserializeOwned;

/// Who asks.
const USER: &str = "bench";

/// Asks through an API.
#[derive(Clone)]
pub(super) struct ThroughApi {
    client: reqwest::Client,
    url: String,
}

impl ThroughApi {
    /// A client of the API at this port of this machine, with a key of its own if that asks for one.
    ///
    /// # Errors
    /// When the key cannot be stored, or `trust` cannot be used.
    pub(super) async fn new(
        settings: &ApiSettings,
        port: u16,
        store: &dyn Store,
        trust: &Trust,
    ) -> anyhow::Result<Self> {
        let mut headers = HeaderMap::new();
        if settings.auth() == attune_core::Auth::Required {
            let key = key(store).await?;
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.expose()))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let builder = reqwest::Client::builder()
            .no_proxy()
            .tcp_nodelay(true)
            .default_headers(headers);
        let builder = trust.apply(builder).map_err(|words| anyhow!(words))?;
        // By name: that is what certificates of a machine's own are made for.
        let base = match &settings.tls.cert_file {
            Some(_) => format!("https://localhost:{port}"),
            None => format!("http://127.0.0.1:{port}"),
        };
        Ok(Self {
            client: builder.build()?,
            url: format!("{base}/api/v1/executions"),
        })
    }

    async fn post<T: DeserializeOwned>(
        &self,
        body: Vec<u8>,
        within: Duration,
    ) -> Result<T, SubmitOutcome> {
        let undecided = |error: reqwest::Error| SubmitOutcome::Undecided(format!("{error:?}"));
        let request = self.client.post(&self.url).timeout(within).body(body);
        let request = request.header("content-type", "application/json");
        let answer = request.send().await.map_err(undecided)?;
        let is_success = answer.status().is_success();
        let body = answer.bytes().await.map_err(undecided)?;
        let foreign =
            |error: serde_json::Error| SubmitOutcome::Undecided(format!("the answer: {error}"));
        if !is_success {
            let error: ErrorBody = serde_json::from_slice(&body).map_err(foreign)?;
            return Err(refusal(&error.error));
        }
        serde_json::from_slice(&body).map_err(foreign)
    }
}

/// A key that may ask as fast as it likes.
async fn key(store: &dyn Store) -> anyhow::Result<Key> {
    let key = Key::fresh().context("no random numbers")?;
    let mut grants = Grants::new([Role::Submitter]);
    grants.impersonate = true;
    let most = 1_000_000;
    grants.rates.submit = Some(Rate {
        per_second: most,
        burst: most,
    });
    let new = NewKey {
        id: key.id().clone(),
        hash: key.hash(),
        name: USER.to_owned(),
        grants,
        lifetime: Some(Duration::from_secs(24 * 3600)),
        who: Actor::system("bench"),
    };
    store
        .create_key(&new, false)
        .await
        .context("the key of the benchmark")?;
    Ok(key)
}

/// What cannot be done now is asked for again under its request id; what is wrong is refused.
fn refusal(error: &ErrorDetail) -> SubmitOutcome {
    let words = format!("{}: {}", error.code, error.message);
    match error.code.as_ref() {
        "OUTCOME_UNKNOWN" | "NO_OWNER" | "OVERLOADED" | "STORE_UNAVAILABLE" => {
            SubmitOutcome::Undecided(words)
        }
        _ => SubmitOutcome::Refused(words),
    }
}

impl Way for ThroughApi {
    async fn ask(&self, mut submissions: Vec<Submission>, within: Duration) -> Vec<SubmitOutcome> {
        let count = submissions.len();
        // With a key or without one: executions of a user are listed by their user, which takes two more entries
        // in indexes of each. Only so both do the same work.
        for submission in &mut submissions {
            submission
                .requested_by
                .get_or_insert_with(|| USER.to_owned());
        }
        let accepted = |it: Submitted| SubmitOutcome::Accepted(it.id);
        let encoded = match submissions.as_slice() {
            [one] => serde_json::to_vec(one),
            many => serde_json::to_vec(many),
        };
        let body = match encoded {
            Ok(body) => body,
            Err(error) => return vec![SubmitOutcome::Refused(error.to_string()); count],
        };
        if count == 1 {
            let answer = self.post::<Submitted>(body, within).await;
            return vec![answer.map_or_else(|outcome| outcome, accepted)];
        }
        match self.post::<Vec<BatchItem>>(body, within).await {
            Ok(items) => items
                .into_iter()
                .map(|item| match item {
                    BatchItem::Accepted(it) => accepted(it),
                    BatchItem::Refused(body) => refusal(&body.error),
                })
                .collect(),
            Err(outcome) => vec![outcome; count],
        }
    }
}
