//! Policy documents that change while everything else goes on, and dies.

use std::sync::PoisonError;

use futures_util::FutureExt as _;
use rand::Rng as _;
use rand::rngs::StdRng;
use reqwest::Method;
use serde_json::{Value, json};

use super::actions::{BOUND_PACK, USERS};
use super::nemesis::{Fault, Lane, Rig};

pub(crate) const FAULTS: &[Fault] = &[Fault {
    name: "documents",
    how: "policy documents of all actions, a pack, actions and users are applied, changed, taken back, or an \
          older version again",
    heal: "nothing to heal",
    lane: Lane::Messages,
    weight: 6,
    work: |rig, random, fault| documents(rig, random, fault).boxed(),
}];

/// The shortest and the longest queue that documents allow: so short that many are refused.
const LENGTHS: std::ops::RangeInclusive<u32> = 1..=6;

/// What is asked of the API.
#[derive(Debug)]
enum Change {
    /// A document is applied.
    Apply(Value),
    /// A document is taken back.
    Remove(String),
    /// A document is as it was some versions ago.
    GoBack(String, usize),
}

/// The owners' own records say by which version each of them went and what came of it, and the API's what each
/// version says; check-history holds one against the other.
async fn documents(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let api = rig.shared.api.clone();
    let changes: Vec<Change> = (0..random.random_range(1..5))
        .map(|_| draw(rig, random))
        .collect();
    let together = random.random_bool(0.3);
    let begun = rig.begin(fault, &format!("{changes:?}"))?;
    // No answer, or not in force yet: as it may be.
    if together {
        let documents: Vec<&Value> = changes
            .iter()
            .filter_map(|change| match change {
                Change::Apply(document) => Some(document),
                _ => None,
            })
            .collect();
        let body = json!({"documents": documents, "who": "the rig"});
        let _answer = api.post("/api/v1/policies", &body).await;
        return begun.end();
    }
    for change in &changes {
        match change {
            Change::Apply(document) => {
                let _answer = api.put(&path_of(document), document).await;
            }
            Change::Remove(path) => {
                let _answer = api.send(Method::DELETE, path, &[], Vec::new()).await;
            }
            Change::GoBack(path, versions) => {
                let Ok(answer) = api.get(&format!("{path}/versions")).await else {
                    continue;
                };
                let document = &answer.body["versions"][*versions]["document"];
                if document.is_object() {
                    let _answer = api.put(path, document).await;
                }
            }
        }
    }
    begun.end()
}

fn path_of(document: &Value) -> String {
    let text = |field: &str| document[field].as_str().unwrap_or_default().to_owned();
    match text("scope").as_str() {
        "global" => "/api/v1/policies/global".to_owned(),
        scope => format!("/api/v1/policies/{scope}/{}", text("target")),
    }
}

fn draw(rig: &Rig, random: &mut StdRng) -> Change {
    let length = random.random_range(LENGTHS);
    let document = match random.random_range(0..8) {
        0 | 1 => json!({"scope": "global", "action_defaults": {"queue": {"max_length": length}}}),
        2..4 => json!({
            "scope": "pack", "target": BOUND_PACK, "action_defaults": {"queue": {"max_length": length}},
        }),
        4 | 5 => {
            let user = USERS[random.random_range(0..USERS.len())];
            let priorities = ["high", "normal", "low"];
            let max = priorities[random.random_range(0..priorities.len())];
            json!({"scope": "user", "target": user, "policy": {"priority": {"max": max}}})
        }
        _ => of_action(rig, random),
    };
    // What is said of an action is not taken back: it would have no limit then.
    match random.random_range(0..6) {
        0 if document["scope"] != "action" => Change::Remove(path_of(&document)),
        1 => Change::GoBack(path_of(&document), random.random_range(1..4)),
        _ => Change::Apply(document),
    }
}

/// Another limit of one of the actions that leave the rest to documents.
fn of_action(rig: &Rig, random: &mut StdRng) -> Value {
    let bound: Vec<_> = rig
        .shared
        .actions
        .iter()
        .filter(|it| it.is_bound())
        .collect();
    let action = bound[random.random_range(0..bound.len())];
    let limit: u32 = random.random_range(1..=4);
    // Before the change, because it may be in force even if no answer comes.
    let mut limits = rig.limits.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(highest) = limits.get_mut(&action.action_ref) {
        *highest = (*highest).max(Some(limit));
    }
    json!({
        "scope": "action", "target": action.action_ref,
        "policy": {"concurrency": {"limit": limit}, "queue": {"timeout_seconds": 3600}},
    })
}
