//! Messages that nobody could use: looking at them, and putting them back.

use async_trait::async_trait;
use attune_bus::{Bus as _, Subscriber, Subscription, Topic};
use attune_store::{
    DeadLetter, DeadLetterFilter, DeadLetterRetention, DeadLetterStore, NewDeadLetter, Requeue,
    StoreError,
};
use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::fakes::Fake;
use crate::harness::{Answer, Api};

#[async_trait]
impl DeadLetterStore for Fake {
    async fn add_dead_letters(&self, _letters: &[NewDeadLetter]) -> Result<(), StoreError> {
        self.store(|_| ())
    }

    async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        self.store(|state| {
            let fits = |it: &&DeadLetter| {
                before.is_none_or(|before| it.id < before)
                    && filter.source.as_ref().is_none_or(|only| *only == it.source)
                    && filter.reason.as_ref().is_none_or(|only| *only == it.reason)
                    && filter
                        .requeued
                        .is_none_or(|only| only == it.requeued_at.is_some())
            };
            let found = state.letters.iter().rev().map(|(letter, _)| letter);
            found.filter(fits).take(limit as usize).cloned().collect()
        })
    }

    async fn find_dead_letter(&self, id: i64) -> Result<Option<(DeadLetter, Vec<u8>)>, StoreError> {
        self.store(|state| {
            let found = state.letters.iter().find(|(letter, _)| letter.id == id);
            found.cloned()
        })
    }

    async fn begin_requeue(&self, requeue: &Requeue) -> Result<bool, StoreError> {
        self.store(|state| {
            let waits = waiting(&mut state.letters, requeue).is_some();
            state.begun.extend(waits.then(|| requeue.clone()));
            waits
        })
    }

    async fn mark_requeued(&self, requeue: &Requeue) -> Result<bool, StoreError> {
        self.store(|state| {
            let Some(letter) = waiting(&mut state.letters, requeue) else {
                return false;
            };
            letter.requeued_at = Some(Utc::now());
            letter.requeued_by = Some(requeue.who.name.clone());
            state.requeues.push(requeue.clone());
            true
        })
    }

    async fn prune_dead_letters(&self, _keep: DeadLetterRetention) -> Result<u64, StoreError> {
        self.store(|_| 0)
    }
}

/// The letter, unless it was put back or has come again.
fn waiting<'a>(
    letters: &'a mut [(DeadLetter, Vec<u8>)],
    requeue: &Requeue,
) -> Option<&'a mut DeadLetter> {
    let mut letters = letters.iter_mut().map(|(letter, _)| letter);
    let found = letters.find(|it| it.id == requeue.id && it.arrivals == requeue.arrivals);
    found.filter(|it| it.requeued_at.is_none())
}

/// Keeps a letter, and gives its id.
pub(crate) fn keep(api: &Api, source: &str, body: impl Into<Vec<u8>>) -> i64 {
    let body = body.into();
    api.fake.with(|state| {
        let id = i64::try_from(state.letters.len()).unwrap() + 1;
        let letter = DeadLetter {
            id,
            message_id: Uuid::from_u128(id.unsigned_abs().into()),
            reason: "no such action".to_owned(),
            source: source.to_owned(),
            bytes: body.len() as u64,
            truncated: false,
            arrivals: 1,
            received_at: DateTime::UNIX_EPOCH,
            requeued_at: None,
            requeued_by: None,
            sender: Some("shop".to_owned()),
        };
        state.letters.push((letter, body));
        id
    })
}

pub(crate) fn message(kind: &str, payload: &Value) -> Vec<u8> {
    let message = json!({
        "message_id": Uuid::from_u128(7), "message_type": kind, "version": 1,
        "timestamp": "2026-01-02T03:04:05Z", "payload": payload,
    });
    message.to_string().into_bytes()
}

fn firing() -> Vec<u8> {
    message("enforcement.created", &json!({"action_ref": "core.echo"}))
}

pub(crate) async fn requeue(api: &Api, id: i64) -> Answer {
    let body = r#"{"reason":"mended","who":"ann"}"#;
    api.post(&format!("/api/v1/dead-letters/{id}/requeue"), body)
        .await
}

pub(crate) async fn listen(api: &Api, topic: Topic) -> Subscriber {
    let bus = api.fake.with(|state| state.bus.clone());
    let prefetch = 10;
    bus.subscribe(Subscription { topic, prefetch })
        .await
        .unwrap()
}

#[tokio::test]
async fn letters_are_listed_in_pages_and_bodies_only_if_asked_for() {
    let api = Api::new();
    for source in ["enforcement.created", "execution.completed", "elsewhere"] {
        keep(&api, source, source);
    }
    let page = api.get("/api/v1/dead-letters?limit=2").await;
    assert_eq!(page.status, 200, "{page:?}");
    let letters = page.body["dead_letters"].as_array().unwrap();
    assert_eq!(letters.len(), 2);
    assert_eq!(letters[0]["source"], "elsewhere");
    assert!(letters.iter().all(|letter| letter.get("body").is_none()));
    assert_eq!(page.body["next"], 2);
    let rest = api.get("/api/v1/dead-letters?before=2&include=body").await;
    let letters = rest.body["dead_letters"].as_array().unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0]["body"], "enforcement.created");
    assert_eq!(rest.body["next"], Value::Null);

    for (query, count) in [
        ("source=elsewhere", 1),
        ("source=nowhere", 0),
        ("reason=no%20such%20action", 3),
        ("reason=other", 0),
        ("requeued=true", 0),
        ("requeued=false&source=execution.completed", 1),
    ] {
        let page = api.get(&format!("/api/v1/dead-letters?{query}")).await;
        let found = page.body["dead_letters"].as_array().unwrap().len();
        assert_eq!(found, count, "{query}");
    }
    for (query, field) in [
        ("include=bodies", "include"),
        ("requeued=perhaps", "requeued"),
        ("before=x", "before"),
        ("limit=0", "limit"),
        ("sauce=x", "sauce"),
    ] {
        let answer = api.get(&format!("/api/v1/dead-letters?{query}")).await;
        assert_eq!(answer.error(), (422, "INVALID_INPUT", field), "{query}");
    }
    let shown = api.get("/api/v1/dead-letters/3").await;
    assert_eq!(
        (&shown.body["id"], &shown.body["body"]),
        (&json!(3), &json!("elsewhere"))
    );
    let gone = api.get("/api/v1/dead-letters/4").await;
    assert_eq!(gone.error(), (404, "UNKNOWN_DEAD_LETTER", ""));
    let wrong = api.get("/api/v1/dead-letters/x").await;
    assert_eq!(wrong.error(), (422, "INVALID_INPUT", "id"));
}

