//! How often executions start, and how many are accepted.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use attune_testkit::{System, Wiring};
use chrono::{DateTime, Utc};
use reqwest::Method;
use serde_json::{Value, json};

use crate::histories::promises_are_kept;
use crate::support::{all_are, noop, on_both_wirings};

on_both_wirings! {
    in_time => embedded_rate, cluster_rate;
    refused => embedded_rates_that_refuse, cluster_rates_that_refuse;
    counted => embedded_quotas, cluster_quotas;
    taken_over => embedded_rate_over_takeovers, cluster_rate_over_takeovers;
}

fn rated(action_ref: &str, policy: Value) -> Value {
    json!({"ref": action_ref, "run": noop(), "policy": policy})
}

/// When executions were given their last slots, by the time of their owners; in order.
fn starts(executions: &[Value]) -> anyhow::Result<Vec<DateTime<Utc>>> {
    let starts = executions.iter().map(|execution| {
        let at = execution["requested_at"].as_str();
        Ok(at.context("it has started")?.parse()?)
    });
    let mut starts: Vec<DateTime<Utc>> = starts.collect::<anyhow::Result<_>>()?;
    starts.sort_unstable();
    Ok(starts)
}

/// No stretch of the window has more starts than may be.
fn judge(starts: &[DateTime<Utc>], max: usize, window: Duration) -> anyhow::Result<()> {
    for pair in starts.windows(max + 1) {
        let between = (pair[max] - pair[0]).to_std()?;
        ensure!(between >= window, "{} starts within {between:?}", max + 1);
    }
    Ok(())
}

async fn submit_as(system: &System, action_ref: &str, user: &str) -> anyhow::Result<i64> {
    let body = json!({"action_ref": action_ref, "requested_by": user});
    let accepted = system.api.try_submit(&body).await?.expect(201)?;
    accepted["id"].as_i64().context("an id")
}

/// Two a second of each user, and nobody waits for the rate of another; one after the other with an
/// interval.
async fn in_time(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.rated";
    const PACED: &str = "it.paced";
    let api = &system.api;
    let rate = json!({"max_executions": 2, "window_seconds": 1, "by": ["user"]});
    api.apply(&rated(REF, json!({"rate_limit": rate}))).await?;
    api.apply(&rated(PACED, json!({"min_interval_ms": 300})))
        .await?;
    for user in ["ann", "ann", "ann", "ann", "ann", "bob"] {
        submit_as(system, REF, user).await?;
        api.submit(PACED, json!({})).await?;
    }
    let executions = api.until_idle(REF).await?;
    all_are(&executions, "succeeded")?;
    let mut by_user: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for execution in &executions {
        let user = execution["requested_by"].as_str().context("a user")?;
        by_user.entry(user).or_default().push(execution.clone());
    }
    let ann = starts(&by_user["ann"])?;
    judge(&ann, 2, Duration::from_secs(1))?;
    let took = (ann[4] - ann[0]).to_std()?;
    ensure!(took < Duration::from_secs(10), "it took {took:?}");
    let bob = starts(&by_user["bob"])?;
    ensure!(bob[0] < ann[4], "bob has waited for ann: {bob:?} {ann:?}");
    let executions = api.until_idle(PACED).await?;
    judge(&starts(&executions)?, 1, Duration::from_millis(300))
}

/// What comes while the rate is used up is refused, and told when to come again.
async fn refused(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.refusing";
    let api = &system.api;
    let rate = json!({"max_executions": 1, "window_seconds": 600, "on_limit": "reject"});
    api.apply(&rated(REF, json!({"rate_limit": rate}))).await?;
    let first = api.submit(REF, json!({})).await?;
    api.until(first.id, "succeeded").await?;
    let refused = api.try_submit(&json!({"action_ref": REF})).await?;
    ensure!(refused.status == 429, "{} {}", refused.status, refused.body);
    let error = &refused.body["error"];
    ensure!(error["code"] == "RATE_LIMITED", "{error}");
    let again = error["retry_after_seconds"].as_u64().context("when")?;
    ensure!((500..=601).contains(&again), "{error}");
    // What makes no sense is refused with the path of the field, and the policy that there was holds.
    let path = format!("/api/v1/actions/{REF}");
    for (policy, field) in [
        (
            json!({"rate_limit": {"max_executions": 0, "window_seconds": 1}}),
            "policy.rate_limit.max_executions",
        ),
        (
            json!({"rate_limit": {"max_executions": 1, "window_seconds": 1, "by": ["source"]}}),
            "policy.rate_limit.by",
        ),
        (json!({"min_interval_ms": 0}), "policy.min_interval_ms"),
        (
            json!({"quotas": [{"per": "day", "max": 0}]}),
            "policy.quotas.0.max",
        ),
        (json!({"quotas": [{"per": "week", "max": 1}]}), "week"),
        (
            json!({"rate_limit": {"max_executions": 1}}),
            "window_seconds",
        ),
    ] {
        let text = serde_json::to_vec(&rated(REF, policy))?;
        let answer = api.send(Method::PUT, &path, &[], text).await?;
        ensure!(
            matches!(answer.status, 400 | 422),
            "{} {}",
            answer.status,
            answer.body
        );
        let said = answer.body["error"].to_string();
        ensure!(said.contains(field), "{field}: {said}");
    }
    let refused = api.try_submit(&json!({"action_ref": REF})).await?;
    ensure!(refused.status == 429, "{} {}", refused.status, refused.body);
    Ok(())
}

