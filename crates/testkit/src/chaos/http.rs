//! Clients of the HTTP interface, some of whom hang up.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use reqwest::Method;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::actions::Action;
use super::ledger::Ledger;
use crate::Api;

/// How many submissions a client sends at once, at most.
const MOST_AT_ONCE: usize = 5;
/// The share of requests that are given up while they are under way.
const HANG_UP: f64 = 0.1;
/// The share of executions that somebody wants to cancel.
const CANCEL: f64 = 0.01;
/// The share of submissions that ask for an action which there is not, and so are refused.
const REFUSED: f64 = 0.02;
/// How often an unknown outcome is asked for again under the same request id.
const REPETITIONS: usize = 3;

/// What every client needs.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) api: Api,
    pub(crate) broker_url: String,
    /// As whom its messages say that they are sent, where they must.
    pub(crate) user: Option<&'static str>,
    pub(crate) actions: Vec<Action>,
    pub(crate) ledger: Ledger,
    pub(crate) stop: CancellationToken,
    pub(crate) program: PathBuf,
    pub(crate) history: PathBuf,
}

impl Shared {
    /// The action of this name.
    pub(crate) fn action(&self, action_ref: &str) -> anyhow::Result<&Action> {
        let mut actions = self.actions.iter();
        let found = actions.find(|action| action.action_ref == action_ref);
        found.with_context(|| format!("there is no {action_ref}"))
    }
}

/// Asks for executions at this pace, until it is stopped.
pub(crate) async fn client(shared: Arc<Shared>, seed: u64, pace: Duration) -> anyhow::Result<()> {
    let mut random = StdRng::seed_from_u64(seed);
    let api = shared.api.clone();
    let mut ticks = tokio::time::interval(pace);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !shared.stop.is_cancelled() {
        ticks.tick().await;
        let count = if random.random_bool(0.7) {
            1
        } else {
            random.random_range(2..=MOST_AT_ONCE)
        };
        let mut submissions: Vec<Value> = (0..count)
            .map(|_| {
                let action = Action::pick(&shared.actions, &mut random);
                let mut submission = action.submission(Uuid::now_v7(), &mut random);
                if random.random_bool(REFUSED) {
                    submission["action_ref"] = "chaos.unknown".into();
                }
                submission
            })
            .collect();
        for submission in &submissions {
            shared.ledger.invoke(submission)?;
        }
        for repetition in 0..=REPETITIONS {
            let hang_up = random
                .random_bool(HANG_UP)
                .then(|| Duration::from_micros(random.random_range(0..20_000)));
            let outcomes = ask(&shared, &api, &submissions, repetition == 0, hang_up).await?;
            for outcome in &outcomes {
                if let Outcome::Accepted(id) = outcome
                    && random.random_bool(CANCEL)
                {
                    // Whatever comes of it.
                    let _answer = api.cancel(*id).await;
                }
            }
            let unknown = outcomes.contains(&Outcome::Unknown);
            if !unknown || shared.stop.is_cancelled() || random.random_bool(0.4) {
                break;
            }
            // What was refused stays refused; what was accepted must be found again.
            let mut outcomes = outcomes.into_iter();
            submissions.retain(|_| outcomes.next() != Some(Outcome::Refused));
            let pause = Duration::from_millis(random.random_range(50..1000));
            tokio::time::sleep(pause).await;
        }
    }
    Ok(())
}

/// What is known of a submission after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It became this execution.
    Accepted(i64),
    /// Nothing was stored.
    Refused,
    /// One of the two.
    Unknown,
}

/// Sends a request and notes what is known after it of each submission.
pub(crate) async fn ask(
    shared: &Shared,
    api: &Api,
    submissions: &[Value],
    is_first: bool,
    hang_up: Option<Duration>,
) -> anyhow::Result<Vec<Outcome>> {
    let body = if let [one] = submissions {
        serde_json::to_vec(one)?
    } else {
        serde_json::to_vec(submissions)?
    };
    let asking = api.send(Method::POST, "/api/v1/executions", &[], body);
    let answer = match hang_up {
        Some(patience) => tokio::time::timeout(patience, asking)
            .await
            .unwrap_or_else(|_| Err(anyhow::anyhow!("hung up"))),
        None => asking.await,
    };
    let mut outcomes = Vec::new();
    for (index, submission) in submissions.iter().enumerate() {
        let id = submission["request_id"].as_str().context("no id")?;
        let request_id: Uuid = id.parse()?;
        let item = answer.as_ref().map(|answer| match &answer.body {
            Value::Array(items) => items.get(index).unwrap_or(&Value::Null),
            body => body,
        });
        let Ok(item) = item else {
            shared.ledger.unknown(request_id, "no answer")?;
            outcomes.push(Outcome::Unknown);
            continue;
        };
        if let Some(execution_id) = item["id"].as_i64() {
            shared.ledger.accepted(request_id, execution_id)?;
            outcomes.push(Outcome::Accepted(execution_id));
            continue;
        }
        let code = item["error"]["code"].as_str().unwrap_or("unreadable");
        // What is refused after an earlier try may have been accepted in that, unless a firing of the
        // same request is kept as rejected.
        let is_final = is_first || code == "ALREADY_REJECTED";
        if matches!(code, "OUTCOME_UNKNOWN" | "unreadable") || !is_final {
            shared.ledger.unknown(request_id, code)?;
            outcomes.push(Outcome::Unknown);
        } else {
            shared.ledger.refused(request_id, code)?;
            outcomes.push(Outcome::Refused);
        }
    }
    Ok(outcomes)
}
