//! Faults by messages, executions and requests.

use std::sync::PoisonError;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::FutureExt as _;
use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use super::actions::{PARTITIONS, POISON, Policy};
use super::amqp::{EXCHANGE, envelope};
use super::nemesis::{Fault, Lane, Rig};
use super::probe;
use super::stranger::{LIVES, REPORTS};
use crate::Api;

/// A fault whose work is the async function `$work`.
macro_rules! fault {
    ($name:literal, $how:literal, $heal:literal, $weight:literal, $work:ident) => {
        Fault {
            name: $name,
            how: $how,
            heal: $heal,
            lane: Lane::Messages,
            weight: $weight,
            work: |rig, random, fault| $work(rig, random, fault).boxed(),
        }
    };
}

pub(crate) const FAULTS: &[Fault] = &[
    fault!(
        "replay",
        "messages of all kinds, also those between owners and workers, are sent again seconds later, \
         doubled and in any order",
        "nothing to heal",
        5,
        replay
    ),
    fault!(
        "garbage",
        "corrupt, truncated, oversized, wrong type and version",
        "nothing to heal",
        3,
        garbage
    ),
    fault!(
        "illegible",
        "messages with bytes that are no text in their properties, or lists 20,000 deep",
        "nothing to heal",
        2,
        illegible
    ),
    fault!(
        "poison",
        "an execution that kills its worker, in both attempts",
        "the worker is started again",
        2,
        poison
    ),
    fault!(
        "limits",
        "limits, groups and orders of some actions are changed",
        "nothing to heal",
        5,
        limits
    ),
    fault!(
        "pauses",
        "some actions are paused or drained for seconds",
        "they are resumed",
        4,
        pauses
    ),
    fault!(
        "operations",
        "what waits of some actions is reprioritised, moved to the front or cancelled, all at once",
        "nothing to heal",
        4,
        operations
    ),
];

/// That the broker cannot be reached is no failure of the rig: somebody else disturbs it.
fn unless_away(rig: &Rig, fault: &Fault, outcome: anyhow::Result<()>) -> bool {
    if let Err(error) = &outcome {
        rig.say.line(&format!("{}: not now: {error:#}", fault.name));
    }
    outcome.is_ok()
}

/// The direct exchanges with the keys under which somebody listens there: the lives of workers, and
/// executors. None while no API answers.
async fn direct(rig: &Rig) -> anyhow::Result<Vec<(&'static str, String)>> {
    let api = rig.shared.api.clone();
    let Ok(answer) = api.get("/api/v1/cluster").await else {
        return Ok(Vec::new());
    };
    let of = |list: &str, exchange| {
        let found = answer.body[list].as_array().into_iter().flatten();
        let found = found.filter(|one| one["alive"] != false);
        let ids = found.filter_map(|one| Some((exchange, one["id"].as_str()?.to_owned())));
        ids.collect::<Vec<_>>()
    };
    let lives = of("workers", LIVES).into_iter();
    let lives = lives.map(|(exchange, id)| (exchange, format!("*.{id}")));
    Ok([lives.collect(), of("executors", REPORTS)].concat())
}

async fn replay(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let direct = direct(rig).await?;
    let Ok(mut heard) = rig.stranger.overhear(&rig.shared.ledger, &direct).await else {
        return Ok(false);
    };
    heard.extend_from_within(..heard.len() / 2);
    heard.shuffle(random);
    let begun = rig.begin(fault, &format!("{} messages", heard.len()))?;
    unless_away(rig, fault, rig.stranger.repeat(&heard).await);
    begun.end()
}

/// Which of the bodies below is of a newer version. It stays in its queue for good: so many of them fit
/// into the window of who receives there, and more would look as if nobody took what lies there.
const NEWER: usize = 3;
const NEWER_AT_MOST: u64 = 8;