#[tokio::test]
async fn a_page_of_bodies_ends_before_it_is_too_large() {
    let mut options = crate::harness::options();
    options.page_bytes = 10_000;
    let api = Api::with(options);
    for _ in 0..5 {
        keep(&api, "elsewhere", "x".repeat(4_000));
    }
    let page = api.get("/api/v1/dead-letters?include=body").await;
    assert_eq!(page.body["dead_letters"].as_array().unwrap().len(), 2);
    assert_eq!(page.body["next"], 4);
}

#[tokio::test]
async fn a_firing_goes_back_as_it_came_and_only_once() {
    let api = Api::new();
    let mut firings = listen(&api, Topic::Enforcements).await;
    let id = keep(&api, "enforcement.created", firing());
    let answer = requeue(&api, id).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(
        answer.body,
        json!({"id": id, "published": true, "executions": []})
    );
    let delivery = firings.try_next().unwrap();
    assert_eq!(delivery.body, firing());
    assert_eq!(delivery.message_id, Some(Uuid::from_u128(1).to_string()));
    let marks = api.fake.with(|state| state.requeues.clone());
    assert_eq!(marks.len(), 1);
    assert_eq!(
        (marks[0].who.name.as_str(), marks[0].reason.as_deref()),
        ("ann", Some("mended"))
    );

    let again = requeue(&api, id).await;
    assert_eq!(again.error(), (409, "ALREADY_REQUEUED", ""));
    assert!(firings.try_next().is_none());
    assert_eq!(api.fake.with(|state| state.begun.len()), 1);
}

/// What an operator puts back is what he looked at, or nothing.
#[tokio::test]
async fn a_letter_that_came_again_since_it_was_looked_at_stays() {
    let api = Api::new();
    let mut firings = listen(&api, Topic::Enforcements).await;
    let id = keep(&api, "enforcement.created", firing());
    api.fake.with(|state| state.letters[0].0.arrivals = 3);
    let path = format!("/api/v1/dead-letters/{id}/requeue");
    let stale = api.post(&path, r#"{"arrivals":2}"#).await;
    assert_eq!(stale.error(), (409, "CONFLICT", ""));
    assert!(stale.body.to_string().contains("3 times"), "{stale:?}");
    assert!(firings.try_next().is_none());
    assert!(api.fake.with(|state| state.begun.is_empty()));
    let fresh = api.post(&path, r#"{"arrivals":3}"#).await;
    assert_eq!(fresh.status, 200, "{fresh:?}");
    assert!(firings.try_next().is_some());
}

/// Who wanted it is known before anything is done, whatever becomes of it.
#[tokio::test]
async fn what_is_about_to_be_done_is_written_down_first() {
    let api = Api::new();
    let body = message("execution.completed", &json!([]));
    let id = keep(&api, "execution.completed", body);
    let nobody_listens = requeue(&api, id).await;
    assert_eq!(nobody_listens.error(), (503, "OVERLOADED", ""));
    let (begun, done) = api
        .fake
        .with(|state| (state.begun.clone(), state.requeues.len()));
    assert_eq!((begun.len(), done), (1, 0));
    assert_eq!(
        (begun[0].who.name.as_str(), begun[0].reason.as_deref()),
        ("ann", Some("mended"))
    );
}

#[tokio::test]
async fn what_cannot_go_back_stays_and_says_why() {
    let api = Api::new();
    let nobody = keep(
        &api,
        "execution.completed",
        message("execution.completed", &json!([])),
    );
    let full = requeue(&api, nobody).await;
    assert_eq!(
        full.error(),
        (503, "OVERLOADED", ""),
        "nobody ever listened"
    );
    let garbage = keep(&api, "enforcement.created", "no JSON");
    let lost = keep(
        &api,
        "execution.cancel",
        message("execution.cancel", &json!([])),
    );
    let foreign = keep(
        &api,
        "partition.09.commands",
        message("partition.cancel", &json!([])),
    );
    let dispatch = keep(
        &api,
        "execution.requested.default",
        message(
            "execution.requested",
            &json!([{"execution_id": 256, "attempt": 1}]),
        ),
    );
    for id in [garbage, lost, foreign, dispatch] {
        assert_eq!(
            requeue(&api, id).await.error(),
            (422, "INVALID_INPUT", "id")
        );
    }
    assert_eq!(
        requeue(&api, 99).await.error(),
        (404, "UNKNOWN_DEAD_LETTER", "")
    );
    let path = format!("/api/v1/dead-letters/{garbage}/requeue");
    let unknown = api.post(&path, r#"{"why":"x"}"#).await;
    assert_eq!(unknown.error().0, 422);
    assert!(api.fake.with(|state| state.requeues.is_empty()));
}
