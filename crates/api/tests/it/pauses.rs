//! Holding queues and resuming them.

use async_trait::async_trait;
use attune_commands::ClientError;
use attune_core::{PartitionId, PauseMode, PauseTarget, RequestId};
use attune_messages::v1::Accepted;
use attune_record::{Record, Recorder, read_dir};
use attune_store::{Pause, PauseChange, PauseOutcome, PauseStore, StoreError};
use axum::body::Body;
use axum::http::Request;
use chrono::Utc;
use serde_json::{Value, json};

use crate::fakes::{Fake, State};
use crate::harness::{Answer, Api};

#[async_trait]
impl PauseStore for Fake {
    async fn change_pause(&self, change: &PauseChange) -> Result<PauseOutcome, StoreError> {
        self.store(|state| state.change_pause(change))
    }
}

impl State {
    fn change_pause(&mut self, change: &PauseChange) -> PauseOutcome {
        let is_there = self.actions.keys().any(|it| change.target.covers(it));
        let held = &mut self.pauses.held;
        let at = held.iter().position(|it| it.target == change.target);
        if !is_there && (change.mode.is_some() || at.is_none()) {
            return PauseOutcome::NoTarget;
        }
        self.pause_changes.push(change.clone());
        self.pauses.version += 1;
        let before = at.map(|at| held.remove(at));
        let after = change.mode.map(|mode| Pause {
            target: change.target.clone(),
            mode,
            since: Utc::now(),
            who: change.who.name.clone(),
            reason: change.reason.clone(),
        });
        held.extend(after.clone());
        PauseOutcome::Stored { before, after }
    }

    pub(crate) fn tell_pauses(
        &mut self,
        partitions: &[PartitionId],
    ) -> Vec<Result<Accepted, ClientError>> {
        let told = partitions.iter().map(|partition| {
            self.told.push(partition.to_string());
            match &self.commands_fail {
                Some(error) => Err(error.clone()),
                None => Ok(Accepted {
                    execution_id: None,
                    status: None,
                    position: None,
                    priority: None,
                    repeated: false,
                    explanation: None,
                }),
            }
        });
        told.collect()
    }
}

async fn delete(api: &Api, path: &str) -> Answer {
    api.send(Request::delete(path).body(Body::empty()).unwrap())
        .await
}

fn modes(list: &Value) -> Vec<(&str, &str, &str)> {
    let text = |it: &'static str, pause: &'_ Value| pause[it].as_str().unwrap_or("-").to_owned();
    let pauses = list.as_array().unwrap().iter();
    pauses
        .map(|pause| {
            let [scope, target, mode] = ["scope", "target", "mode"].map(|it| text(it, pause));
            let leak = |text: String| -> &'static str { text.leak() };
            (leak(scope), leak(target), leak(mode))
        })
        .collect()
}