async fn garbage(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let kinds = [
        ("enforcement.created", "enforcement.created"),
        ("partition.01.commands", "partition.submit"),
        ("partition.03.calls", "partition.submit"),
        ("partition.02.control", "partition.release"),
        ("execution.completed", "execution.completed"),
        ("execution.completed.kept", "execution.completed"),
        ("queue.stats", "queue.stats"),
        ("worker.hello", "worker.hello"),
    ];
    let kinds = kinds.map(|(key, kind)| (EXCHANGE, key.to_owned(), kind));
    // To one life and one executor of those that there are.
    let mut direct = direct(rig).await?;
    direct.shuffle(random);
    let one = |exchange, kind| {
        let found = direct.iter().find(|(place, _)| *place == exchange);
        found.map(|(exchange, key)| (*exchange, key.clone(), kind))
    };
    let told = one(LIVES, "execution.requested");
    let kinds = kinds.into_iter().chain(told);
    let kinds = kinds.chain(one(REPORTS, "worker.report"));
    let id = Uuid::now_v7;
    let begun_before = rig.counted(fault.name);
    let may_wait = begun_before < NEWER_AT_MOST;
    let mut messages = Vec::new();
    for (exchange, key, kind) in kinds {
        let sound = envelope(id(), kind, 1, &json!({"execution_id": 1, "attempt": 1}));
        let deep = "[".repeat(2000);
        let bodies: [Vec<u8>; 8] = [
            vec![],
            vec![0xff, 0xfe, 0x00],
            sound[..sound.len() / 2].to_vec(),
            envelope(id(), kind, 99, &json!({})),
            envelope(id(), "no.such.type", 1, &json!({})),
            envelope(id(), kind, 1, &json!([])),
            envelope(id(), kind, 1, &json!({"text": "x".repeat(2 * 1024 * 1024)})),
            deep.into_bytes(),
        ];
        let bodies = bodies.into_iter().enumerate();
        let bodies = bodies.filter(|(place, _)| may_wait || *place != NEWER);
        messages.extend(bodies.map(|(_, body)| (exchange, key.clone(), body)));
    }
    messages.shuffle(random);
    messages.truncate(20);
    let begun = rig.begin(fault, &format!("{} messages", messages.len()))?;
    unless_away(rig, fault, rig.stranger.say(messages).await);
    begun.end()
}

async fn illegible(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let mut queues: Vec<String> = ["enforcements", "completed", "completed.kept", "queue-stats"]
        .map(|queue| format!("attune.{queue}"))
        .to_vec();
    for kind in ["commands", "calls", "control"] {
        let partition = random.random_range(0..PARTITIONS);
        queues.push(format!("attune.partition.{partition:02}.{kind}"));
    }
    queues.push("attune.dead-letters".to_owned());
    let begun = rig.begin(fault, &format!("{} queues", queues.len()))?;
    let said = rig.stranger.say_illegibly(&queues).await;
    if unless_away(rig, fault, said) {
        probe::goes_on(rig, random, fault).await?;
    }
    begun.end()
}

async fn poison(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let actions = &rig.shared.actions;
    let action = actions.iter().find(|action| action.action_ref == POISON);
    let request_id = Uuid::now_v7();
    let submission = action.context("no poison")?.submission(request_id, random);
    let begun = rig.begin(fault, POISON)?;
    rig.shared.ledger.invoke(&submission)?;
    let api = rig.shared.api.clone();
    match api.try_submit(&submission).await {
        Ok(answer) if answer.status == 201 => {
            let id = answer.body["id"].as_i64().context("no id")?;
            rig.shared.ledger.accepted(request_id, id)?;
        }
        _ => rig.shared.ledger.unknown(request_id, "no answer")?,
    }
    begun.end()
}

async fn limits(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let api = rig.shared.api.clone();
    let shared = &rig.shared;
    let count = random.random_range(1..6);
    let mut targets = Vec::new();
    for _ in 0..count {
        let action = &shared.actions[random.random_range(0..shared.actions.len())];
        if action.policy.limit.is_some() && action.action_ref != POISON {
            let limit = Some(random.random_range(1..=6));
            let policy = Policy::numbered(limit, random.random_range(0..20));
            targets.push((action, policy));
        }
    }
    let names: Vec<_> = targets
        .iter()
        .map(|(action, policy)| format!("{}={policy:?}", action.action_ref))
        .collect();
    let begun = rig.begin(fault, &names.join(" "))?;
    for (action, policy) in targets {
        {
            // Before the change, because it may be in force even if no answer comes.
            let mut limits = rig.limits.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(highest) = limits.get_mut(&action.action_ref) {
                *highest = (*highest).max(policy.limit);
            }
        }
        let spec: Value = action.spec(&shared.program, &shared.history, policy);
        let path = format!("/api/v1/actions/{}", action.action_ref);
        // No answer, or not in force yet: as it may be.
        let _answer = api
            .send(Method::PUT, &path, &[], serde_json::to_vec(&spec)?)
            .await;
    }
    begun.end()
}

