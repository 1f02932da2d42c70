//! What actions would inherit, where it cannot go together with what they say.

use serde_json::{Value, json};

use crate::harness::Api;
use crate::policies::defaults;

#[tokio::test]
async fn what_an_action_would_inherit_is_judged_on_both_ways() {
    let api = Api::new();
    api.fake.add_action("core.fifo", |spec| {
        spec.policy.queue.ordering = Some(attune_core::policy::Ordering::Fifo);
    });
    let low = defaults(&json!({"priority": {"default": "low"}}));
    let refused = api.put("/api/v1/policies/global", &low).await;
    assert_eq!(refused.status, 422, "{:?}", refused.body);
    assert_eq!(
        refused.body["error"]["field"],
        "action_defaults.priority.default"
    );
    let words = refused.body["error"]["message"].as_str().unwrap();
    assert!(words.contains("core.fifo"), "{words}");
    let refused = api
        .put("/api/v1/policies/action/core.none", &json!({"policy": {}}))
        .await;
    assert_eq!(refused.body["error"]["field"], "target");
    // And the other way round.
    let other = Api::new();
    other.fake.add_action("core.echo", |_| ());
    assert_eq!(
        other.put("/api/v1/policies/pack/core", &low).await.status,
        200
    );
    let fifo = json!({"ref": "core.new", "run": {"builtin": "noop"}, "policy": {"queue": {"ordering": "fifo"}}});
    let refused = other.put("/api/v1/actions/core.new", &fifo).await;
    assert_eq!(refused.status, 422, "{:?}", refused.body);
    assert_eq!(
        refused.body["error"]["field"],
        "action_defaults.priority.default"
    );
    let checked = other
        .put("/api/v1/actions/core.new?check=true", &fifo)
        .await;
    assert_eq!(checked.status, 422);
}

#[tokio::test]
async fn a_refusal_names_the_document_that_says_the_field() {
    let api = Api::new();
    api.fake.add_action("core.echo", |_| ());
    let refused = async |documents: &Value| {
        let many = json!({"documents": documents}).to_string();
        let refused = api.post("/api/v1/policies", many).await;
        assert_eq!(refused.status, 422, "{:?}", refused.body);
        let error = &refused.body["error"];
        let text = |name: &str| error[name].as_str().unwrap().to_owned();
        (text("field"), text("message"))
    };
    let of_pack = json!({"scope": "pack", "target": "core", "action_defaults": {"queue": {"ordering": "fifo"}}});
    let global = json!({"scope": "global", "action_defaults": {"priority": {"default": "low"}}});
    let of_action =
        |policy: Value| json!({"scope": "action", "target": "core.echo", "policy": policy});
    // Of an action that is given, the document beside it.
    let own = of_action(json!({"priority": {"default": "high"}}));
    let (field, words) = refused(&json!([own, of_pack])).await;
    assert_eq!(field, "documents.1.action_defaults.queue.ordering");
    assert!(
        words.contains("of policy pack core the action `core.echo`"),
        "{words}"
    );
    // Of two that do not go together, one of them.
    let (field, words) = refused(&json!([of_pack, global])).await;
    assert!(
        field.starts_with("documents.") && words.contains("is of policy"),
        "{field}: {words}"
    );
    // One that is stored is no document of the request.
    assert_eq!(
        api.put("/api/v1/policies/pack/core", &of_pack).await.status,
        200
    );
    let (field, words) = refused(&json!([own])).await;
    assert_eq!(field, "action_defaults.queue.ordering");
    assert!(
        words.contains("of policy pack core the action `core.echo`"),
        "{words}"
    );
    let (field, words) = refused(&json!([global])).await;
    assert_eq!(field, "documents.0.action_defaults.priority.default");
    assert!(
        words.contains("`action_defaults.queue.ordering` is of policy pack core"),
        "{words}"
    );
}
