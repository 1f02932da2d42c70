//! Ends: an execution leaves the active ones and stays in the history as it was.

use std::sync::Arc;
use std::time::Duration;

use attune_core::{EndCode, Outcome, Status};
use serde_json::json;

use super::support::{World, end, now, raw, start};
use attune_store::{Batch, End, ExecutionRecord, Store};

/// An end keeps everything that was known, and adds what the run left behind.
pub async fn an_end_moves_into_the_history(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let worker = world.worker("w").await;
    let id = world.insert_running(&action, worker).await;
    let before = world.record(id).await;
    assert_eq!(before.finished_at, None);

    let outcome = Arc::new(Outcome {
        status: Status::Failed,
        code: Some(EndCode::Replaced),
        result: Some(raw(r#"{"answer": [42, 1.5, "ü"]}"#)),
        error: Some("it broke".to_owned()),
        exit_code: Some(3),
        stdout: Some("out\n\ttab \"quoted\" 'single' \\ back".to_owned()),
        stderr: Some(String::new()),
    });
    let ran = Some(Duration::from_secs(60));
    let ends = vec![End { id, outcome, ran }];
    let committed = world
        .commit(&Batch {
            ends,
            ..world.batch()
        })
        .await;
    assert_eq!(committed.ended, 1);

    let after = world.record(id).await;
    assert!(
        after
            .finished_at
            .is_some_and(|at| at >= before.started_at.unwrap())
    );
    let expected = ExecutionRecord {
        status: Status::Failed,
        finished_at: after.finished_at,
        result: Some(json!({"answer": [42, 1.5, "ü"]})),
        end_code: Some("REPLACED".to_owned()),
        error: Some("it broke".to_owned()),
        exit_code: Some(3),
        stdout: Some("out\n\ttab \"quoted\" 'single' \\ back".to_owned()),
        stderr: Some(String::new()),
        ..before
    };
    assert_eq!(after, expected);
    assert_eq!(after.worker, Some(worker));
    assert_eq!(world.active_ids().await, vec![]);
    world.update(vec![start(id, 1, now())]).await;
    assert_eq!(world.record(id).await, after, "what has ended cannot start");
}

/// What ends in the round in which it was accepted is never active.
pub async fn an_instant_end_goes_straight_to_the_history(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let mut new = world.queued(&action);
    Arc::make_mut(&mut new.submission).parameters = raw(r#"{"k":"v"}"#);
    Arc::make_mut(&mut new.submission).requested_by = Some("ada".to_owned());
    let outcome = Arc::new(Outcome::of(Status::Rejected, Some("queue full".to_owned())));
    world
        .commit(&Batch {
            instant: vec![(new.clone(), outcome)],
            ..world.batch()
        })
        .await;

    assert_eq!(world.active_ids().await, vec![]);
    let record = world.record(new.id).await;
    assert_eq!(record.status, Status::Rejected);
    assert_eq!(record.error.as_deref(), Some("queue full"));
    assert_eq!(record.parameters, json!({"k": "v"}));
    assert_eq!(record.requested_by.as_deref(), Some("ada"));
    assert_eq!(record.finished_at, Some(record.created));
    let known = store.look_up(&[new.request_id], &[]).await.unwrap();
    assert_eq!(known.requests.len(), 1);
    assert_eq!(known.requests[0].execution_id, new.id);
    assert_eq!(known.requests[0].status, Status::Rejected);
}

/// An end that finds nothing is not counted and leaves the first end as it is.
pub async fn ends_are_counted_once(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let (one, two) = (
        world.insert_requested(&action).await,
        world.insert_queued(&action).await,
    );
    assert_eq!(world.end(&[one], Status::Succeeded).await.ended, 1);
    let first = world.record(one).await;
    let unknown = world.queued(&action).id;
    let committed = world
        .commit(&Batch {
            ends: vec![
                end(unknown, Status::Failed),
                end(two, Status::Expired),
                end(one, Status::Failed),
            ],
            ..world.batch()
        })
        .await;
    assert_eq!(committed.ended, 1);
    assert_eq!(world.record(one).await, first);
    assert_eq!(world.record(two).await.status, Status::Expired);
    assert_eq!(store.find_execution(unknown).await.unwrap(), None);
}

/// Whatever a program wrote, its end can be stored: one outcome must not hold a batch back.
pub async fn a_hostile_outcome_is_stored(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let results = [
        r#"{"nul": "a\u0000b"}"#.to_owned(),
        r#"{"lone": "\ud800"}"#.to_owned(),
        r#"{"huge": 1e999}"#.to_owned(),
        format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)),
        r#"{"twice": 1, "twice": 2}"#.to_owned(),
    ];
    let mut ids = Vec::new();
    let mut ends = Vec::new();
    for result in &results {
        let id = world.insert_requested(&action).await;
        ids.push(id);
        ends.push(End {
            id,
            outcome: Arc::new(Outcome {
                result: Some(raw(result)),
                error: Some("nul \0 here".to_owned()),
                stdout: Some("before \0 after".to_owned()),
                stderr: Some("\0".to_owned()),
                ..Outcome::succeeded(None)
            }),
            ran: None,
        });
    }
    let committed = world
        .commit(&Batch {
            ends,
            ..world.batch()
        })
        .await;
    assert_eq!(committed.ended, 5);
    for id in ids {
        let record = world.record(id).await;
        assert_eq!(record.status, Status::Succeeded);
        assert!(record.result.is_some(), "a result is kept in some form");
        let stdout = record.stdout.unwrap();
        assert!(stdout.starts_with("before ") && stdout.ends_with(" after"));
    }
}
