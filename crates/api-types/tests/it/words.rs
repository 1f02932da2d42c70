//! What the reference says of the core's words is what the core takes and writes.

use std::collections::BTreeMap;

use attune_api_types::words;
use attune_core::explain;
use attune_core::{ActionSpec, PauseMode, PolicyDocument, Priority, Status, Submission};
use serde_json::{Value, json};

/// Both read `text`, and write the same again, or both refuse it.
fn same<Core, Word>(value: &Value)
where
    Core: serde::de::DeserializeOwned + serde::Serialize,
    Word: serde::de::DeserializeOwned + serde::Serialize,
{
    let text = value.to_string();
    let core = serde_json::from_str::<Core>(&text);
    let word = serde_json::from_str::<Word>(&text);
    let written = |read: serde_json::Result<Value>| read.map_err(|error| error.to_string());
    match (core, word) {
        (Ok(core), Ok(word)) => assert_eq!(
            written(serde_json::to_value(core)).unwrap(),
            written(serde_json::to_value(word)).unwrap(),
            "{text}"
        ),
        (Err(_), Err(_)) => {}
        (core, word) => panic!("{text}: core {:?}, reference {:?}", core.err(), word.err()),
    }
}

#[test]
fn states_and_priorities_have_the_same_names() {
    for status in Status::ALL {
        same::<Status, words::Status>(&json!(status));
    }
    for priority in Priority::ALL {
        same::<Priority, words::Priority>(&json!(priority));
    }
    for mode in [PauseMode::Pause, PauseMode::Drain] {
        same::<PauseMode, words::PauseMode>(&json!(mode));
    }
    for other in ["", "done", "Queued", "urgent"] {
        same::<Status, words::Status>(&json!(other));
        same::<Priority, words::Priority>(&json!(other));
        same::<PauseMode, words::PauseMode>(&json!(other));
    }
}

#[test]
fn reasons_have_the_same_members() {
    let until = "2026-01-02T03:04:05Z";
    let lack = json!({"kind": "limit", "capacity": 5, "used": 4, "cost": 2, "ahead": 0,
        "holders": [{"execution_id": 1792, "attempt": 1, "cost": 4, "since": until, "kept_until": until}],
        "more_holders": 3});
    let mut group = lack.clone();
    group["kind"] = json!("group_limit");
    let holder = group["holders"][0].as_object_mut().unwrap();
    holder.remove("since");
    holder.remove("kept_until");
    group["more_holders"] = json!(0);
    for reason in [
        json!({"kind": "delayed", "until": until}),
        json!({"kind": "backoff", "until": until}),
        json!({"kind": "paused", "mode": "drain"}),
        json!({"kind": "regrouping", "unknown": 7}),
        json!({"kind": "pool_closed", "pool": "gpu"}),
        json!({"kind": "next_round"}),
        json!({"kind": "turn", "holds": 1, "weight": 2, "next_holds": 0, "next_weight": 1}),
        json!({"kind": "of_tomorrow", "more": 1}),
        json!({"kind": "limit", "capacity": 5}),
        lack,
        group,
    ] {
        same::<explain::Reason, words::Reason>(&reason);
    }
    for why in [
        "paused",
        "pool_closed",
        "regrouping",
        "delayed",
        "few_samples",
        "overtaken",
        "of_tomorrow",
    ] {
        let why = json!({"kind": why, "samples": 3, "needed": 5});
        same::<explain::NoEstimate, words::NoEstimate>(&why);
    }
    let estimate = json!({"starts_at": until, "earliest": until, "latest": until, "basis":
        {"samples": 5, "mean_ms": 20, "deviation_ms": 2, "age_ms": 1}});
    same::<explain::Estimate, words::Estimate>(&estimate);
    same::<explain::OrderKey, words::OrderKey>(&json!({"key": -3, "seq": 9}));
}

