//! Policy documents over HTTP.

use async_trait::async_trait;
use attune_commands::ClientError;
use attune_core::{ActionSpec, PartitionId, PolicyTarget};
use attune_messages::v1::Accepted;
use attune_store::{
    Applied, DocumentChange, PolicyChanges, PolicyMark, PolicyOutcome, PolicyStore, PolicyVersion,
    StoreError, StoredPolicies,
};
use axum::body::Body;
use axum::http::Request;
use chrono::Utc;
use serde_json::{Value, json};

use crate::fakes::{Fake, State};
use crate::harness::{Answer, Api};

/// What the fake keeps of documents.
#[derive(Default)]
pub(crate) struct Kept {
    set_version: i64,
    versions: Vec<PolicyVersion>,
    progress: Vec<(PartitionId, i64)>,
    /// Owners that have not gone by anything yet.
    pub(crate) late: u16,
    /// Somebody else stores something each time before a change is stored.
    pub(crate) races: u32,
    /// The store goes away when a change is stored.
    pub(crate) fails_after_change: bool,
}

impl Kept {
    pub(crate) fn newer(&self, than: Option<i64>) -> Option<StoredPolicies> {
        let mut documents: Vec<PolicyVersion> = Vec::new();
        for version in self.versions.iter().rev() {
            let is_action = matches!(version.target, PolicyTarget::Action(_));
            if !is_action && documents.iter().all(|it| it.target != version.target) {
                documents.push(version.clone());
            }
        }
        documents.retain(|it| it.document.is_some());
        documents.sort_by(|one, other| one.target.cmp(&other.target));
        let set = StoredPolicies {
            version: self.set_version,
            documents,
        };
        than.is_none_or(|known| set.version > known).then_some(set)
    }
}

impl State {
    fn mark(&self) -> PolicyMark {
        PolicyMark {
            set_version: self.policies.set_version,
            actions: self.actions.values().map(|action| action.version).sum(),
        }
    }

    pub(crate) fn tell_policies(
        &mut self,
        set_version: i64,
        partitions: &[PartitionId],
    ) -> Vec<Result<Accepted, ClientError>> {
        let there = partitions.iter().filter(|it| it.0 >= self.policies.late);
        self.policies.progress = there.map(|it| (*it, set_version)).collect();
        self.tell_pauses(partitions)
    }
}

#[async_trait]
impl PolicyStore for Fake {
    async fn policy_mark(&self) -> Result<PolicyMark, StoreError> {
        self.store(|state| state.mark())
    }

    async fn change_policies(&self, changes: &PolicyChanges) -> Result<PolicyOutcome, StoreError> {
        self.store(|state| {
            if state.policies.races > 0 {
                state.policies.races -= 1;
                state.policies.set_version += 1;
            }
            if state.mark() != changes.mark {
                return PolicyOutcome::Stale;
            }
            state.policies.set_version += 1;
            let set_version = state.policies.set_version;
            let mut versions = Vec::new();
            for (target, change) in &changes.documents {
                let document = match change {
                    DocumentChange::Document(document) => Some(document.clone()),
                    DocumentChange::Removed => None,
                    DocumentChange::Action(spec) => {
                        state.apply(spec);
                        Some(json!(spec.policy))
                    }
                };
                let before = state.policies.versions.iter();
                let before = before.filter(|it| it.target == *target).count();
                let version = PolicyVersion {
                    target: target.clone(),
                    version: i64::try_from(before).unwrap() + 1,
                    set_version: Some(set_version),
                    document,
                    who: changes.who.name.clone(),
                    at: Utc::now(),
                    reason: changes.reason.clone(),
                };
                state.policies.versions.push(version.clone());
                versions.push(version);
            }
            state.store_down |= state.policies.fails_after_change;
            PolicyOutcome::Stored {
                set_version,
                versions,
            }
        })
    }

    async fn apply_action_under(
        &self,
        spec: &ActionSpec,
        _partition_count: u16,
        _changed_by: &attune_store::Actor,
        set_version: i64,
    ) -> Result<Option<Applied>, StoreError> {
        self.store(|state| {
            let is_so = state.policies.set_version == set_version;
            is_so.then(|| state.apply(spec))
        })
    }

    async fn policy_versions(
        &self,
        target: &PolicyTarget,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<PolicyVersion>, StoreError> {
        self.store(|state| {
            let versions = state.policies.versions.iter().rev();
            let versions = versions.filter(|it| {
                it.target == *target && before.is_none_or(|before| it.version < before)
            });
            versions.take(limit as usize).cloned().collect()
        })
    }

    async fn policy_progress(&self) -> Result<Vec<(PartitionId, i64)>, StoreError> {
        self.store(|state| state.policies.progress.clone())
    }
}

pub(crate) fn defaults(of: &Value) -> Value {
    json!({"action_defaults": of})
}

pub(crate) async fn send(
    api: &Api,
    method: &str,
    path: &str,
    if_match: Option<&str>,
    body: &Value,
) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    request = request.header("content-type", "application/json");
    if let Some(version) = if_match {
        request = request.header("if-match", version);
    }
    api.send(request.body(Body::from(body.to_string())).unwrap())
        .await
}

