//! What happens is told to whoever listens, where the policy of the action asks for it.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use attune_testkit::{Gate, System};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{limited, noop, on_both_wirings};

on_both_wirings! {
    told => embedded_events_are_told, cluster_events_are_told;
}

/// Events as one who listens reads them.
struct Listener {
    response: reqwest::Response,
    bytes: Vec<u8>,
}

impl Listener {
    async fn begin(system: &System, query: &str) -> anyhow::Result<Self> {
        let url = format!("{}/api/v1/events{query}", system.api.base());
        let response = reqwest::Client::builder().no_proxy().build()?.get(url);
        let response = response.send().await?.error_for_status()?;
        Ok(Self {
            response,
            bytes: Vec::new(),
        })
    }

    /// The next event.
    async fn next(&mut self) -> anyhow::Result<Value> {
        loop {
            while let Some(end) = self.bytes.windows(2).position(|two| two == b"\n\n") {
                let block: Vec<u8> = self.bytes.drain(..end + 2).collect();
                let block = String::from_utf8(block)?;
                if let Some(data) = block.lines().find_map(|line| line.strip_prefix("data: ")) {
                    return Ok(serde_json::from_str(data)?);
                }
            }
            let chunk = tokio::time::timeout(Duration::from_secs(60), self.response.chunk());
            let chunk = chunk.await.context("no event comes")??;
            self.bytes.extend(chunk.context("the stream has ended")?);
        }
    }
}

/// Of one action everything is told, of another nothing; who listens to one kind hears nothing else.
async fn told(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.told";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let spec = |limit: u32| {
        let mut spec = limited(REF, &gate.run(), limit);
        spec["policy"]["events"] = json!(["all"]);
        spec["policy"]["queue"] = json!({"max_length": 1});
        spec
    };
    let wider = spec(2);
    api.apply(&spec(1)).await?;
    api.apply(&limited("it.silent", &noop(), 1)).await?;
    let mut all = Listener::begin(system, "").await?;
    let mut ends = Listener::begin(system, "?action=it.told&kind=finished").await?;
    let silent = api.submit("it.silent", json!({})).await?.id;
    api.until(silent, "succeeded").await?;
    let first = api.submit(REF, json!({})).await?.id;
    let inside = gate.next().await?;
    let second = api.submit(REF, json!({})).await?.id;
    api.try_submit(&json!({"action_ref": REF}))
        .await?
        .refused(429, "QUEUE_FULL")?;
    inside.leave(3).await?;
    api.until(first, "failed").await?;
    gate.next().await?.leave(0).await?;
    api.until(second, "succeeded").await?;
    api.apply(&wider).await?;
    let path = format!("/api/v1/pauses/action/{REF}");
    api.put(&path, &json!({"mode": "pause"}))
        .await?
        .expect(200)?;
    let resumed = api.send(Method::DELETE, &path, &[], Vec::new()).await?;
    resumed.expect(200)?;
    let clear = json!({"kind": "clear", "filter": {"action": REF}});
    api.post("/api/v1/operations", &clear).await?.expect(200)?;
    let expected = [
        json!({"kind": "accepted", "execution_id": first, "position": 0, "attempt": 0}),
        json!({"kind": "started", "execution_id": first, "attempt": 1}),
        json!({"kind": "accepted", "execution_id": second, "position": 0}),
        json!({"kind": "rejected", "code": "QUEUE_FULL"}),
        json!({"kind": "finished", "execution_id": first, "status": "failed"}),
        json!({"kind": "started", "execution_id": second, "attempt": 1}),
        json!({"kind": "finished", "execution_id": second, "status": "succeeded"}),
        json!({"kind": "limit_changed", "limit": 2, "earlier_limit": 1}),
        json!({"kind": "paused", "mode": "pause"}),
        json!({"kind": "resumed"}),
        json!({"kind": "operation_finished", "done": 0, "skipped": 0}),
    ];
    // Those of one round are told kind by kind, so each is looked for among all.
    let mut heard = Vec::new();
    for _ in &expected {
        let event = all.next().await?;
        ensure!(event["action_ref"] == REF, "{event}");
        heard.push(event);
    }
    for wanted in &expected {
        let is_it = |event: &Value| {
            let mut members = wanted.as_object().into_iter().flatten();
            members.all(|(name, value)| event[name] == *value)
        };
        ensure!(heard.iter().any(is_it), "{wanted} is missing in {heard:?}");
    }
    for id in [first, second] {
        let event = ends.next().await?;
        ensure!(
            event["kind"] == "finished" && event["execution_id"] == id,
            "{event}"
        );
    }
    // What makes no sense is refused with the place.
    let mut wrong = wider;
    wrong["policy"]["events"] = json!(["ended"]);
    let path = format!("/api/v1/actions/{REF}");
    let answer = api.put(&path, &wrong).await?;
    let words = answer.body.to_string();
    ensure!(
        words.contains("policy.events") && words.contains("operation_finished"),
        "{words}"
    );
    let listen = api.get("/api/v1/events?kind=ended").await?;
    listen.refused(422, "INVALID_INPUT")?;
    ensure!(
        api.metric("executor_events_lost_total")
            .await
            .unwrap_or(0.0)
            == 0.0,
        "lost"
    );
    Ok(())
}