#[test]
fn actions_have_the_same_members() {
    for pack in ActionSpec::core_pack() {
        same::<ActionSpec, words::ActionSpec>(&json!(pack));
    }
    let whole = json!({
        "ref": "a.b", "description": "d", "run": {"program": ["/bin/true"]},
        "parameters": {"type": "object"}, "timeout_seconds": 5, "pool": "p",
        "on_worker_lost": "fail", "max_attempts": 2, "env": {"A": "b"},
        "resources": {"memory": "512Mi", "cpu": 1.5, "pids": 9},
        "policy": {"concurrency": {"limit": 4, "group_by": ["user", "parameters.a.b"], "group_limit": 3,
                                   "cost": {"path": "labels.c", "default": 1, "max": 2}}, "queue": {"max_length": 2, "timeout_seconds": 3, "ordering": "priority"},
                   "priority": {"ageing_seconds": 4, "default": "low", "max": "high", "rules": [
                       {"when": {"source": "api", "user": ["a", "b"], "labels.x": {"exists": true}}, "then": "normal"}]},
                   "rate_limit": {"max_executions": 3, "window_seconds": 60, "by": ["user"], "on_limit": "reject"},
                   "min_interval_ms": 5, "quotas": [{"per": "day", "max": 5}, {"per": "month", "max": 6, "by": ["source"]}],
                   "fairness": {"by": ["user", "group"], "weights": {"user:ann": 4}, "default_weight": 2},
                   "retry": {"on": ["failed"], "hold_slot": true, "backoff": {"initial_ms": 5, "factor": 2.0, "max_ms": 50, "jitter": 0.5}},
                   "events": ["accepted", "operation_finished"]},
    });
    same::<ActionSpec, words::ActionSpec>(&whole);
    for (member, _) in whole.as_object().unwrap() {
        let mut without = whole.clone();
        without.as_object_mut().unwrap().remove(member);
        same::<ActionSpec, words::ActionSpec>(&without);
        let mut misspelt = whole.clone();
        let value = misspelt.as_object_mut().unwrap().remove(member).unwrap();
        misspelt[format!("{member}x")] = value;
        same::<ActionSpec, words::ActionSpec>(&misspelt);
    }
    for run in [
        json!({"builtin": "http.get"}),
        json!({"shell": "x"}),
        json!({}),
    ] {
        same::<ActionSpec, words::ActionSpec>(&json!({"ref": "a.b", "run": run}));
    }
}

#[test]
fn submissions_have_the_same_members() {
    let whole: BTreeMap<&str, Value> = BTreeMap::from([
        ("request_id", json!("0198c1f0-5a00-7000-8000-0000000000a1")),
        ("action_ref", json!("a.b")),
        ("parameters", json!({"n": 1})),
        ("priority", json!("low")),
        ("source", json!("api")),
        ("enforcement_id", json!("rule")),
        ("requested_by", json!("ann")),
        ("group", json!("g")),
        ("labels", json!({"k": "v"})),
        ("not_before", json!("2026-01-02T03:04:05Z")),
        ("timeout_seconds", json!(7)),
        ("requeue_of", json!(1792)),
    ]);
    same::<Submission, words::Submission>(&json!(whole));
    for member in whole.keys() {
        let mut without = whole.clone();
        without.remove(member);
        same::<Submission, words::Submission>(&json!(without));
    }
    same::<Submission, words::Submission>(&json!({"action_ref": "a.b", "priorty": "low"}));
}

#[test]
fn policy_documents_have_the_same_members() {
    // The core reads a document in two steps: what it says in the end is compared.
    let core = |value: &Value| -> Result<Value, String> {
        let document: PolicyDocument =
            serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
        let (_, content) = document.read().map_err(|reject| reject.to_string())?;
        Ok(content.stored())
    };
    let word = |value: &Value| serde_json::from_value::<words::PolicyDocument>(value.clone());
    let whole = json!({"scope": "pack", "target": "core", "action_defaults": {
        "concurrency": {"on_limit": "reject"},
        "queue": {"max_length": 2, "timeout_seconds": 3, "ordering": "priority", "on_full": "reject"},
        "priority": {"ageing_seconds": 4, "default": "low", "max": "high", "rules": [
            {"when": {"user.tier": "gold"}, "then": "normal"}]},
        "retry": {"max_attempts": 2, "on": ["failed"], "backoff":
            {"initial_ms": 5, "factor": 2.0, "max_ms": 6, "jitter": 0.5}}}});
    let written = serde_json::to_value(word(&whole).unwrap()).unwrap();
    assert_eq!(
        written["action_defaults"],
        core(&whole).unwrap()["action_defaults"]
    );
    let places = ["concurrency", "queue", "priority", "retry"];
    for place in places {
        let mut misspelt = whole.clone();
        misspelt["action_defaults"][place]["x"] = json!(1);
        assert!(
            core(&misspelt).is_err() && word(&misspelt).is_err(),
            "{misspelt}"
        );
    }
    for document in [
        json!({"scope": "global", "action_defaults": {}}),
        json!({"scope": "user", "target": "*", "tier": "gold", "policy": {"priority": {"max": "low"}}}),
        json!({"scope": "action", "target": "a.b", "policy": {"concurrency": {"limit": 2}}}),
    ] {
        assert!(
            core(&document).is_ok() && word(&document).is_ok(),
            "{document}"
        );
    }
}