#[tokio::test]
async fn what_is_held_is_stored_told_and_shown() {
    let api = Api::new();
    api.fake.add_action("core.echo", |_| {});
    let path = "/api/v1/pauses/action/core.echo";
    let asked = json!({"mode": "pause", "reason": "a new host", "who": "ann"});
    let answer = api.put(path, &asked).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(
        (&answer.body["before"], &answer.body["applied"]),
        (&Value::Null, &json!("now"))
    );
    assert_eq!(answer.body["now"]["who"], "ann");
    let change = api.fake.with(|state| state.pause_changes[0].clone());
    assert_eq!(
        (change.target, change.mode, change.reason.as_deref()),
        (
            PauseTarget::Action("core.echo".parse().unwrap()),
            Some(PauseMode::Pause),
            Some("a new host")
        )
    );
    let answer = api
        .put("/api/v1/pauses/pack/core", &json!({"mode": "drain"}))
        .await;
    assert_eq!(answer.body["now"]["who"], "api");
    assert_eq!(answer.body["also_held_by"], json!([]));
    api.put("/api/v1/pauses/all", &json!({"mode": "pause"}))
        .await;
    // One partition is told of the action, all there are of the rest.
    assert_eq!(api.fake.with(|state| state.told.len()), 3);

    let list = api.get("/api/v1/pauses").await;
    assert_eq!(list.body["version"], 3);
    let all = [
        ("action", "core.echo", "pause"),
        ("pack", "core", "drain"),
        ("all", "-", "pause"),
    ];
    assert_eq!(modes(&list.body["pauses"]), all);
    let queue = api.get("/api/v1/actions/core.echo/queue-stats").await;
    assert_eq!(modes(&queue.body["pauses"]), all);

    let answer = delete(&api, &format!("{path}?who=bob&reason=it+moved")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(
        (&answer.body["before"]["mode"], &answer.body["now"]),
        (&json!("pause"), &Value::Null)
    );
    assert_eq!(modes(&answer.body["also_held_by"]), all[1..]);
    let resume = api.fake.with(|state| state.pause_changes[3].clone());
    assert_eq!((resume.mode, resume.who.name.as_str()), (None, "bob"));
    // Asked once more, it is as it is.
    let again = delete(&api, path).await;
    assert_eq!(
        (again.status.as_u16(), &again.body["before"]),
        (200, &Value::Null)
    );
    let answer = delete(&api, "/api/v1/pauses/all").await;
    assert_eq!(answer.body["before"]["mode"], "pause");
}

#[tokio::test]
async fn a_wrong_target_is_refused_with_its_field() {
    let api = Api::new();
    api.fake.add_action("core.echo", |_| {});
    let mode = json!({"mode": "pause"});
    for (path, field) in [
        ("everything/x", "scope"),
        ("all/core", "target"),
        ("pack/Core", "target"),
        ("pack/shop", "target"),
        ("action/echo", "target"),
        ("action/core.other", "target"),
    ] {
        let answer = api.put(&format!("/api/v1/pauses/{path}"), &mode).await;
        assert_eq!(answer.error(), (422, "INVALID_INPUT", field), "{path}");
    }
    for path in ["pack/shop", "action/core.other"] {
        let answer = delete(&api, &format!("/api/v1/pauses/{path}")).await;
        assert_eq!(answer.error(), (422, "INVALID_INPUT", "target"), "{path}");
    }
    let path = "/api/v1/pauses/pack/core";
    for (body, status) in [
        (json!({"mode": "stop"}), 422),
        (json!({}), 422),
        (json!({"mode": "pause", "reason": ""}), 422),
        (json!({"mode": "pause", "why": "x"}), 422),
    ] {
        let answer = api.put(path, &body).await;
        assert_eq!(answer.status.as_u16(), status, "{body}: {answer:?}");
    }
    let answer = delete(&api, &format!("{path}?whom=ann")).await;
    assert_eq!(answer.error().2, "whom");
    assert!(api.fake.with(|state| state.pause_changes.is_empty()));
}

#[tokio::test]
async fn what_owners_do_not_confirm_is_pending() {
    let dir = tempfile::tempdir().unwrap();
    let api = Api::recording(Recorder::create(dir.path(), "api").unwrap());
    api.fake.add_action("core.echo", |_| {});
    let path = "/api/v1/pauses/action/core.echo";
    api.put(path, &json!({"mode": "drain"})).await;
    api.fake.with(|state| {
        state.commands_fail = Some(ClientError::NotConfirmed {
            request_id: RequestId::fresh(),
            reason: "silence".to_owned(),
        });
    });
    let answer = delete(&api, path).await;
    assert_eq!(answer.body["applied"], "pending");
    let reason = answer.body["pending_reason"].as_str().unwrap();
    assert!(reason.starts_with("1 of 1 partitions"), "{reason}");
    drop(api);
    let (mut asked, mut outcomes) = (Vec::new(), Vec::new());
    for record in read_dir(dir.path()).unwrap().map(Result::unwrap) {
        match record {
            Record::PauseInvoke {
                pause_id,
                scope,
                target,
                mode,
                ..
            } => {
                assert_eq!((scope.as_str(), target.as_str()), ("action", "core.echo"));
                asked.push((pause_id, mode));
            }
            Record::PauseOk {
                pause_id, in_force, ..
            } => outcomes.push((pause_id, in_force)),
            _ => {}
        }
    }
    let wanted: Vec<_> = asked.iter().map(|(_, mode)| *mode).collect();
    assert_eq!(wanted, [Some(PauseMode::Drain), None]);
    assert_eq!(outcomes, [(asked[0].0, true), (asked[1].0, false)]);
}
