//! Why an execution does not run yet.

use std::time::Duration;

use attune_commands::ClientError;
use attune_core::explain::{
    Basis, Estimate, Explanation, Lack, LimitHolder, OrderKey, QueueState, Reason,
};
use attune_core::{
    Attempt, Epoch, ExecutionId, OwnerId, PartitionId, PauseMode, Priority, Reject, RejectCode,
    RequestId, Seq, Status,
};
use attune_messages::v1::Accepted;
use attune_store::{Lease, LeaseTrouble, Pause};
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::json;

use crate::fakes::{State, accepted, execution_id, record};
use crate::harness::Api;

impl State {
    /// As an owner does.
    pub(crate) fn explain(&mut self, id: ExecutionId) -> Result<Accepted, ClientError> {
        if let Some(stored) = self.executions.get_mut(&id)
            && let Some(status) = self.after_explain
        {
            stored.status = status;
        }
        match (&self.commands_fail, &self.explanation) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(explanation)) => Ok(Accepted {
                explanation: Some(Box::new(explanation.clone())),
                ..accepted(id, false)
            }),
            (None, None) => Err(ClientError::Rejected(Reject::new(
                RejectCode::AlreadyEnded,
                "neither waits nor runs",
            ))),
        }
    }
}

fn time(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000, 0).unwrap() + TimeDelta::seconds(seconds)
}

fn said(state: QueueState, waits_for: Vec<Reason>) -> Explanation {
    Explanation {
        state,
        attempt: Attempt(0),
        priority: Priority::Normal,
        at: time(0),
        waits_for,
        next_time: None,
        expires_at: None,
        position: Some(1),
        is_about: false,
        order_key: Some(OrderKey {
            key: 2,
            seq: Seq(7),
        }),
        estimate: None,
        no_estimate: None,
        policy_version: Some(3),
    }
}

fn api(status: Status, explanation: Option<Explanation>) -> Api {
    let api = Api::new();
    api.fake.with(|state| {
        let stored = record(1, status, 10);
        state.executions.insert(stored.id, stored);
        state.explanation = explanation;
    });
    api
}

fn path() -> String {
    format!("/api/v1/executions/{}/explain", execution_id(1))
}

