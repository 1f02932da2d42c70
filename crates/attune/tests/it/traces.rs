//! Traces go from the client that asks, through the system, to the program that runs.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use attune_bus::{Bus as _, Outgoing, Topic};
use attune_testkit::collector::{Collector, Span};
use attune_testkit::{System, Wiring, wait_for};
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::stranger::{connect, envelope};
use crate::support::{limited, noop, number, run, setup};

const REF: &str = "it.traced";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT: &str = "00f067aa0ba902b7";

fn given(flags: &str) -> String {
    format!("00-{TRACE}-{CLIENT}-{flags}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_traces_are_one_chain() -> anyhow::Result<()> {
    with(Wiring::Embedded).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_traces_are_one_chain() -> anyhow::Result<()> {
    with(Wiring::Cluster).await
}

async fn with(wiring: Wiring) -> anyhow::Result<()> {
    let collector = Collector::start()?;
    let setup = setup(wiring)
        .set("otlp.endpoint", &collector.endpoint)
        .set("otlp.traces", "true")
        // What is measured is not looked at here.
        .set("otlp.interval_seconds", "3600");
    run(setup, async |system| scenario(system, &collector).await).await
}

async fn scenario(system: &System, collector: &Collector) -> anyhow::Result<()> {
    let api = &system.api;
    let program = json!({"program": ["/bin/sh", "-c", "echo \"\\\"${TRACEPARENT-none}\\\"\""]});
    api.apply(&limited(REF, &program, 4)).await?;

    // Whoever asks for no trace has none, whatever else its header says.
    let malformed = [
        None,
        Some("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01".to_owned()),
        Some(format!("{}-x", given("01"))),
        Some(String::new()),
    ];
    for header in malformed {
        let (seen, record) = program_of(system, header.as_deref(), "succeeded").await?;
        ensure!(seen == "none", "{header:?}: {seen}");
        ensure!(record.get("trace_id").is_none(), "{header:?}: {record}");
    }
    // The program may go on with a trace that nobody wants to see.
    let (seen, record) = program_of(system, Some(&given("00")), "succeeded").await?;
    ensure!(seen == given("00"), "{seen}");
    ensure!(record["trace_id"] == TRACE, "{record}");

    let (seen, record) = program_of(system, Some(&given("01")), "succeeded").await?;
    ensure!(record["trace_id"] == TRACE, "{record}");
    let id = number(&record, "id")?;
    let spans = spans(collector, 3).await?;
    let [submit, queue, run] = ["submit", "queue", "run"].map(|name| spans.get(name));
    let (submit, queue, run) = submit
        .zip(queue)
        .zip(run)
        .map(|((submit, queue), run)| (submit, queue, run))
        .with_context(|| format!("{spans:?}"))?;
    ensure!(submit.parent_id == CLIENT, "{submit:?}");
    ensure!(queue.parent_id == submit.span_id, "{queue:?} {submit:?}");
    ensure!(run.parent_id == queue.span_id, "{run:?} {queue:?}");
    ensure!(seen == format!("00-{TRACE}-{}-01", run.span_id), "{seen}");
    for span in [submit, queue, run] {
        ensure!(span.trace_id == TRACE, "{span:?}");
        ensure!(
            span.attribute("attune.execution.id") == id.to_string(),
            "{span:?}"
        );
        ensure!(0 < span.times.0 && span.times.0 <= span.times.1, "{span:?}");
    }
    for span in [queue, run] {
        ensure!(span.attribute("attune.action.ref") == REF, "{span:?}");
        ensure!(span.attribute("attune.attempt") == "1", "{span:?}");
    }
    ensure!(run.attribute("attune.status") == "succeeded", "{run:?}");
    ensure!(queue.times.1 <= run.times.1, "{queue:?} {run:?}");

    tries(system, collector).await?;
    batch(system, collector).await?;
    if system.wiring() == Wiring::Cluster {
        firings(system, collector).await?;
    }
    Ok(())
}

/// Each try waits and runs in spans of its own.
async fn tries(system: &System, collector: &Collector) -> anyhow::Result<()> {
    const REF: &str = "it.traced.tries";
    let program = json!({"program": ["/bin/sh", "-c", "[ $ATTUNE_ATTEMPT -gt 1 ]"]});
    let backoff = json!({"initial_ms": 10, "factor": 1, "max_ms": 10, "jitter": 0});
    let mut action = limited(REF, &program, 1);
    action["policy"]["retry"] = json!({"max_attempts": 2, "on": ["failed"], "backoff": backoff});
    system.api.apply(&action).await?;
    let body = json!({"action_ref": REF});
    let id = submit(system, Some(&given("01")), &body).await?;
    system.api.until(id, "succeeded").await?;
    let mut chains = Vec::new();
    let mut all = Vec::new();
    wait_for("the spans of two tries", async || {
        all.extend(collector.spans());
        ensure!(all.len() >= 5, "{all:?}");
        Ok(())
    })
    .await?;
    let submit = all.iter().find(|span| span.name == "submit");
    let submit = submit.context("no request")?;
    for attempt in ["1", "2"] {
        let of = |name: &str| {
            let mut spans = all.iter();
            spans.find(|span| span.name == name && span.attribute("attune.attempt") == attempt)
        };
        let (queue, run) = of("queue").zip(of("run")).context("a try without spans")?;
        ensure!(queue.parent_id == submit.span_id, "{queue:?}");
        ensure!(run.parent_id == queue.span_id, "{run:?}");
        chains.push((&queue.span_id, &run.span_id, run.attribute("attune.status")));
    }
    ensure!(
        chains[0].0 != chains[1].0 && chains[0].1 != chains[1].1,
        "{chains:?}"
    );
    ensure!(
        (chains[0].2, chains[1].2) == ("failed", "succeeded"),
        "{chains:?}"
    );
    ensure!(all.len() == 5, "{all:?}");
    Ok(())
}

/// What is asked for together is part of one trace, below one request.
async fn batch(system: &System, collector: &Collector) -> anyhow::Result<()> {
    const REF: &str = "it.traced.batch";
    system.api.apply(&limited(REF, &noop(), 1)).await?;
    let item = json!({"action_ref": REF});
    let trace = given("01");
    let headers = [("traceparent", trace.as_str())];
    let body = json!([item, item]).to_string();
    let path = "/api/v1/executions";
    let answer = system.api.send(Method::POST, path, &headers, body.into());
    answer.await?.expect(200)?;
    system.api.until_idle(REF).await?;
    let mut all = Vec::new();
    wait_for("the spans of a batch", async || {
        all.extend(collector.spans());
        ensure!(all.len() >= 5, "{all:?}");
        Ok(())
    })
    .await?;
    let above: Vec<&Span> = all.iter().filter(|span| span.name == "submit").collect();
    let queues: Vec<&Span> = all.iter().filter(|span| span.name == "queue").collect();
    ensure!(above.len() == 1 && queues.len() == 2, "{all:?}");
    let below = queues.iter().all(|span| span.parent_id == above[0].span_id);
    ensure!(below && queues[0].span_id != queues[1].span_id, "{all:?}");
    Ok(())
}

/// A rule firing names its trace in a header, and each of its items may name one of its own.
async fn firings(system: &System, collector: &Collector) -> anyhow::Result<()> {
    let bus = connect(system).await?;
    let item = json!({"action_ref": REF, "group": "firing"});
    let mut body: Value =
        serde_json::from_slice(&envelope("enforcement.created", 1, &json!([item, item])))?;
    let own = "00-00000000000000000000000000000abc-00000000000000de-01";
    body["traces"] = json!({"1": own});
    let id = Uuid::now_v7();
    let mut message = Outgoing::new(Topic::Enforcements, id, body.to_string().into_bytes());
    message.headers = vec![("traceparent".to_owned(), given("01"))];
    bus.publish(vec![message]).await?;
    bus.close().await;
    let ended = wait_for("the ends of two firings", async || {
        let all = system.api.executions(REF).await?;
        let of_firing = |it: &Value| it["group"] == "firing" && it["status"] == "succeeded";
        let ended: Vec<Value> = all.into_iter().filter(of_firing).collect();
        ensure!(ended.len() == 2, "{ended:?}");
        Ok(ended)
    })
    .await?;
    let mut named: Vec<&str> = ended
        .iter()
        .filter_map(|it| it["trace_id"].as_str())
        .collect();
    named.sort_unstable();
    ensure!(named == [&own[3..35], TRACE], "{ended:?}");
    let mut all = Vec::new();
    wait_for("the spans of two firings", async || {
        all.extend(collector.spans());
        ensure!(all.len() >= 4, "{all:?}");
        Ok(())
    })
    .await?;
    for (trace, parent) in [(TRACE, CLIENT), (&own[3..35], &own[36..52])] {
        let of_trace: Vec<&Span> = all.iter().filter(|span| span.trace_id == trace).collect();
        let queue = of_trace.iter().find(|span| span.name == "queue");
        let queue = queue.context("no wait")?;
        ensure!(queue.parent_id == parent && of_trace.len() == 2, "{all:?}");
    }
    Ok(())
}

/// The spans that have come, by their names, when there are so many.
async fn spans(collector: &Collector, count: usize) -> anyhow::Result<BTreeMap<String, Span>> {
    let mut all = Vec::new();
    wait_for("spans", async || {
        all.extend(collector.spans());
        ensure!(all.len() >= count, "{all:?}");
        Ok(())
    })
    .await?;
    ensure!(all.len() == count, "{all:?}");
    Ok(all.into_iter().map(|it| (it.name.clone(), it)).collect())
}

async fn submit(system: &System, header: Option<&str>, body: &Value) -> anyhow::Result<i64> {
    let headers: Vec<(&str, &str)> = header
        .map(|value| ("traceparent", value))
        .into_iter()
        .collect();
    let path = "/api/v1/executions";
    let answer = system
        .api
        .send(Method::POST, path, &headers, body.to_string().into());
    number(&answer.await?.expect(201)?, "id")
}

/// What its program has seen, and its record.
async fn program_of(
    system: &System,
    header: Option<&str>,
    status: &str,
) -> anyhow::Result<(String, Value)> {
    let id = submit(system, header, &json!({"action_ref": REF})).await?;
    let record = system.api.until(id, status).await?;
    let seen = record["result"].as_str().context("no result")?.to_owned();
    Ok((seen, record))
}
