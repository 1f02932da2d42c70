//! Faults by which there is no room: at the workers of a pool, for dead letters, in a message.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures_util::FutureExt as _;
use rand::Rng as _;
use rand::rngs::StdRng;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use super::actions::{LARGE, LONELY, PARTITIONS};
use super::amqp::{EXCHANGE, envelope};
use super::daemon_faults::running;
use super::nemesis::{Fault, INSIST, Lane, Rig, pass};
use super::{http, probe};
use crate::Api;

/// How many bytes a message of the broker and a body of the API may have, and how near to that
/// bodies come.
const LIMIT: usize = 1_048_576;
const NEAR: [usize; 4] = [1_048_440, 1_048_490, 1_048_540, LIMIT];
/// How many executions are asked for of the pool that has no worker, a few at a time.
const WAITING: usize = 900;
const AT_A_TIME: usize = 10;
/// How long they are sent: an owner that is stuck answers none of them.
const ASKING: Duration = Duration::from_secs(15);
/// How long after the death of its only worker a pool may have executions that hold slots: its lease,
/// the grace, and a busy machine.
const HELD: Duration = Duration::from_secs(6 + 2 + 15);

/// A fault whose work is the async function `$work`.
macro_rules! fault {
    ($name:literal, $how:literal, $heal:literal, $work:ident) => {
        Fault {
            name: $name,
            how: $how,
            heal: $heal,
            lane: Lane::Messages,
            weight: 2,
            work: |rig, random, fault| $work(rig, random, fault).boxed(),
        }
    };
}

pub(crate) const FAULTS: &[Fault] = &[
    fault!(
        "pool-dead",
        "a pool loses its only worker while much waits for it, and slots are taken back by force",
        "its worker is started after 6 to 11 s, when nobody holds a slot of the pool any more",
        pool_dead
    ),
    fault!(
        "letters-full",
        "the dead letters take no more for 8 to 12 s while much is refused",
        "they take more",
        letters_full
    ),
    fault!(
        "large",
        "bodies that are as large as they may be, by AMQP and HTTP",
        "nothing to heal",
        large
    ),
];

/// Bounds a queue of the broker, however it was declared.
async fn bound(rig: &Rig, queue: &str, length: u32) -> anyhow::Result<()> {
    let pattern = format!("^{}$", queue.replace('.', "\\."));
    let definition = json!({"max-length": length, "overflow": "reject-publish"}).to_string();
    let vhost = super::servers::NAME;
    let arguments = [
        "set_policy",
        "--vhost",
        vhost,
        "--priority",
        "100",
        "--apply-to",
        "queues",
        queue,
        &pattern,
        &definition,
    ];
    rig.servers.rabbitmqctl(&arguments).await.map(drop)
}

async fn unbound(rig: &Rig, queue: &str) -> anyhow::Result<()> {
    let began = Instant::now();
    let vhost = super::servers::NAME;
    let arguments = ["clear_policy", "--vhost", vhost, queue];
    while let Err(error) = rig.servers.rabbitmqctl(&arguments).await {
        // The broker was away when it was to be bound.
        if format!("{error:#}").contains("Parameter does not exist") {
            break;
        }
        // Somebody may disturb the broker.
        ensure!(
            began.elapsed() < 5 * INSIST,
            "{queue} stays bound: {error:#}"
        );
        tokio::time::sleep(Duration::from_millis(500)).await; // poll
    }
    Ok(())
}

async fn pool_dead(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let daemon = rig
        .fleet
        .lonely()
        .context("no worker of a pool of its own")?;
    let Some(mut guard) = daemon.take() else {
        return Ok(false);
    };
    let Some(mut process) = running(&mut guard)? else {
        return Ok(false);
    };
    let begun = rig.begin(fault, &daemon.name)?;
    process.kill().await?;
    rig.notes.process_exit(process.pid())?;
    let killed = Instant::now();
    let action = rig.shared.action(LONELY)?;
    let api = rig.shared.api.clone();
    let asking = Instant::now();
    for _ in 0..WAITING / AT_A_TIME {
        if asking.elapsed() > ASKING {
            break;
        }
        let submissions: Vec<Value> = (0..AT_A_TIME)
            .map(|_| action.submission(Uuid::now_v7(), random))
            .collect();
        for submission in &submissions {
            rig.shared.ledger.invoke(submission)?;
        }
        http::ask(&rig.shared, &api, &submissions, true, None).await?;
    }
    force_release(rig, &api).await?;
    pass(random, 6_000..11_000).await;
    probe::goes_on(rig, random, fault).await?;
    lets_go(rig, &api, killed).await?;
    *guard = Some(daemon.spawn()?);
    begun.end()
}