#[tokio::test]
async fn what_the_owner_says_is_told_with_words_and_pauses() {
    let limit = Reason::Limit(Lack {
        capacity: 2,
        used: 2,
        cost: 1,
        ahead: 1,
        holders: vec![LimitHolder {
            execution_id: execution_id(0),
            attempt: Attempt(1),
            cost: 1,
            since: Some(time(-3)),
            kept_until: None,
        }],
        more_holders: 1,
        is_shared: false,
    });
    let mut explanation = said(QueueState::Waiting, vec![limit]);
    explanation.estimate = Some(Estimate {
        starts_at: time(4),
        earliest: time(2),
        latest: time(9),
        basis: Basis {
            samples: 12,
            mean_ms: 2_000,
            deviation_ms: 100,
            age_ms: 500,
        },
    });
    let api = api(Status::Queued, Some(explanation));
    api.fake.with(|state| {
        state.pauses.held.push(Pause {
            target: attune_core::PauseTarget::All,
            mode: PauseMode::Pause,
            since: time(-9),
            who: "ann".to_owned(),
            reason: None,
        });
    });
    let answer = api.get(&path()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let body = &answer.body;
    assert_eq!(
        (&body["state"], &body["status"], &body["position"]),
        (&json!("waiting"), &json!("queued"), &json!(1))
    );
    assert_eq!(
        body["waits"],
        "for a slot: 2 of 2 are taken, 1 waits before it"
    );
    assert_eq!(
        (&body["policy_version"], &body["limit_scope"]),
        (&json!(3), &json!("action"))
    );
    let lack = &body["waits_for"][0];
    assert_eq!((&lack["kind"], &lack["used"]), (&json!("limit"), &json!(2)));
    assert_eq!(lack["holders"][0]["execution_id"], json!(execution_id(0)));
    assert_eq!(body["order_key"], json!({"key": 2, "seq": 7}));
    assert_eq!(body["pauses"][0]["who"], "ann");
    assert_eq!(body["estimate"]["basis"]["samples"], 12);
    let starts = body["starts"].as_str().unwrap();
    assert!(starts.starts_with("in about 4.0s, in four of five cases 2.0s to 9.0s"));
}

#[tokio::test]
async fn who_has_ended_since_the_owner_answered_is_not_said_to_wait() {
    let explanation = said(QueueState::Waiting, vec![Reason::NextRound]);
    let api = api(Status::Queued, Some(explanation));
    api.fake
        .with(|state| state.after_explain = Some(Status::Cancelled));
    let answer = api.get(&path()).await;
    assert_eq!(
        (&answer.body["state"], &answer.body["status"]),
        (&json!("ended"), &json!("cancelled")),
        "{answer:?}"
    );
    assert_eq!(answer.body["waits_for"], json!([]));
}

#[tokio::test]
async fn who_holds_a_slot_and_who_has_ended_waits_for_none() {
    for (status, waits) in [
        (
            Status::Requested,
            "for its worker to say that it runs: it holds a slot",
        ),
        (Status::Running, "for nothing: it holds a slot"),
    ] {
        let api = api(status, Some(said(QueueState::HoldsSlot, Vec::new())));
        let answer = api.get(&path()).await;
        assert_eq!(answer.body["waits"], waits, "{answer:?}");
        assert_eq!(answer.body["state"], "holds_slot");
    }
    let api = api(Status::Succeeded, None);
    let answer = api.get(&path()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.body["state"], "ended");
    assert_eq!(answer.body["waits"], "for nothing: it has ended, succeeded");
}

#[tokio::test]
async fn what_does_not_exist_and_what_is_no_id_is_refused() {
    let api = Api::new();
    let answer = api.get(&path()).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.body["error"]["code"]),
        (404, &json!("UNKNOWN_EXECUTION"))
    );
    let answer = api.get("/api/v1/executions/x/explain").await;
    assert_eq!(
        (answer.status.as_u16(), &answer.body["error"]["field"]),
        (422, &json!("id"))
    );
}

/// It may have been granted to nobody yet, or be on its way to the history.
#[tokio::test]
async fn an_owner_that_does_not_know_it_is_asked_again() {
    let api = api(Status::Queued, None);
    let answer = api.get(&path()).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.body["error"]["code"]),
        (503, &json!("NO_ANSWER"))
    );
}

#[tokio::test]
async fn without_an_answer_it_is_said_who_should_have_given_it() {
    let lease = |owned: bool, trouble: Option<&str>| Lease {
        partition: PartitionId(0),
        owner: owned.then(OwnerId::fresh),
        owner_name: owned.then(|| "x-1".to_owned()),
        epoch: Epoch(1),
        remaining: Duration::from_secs(if owned { 9 } else { 0 }),
        free_for: Duration::ZERO,
        wanted_owner: None,
        holder: None,
        renewals: 1,
        ttl: Duration::from_secs(10),
        trouble: trouble.map(|words| LeaseTrouble {
            since: time(0),
            words: words.to_owned(),
        }),
    };
    for (lease, expected) in [
        (
            lease(true, None),
            "the executor \"x-1\" owns partition 0 of execution",
        ),
        (
            lease(true, Some("disk full")),
            "has not answered (disk full)",
        ),
        (lease(false, None), "nobody owns partition 0 of execution"),
    ] {
        let api = api(Status::Queued, None);
        api.fake.with(|state| {
            state.partition_leases = vec![lease];
            state.commands_fail = Some(ClientError::NotConfirmed {
                request_id: RequestId::fresh(),
                reason: "its owner has not answered".to_owned(),
            });
        });
        let answer = api.get(&path()).await;
        let error = &answer.body["error"];
        assert_eq!(
            (answer.status.as_u16(), &error["code"]),
            (503, &json!("NO_ANSWER"))
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(expected), "{message}");
        assert!(message.contains("ask again in 5 s"), "{message}");
        assert_eq!(error["retry_after_seconds"], 5);
    }
}
