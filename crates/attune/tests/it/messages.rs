//! Messages that cannot be used: each goes to the dead letters with the reason, and whoever
//! received it goes on.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};
use attune_bus::{Bus, Outgoing, Subscription, Topic};
use attune_core::{PartitionId, RequestId};
use attune_testkit::{System, Wiring, within};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::stranger::{connect, envelope, publish};
use crate::support::{limited, noop, number, run, setup};

const REF: &str = "it.poison";
/// The bound that the default settings put on a message.
const LARGEST: usize = 1024 * 1024;

/// What is sent where, and a word of the reason that it must be given.
struct Poison {
    topic: Topic,
    body: Vec<u8>,
    said: &'static str,
}

fn poison(topic: &Topic, body: impl Into<Vec<u8>>, said: &'static str) -> Poison {
    Poison {
        topic: topic.clone(),
        body: body.into(),
        said,
    }
}

/// What nobody can read, wherever it arrives.
fn unreadable(topic: &Topic, kind: &str) -> Vec<Poison> {
    vec![
        poison(topic, "no JSON at all", "not a message envelope"),
        poison(
            topic,
            envelope("weather.report", 1, &json!({})),
            "weather.report",
        ),
        poison(topic, envelope(kind, 1, &json!([])), "empty batch"),
        poison(
            topic,
            envelope(kind, 1, &json!({"strange": true})),
            "payload",
        ),
        poison(topic, vec![b' '; LARGEST + 1], "1048576"),
    ]
}

fn everything() -> Vec<Poison> {
    let partition = PartitionId::of(REF, 4);
    let firing = |payload: Value| envelope("enforcement.created", 1, &payload);
    let completed = |payload: Value| envelope("execution.completed", 1, &payload);
    let deep = format!("{}{}", "[".repeat(40), "]".repeat(40));
    let deep: Value = serde_json::from_str(&deep).unwrap_or_default();
    let completion = |id: i64| {
        json!({
            "execution_id": id, "attempt": 1, "action_id": 1, "status": "succeeded",
            "worker": Uuid::nil(),
        })
    };
    let mut nobodys = completion(1 << 8);
    nobodys["worker"].take();
    let mut waits = completion(1 << 8);
    waits["status"] = json!("queued");
    let mut all = Vec::new();
    for (topic, kind) in [
        (Topic::Enforcements, "enforcement.created"),
        (Topic::Commands(partition), "partition.submit"),
        (Topic::Calls(partition), "partition.submit"),
        (Topic::Control(partition), "partition.release"),
        (Topic::ControlKept(partition), "partition.release"),
        (Topic::Completed, "execution.completed"),
        (Topic::CompletedKept, "execution.completed"),
    ] {
        all.extend(unreadable(&topic, kind));
    }
    let rules = &Topic::Enforcements;
    let ends = &Topic::Completed;
    let nul = json!({"action_ref": REF, "parameters": {"text": "a\u{0}b"}});
    all.extend([
        poison(
            rules,
            firing(json!({"action_ref": "it.nobody-knows"})),
            "it.nobody-knows",
        ),
        poison(rules, firing(nul), "NUL"),
        poison(
            rules,
            firing(json!({"action_ref": REF, "parameters": {"deep": deep}})),
            "32",
        ),
        poison(
            rules,
            firing(json!({"action_ref": REF, "timeout_seconds": 0})),
            "timeout_seconds",
        ),
        poison(ends, completed(completion(-1)), "execution_id"),
        poison(ends, completed(waits), "queued"),
        poison(ends, completed(nobodys), "worker"),
    ]);
    all
}

/// Sends all of it, then reads the dead letters and shows that everyone goes on.
async fn poisoned(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    let action = api.apply(&limited(REF, &noop(), 1)).await?;
    let bus = connect(system).await?;
    let everything = everything();
    let mut sent: BTreeMap<Vec<u8>, Vec<&Poison>> = BTreeMap::new();
    for item in &everything {
        publish(&bus, &item.topic, item.body.clone()).await?;
        sent.entry(item.body.clone()).or_default().push(item);
    }
    // What newer programs say waits for newer programs: it is no poison.
    let partition = PartitionId::of(REF, 4);
    for (topic, kind) in [
        (Topic::Enforcements, "enforcement.created"),
        (Topic::Commands(partition), "partition.submit"),
        (Topic::Calls(partition), "partition.submit"),
        (Topic::Control(partition), "partition.release"),
        (Topic::ControlKept(partition), "partition.release"),
        (Topic::Completed, "execution.completed"),
        (Topic::CompletedKept, "execution.completed"),
    ] {
        publish(&bus, &topic, envelope(kind, 99, &json!({}))).await?;
    }
    // What follows is good, and comes behind all of it.
    let request = Uuid::now_v7();
    let good = json!({"action_ref": REF, "request_id": request, "labels": {"good": "yes"}});
    publish(
        &bus,
        &Topic::Enforcements,
        envelope("enforcement.created", 1, &good),
    )
    .await?;
    letters_tell_why(system, everything.len(), &mut sent).await?;
    let executions = attune_testkit::wait_for("the good one", async || {
        let executions = api.executions(REF).await?;
        ensure!(executions.len() == 1, "{executions:?}");
        Ok(executions)
    })
    .await?;
    ensure!(
        executions[0]["request_id"] == json!(request),
        "{executions:?}"
    );
    api.until(number(&executions[0], "id")?, "succeeded")
        .await?;

    // The owner, the listener, the worker and the store behind them work as before.
    let submitted = api.submit(REF, json!({})).await?;
    api.until(submitted.id, "succeeded").await?;
    let totals = json!({
        "action_id": action["id"], "total_enqueued": 2, "total_completed": 2, "queue_length": 0,
    });
    api.until_queue(REF, totals).await?;
    Ok(())
}