#[tokio::test]
async fn a_document_is_applied_shown_changed_and_taken_back() {
    let api = Api::new();
    api.fake.add_action("core.echo", |_| ());
    let path = "/api/v1/policies/pack/core";
    assert_eq!(api.get(path).await.status, 404);
    let five = defaults(&json!({"queue": {"max_length": 5}}));
    let applied = api
        .put(&format!("{path}?who=ann&reason=more%20room"), &five)
        .await;
    assert_eq!(applied.status, 200, "{:?}", applied.body);
    assert_eq!(applied.body["applied"], "now");
    assert_eq!(
        applied.body["in_force"]["in_force_in"],
        applied.body["in_force"]["partitions"]
    );
    let shown = api.get(path).await;
    assert_eq!(
        (shown.body["version"].clone(), shown.body["who"].clone()),
        (json!(1), json!("ann"))
    );
    assert_eq!(shown.body["reason"], "more room");
    assert_eq!(
        shown.body["document"]["action_defaults"],
        five["action_defaults"]
    );
    assert_eq!(shown.body["document"]["scope"], "pack");
    // The same again is nothing new.
    let same = api.put(path, &five).await;
    assert_eq!(
        (same.status.as_u16(), same.body["others"].clone()),
        (200, json!(1))
    );

    let six = defaults(&json!({"queue": {"max_length": 6}}));
    let late = send(&api, "PUT", path, Some("\"7\""), &six).await;
    assert_eq!(late.status, 412, "{:?}", late.body);
    assert_eq!(late.body["error"]["code"], "VERSION_MISMATCH");
    let right = send(&api, "PUT", path, Some("\"1\""), &six).await;
    assert_eq!(right.status, 200, "{:?}", right.body);
    let versions = api.get(&format!("{path}/versions?limit=1")).await;
    assert_eq!(versions.body["versions"][0]["version"], 2);
    assert_eq!(versions.body["next"], 2);
    let list = api.get("/api/v1/policies").await;
    assert_eq!(list.body["policies"].as_array().unwrap().len(), 1);
    assert_eq!(list.body["in_force"]["set_version"], 2);

    let removed = send(&api, "DELETE", path, Some("*"), &json!(null)).await;
    assert_eq!(removed.status, 200, "{:?}", removed.body);
    assert_eq!(removed.body["changed"][0]["document"], json!(null));
    assert_eq!(api.get(path).await.status, 404);
    let gone = send(&api, "DELETE", path, Some("*"), &json!(null)).await;
    assert_eq!(gone.status, 412);
    for path in [path, "/api/v1/policies/global", "/api/v1/policies/user/eve"] {
        let never = send(&api, "DELETE", path, None, &json!(null)).await;
        assert_eq!(never.status, 404, "{path}");
        assert_eq!(never.body["error"]["code"], "UNKNOWN_POLICY");
    }
}

#[tokio::test]
async fn the_policy_of_an_action_is_shown_with_what_it_inherits() {
    let api = Api::new();
    api.fake.add_action("core.echo", |_| ());
    let global = defaults(&json!({"queue": {"timeout_seconds": 60}}));
    assert_eq!(
        api.put("/api/v1/policies/global", &global).await.status,
        200
    );
    let path = "/api/v1/policies/action/core.echo";
    let policy = json!({"policy": {"concurrency": {"limit": 3}}});
    let applied = api.put(path, &policy).await;
    assert_eq!(applied.status, 200, "{:?}", applied.body);
    let shown = api.get(path).await;
    assert_eq!(shown.body["document"]["policy"]["concurrency"]["limit"], 3);
    assert_eq!(shown.body["document"]["policy"]["queue"], json!({}));
    assert_eq!(shown.body["effective"]["queue"]["timeout_seconds"], 60);
    let action = api.get("/api/v1/actions/core.echo").await;
    assert_eq!(action.body["spec"]["policy"]["concurrency"]["limit"], 3);
    assert_eq!(
        action.body["spec"]["policy"]["queue"],
        json!({}),
        "what it says itself"
    );
}