/// Who holds a slot of the pool that has one worker; `None` when no API says it.
async fn holders(api: &Api) -> Option<Vec<Value>> {
    let path = format!("/api/v1/actions/{LONELY}/holders?limit=5");
    let answer = api.get(&path).await.ok()?;
    answer.body["holders"].as_array().cloned()
}

/// What waits for a pool without a worker holds no slot, unless servers were disturbed as well.
async fn lets_go(rig: &Rig, api: &Api, killed: Instant) -> anyhow::Result<()> {
    loop {
        let holders = holders(api).await;
        if holders.as_ref().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        if killed.elapsed() > HELD {
            if rig.servers_are_quiet_for(HELD) {
                let text = format!("I4: slots of a pool without a worker are held: {holders:?}");
                rig.say.line(&text);
                rig.fleet.surprises.lock().await.push(text);
            }
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(200)).await; // poll
    }
}

/// Takes the slots of some executions back by force, which their dead worker held.
async fn force_release(rig: &Rig, api: &Api) -> anyhow::Result<()> {
    for holder in holders(api).await.unwrap_or_default() {
        let id = holder["execution_id"].as_i64().context("no id")?;
        let body = json!({"attempt": holder["attempt"], "reason": "as the rig wants it"});
        let path = format!("/api/v1/executions/{id}/release");
        // Whatever comes of it.
        let answer = api
            .send(Method::POST, &path, &[], serde_json::to_vec(&body)?)
            .await;
        if answer.is_ok_and(|answer| answer.status == 200) {
            rig.count("force-release");
        }
    }
    Ok(())
}

async fn letters_full(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let queue = "attune.dead-letters";
    if let Err(error) = bound(rig, queue, 1).await {
        rig.say.line(&format!("{}: not now: {error:#}", fault.name));
        return Ok(false);
    }
    let begun = rig.begin(fault, queue)?;
    let mut messages: Vec<_> = (0..200)
        .map(|_| {
            let submission = json!({"request_id": Uuid::now_v7(), "action_ref": "chaos.unknown"});
            let payload = json!([submission]);
            let body = envelope(Uuid::now_v7(), "enforcement.created", 1, &payload);
            (EXCHANGE, "enforcement.created".to_owned(), body)
        })
        .collect();
    for partition in 0..PARTITIONS {
        for kind in ["commands", "control"] {
            let key = format!("partition.{partition:02}.{kind}");
            messages.extend((0..10).map(|_| (EXCHANGE, key.clone(), vec![0xff])));
        }
    }
    if let Err(error) = rig.stranger.say(messages).await {
        rig.say.line(&format!("{}: not all: {error:#}", fault.name));
    }
    pass(random, 8_000..12_000).await;
    probe::goes_on(rig, random, fault).await?;
    unbound(rig, queue).await?;
    begun.end()
}

/// A submission whose whole body, as `wrap` makes it, has so many bytes.
fn of_size(submission: &Value, size: usize, wrap: impl Fn(&Value) -> Vec<u8>) -> Value {
    let with = |length: usize| {
        let mut padded = submission.clone();
        padded["parameters"] = json!({"pad": "x".repeat(length)});
        padded
    };
    let rest = wrap(&with(0)).len();
    with(size.saturating_sub(rest))
}

async fn large(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let size = NEAR[random.random_range(0..NEAR.len())];
    let action = rig.shared.action(LARGE)?;
    let ledger = &rig.shared.ledger;
    let begun = rig.begin(fault, &format!("{size} bytes"))?;
    let (message_id, request_id) = (Uuid::now_v7(), Uuid::now_v7());
    let wrap = |item: &Value| envelope(message_id, "enforcement.created", 1, item);
    let submission = of_size(&action.submission(request_id, random), size, wrap);
    ledger.invoke_by_amqp(&submission)?;
    let body = wrap(&submission);
    match rig.stranger.ask("enforcement.created", body).await {
        Ok(()) => ledger.confirmed(&[request_id])?,
        Err(error) => {
            rig.say.line(&format!("{}: not now: {error:#}", fault.name));
            ledger.unknown(request_id, "not confirmed")?;
        }
    }
    let wrap = |item: &Value| item.to_string().into_bytes();
    let request_id = Uuid::now_v7();
    let submission = of_size(&action.submission(request_id, random), size, wrap);
    ledger.invoke(&submission)?;
    let api = rig.shared.api.clone();
    http::ask(&rig.shared, &api, &[submission], true, None).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    probe::goes_on(rig, random, fault).await?;
    begun.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_the_size_that_is_asked_for() {
        let wrap = |item: &Value| envelope(Uuid::nil(), "enforcement.created", 1, item);
        let submission = json!({"action_ref": LARGE, "request_id": Uuid::nil()});
        for size in NEAR {
            assert_eq!(wrap(&of_size(&submission, size, wrap)).len(), size);
        }
    }
}