/// A quota counts acceptances, each once however often it is asked for, and over a restart.
async fn counted(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.quota";
    let api = &system.api;
    let quotas = json!([{"per": "month", "max": 3}, {"per": "month", "max": 2, "by": ["user"]}]);
    api.apply(&rated(REF, json!({"quotas": quotas}))).await?;
    let body = |user: &str| serde_json::to_vec(&json!({"action_ref": REF, "requested_by": user}));
    let ask = async |user: &str, key: &str| -> anyhow::Result<u16> {
        let headers = [("Idempotency-Key", key)];
        let path = "/api/v1/executions";
        let answer = api.send(Method::POST, path, &headers, body(user)?).await?;
        if answer.status == 429 {
            let error = &answer.body["error"];
            ensure!(error["code"] == "QUOTA_EXCEEDED", "{error}");
            ensure!(error["retry_after_seconds"].as_u64() > Some(0), "{error}");
        }
        Ok(answer.status)
    };
    for key in ["a", "b"] {
        for _ in 0..3 {
            let status = ask("ann", key).await?;
            ensure!(matches!(status, 200 | 201), "{status}");
        }
    }
    ensure!(ask("ann", "c").await? == 429, "of one user");
    ensure!(ask("bob", "d").await? == 201);
    ensure!(ask("bob", "e").await? == 429, "of all together");
    api.until_idle(REF).await?;
    let name = owner(system);
    system.kill(name).await?;
    system.start_again(name).await?;
    ensure!(ask("bob", "f").await? == 429, "after a takeover");
    Ok(())
}

fn owner(system: &System) -> &'static str {
    match system.wiring() {
        Wiring::Embedded => "standalone",
        Wiring::Cluster => "executor",
    }
}

/// A thousand starts, while their owner is killed twenty times.
async fn taken_over(system: &System) -> anyhow::Result<()> {
    const EXACT: &str = "it.exact";
    const SLICED: &str = "it.sliced";
    const KILLS: u32 = 8;
    let api = &system.api;
    // Of the one each start has its own time, those of the other are counted in slices.
    let rates = [(EXACT, 15, 1), (SLICED, 80, 5)];
    let mut bodies = Vec::new();
    for (action_ref, max, seconds) in rates {
        let rate = json!({"max_executions": max, "window_seconds": seconds});
        api.apply(&rated(action_ref, json!({"rate_limit": rate})))
            .await?;
        bodies.extend((0..500).map(|_| json!({"action_ref": action_ref})));
    }
    for chunk in bodies.chunks(100) {
        let answers = api.post("/api/v1/executions", &json!(chunk)).await?;
        let answers = answers.expect(200)?;
        let answers = answers.as_array().context("an array")?;
        ensure!(
            answers.iter().all(|answer| answer["id"].is_i64()),
            "{answers:?}"
        );
    }
    let name = owner(system);
    let mut started = 0;
    for _ in 0..KILLS {
        system.kill(name).await?;
        system.start_again(name).await?;
        // Some start under each owner, as long as there are any.
        let more = attune_testkit::wait_for("more starts", async || {
            let (mut ended, mut waiting) = (0, 0);
            for (action_ref, ..) in rates {
                let queue = api.queue(action_ref).await?;
                ended += queue["total_completed"].as_u64().unwrap_or(0);
                waiting += queue["queue_length"].as_u64().unwrap_or(0);
            }
            ensure!(ended > started || waiting == 0, "{ended} have ended");
            Ok(ended)
        });
        started = more.await?;
    }
    let mut all = Vec::new();
    for (action_ref, max, seconds) in rates {
        let executions = api.until_idle(action_ref).await?;
        ensure!(executions.len() == 500, "{}", executions.len());
        all_are(&executions, "succeeded")?;
        judge(&starts(&executions)?, max, Duration::from_secs(seconds)).context(action_ref)?;
        all.extend(executions);
    }
    let summary = promises_are_kept(system, &all).await?;
    // A kill takes the records with it that its process had not written yet, a few of each owner: the
    // rate of those is judged above only. That most are judged shows that the checker has looked.
    ensure!(
        summary["judged"]["rates"].as_u64() >= Some(500),
        "{summary}"
    );
    ensure!(
        summary["takeovers"].as_u64() >= Some(u64::from(KILLS)),
        "{summary}"
    );
    Ok(())
}