/// How often it is tried to resume something, half a second apart: longer than any fault lasts.
const RESUMES: u32 = 240;
/// How long queues are held at most, in milliseconds: what waits for them meanwhile must be through
/// before the rig gives up waiting for it.
const HELD_AT_MOST_MS: u64 = 4_000;

/// The witnesses judge whether anything starts meanwhile. Actions that show whether the rest goes on
/// are left alone.
async fn pauses(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let api = rig.shared.api.clone();
    let mut targets = Vec::new();
    for _ in 0..random.random_range(1..8) {
        let action = &rig.shared.actions[random.random_range(0..rig.shared.actions.len())];
        if !action.is_probe() && action.action_ref != POISON {
            let mode = if random.random_bool(0.3) {
                "drain"
            } else {
                "pause"
            };
            targets.push((format!("/api/v1/pauses/action/{}", action.action_ref), mode));
        }
    }
    let names: Vec<_> = targets
        .iter()
        .map(|(path, mode)| format!("{mode} {path}"))
        .collect();
    let begun = rig.begin(fault, &names.join(" "))?;
    for (path, mode) in &targets {
        let body = json!({"mode": mode, "who": "the rig"});
        // No answer, or not in force yet: as it may be.
        let _answer = api
            .send(Method::PUT, path, &[], serde_json::to_vec(&body)?)
            .await;
    }
    let held = random.random_range(200..HELD_AT_MOST_MS);
    tokio::time::sleep(Duration::from_millis(held)).await;
    for (path, _) in &targets {
        // Whether it came to that is seen in the end: nothing would ever run again.
        resume(&api, path).await;
    }
    begun.end()
}

/// Asks until an API has done it.
async fn resume(api: &Api, path: &str) {
    for _ in 0..RESUMES {
        let answer = api.send(Method::DELETE, path, &[], Vec::new()).await;
        if answer.is_ok_and(|answer| answer.status == 200) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(500)).await; // poll
    }
}

/// Asks for bulk operations, whoever dies meanwhile; the owners' own records say whether each was done
/// once to everybody who was meant, and counted.
async fn operations(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let api = rig.shared.api.clone();
    let mut bodies = Vec::new();
    for _ in 0..random.random_range(1..6) {
        let action = &rig.shared.actions[random.random_range(0..rig.shared.actions.len())];
        if action.is_probe() || action.action_ref == POISON {
            continue;
        }
        let priorities = ["critical", "high", "normal", "low", "background"];
        let priority = priorities[random.random_range(0..priorities.len())];
        let mut body = match random.random_range(0..5) {
            0 => json!({"kind": "cancel", "filter": {"priority": "low"}}),
            1 | 2 => json!({"kind": "move_to_front", "filter": {"priority": priority}}),
            _ => json!({"kind": "reprioritise", "priority": priority, "filter": {}}),
        };
        body["filter"]["action"] = json!(action.action_ref);
        body["who"] = json!("the rig");
        body["request_id"] = json!(Uuid::now_v7().to_string());
        bodies.push(body);
    }
    let names: Vec<_> = bodies
        .iter()
        .map(|body| format!("{} {}", body["kind"], body["filter"]))
        .collect();
    let begun = rig.begin(fault, &names.join(" "))?;
    for body in &bodies {
        // No answer, or not done yet: as it may be. The same again is the same operation.
        for _ in 0..random.random_range(1..3) {
            let _answer = api.post("/api/v1/operations", body).await;
        }
    }
    begun.end()
}
