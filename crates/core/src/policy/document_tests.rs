use serde_json::json;

use super::*;

fn read(document: &Value) -> Result<(PolicyTarget, Content), Reject> {
    let document: PolicyDocument = serde_json::from_value(document.clone()).unwrap();
    document.read()
}

#[test]
fn what_is_stored_of_a_document_reads_the_same() {
    let every_field = json!({
        "concurrency": {"on_limit": "reject"},
        "queue": {"max_length": 5, "timeout_seconds": 6, "ordering": "priority", "on_full": "drop_oldest"},
        "priority": {"default": "low", "max": "high", "ageing_seconds": 30,
            "rules": [{"when": {"user.tier": ["gold", "silver"], "labels.x": {"exists": true}}, "then": "high"}]},
        "retry": {"max_attempts": 4, "on": ["failed"], "backoff": {"initial_ms": 5}},
    });
    for document in [
        json!({"scope": "global", "action_defaults": every_field}),
        json!({"scope": "pack", "target": "core", "action_defaults": {}}),
        json!({"scope": "action", "target": "core.echo", "policy": {"concurrency": {"limit": 2}}}),
        json!({"scope": "user", "target": "*"}),
        json!({"scope": "user", "target": "ann", "tier": "gold", "policy": {"priority": {"max": "low"}}}),
    ] {
        let (target, content) = read(&document).unwrap();
        assert_eq!(target.scope().as_str(), document["scope"]);
        let again = Content::from_stored(&target, content.stored());
        assert_eq!(again, Ok(content), "{document}");
    }
}

#[test]
fn what_cannot_be_meant_names_the_path_and_the_way_out() {
    let rule = |when: Value| json!({"when": when, "then": "high"});
    let defaults = |given: Value| json!({"scope": "pack", "target": "p", "action_defaults": given});
    let user = |policy: Value| json!({"scope": "user", "target": "ann", "policy": policy});
    let many: Vec<Value> = (0..=100)
        .map(|n| rule(json!({"user": n.to_string()})))
        .collect();
    let long = "x".repeat(MAX_DOCUMENT_BYTES);
    let cases = [
        (
            json!({"scope": "global", "target": "x", "action_defaults": {}}),
            "target",
            "leave it out",
        ),
        (
            json!({"scope": "pack", "target": "a.b", "action_defaults": {}}),
            "target",
            "not a pack",
        ),
        (
            json!({"scope": "action", "target": "a", "policy": {}}),
            "target",
            "not an action ref",
        ),
        (json!({"scope": "user"}), "target", "required"),
        (
            json!({"scope": "pack", "target": "p"}),
            "action_defaults",
            "missing",
        ),
        (
            json!({"scope": "action", "target": "a.b"}),
            "policy",
            "missing",
        ),
        (
            defaults(json!({"queue": {"max_len": 5}})),
            "action_defaults.queue.max_len",
            "unknown field",
        ),
        (
            defaults(json!({"queues": {}})),
            "action_defaults.queues",
            "unknown field",
        ),
        (
            defaults(json!({"queue": {"max_length": "many"}})),
            "action_defaults.queue.max_length",
            "expected a whole number",
        ),
        (
            defaults(json!({"queue": {"max_length": 0}})),
            "action_defaults.queue.max_length",
            "must be from 1",
        ),
        (defaults(json!(7)), "action_defaults", "must have members"),
        (
            defaults(json!({"priority": {"rules": many}})),
            "action_defaults.priority.rules",
            "at most 100",
        ),
        (
            defaults(
                json!({"priority": {"rules": [rule(json!({"user": ["a", "b"]})), rule(json!({"user": "b"}))]}}),
            ),
            "action_defaults.priority.rules.1.when",
            "never reached",
        ),
        (
            defaults(json!({"retry": {"backoff": {"factor": 0.5}}})),
            "action_defaults.retry.backoff.factor",
            "from 1",
        ),
        (
            defaults(json!({"queue": {"ordering": "fifo"}, "priority": {"default": "low"}})),
            "action_defaults.priority.default",
            "`action_defaults.queue.ordering: fifo`",
        ),
        (
            defaults(json!({"concurrency": {"limit": 3}})),
            "action_defaults.concurrency.limit",
            "not inherited",
        ),
        (
            defaults(json!({"quotas": []})),
            "action_defaults.quotas",
            "not inherited",
        ),
        (
            defaults(json!({"fairness": {}})),
            "action_defaults.fairness",
            "not supported yet",
        ),
        (
            defaults(json!({"timeout_seconds": 5})),
            "action_defaults.timeout_seconds",
            "not supported yet",
        ),
        (
            json!({"scope": "global", "policy": {"concurrency": {"limit": 5}}}),
            "policy.concurrency.limit",
            "not supported yet",
        ),
        (
            json!({"scope": "pack", "target": "p", "policy": {"queue": {"max_length": 5}}}),
            "policy.queue.max_length",
            "`action_defaults.queue.max_length`",
        ),
        (
            json!({"scope": "pack", "target": "p", "tier": "gold", "action_defaults": {}}),
            "tier",
            "scope `user`",
        ),
        (
            json!({"scope": "user", "target": "a", "weight": 3}),
            "weight",
            "not supported yet",
        ),
        (
            json!({"scope": "user", "target": "a", "tier": ""}),
            "tier",
            "",
        ),
        (
            json!({"scope": "user", "target": "a", "action_defaults": {}}),
            "action_defaults",
            "scopes `global`",
        ),
        (
            user(json!({"per_user_limit": 5})),
            "policy.per_user_limit",
            "not supported yet",
        ),
        (
            user(json!({"rate_limit": {"max_executions": 5}})),
            "policy.rate_limit.max_executions",
            "not supported yet",
        ),
        (
            user(json!({"queue": {}})),
            "policy.queue",
            "`policy.priority.max`",
        ),
        (
            user(json!({"priority": {"default": "low"}})),
            "policy.priority.default",
            "unknown field",
        ),
        (
            json!({"scope": "user", "target": "a", "tier": long}),
            "tier",
            "65536 are allowed",
        ),
    ];
    for (document, field, words) in cases {
        let reject = read(&document).unwrap_err();
        assert_eq!(reject.field.as_deref(), Some(field), "{document}: {reject}");
        assert!(reject.message.contains(words), "{document}: {reject}");
    }
}