#[tokio::test]
async fn many_are_applied_all_or_none_and_can_be_checked_before() {
    let api = Api::new();
    let good = json!({"scope": "user", "target": "ann", "tier": "gold"});
    let bad = json!({"scope": "pack", "target": "nope", "action_defaults": {}});
    let many = json!({"documents": [good, bad], "who": "ann"});
    let refused = api.post("/api/v1/policies", many.to_string()).await;
    assert_eq!(refused.status, 422, "{:?}", refused.body);
    assert_eq!(refused.body["error"]["field"], "documents.1.target");
    let no_action = json!({"scope": "action", "target": "core.none", "policy": {}});
    let many_with = |bad: &Value| json!({"documents": [good, bad]}).to_string();
    let refused = api.post("/api/v1/policies", many_with(&no_action)).await;
    assert_eq!(refused.body["error"]["field"], "documents.1.target");
    api.fake.add_action("core.fifo", |spec| {
        spec.policy.queue.ordering = Some(attune_core::policy::Ordering::Fifo);
    });
    let low = json!({"scope": "global", "action_defaults": {"priority": {"default": "low"}}});
    let refused = api.post("/api/v1/policies", many_with(&low)).await;
    let field = "documents.1.action_defaults.priority.default";
    assert_eq!(refused.body["error"]["field"], field);
    assert_eq!(api.get("/api/v1/policies/user/ann").await.status, 404);
    let fine = json!({"documents": [good, {"scope": "global", "action_defaults": {}}]});
    let checked = api
        .post("/api/v1/policies?dry_run=true", fine.to_string())
        .await;
    assert_eq!(
        (checked.status.as_u16(), checked.body["others"].clone()),
        (200, json!(2))
    );
    assert_eq!(
        api.get("/api/v1/policies").await.body["in_force"]["set_version"],
        0
    );
    let applied = api.post("/api/v1/policies", fine.to_string()).await;
    assert_eq!(
        applied.body["changed"].as_array().unwrap().len(),
        2,
        "{:?}",
        applied.body
    );
    let twice = json!({"documents": [good, good]});
    let refused = api.post("/api/v1/policies", twice.to_string()).await;
    assert_eq!(refused.body["error"]["field"], "documents.1.target");
}

#[tokio::test]
async fn what_is_not_in_force_everywhere_says_so() {
    let api = Api::new();
    api.fake.with(|state| state.policies.late = 1);
    let empty = defaults(&json!({}));
    let applied = api.put("/api/v1/policies/global", &empty).await;
    assert_eq!(applied.status, 202, "{:?}", applied.body);
    assert_eq!(applied.body["applied"], "pending");
    let (there, all) = (
        &applied.body["in_force"]["in_force_in"],
        &applied.body["in_force"]["partitions"],
    );
    assert_eq!(there.as_u64().unwrap() + 1, all.as_u64().unwrap());
    // A change that others come before is checked anew.
    api.fake.with(|state| state.policies.races = 3);
    let user = json!({"tier": "gold"});
    let applied = api.put("/api/v1/policies/user/*", &user).await;
    assert_eq!(
        applied.body["in_force"]["set_version"], 5,
        "{:?}",
        applied.body
    );
    api.fake.with(|state| state.policies.races = 100);
    let busy = api.put("/api/v1/policies/user/bob", &user).await;
    assert_eq!(
        (busy.status.as_u16(), busy.body["error"]["code"].clone()),
        (409, json!("CONFLICT"))
    );
}

#[tokio::test]
async fn what_a_path_or_a_body_names_wrongly_is_refused_with_its_field() {
    let api = Api::new();
    let cases = [
        ("/api/v1/policies/team/x", json!({}), "scope"),
        ("/api/v1/policies/pack/a.b", json!({}), "target"),
        (
            "/api/v1/policies/pack/core",
            json!({"scope": "global", "action_defaults": {}}),
            "scope",
        ),
        (
            "/api/v1/policies/user/ann",
            json!({"target": "bob"}),
            "target",
        ),
        ("/api/v1/policies/user/ann", json!({"weight": 5}), "weight"),
        (
            "/api/v1/policies/global",
            json!({"policy": {"concurrency": {"limit": 5}}}),
            "policy.concurrency.limit",
        ),
        (
            "/api/v1/policies/global",
            json!({"defaults": {}}),
            "defaults",
        ),
    ];
    for (path, body, field) in cases {
        let refused = api.put(path, &body).await;
        assert_eq!(refused.status, 422, "{path} {body}: {:?}", refused.body);
        assert_eq!(refused.body["error"]["field"], field, "{path} {body}");
    }
    let refused = send(
        &api,
        "PUT",
        "/api/v1/policies/user/ann",
        Some("three"),
        &json!({}),
    )
    .await;
    assert_eq!(refused.body["error"]["field"], "If-Match");
    let none = api
        .post("/api/v1/policies", json!({"documents": []}).to_string())
        .await;
    assert_eq!(none.body["error"]["field"], "documents");
}

