//! Executions as the API reads them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use attune_core::{Attempt, ExecutionId, Priority, Status, Submission, TraceParent};
use serde_json::{Value, json};

use super::support::{World, grant, grant_to, now, raw, start};
use attune_store::{ExecutionRecord, HistoryRetention, RecordRetention, Store};

fn trace() -> Option<TraceParent> {
    TraceParent::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
}

/// Everything a client said about an execution can be read back.
pub async fn everything_about_an_execution_is_kept(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let labels: BTreeMap<_, _> = [("language", "python"), ("ключ", "値 \"x\"")]
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let submission = Submission {
        parameters: raw(r#"{"message": "hi"}"#),
        priority: Some(Priority::Background),
        enforcement_id: Some("rule-7".to_owned()),
        requested_by: Some("ada".to_owned()),
        group: Some("tenant/9".to_owned()),
        labels: labels.clone(),
        not_before: Some("2030-01-02T03:04:05.678901Z".parse().unwrap()),
        timeout_seconds: Some(30),
        requeue_of: Some(ExecutionId(7 << 8)),
        trace: trace(),
        ..Submission::new(action.spec.action_ref.as_str())
    };
    let mut new = world.queued_with(&action, submission);
    new.cancel_requested = true;
    let (id, request_id) = (new.id, new.request_id);
    world.insert(vec![new]).await;
    let record = world.record(id).await;
    let expected = ExecutionRecord {
        id,
        action_id: action.id,
        action_ref: action.spec.action_ref.to_string(),
        status: Status::Queued,
        priority: Priority::Background,
        attempt: Attempt(0),
        grant_no: None,
        request_id,
        enforcement_id: Some("rule-7".to_owned()),
        requested_by: Some("ada".to_owned()),
        group: Some("tenant/9".to_owned()),
        labels,
        parameters: json!({"message": "hi"}),
        not_before: Some("2030-01-02T03:04:05.678901Z".parse().unwrap()),
        timeout_seconds: Some(30),
        cancel_requested: true,
        worker: None,
        created: record.created,
        requested_at: None,
        started_at: None,
        finished_at: None,
        result: None,
        end_code: None,
        error: None,
        exit_code: None,
        stdout: None,
        stderr: None,
        requeue_of: Some(ExecutionId(7 << 8)),
        last_error: None,
        trace: trace(),
    };
    assert_eq!(record, expected);
    let on_page = store
        .list_executions(&attune_store::ExecutionFilter::default(), None, 5)
        .await
        .unwrap();
    assert_eq!(on_page.executions, vec![expected.clone()]);
    assert_eq!(on_page.next, None);
    world.end(&[id], Status::Cancelled).await;
    let ended = world.record(id).await;
    let expected = ExecutionRecord {
        status: Status::Cancelled,
        finished_at: ended.finished_at,
        ..expected
    };
    assert_eq!(ended, expected);
}

/// Where an execution stands is told from its acceptance to its end, as its record tells it.
pub async fn it_is_told_where_an_execution_stands(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let new = world.queued(&action);
    let (id, unknown) = (new.id, world.queued(&action).id);
    assert_eq!(store.find_standing(id).await.unwrap(), None);
    world.insert(vec![new]).await;
    let worker = world.worker("w").await;
    let standing = async || {
        let found = store.find_standing(id).await.unwrap().unwrap();
        let record = world.record(id).await;
        let recorded = (record.status, record.attempt, record.worker);
        assert_eq!((found.status, found.attempt, found.worker), recorded);
        recorded
    };
    assert_eq!(standing().await, (Status::Queued, Attempt(0), None));
    world.update(vec![grant_to(id, 1, worker)]).await;
    let granted = (Status::Requested, Attempt(1), Some(worker));
    assert_eq!(standing().await, granted);
    world.update(vec![start(id, 1, now())]).await;
    let running = (Status::Running, Attempt(1), Some(worker));
    assert_eq!(standing().await, running);
    world.end(&[id], Status::Failed).await;
    let ended = (Status::Failed, Attempt(1), Some(worker));
    assert_eq!(standing().await, ended);
    assert_eq!(store.find_standing(unknown).await.unwrap(), None);
}

/// Parameters come back as they were sent: every script, every number, up to their full size.
pub async fn unicode_and_large_parameters_come_back(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let large = "Ω漢🦀\\n".repeat(80_000);
    let texts = [
        "{}".to_owned(),
        r#"{"":"", "é":"\u00e9\ud83e\udd80", "sql":"'; DROP TABLE execution; --", "esc":"\"\\\/\b\f\n\r\t"}"#.to_owned(),
        r#"{"i":-0, "f":1.0, "e":1E+2, "big":12345678901234567890, "max":9007199254740993, "t":true, "n":null}"#.to_owned(),
        format!("{{\"large\":\"{large}\"}}"),
        format!("{}1{}", r#"{"d":"#.repeat(31), "}".repeat(31)),
    ];
    let mut ids = Vec::new();
    for text in &texts {
        let mut submission = Submission::new(action.spec.action_ref.as_str());
        submission.parameters = raw(text);
        assert_eq!(submission.check(), Ok(()));
        let new = world.queued_with(&action, submission);
        ids.extend(world.insert(vec![new]).await);
    }
    let grants = ids.iter().map(|id| grant(*id, 1)).collect();
    let mut granted = world.update(grants).await.granted;
    granted.sort_unstable_by_key(|body| body.id);
    let mut loaded = store.load_bodies(&ids).await.unwrap();
    loaded.sort_unstable_by_key(|body| body.id);
    for ((text, granted), loaded) in texts.iter().zip(&granted).zip(&loaded) {
        let sent: Value = serde_json::from_str(text).unwrap();
        for body in [granted, loaded] {
            let got: Value = serde_json::from_str(body.parameters.get()).unwrap();
            assert_eq!(got, sent);
        }
        assert_eq!(world.record(granted.id).await.parameters, sent);
    }
    world.end(&ids, Status::Succeeded).await;
    for (text, id) in texts.iter().zip(&ids) {
        let sent: Value = serde_json::from_str(text).unwrap();
        assert_eq!(world.record(*id).await.parameters, sent);
    }
}

/// What an execution was given can be asked for again, to the last digit, while it waits and when it has ended.
pub async fn what_was_given_is_told_as_it_was_written(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let text = r#"{"n":123456789012345678901234567890.1234567890, "e":1E+2}"#;
    let mut submission = Submission::new(action.spec.action_ref.as_str());
    submission.parameters = raw(text);
    let new = world.queued_with(&action, submission);
    let (id, unknown) = (new.id, world.queued(&action).id);
    assert_eq!(store.find_parameters(id).await.unwrap(), None);
    world.insert(vec![new]).await;
    let given = async || store.find_parameters(id).await.unwrap();
    assert_eq!(given().await.as_deref(), Some(text));
    world.update(vec![grant(id, 1)]).await;
    world.end(&[id], Status::Failed).await;
    assert_eq!(given().await.as_deref(), Some(text));
    assert_eq!(store.find_parameters(unknown).await.unwrap(), None);
}

/// The upkeep of the history never touches what has not ended, and can run at any time.
pub async fn upkeep_leaves_what_is_active_alone(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let waiting = world.insert_queued(&action).await;
    let ended = world.insert_requested(&action).await;
    world.end(&[ended], Status::Succeeded).await;
    let long = HistoryRetention {
        history: Duration::from_secs(90 * 24 * 3600),
        requests: Duration::from_secs(24 * 3600),
        records: RecordRetention::USUAL,
    };
    let upkeep: Vec<_> = (0..3)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.maintain_history(long).await })
        })
        .collect();
    for one in upkeep {
        one.await.unwrap().unwrap();
    }
    assert_eq!(world.record(ended).await.status, Status::Succeeded);

    let nothing = HistoryRetention {
        history: Duration::ZERO,
        requests: Duration::ZERO,
        records: RecordRetention::USUAL,
    };
    store.maintain_history(nothing).await.unwrap();
    assert_eq!(world.active_ids().await, vec![waiting]);
    assert_eq!(world.record(waiting).await.status, Status::Queued);
    let stock = store.stock().await.unwrap();
    assert!(stock.days_ahead.is_none_or(|days| days >= 7), "{stock:?}");
    assert_eq!((stock.of_no_day, stock.letters), (0, 0));
    // And the store goes on taking ends.
    world.end(&[waiting], Status::Expired).await;
    assert_eq!(world.active_ids().await, vec![]);
}