/// A dead letter as it is in the store.
type Letter = (Vec<u8>, i64, String, String);

/// Waits for as many letters as were sent and checks each against what was sent.
async fn letters_tell_why(
    system: &System,
    count: usize,
    sent: &mut BTreeMap<Vec<u8>, Vec<&Poison>>,
) -> anyhow::Result<()> {
    let mut sql = system.database()?.connect().await?;
    let query = "SELECT body, bytes, source, reason FROM attune.dead_letter ORDER BY id";
    let letters = attune_testkit::wait_for("the dead letters", async || {
        let letters: Vec<Letter> = sqlx::query_as(query).fetch_all(&mut sql).await?;
        ensure!(letters.len() >= count, "{} of {count}", letters.len());
        Ok(letters)
    })
    .await?;
    ensure!(letters.len() == count, "{} of {count}", letters.len());
    for (body, bytes, from, reason) in letters {
        // One item of a batch comes as a message of its own, so the body may be written anew; of
        // what is no message only the beginning is kept.
        let same = sent
            .iter_mut()
            .find(|(whole, _)| i64::try_from(whole.len()) == Ok(bytes) && whole.starts_with(&body))
            .map(|(_, items)| items);
        let at = same.and_then(|items| {
            let at = items
                .iter()
                .position(|item| item.topic.routing_key() == from)?;
            Some(items.remove(at))
        });
        let item = match at {
            Some(item) => item,
            None => rewritten(sent, &from, &reason)
                .with_context(|| format!("an unexpected letter from {from}: {reason}"))?,
        };
        ensure!(
            reason.contains(item.said),
            "{from}: {:?} is missing in {reason:?}",
            item.said
        );
    }
    Ok(())
}

/// What was sent to this topic and fits the reason.
fn rewritten<'a>(
    sent: &mut BTreeMap<Vec<u8>, Vec<&'a Poison>>,
    from: &str,
    reason: &str,
) -> Option<&'a Poison> {
    sent.values_mut().find_map(|items| {
        let at = items
            .iter()
            .position(|item| item.topic.routing_key() == from && reason.contains(item.said))?;
        Some(items.remove(at))
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_poison() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster).workers(1), poisoned).await
}

/// Rule firings over the bus: accepted and answered, refused and recorded.
async fn firings(system: &System) -> anyhow::Result<()> {
    const FULL: &str = "it.firings";
    let api = &system.api;
    let mut gate = attune_testkit::Gate::open().await?;
    let mut spec = limited(FULL, &gate.run(), 1);
    spec["policy"]["queue"] = json!({"max_length": 1});
    api.apply(&spec).await?;
    let bus = connect(system).await?;
    let address = format!("attune.reply.it-{}", Uuid::now_v7());
    let topic = Topic::Reply(address.clone());
    let mut answers = bus
        .subscribe(Subscription {
            topic,
            prefetch: 10,
        })
        .await?;
    let message_id = Uuid::now_v7();
    let item = json!({"action_ref": FULL});
    let payload = json!([item, item, item]);
    let body = json!({
        "message_id": message_id, "message_type": "enforcement.created", "version": 1,
        "timestamp": "2026-01-01T00:00:00Z", "payload": payload,
    });
    let mut message = Outgoing::new(Topic::Enforcements, message_id, serde_json::to_vec(&body)?);
    message.reply_to = Some(address);
    // Twice: the second copy is the same three requests.
    bus.publish(vec![message.clone(), message]).await?;

    let mut outcomes: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    while outcomes.values().map(Vec::len).sum::<usize>() < 6 {
        let answer = within("an answer", answers.next())
            .await?
            .context("the bus is closed")?;
        let answer: Value = serde_json::from_slice(&answer.body)?;
        let payload = &answer["payload"];
        let one = std::slice::from_ref(payload);
        for item in payload.as_array().map_or(one, Vec::as_slice) {
            let request = item["request_id"].as_str().context("no request id")?;
            outcomes
                .entry(request.to_owned())
                .or_default()
                .push(item["outcome"].clone());
        }
    }
    ensure!(outcomes.len() == 3, "{outcomes:?}");
    let first = &outcomes[&message_id.to_string()];
    ensure!(first[0]["accepted"]["execution_id"] == first[1]["accepted"]["execution_id"]);
    ensure!(first[1]["accepted"]["repeated"] == true, "{first:?}");
    // What is recorded as refused stays so, and nothing says that it helps to ask again.
    let third = &outcomes[&RequestId(message_id).of_item(2).to_string()];
    let codes = third
        .iter()
        .map(|outcome| outcome["rejected"]["code"].as_str());
    let codes: BTreeSet<_> = codes.collect();
    let expected = [Some("ALREADY_REJECTED"), Some("QUEUE_FULL")];
    ensure!(codes == BTreeSet::from(expected), "{third:?}");
    let mut later = third
        .iter()
        .map(|outcome| &outcome["rejected"]["retry_after_seconds"]);
    ensure!(later.all(Value::is_null), "{third:?}");
    gate.next().await?.leave(0).await?;
    gate.next().await?.leave(0).await?;
    let executions = api.until_idle(FULL).await?;
    let statuses: Vec<_> = executions
        .iter()
        .map(|execution| execution["status"].clone())
        .collect();
    ensure!(
        statuses == ["succeeded", "succeeded", "rejected"],
        "{statuses:?}"
    );
    let reason = executions[2]["error"].as_str().unwrap_or_default();
    ensure!(reason.contains("Queue full (max length: 1)"), "{reason}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_rule_firings() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster).workers(1), firings).await
}