#[tokio::test]
async fn what_a_change_changes_is_told_field_by_field_before_and_after() {
    let api = Api::new();
    api.fake
        .add_action("core.echo", |spec| spec.policy.concurrency.limit = Some(2));
    let five = defaults(&json!({"queue": {"max_length": 5}}));
    assert_eq!(
        api.put("/api/v1/policies/pack/core", &five).await.status,
        200
    );
    let documents = json!({"documents": [
        {"scope": "pack", "target": "core", "action_defaults": {"queue": {"max_length": 6, "on_full": "reject"}}},
        {"scope": "action", "target": "core.echo", "policy": {"concurrency": {"limit": 3}}},
        {"scope": "user", "target": "bob"},
    ]});
    let expected = json!([
        {"scope": "pack", "target": "core", "result": "changed", "fields": [
            {"field": "action_defaults.queue.max_length", "before": 5, "after": 6},
            {"field": "action_defaults.queue.on_full", "before": null, "after": "reject"},
        ]},
        {"scope": "action", "target": "core.echo", "result": "changed", "fields": [
            {"field": "policy.concurrency.limit", "before": 2, "after": 3},
        ]},
        {"scope": "user", "target": "bob", "result": "created", "fields": []},
    ]);
    for path in ["/api/v1/policies?dry_run=true", "/api/v1/policies"] {
        let answer = api.post(path, documents.to_string()).await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        assert_eq!(answer.body["differences"], expected, "{path}");
    }
    let again = api
        .post("/api/v1/policies?dry_run=true", documents.to_string())
        .await;
    assert_eq!(
        (&again.body["differences"], &again.body["others"]),
        (&json!([]), &json!(0))
    );
    let removed = send(
        &api,
        "DELETE",
        "/api/v1/policies/pack/core",
        None,
        &json!(null),
    )
    .await;
    let of_it = &removed.body["differences"][0];
    assert_eq!(of_it["result"], "removed", "{of_it}");
    assert_eq!(
        of_it["fields"][0],
        json!({"field": "action_defaults.queue.max_length", "before": 6, "after": null})
    );
}

#[tokio::test]
async fn a_page_goes_on_where_a_document_was_that_is_gone() {
    let api = Api::new();
    for user in ["a%2F..%2F%C3%BC", "b%20c", "d"] {
        let path = format!("/api/v1/policies/user/{user}");
        let applied = api.put(&path, &json!({"tier": "gold"})).await;
        assert_eq!(applied.status, 200, "{:?}", applied.body);
    }
    let first = api.get("/api/v1/policies?limit=2").await;
    assert_eq!(first.body["policies"][0]["target"], "a/../ü");
    assert_eq!(first.body["next"], "user b c");
    let path = "/api/v1/policies/user/b%20c";
    assert_eq!(
        send(&api, "DELETE", path, None, &json!(null)).await.status,
        200
    );
    let rest = api.get("/api/v1/policies?after=user%20b%20c").await;
    let rest = rest.body["policies"].as_array().unwrap();
    assert_eq!((rest.len(), &rest[0]["target"]), (1, &json!("d")));
    for wrong in ["team%20x", "nonsense", "pack%20a.b"] {
        let refused = api.get(&format!("/api/v1/policies?after={wrong}")).await;
        assert_eq!(refused.status, 422, "{wrong}: {:?}", refused.body);
        assert_eq!(refused.body["error"]["field"], "after");
    }
}

#[tokio::test(start_paused = true)]
async fn owners_of_many_actions_that_are_gone_are_waited_for_once() {
    let api = Api::new();
    let names: Vec<String> = (0..40).map(|number| format!("core.a{number}")).collect();
    let mut documents = Vec::new();
    for name in &names {
        api.fake.add_action(name, |_| ());
        documents.push(
            json!({"scope": "action", "target": name, "policy": {"concurrency": {"limit": 3}}}),
        );
    }
    // Nobody answers before its deadline.
    api.fake.with(|state| state.silent = true);
    let asked = json!({"documents": documents});
    let began = tokio::time::Instant::now();
    let applied = api.post("/api/v1/policies", asked.to_string()).await;
    assert_eq!(applied.status, 202, "{:?}", applied.body);
    assert!(applied.body["pending_reason"].is_string());
    let took = began.elapsed();
    assert!(took < std::time::Duration::from_secs(6), "{took:?}");
}

#[tokio::test]
async fn what_is_stored_is_not_said_to_have_failed_when_the_store_goes_away() {
    let api = Api::new();
    api.fake
        .with(|state| state.policies.fails_after_change = true);
    let applied = api
        .put("/api/v1/policies/user/ann", &json!({"tier": "gold"}))
        .await;
    assert_eq!(applied.status, 202, "{:?}", applied.body);
    assert_eq!(applied.body["changed"][0]["version"], 1);
    let why = applied.body["pending_reason"].as_str().unwrap();
    assert!(why.contains("cannot be read"), "{why}");
}
